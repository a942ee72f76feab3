//! Memory of the real binary: the memory of a storm is released after it.

#[cfg(all(feature = "balance", feature = "tls"))]
use std::io::{Read, Write};
#[cfg(all(feature = "balance", feature = "tls"))]
use std::net::{SocketAddr, TcpListener, TcpStream};
#[cfg(all(feature = "balance", feature = "tls"))]
use std::sync::Arc;

#[cfg(all(feature = "balance", feature = "tls"))]
use rustls::pki_types::CertificateDer;
use throng_proto::ws::Opcode;
use throng_testkit::eventually;

use crate::support::{Client, Got, Served, exchange};

const MIB: usize = 1 << 20;

/// Echoes of 4 MiB to clients that do not read them.
fn storm(served: &Served) -> Vec<Client> {
    let message = vec![7; 4 * MIB];
    let clients = (0..60).map(|_| {
        let mut client = Client::connect(served.addresses[0], "/echo");
        client.send(Opcode::Binary, &message);
        client
    });
    clients.collect()
}

#[test]
fn memory_of_slow_readers_is_freed_when_they_are_gone() {
    let served = Served::start(&["--listen", "127.0.0.1:0"]);
    drop(Client::connect(served.addresses[0], "/echo"));
    let before = served.resident();
    for round in 0..3 {
        let clients = storm(&served);
        eventually("the echoes are in memory", || served.resident() > before + 60 * MIB);
        drop(clients);
        let most = before + before / 5 + 32 * MIB;
        let what = format!("round {round}: less than {} MiB are resident", most / MIB);
        eventually(&what, || served.resident() <= most);
    }
}

/// Messages of 60 bytes to 900 members that do not read: each may have a mebibyte in its queue.
#[test]
fn a_process_of_one_gibibyte_outlives_members_that_do_not_read() {
    let served = Served::start_with_memory(1 << 30, &["--listen", "127.0.0.1:0"]);
    let members: Vec<_> =
        (0..900).map(|_| Client::connect(served.addresses[0], "/ws/news")).collect();
    let mut publisher = Client::connect(served.addresses[0], "/ws/news");
    let mut honest = Client::connect(served.addresses[0], "/echo");
    let message = [b'x'; 60];
    let mut ended = 0;
    while ended == 0 {
        for _ in 0..1000 {
            publisher.send(Opcode::Text, &message);
        }
        ended = figure(&served, "memory_ended") + figure(&served, "slow_consumers");
    }
    // The same again, after the limit was reached.
    for _ in 0..20_000 {
        publisher.send(Opcode::Text, &message);
    }
    honest.send(Opcode::Text, b"still here");
    assert_eq!(honest.next(), Got::Text("still here".to_owned()));
    drop(members);
}

/// A backend whose answers are longer than all buffers on the way.
#[cfg(all(feature = "balance", feature = "tls"))]
fn endless_backend() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for socket in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                let mut socket = socket;
                throng_testkit::read_head(&mut socket);
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", 1_u64 << 40);
                let mut sent = socket.write_all(head.as_bytes());
                let part = vec![b'x'; MIB];
                while sent.is_ok() {
                    sent = socket.write_all(&part);
                }
            });
        }
    });
    address
}

/// A client over TLS that has read the first byte of an answer, and reads no more.
#[cfg(all(feature = "balance", feature = "tls"))]
fn stalled_download(
    address: SocketAddr,
    config: &Arc<rustls::ClientConfig>,
) -> rustls::StreamOwned<rustls::ClientConnection, TcpStream> {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.connect(&address.into()).unwrap();
    let name = "localhost".try_into().unwrap();
    let tls = rustls::ClientConnection::new(Arc::clone(config), name).unwrap();
    let mut client = rustls::StreamOwned::new(tls, TcpStream::from(socket));
    client.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    client.read_exact(&mut [0]).unwrap();
    client
}

/// glibc keeps some 50 MiB of 400 such clients if nothing makes it return them.
#[cfg(all(feature = "balance", feature = "tls"))]
#[test]
fn memory_of_stalled_downloads_over_tls_is_freed_when_their_clients_are_gone() {
    let folder = throng_testkit::TempFolder::new("stalled");
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let chain = folder.write("chain.pem", made.cert.pem());
    let key = folder.write("key.pem", made.signing_key.serialize_pem());
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from(made.cert.der().to_vec())).unwrap();
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let config = rustls::ClientConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let config = Arc::new(config);
    let mut command = crate::support::throng();
    command.args(["balance", "--listen", "127.0.0.1:0", "--shards", "2", "--backend"]);
    command.arg(endless_backend().to_string()).arg("--tls-cert").arg(&chain);
    let balancer = Served::spawn(command.arg("--tls-key").arg(&key));
    let address = balancer.addresses[0];
    drop(stalled_download(address, &config));
    let before = balancer.resident();
    for round in 0..2 {
        let clients: Vec<_> = (0..400).map(|_| stalled_download(address, &config)).collect();
        eventually("the downloads are in memory", || balancer.resident() > before + 30 * MIB);
        drop(clients);
        let most = before + 12 * MIB;
        let what = format!("round {round}: less than {} MiB are resident", most / MIB);
        eventually(&what, || balancer.resident() <= most);
    }
}

fn figure(served: &Served, name: &str) -> u64 {
    let mut stream = served.dial();
    let answer = exchange(
        &mut stream,
        "GET /stats.json HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
    );
    if answer.status() != 200 {
        return 0;
    }
    let stats: serde_json::Value = serde_json::from_str(answer.text()).unwrap();
    stats[name].as_u64().unwrap()
}
