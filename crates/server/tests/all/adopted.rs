//! Connections that another part of the program has accepted, or upgraded.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;

use throng::prelude::*;
use throng::server::{IoBackend, Observe, Shards};
use throng_proto::ws::{self, Opcode};

use crate::support::served::stop;
use crate::support::{BACKENDS, Client, Got, TIMEOUT, dial, exchange};

const HANDSHAKE: &str = "GET /rooms/7 HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\n\
                         Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
                         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

fn app() -> App {
    let room = Ws::from_request(|request| {
        let refused = request.header("x-refused").map(|status| status.parse().unwrap_or(403));
        match refused {
            Some(status) => Err(Reject::status(Status::new(status))),
            None => Ok(format!("room {}", request.param("id").unwrap_or_default())),
        }
    })
    .on_open(|ws, room| {
        ws.send(&*room);
    })
    .on_message(|ws, _, message| ws.send(message));
    App::new()
        .get("/", |request| format!("to {}", request.peer().is_some()))
        .post("/sum", |request| {
            request.body().iter().map(|&b| u32::from(b - b'0')).sum::<u32>().to_string()
        })
        .ws("/rooms/{id}", room.subprotocols(["chat"]))
}

fn start(server: Server) -> Running {
    let bound = server.without_listener().unwrap();
    assert!(bound.local_addrs().is_empty());
    bound.start().unwrap()
}

/// A listener of the program, which passes each connection to `give`.
fn listen(mut give: impl FnMut(TcpStream) + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || listener.incoming().for_each(|stream| give(stream.unwrap())));
    address
}

fn text(text: &str) -> Vec<u8> {
    let mut frame = Vec::new();
    ws::encode_masked(Opcode::Text, text.as_bytes(), [1, 2, 3, 4], &mut frame);
    frame
}

#[test]
fn connections_that_were_accepted_elsewhere_are_served() {
    for io in BACKENDS {
        let running = start(Server::new(app()).shards(Shards::new().io(io)));
        let hub = running.hub();
        let address = listen(move |stream| hub.adopt(stream, &[]).unwrap());
        let request = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        let answer = exchange(address, request);
        assert!(answer.ends_with("\r\n\r\nto true"), "{io:?}: {answer}");
        let mut clients: Vec<Client> =
            (0..9).map(|n| Client::connect(address, &format!("/rooms/{n}"))).collect();
        for (n, client) in clients.iter_mut().enumerate() {
            assert_eq!(client.next(), Got::Text(format!("room {n}")));
            client.send_text("echo");
            assert_eq!(client.next(), Got::Text("echo".into()));
        }
        crate::support::eventually("they are counted", || running.stats().connections == 9);
        running.stopper().shutdown(DrainPlan::default().window(std::time::Duration::ZERO));
        for client in &mut clients {
            assert_eq!(client.next(), Got::Close(1001, "going away".into()));
        }
        drop(clients);
        running.wait().unwrap();
    }
}

#[test]
fn bytes_that_were_read_elsewhere_come_first() {
    let whole = [HANDSHAKE.as_bytes(), b"\r\n", &text("one"), &text("two")].concat();
    for io in BACKENDS {
        let running = start(Server::new(app()).shards(Shards::new().io(io)));
        // Nothing, part of the head, the head and half a frame, and all.
        for cut in [0, 1, 30, whole.len() - 3, whole.len()] {
            let hub = running.hub();
            let address = listen(move |mut stream| {
                let mut read = vec![0; cut];
                stream.read_exact(&mut read).unwrap();
                hub.adopt(stream, &read).unwrap();
            });
            let mut stream = dial(address);
            stream.write_all(&whole).unwrap();
            let head = crate::support::read_head(&mut stream);
            assert!(head.starts_with("HTTP/1.1 101 "), "{io:?} {cut}: {head}");
            let mut client = Client::opened(stream);
            for expected in ["room 7", "one", "two"] {
                assert_eq!(client.next(), Got::Text(expected.into()), "{io:?} {cut}");
            }
        }
        // Requests in a row, the second with half of its body.
        let two = b"GET / HTTP/1.1\r\nHost: x\r\n\r\nPOST /sum HTTP/1.1\r\nHost: x\r\n\
                    Connection: close\r\nContent-Length: 4\r\n\r\n12";
        let (hub, len) = (running.hub(), two.len());
        let address = listen(move |mut stream| {
            let mut read = vec![0; len];
            stream.read_exact(&mut read).unwrap();
            hub.adopt(stream, &read).unwrap();
        });
        let answers = exchange(address, &[&two[..], b"34"].concat());
        assert!(
            answers.contains("to true") && answers.ends_with("\r\n\r\n10"),
            "{io:?}: {answers}"
        );
        stop(running);
    }
}

#[test]
fn limits_hold_for_them() {
    for io in BACKENDS {
        let limits = Limits::default().max_connections_per_address(1);
        let limits = limits.max_header_bytes(200);
        let running = start(Server::new(app()).shards(Shards::new().io(io)).limits(limits));
        let hub = running.hub();
        let address = listen(move |stream| hub.adopt(stream, b"GET / HTTP/1.1\r\n").unwrap());
        let first = dial(address);
        crate::support::eventually("it is served", || running.stats().connections == 1);
        let second = exchange(address, b"Host: x\r\n\r\n");
        assert!(second.starts_with("HTTP/1.1 429 "), "{io:?}: {second}");
        drop(first);
        crate::support::eventually("the first has ended", || running.stats().connections == 0);
        let long = exchange(address, format!("X: {}\r\n\r\n", "x".repeat(300)).as_bytes());
        assert!(long.starts_with("HTTP/1.1 431 "), "{io:?}: {long}");
        stop(running);
    }
}

#[cfg(unix)]
#[test]
fn a_connection_of_a_unix_socket_has_no_address() {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    for io in BACKENDS {
        let running = start(Server::new(app()).shards(Shards::new().io(io)));
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(TIMEOUT)).unwrap();
        running.hub().adopt(TcpStream::from(OwnedFd::from(theirs)), &[]).unwrap();
        ours.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        ours.read_to_string(&mut answer).unwrap();
        assert!(answer.ends_with("\r\n\r\nto false"), "{io:?}: {answer}");
        stop(running);
    }
}

#[test]
fn a_hub_without_a_server_refuses_them() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let stream = dial(listener.local_addr().unwrap());
    let error = Hub::new().adopt(stream, &[]).unwrap_err();
    assert!(error.to_string().contains("not bound yet"), "{error}");
}

#[cfg(feature = "http")]
mod upgraded {
    use throng::embed::Upgrade;

    use super::*;

    /// The other library's part: reads a request, and what came with it.
    fn read_request(stream: &mut TcpStream) -> (http::Request<()>, Vec<u8>) {
        let mut bytes = vec![0; 64 << 10];
        let mut len = 0;
        let end = loop {
            len += stream.read(&mut bytes[len..]).unwrap();
            let found = bytes[..len].windows(4).position(|end| end == b"\r\n\r\n");
            if let Some(at) = found {
                break at + 4;
            }
        };
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
        let mut lines = head.trim_end().lines();
        let mut first = lines.next().unwrap().split(' ');
        let mut request =
            http::Request::builder().method(first.next().unwrap()).uri(first.next().unwrap());
        for line in lines {
            let (name, value) = line.split_once(": ").unwrap();
            request = request.header(name, value);
        }
        (request.body(()).unwrap(), bytes[end..len].to_vec())
    }

    /// Upgrades connections, and gives them to a server.
    fn upgrade_for(hub: Hub, subprotocol: Option<&'static str>) -> SocketAddr {
        listen(move |mut stream| {
            let (request, received) = read_request(&mut stream);
            let mut upgrade = Upgrade::new(&request).expect("a handshake");
            if let Some(name) = subprotocol {
                upgrade = upgrade.subprotocol(name).unwrap();
            }
            let mut head = "HTTP/1.1 101 Switching Protocols\r\n".to_owned();
            for (name, value) in upgrade.response().headers() {
                head += &format!("{name}: {}\r\n", value.to_str().unwrap());
            }
            stream.write_all((head + "\r\n").as_bytes()).unwrap();
            upgrade.adopt(&hub, stream, &received).unwrap();
        })
    }

    fn open(address: SocketAddr, fields: &str, early: &[u8]) -> (String, Client) {
        let mut stream = dial(address);
        let request = format!("{HANDSHAKE}{fields}\r\n");
        stream.write_all(&[request.as_bytes(), early].concat()).unwrap();
        let head = crate::support::read_head(&mut stream);
        (head, Client::opened(stream))
    }

    #[test]
    fn an_upgrade_of_another_library_becomes_a_session() {
        for io in BACKENDS {
            let running = start(Server::new(app()).shards(Shards::new().io(io)));
            let address = upgrade_for(running.hub(), None);
            // The client's other offers were not accepted.
            let offers = "Sec-WebSocket-Extensions: permessage-deflate\r\n\
                          Sec-WebSocket-Protocol: chat\r\n";
            let (head, mut client) = open(address, offers, &text("early"));
            // The example of RFC 6455 section 1.3.
            assert!(head.contains("sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "{head}");
            assert!(!head.to_lowercase().contains("sec-websocket-protocol"), "{head}");
            for expected in ["room 7", "early"] {
                assert_eq!(client.next(), Got::Text(expected.into()), "{io:?}");
            }
            client.send_text("later");
            assert_eq!(client.next(), Got::Text("later".into()));
            assert_eq!(running.stats().protocol_errors, 0);
            stop(running);
        }
    }

    struct Bytes(std::sync::mpsc::Sender<(Option<u64>, Option<u64>)>);

    impl throng::server::AccessLog for Bytes {
        fn record(&self, access: &throng::server::AccessEntry<'_>) {
            let _ = self.0.send((access.bytes_in, access.bytes_out));
        }
    }

    #[test]
    fn bytes_of_an_upgraded_connection_are_in_its_record() {
        for io in BACKENDS {
            let (sender, records) = std::sync::mpsc::channel();
            let running = start(
                Server::new(app())
                    .shards(Shards::new().io(io))
                    .observe(Observe::new().access_log(Bytes(sender))),
            );
            let address = upgrade_for(running.hub(), None);
            let (_, mut client) = open(address, "", &[]);
            assert_eq!(client.next(), Got::Text("room 7".into()));
            drop(client);
            let (bytes_in, bytes_out) = records.recv_timeout(TIMEOUT).unwrap();
            assert!(bytes_in > Some(100) && bytes_out > Some(100), "{io:?}: {bytes_in:?}");
            stop(running);
        }
    }

    #[test]
    fn an_upgraded_connection_moves_to_the_event_loop_of_its_key() {
        let room = || {
            Ws::from_request(|request| Ok(request.param("id").unwrap_or_default().to_owned()))
                .place_by(|room: &String| room)
                .on_open(|ws, _| {
                    let count = ws.shard_state::<usize>();
                    *count += 1;
                    let text = count.to_string();
                    ws.send(text);
                })
                .on_message(|ws, _, message| ws.send(message))
        };
        for io in [IoBackend::Auto, IoBackend::Portable] {
            let app = App::new().ws("/rooms/{id}", room());
            let running = start(Server::new(app).shards(Shards::new().io(io).count(3)));
            let address = upgrade_for(running.hub(), None);
            // They are given to the event loops in turn.
            let clients: Vec<Client> = (1..=6)
                .map(|count: usize| {
                    let (_, mut client) = open(address, "", &text("early"));
                    for expected in [&*count.to_string(), "early"] {
                        assert_eq!(client.next(), Got::Text(expected.into()), "{io:?}");
                    }
                    client
                })
                .collect();
            drop(clients);
            stop(running);
        }
    }

    #[test]
    fn the_subprotocol_of_the_response_is_that_of_the_session() {
        let named = Ws::new().on_open(|ws, ()| {
            let name = ws.subprotocol().unwrap_or("none").to_owned();
            ws.send(name);
        });
        let route = named.subprotocols(["chat", "other"]);
        let running = start(Server::new(App::new().ws("/rooms/{id}", route)));
        let address = upgrade_for(running.hub(), Some("other"));
        let (head, mut client) = open(address, "Sec-WebSocket-Protocol: chat, other\r\n", &[]);
        assert!(head.contains("sec-websocket-protocol: other\r\n"), "{head}");
        assert_eq!(client.next(), Got::Text("other".into()));
        stop(running);
    }

    #[test]
    fn a_refusal_that_comes_too_late_is_a_close_frame() {
        for io in BACKENDS {
            let nothing = Server::new(App::new().get("/rooms/{id}", |_| "no WebSocket"))
                .shards(Shards::new().io(io));
            let nothing = start(nothing);
            let (_, mut client) = open(upgrade_for(nothing.hub(), None), "", &[]);
            assert_eq!(client.next(), Got::Close(1008, "404 Not Found".into()), "{io:?}");
            stop(nothing);
            let blocking = Ws::from_request_blocking(|_| Err::<(), _>(Reject::unauthorized()));
            let later = start(
                Server::new(App::new().ws("/rooms/{id}", blocking)).shards(Shards::new().io(io)),
            );
            let (_, mut client) = open(upgrade_for(later.hub(), None), "", &text("early"));
            assert_eq!(client.next(), Got::Close(1008, "401 Unauthorized".into()), "{io:?}");
            stop(later);
            let running = start(Server::new(app()).shards(Shards::new().io(io)));
            let address = upgrade_for(running.hub(), None);
            for (status, close) in [
                (403, Got::Close(1008, "403 Forbidden".into())),
                (500, Got::Close(1011, "500 Internal Server Error".into())),
                (503, Got::Close(1013, "503 Service Unavailable".into())),
            ] {
                let (_, mut client) = open(address, &format!("X-Refused: {status}\r\n"), &[]);
                assert_eq!(client.next(), close, "{io:?}");
                assert_eq!(client.next(), Got::End, "{io:?}");
            }
            stop(running);
        }
    }

    #[test]
    fn requests_without_a_handshake_are_refused_before() {
        let request = http::Request::builder().uri("/").header("Host", "x").body(()).unwrap();
        let response =
            throng::http::IntoResponse::into_response(Upgrade::new(&request).unwrap_err());
        assert_eq!(response.status(), Status::new(426));
    }
}
