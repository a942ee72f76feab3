module throng/bench/tls/clients

go 1.21
