//! `lab serve-netbench` over real sockets, as the suite's client speaks to it, and as others do.

use std::io::Write;
use std::net::{SocketAddr, UdpSocket};
use std::process::Command;

use throng_proto::ws::Opcode;

use crate::support::{Answer, Client, Got, Served, dial, exchange, is_at_end};

/// As the suite sends it, but for the white space.
const DOCUMENT: &str = r#"{
	"product": "test",
	"requestId": "{BC6B8989-DAB7-484E-9AD3-F7C34A800A1A}",
	"group": {
		"kind": "clients", "default": true, "balance": 109240.59,
		"dates": ["2020-01-12T10:53:17.773Z", "2020-11-10T06:47:04.462Z", "2020-01-01T00:00:00.007Z"]
	}
}"#;

const ANSWER: &str = concat!(
    r#"{"product":"test","requestId":"{BC6B8989-DAB7-484E-9AD3-F7C34A800A1A}","client":"#,
    r#"{"balance":109240.59,"minDate":"2020-01-01T00:00:00.007Z","#,
    r#""maxDate":"2020-11-10T06:47:04.462Z"}}"#
);

fn lab(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lab"));
    command.args(words);
    command
}

fn serve(mode: &str) -> Served {
    serve_at(mode, "127.0.0.1:0")
}

fn serve_at(mode: &str, listen: &str) -> Served {
    Served::spawn(&mut lab(&["serve-netbench", mode, "--shards", "1", "--listen", listen]))
}

fn head(method: &str, target: &str, lines: &str) -> String {
    format!("{method} {target} HTTP/1.1\r\nHost: 127.0.0.1:1234\r\n{lines}\r\n")
}

fn with_length(document: &str) -> String {
    let length = document.len();
    head("GET", "/", &format!("Content-Type: application/json\r\nContent-Length: {length}\r\n"))
        + document
}

fn is_json(answer: &Answer) -> bool {
    answer.status() == 200 && answer.header("content-type") == Some("application/json")
}

#[test]
fn blank_is_two_bytes_whatever_is_asked() {
    let served = serve("blank");
    let mut stream = served.dial();
    for (method, target) in [
        ("GET", "/"),
        ("GET", "/a/b?c=d"),
        ("POST", "/"),
        ("DELETE", "/%20"),
        ("OPTIONS", "/"),
        ("BREW", "/pot"),
    ] {
        let answer = exchange(&mut stream, head(method, target, ""));
        assert_eq!((answer.status(), answer.text()), (200, "OK"), "{method} {target}");
        assert_eq!(answer.header("content-type"), Some("text/plain"));
    }
    let answer = exchange(&mut stream, with_length(DOCUMENT));
    assert_eq!((answer.status(), answer.text()), (200, "OK"));
    let answer = exchange(&mut stream, head("GET", "/", "Connection: close\r\n"));
    assert_eq!((answer.text(), answer.header("connection")), ("OK", Some("close")));
    assert!(is_at_end(&mut stream));
    let mut stream = served.dial();
    stream.write_all(head("GET", "/", "").repeat(50).as_bytes()).unwrap();
    for _ in 0..50 {
        assert_eq!(Answer::read(&mut stream).text(), "OK");
    }
}

#[test]
fn work_is_done_for_each_document() {
    let served = serve("work");
    let mut stream = served.dial();
    let answer = exchange(&mut stream, with_length(DOCUMENT));
    assert!(is_json(&answer), "{}", answer.head);
    assert_eq!(answer.text(), ANSWER);
    // Another document, another answer.
    let other = DOCUMENT.replace("2020-01-12T10:53:17.773Z", "2021-01-12T10:53:17.7Z");
    let answer = exchange(&mut stream, with_length(&other));
    assert_eq!(
        answer.text(),
        ANSWER.replace("2020-11-10T06:47:04.462Z", "2021-01-12T10:53:17.700Z")
    );
    // In segments, and in chunks that cut a date, an escape and a character.
    let text = DOCUMENT.replace("\"test\"", "\"t\\u00e9é\"");
    for piece in with_length(&text).as_bytes().chunks(97) {
        stream.write_all(piece).unwrap();
    }
    let expected = ANSWER.replace("\"test\"", "\"téé\"");
    assert_eq!(Answer::read(&mut stream).text(), expected);
    let mut chunked = head("POST", "/x", "Transfer-Encoding: chunked\r\n").into_bytes();
    for piece in text.as_bytes().chunks(19) {
        chunked.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
        chunked.extend_from_slice(piece);
        chunked.extend_from_slice(b"\r\n");
    }
    chunked.extend_from_slice(b"0\r\n\r\n");
    let answer = exchange(&mut stream, &chunked);
    assert_eq!((answer.status(), answer.text()), (200, &*expected));
    stream.write_all(with_length(DOCUMENT).repeat(20).as_bytes()).unwrap();
    for _ in 0..20 {
        assert_eq!(Answer::read(&mut stream).text(), ANSWER);
    }
    let mut closing = with_length(DOCUMENT);
    closing.insert_str(closing.find("Content-Type").unwrap(), "Connection: close\r\n");
    assert_eq!(exchange(&mut stream, closing).text(), ANSWER);
    assert!(is_at_end(&mut stream));
}

#[test]
fn an_invalid_document_is_400_with_the_reason_and_the_connection_stays_open() {
    let served = serve("1");
    let mut stream = served.dial();
    for (document, reason) in [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[]", "not the benchmark's document"),
        (&DOCUMENT.replace("balance", "credit"), "balance"),
        (&DOCUMENT.replace("2020-01-12", "2020-02-30"), "no such date"),
    ] {
        let answer = exchange(&mut stream, with_length(document));
        assert_eq!(answer.status(), 400, "{document}");
        assert!(answer.text().contains(reason), "{document}: {}", answer.text());
        assert_eq!(exchange(&mut stream, with_length(DOCUMENT)).text(), ANSWER);
    }
    let answer = exchange(&mut stream, head("GET", "/", ""));
    assert_eq!(answer.status(), 400);
    let no_text = [head("GET", "/", "Content-Length: 3\r\n").as_bytes(), b"\"\xff\""].concat();
    let answer = exchange(&mut stream, no_text);
    assert_eq!(answer.status(), 400);
    assert!(answer.text().contains("utf-8"), "{}", answer.text());
}

#[test]
fn a_websocket_at_any_path_does_both() {
    for mode in ["blank", "work"] {
        let served = serve(mode);
        let address = served.addresses[0];
        let mut client = Client::connect(address, "/any/path");
        for opcode in [Opcode::Text, Opcode::Binary] {
            client.send(opcode, b"");
            assert_eq!(client.next(), Got::Text("OK".to_owned()));
        }
        client.send(Opcode::Text, DOCUMENT.as_bytes());
        assert_eq!(client.next(), Got::Text(ANSWER.to_owned()));
        client.send(Opcode::Text, b"{}");
        let Got::Close(1007, reason) = client.next() else { panic!("no close with 1007") };
        assert!(reason.contains("product"), "{reason}");
        let mut client = Client::connect(address, "/");
        client.send(Opcode::Binary, DOCUMENT.as_bytes());
        let Got::Close(1003, _) = client.next() else { panic!("no close with 1003") };
    }
}

#[test]
fn both_loopback_addresses_are_listened_on() {
    let mut listen = "127.0.0.1:0".to_owned();
    let has_ipv6 = UdpSocket::bind("[::1]:0").is_ok();
    if has_ipv6 {
        listen += ",[::1]:0";
    }
    let served = serve_at("blank", &listen);
    assert_eq!(served.addresses.len(), 1 + usize::from(has_ipv6));
    for address in &served.addresses {
        let answer = exchange(&mut dial(*address), head("GET", "/", ""));
        assert_eq!(answer.text(), "OK", "{address}");
    }
}

/// The suite ends a server and starts the next at once, on the same port, without waiting for the
/// end.
#[test]
fn a_successor_gets_the_port_of_a_server_with_idle_connections() {
    let first = serve("blank");
    let idle: Vec<_> = (0..100)
        .map(|_| {
            let mut stream = first.dial();
            assert_eq!(exchange(&mut stream, head("GET", "/", "")).text(), "OK");
            stream
        })
        .collect();
    let address = first.addresses[0].to_string();
    std::thread::scope(|scope| {
        let next = scope.spawn(|| serve_at("work", &address));
        first.terminate();
        let next = next.join().unwrap();
        assert_eq!(exchange(&mut next.dial(), with_length(DOCUMENT)).text(), ANSWER);
    });
    for mut stream in idle {
        assert!(is_at_end(&mut stream));
    }
    assert!(first.exit().success());
}

/// The port is the suite's, so another program may have it: then that is what is said.
#[test]
fn the_port_is_1234_by_default() {
    let output = lab(&["serve-netbench", "blank", "--set", "max_backlog=0"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "a wrong setting is reported before listening");
    let default: SocketAddr = "127.0.0.1:1234".parse().unwrap();
    let holder = std::net::TcpListener::bind(default);
    let output = lab(&["serve-netbench", "blank"]).output().unwrap();
    drop(holder);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("127.0.0.1:1234"), "{said}");
}
