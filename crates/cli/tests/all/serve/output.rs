//! Output of `throng serve`, also to a pipe without a reader.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::time::Duration;

use throng_proto::ws::Opcode;
use throng_testkit::{Client, Got, poll};

use super::{Running, Served, TIMEOUT, events, get, throng};

#[test]
fn every_request_and_session_is_logged_where_it_is_asked_for() {
    for io in ["epoll", "portable", "threads"] {
        logs_requests_and_sessions(io);
    }
}

fn logs_requests_and_sessions(io: &str) {
    let mut served = Served::start(&["--log-access", "all", "--io", io]);
    let log = BufReader::new(served.process.0.stderr.take().unwrap());
    let (sender, lines) = std::sync::mpsc::channel();
    std::thread::spawn(move || log.lines().try_for_each(|line| sender.send(line.unwrap())));
    let next = |name: &str| loop {
        let line = lines.recv_timeout(TIMEOUT).unwrap();
        let event: serde_json::Value = serde_json::from_str(&line).unwrap();
        if event["event"] == name {
            return event;
        }
    };
    get(served.address, "/livez?token=secret");
    let event = next("request");
    assert_eq!((&event["method"], &event["path"]), (&"GET".into(), &"/livez".into()));
    assert_eq!((&event["status"], &event["client"]), (&200.into(), &"127.0.0.1".into()));
    assert!(!event.to_string().contains("secret"), "{event}");
    let bytes = |event: &serde_json::Value| {
        ["bytes_in", "bytes_out"].map(|name| event[name].as_u64().unwrap_or_default())
    };
    assert_eq!(bytes(&event), [0, "alive\n".len() as u64], "{event}");
    get(served.address, "/nothing%0a");
    let event = next("request");
    assert_eq!((&event["status"], &event["path"]), (&404.into(), &"/nothing%0a".into()));
    let text = "a message of some length".repeat(10);
    for closes in [true, false] {
        let mut client = Client::connect(served.address, "/echo");
        client.send(Opcode::Text, text.as_bytes());
        assert_eq!(client.next(), Got::Text(text.clone()));
        if closes {
            client.send(Opcode::Close, &1000u16.to_be_bytes());
            assert_eq!(client.next().close_code(), Some(1000));
        } else {
            // The connection is reset.
            let linger = Some(Duration::ZERO);
            socket2::SockRef::from(&client.stream).set_linger(linger).unwrap();
            drop(client);
        }
        let event = next("session");
        let code = if closes { 1000 } else { 1006 };
        assert_eq!((&event["path"], &event["code"]), (&"/echo".into(), &code.into()));
        // They include its upgrade.
        let least = text.len() as u64 + 100;
        assert!(bytes(&event).iter().all(|bytes| (least..least + 400).contains(bytes)), "{event}");
    }
    // A stream of events is logged when it begins.
    let _stream = events(served.address, "/sse/x");
    let event = next("request");
    assert_eq!((&event["path"], &event["status"]), (&"/sse/x".into(), &200.into()));
}

#[test]
fn a_reader_that_left_changes_nothing() {
    let mut served = Served::start(&[]);
    drop(served.lines);
    drop(served.process.0.stderr.take());
    let mut client = Client::connect(served.address, "/echo");
    served.process.signal("TERM");
    assert_eq!(client.next().close_code(), Some(1001));
    client.send(Opcode::Close, &1001u16.to_be_bytes());
    assert_eq!(client.next(), Got::End);
    assert_eq!(served.process.exit().code(), Some(0));
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_behind_standard_output_changes_nothing() {
    let full = || File::options().write(true).open("/dev/full").unwrap();
    // A unique address, so that no other test takes the port in between.
    let free = TcpListener::bind("127.77.0.1:0").unwrap().local_addr().unwrap();
    let mut served = Running(
        throng(&["serve", "--shards", "1", "--listen", &free.to_string()])
            .stdout(full())
            .stderr(full())
            .spawn()
            .unwrap(),
    );
    poll("it listens", || TcpStream::connect(free).ok());
    // Before its first answer a signal ends it at once.
    assert!(get(free, "/livez").starts_with("HTTP/1.1 200 "));
    served.signal("TERM");
    assert_eq!(served.exit().code(), Some(0));
    let words = ["demo", "--for", "100ms", "--clients", "2", "--listen", "127.0.0.1:0"];
    let output = throng(&words).stdout(full()).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), errors.as_str()), (Some(0), ""));
    let mut wrong = throng(&["serve", "--shards", "x"]);
    assert_eq!(wrong.stdout(full()).stderr(full()).status().unwrap().code(), Some(2));
}

/// A report that cannot be written must not be lost without an error.
#[cfg(target_os = "linux")]
#[test]
fn a_report_that_cannot_be_written_is_a_failure() {
    let served = Served::start(&[]);
    let address = served.address.to_string();
    let url = format!("ws://{address}/echo");
    let bench = ["bench", "echo", &url, "--connections", "1", "--duration", "10ms", "--json"];
    for words in [
        &["config", "show"][..],
        &["config", "show", "balance", "--json"],
        &["config", "check"],
        &["config", "schema"],
        &["generate", "alerts"],
        &["health", &address],
        &bench,
    ] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = throng(words).stdout(full).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{words:?}: {errors}");
        assert!(errors.contains("standard output cannot be written: No space"), "{errors}");
    }
    // A reader that has left wanted no more.
    let mut shown = throng(&["config", "schema"]).stdout(Stdio::piped()).spawn().unwrap();
    drop(shown.stdout.take());
    assert_eq!(shown.wait().unwrap().code(), Some(0));
}
