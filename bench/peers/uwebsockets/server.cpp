// Echo at any path, broadcast at /ws/...: uwebsockets PORT [deflate|context|tls CERT KEY]
#include "App.h"

#include <cstdio>
#include <cstdlib>
#include <string>

struct Empty {};

struct Member {
    std::string channel; // empty: echo
};

template <typename App>
static void serve(App app, int argc, char **argv) {
    int port = argc >= 2 ? atoi(argv[1]) : 0;
    static bool compress = argc == 3;
    bool context = compress && std::string_view(argv[2]) == "context";
    auto compression = uWS::CompressOptions(!compress ? uWS::DISABLED
        : context ? uWS::DEDICATED_COMPRESSOR | uWS::DEDICATED_DECOMPRESSOR
                  : uWS::SHARED_COMPRESSOR | uWS::SHARED_DECOMPRESSOR);
    app.template ws<Member>("/ws/*", {
        .compression = compression,
        .maxPayloadLength = 64 * 1024 * 1024,
        .idleTimeout = 600,
        .maxBackpressure = 256 * 1024 * 1024,
        .upgrade = [](auto *res, auto *req, auto *context) {
            res->template upgrade<Member>({std::string(req->getUrl())}, req->getHeader("sec-websocket-key"),
                req->getHeader("sec-websocket-protocol"), req->getHeader("sec-websocket-extensions"), context);
        },
        .open = [](auto *ws) { ws->subscribe(ws->getUserData()->channel); },
        .message = [](auto *ws, std::string_view message, uWS::OpCode code) {
            ws->publish(ws->getUserData()->channel, message, code, compress);
        },
    }).template ws<Empty>("/*", {
        .compression = compression,
        .maxPayloadLength = 64 * 1024 * 1024,
        .idleTimeout = 600,
        .maxBackpressure = 256 * 1024 * 1024,
        .message = [](auto *ws, std::string_view message, uWS::OpCode code) { ws->send(message, code, compress); },
    }).listen("127.0.0.1", port, [port](auto *listener) {
        if (!listener) {
            fprintf(stderr, "uwebsockets: cannot listen on port %d\n", port);
            exit(1);
        }
    }).run();
}

int main(int argc, char **argv) {
#ifdef LIBUS_USE_OPENSSL
    if (argc == 5) {
        // Without its mode of little memory, which is slower.
        serve(uWS::SSLApp({.key_file_name = argv[4], .cert_file_name = argv[3]}), argc, argv);
        return 0;
    }
#endif
    serve(uWS::App(), argc, argv);
}
