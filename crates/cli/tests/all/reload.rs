//! Every setting that SIGHUP changes, in a running server.
#![cfg(target_os = "linux")]

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::SocketAddr;

use throng_cli::serve::TABLE;
use throng_proto::ws::Opcode;
use throng_testkit::poll;

use crate::started::{Started, events};
use crate::support::{Client, Got, dial, read_head};

/// A server with changed settings, and a session from before the change.
struct Changed {
    server: Started,
    address: SocketAddr,
    session: Client,
}

/// A setting, its value at the start and after SIGHUP, and a test that shows which of them is in
/// force.
#[derive(Clone, Copy)]
struct Row {
    key: &'static str,
    before: &'static str,
    after: &'static str,
    /// Further settings.
    with: &'static str,
    look: fn(&mut Changed) -> String,
    expected: &'static str,
}

const fn row(
    (key, before, after): (&'static str, &'static str, &'static str),
    with: &'static str,
    look: fn(&mut Changed) -> String,
    expected: &'static str,
) -> Row {
    Row { key, before, after, with, look, expected }
}

/// Settings whose effect needs an upgrade, a slow receiver or a route that reads bodies. `upgrade`
/// has tests of the former, and `serve::rights` of tokens. In the engine,
/// `a_shard_that_was_configured_is_like_one_that_was_built_so` tests all limits.
const ELSEWHERE: &[&str] = &[
    "max_backlog",
    "max_age",
    "max_body",
    "max_body_memory",
    "min_body_rate",
    "min_response_rate",
    "token_audience",
    "token_issuer",
    "token_jwks",
    "token_jwks_ca",
    "token_keys",
    "upgrade.start",
    "upgrade.window",
];

static ROWS: &[Row] = &[
    row(
        ("allowed_origins", "[]", "[\"https://a.example\"]"),
        "",
        |it| status(it, "GET /echo", "Origin: https://a.example"),
        "101",
    ),
    row(
        ("allowed_hosts", "\"auto\"", "[\"b.example\"]"),
        "",
        |it| {
            let mut stream = dial(it.address);
            write!(stream, "GET / HTTP/1.1\r\nHost: b.example\r\n\r\n").unwrap();
            read_head(&mut stream)[9..12].to_owned()
        },
        "200",
    ),
    row(
        ("max_connections_per_address", "0", "1"),
        "",
        |it| {
            let _first = Client::connect(it.address, "/echo");
            status(it, "GET /echo", "X: y")
        },
        "429",
    ),
    row(
        ("max_pending_handshakes", "0", "1"),
        "",
        |it| {
            let (mut first, _second) = (dial(it.address), dial(it.address));
            rest(&mut first)
        },
        "",
    ),
    row(("max_message_size", "1000", "100"), "", |it| echo(it, 101), "closed with 1009"),
    row(("max_frame_size", "1000", "100"), "", |it| echo(it, 101), "closed with 1009"),
    row(
        ("max_upload_size", "1000", "100"),
        "",
        |it| {
            it.session = Client::connect(it.address, "/upload");
            echo(it, 101)
        },
        "closed with 1009",
    ),
    row(
        ("max_header_bytes", "\"16KiB\"", "1024"),
        "",
        |it| status(it, "GET /", &format!("X: {}", "x".repeat(1024))),
        "431",
    ),
    row(
        ("max_headers", "100", "8"),
        "",
        |it| status(it, "GET /", &["X: 1"; 8].join("\r\n")),
        "431",
    ),
    row(
        ("slow_policy", "\"close\"", "\"latest\""),
        "",
        |it| metric(it, "class=\"default\",policy=\"latest\""),
        "there",
    ),
    row(
        ("open", "true", "false"),
        "",
        |it| outcome(Client::connect(it.address, "/ws/chat").next()),
        "closed with 4001",
    ),
    row(
        ("channels", "[]", "[\"prices.*=drop_oldest\"]"),
        "",
        |it| metric(it, "class=\"prices.*\",policy=\"drop_oldest\""),
        "there",
    ),
    row(
        ("fragment_threshold", "1000", "10"),
        "fragment_size = 20",
        |it| first_frame(it, 100),
        "20",
    ),
    row(("fragment_size", "90", "30"), "fragment_threshold = 10", |it| first_frame(it, 100), "30"),
    row(("max_messages_per_second", "0", "1"), "", several, "closed with 1008"),
    row(("max_bytes_per_second", "0", "10"), "", |it| echo(it, 100), "closed with 1008"),
    row(
        ("max_lifetime", "\"1h\"", "\"1s\""),
        "",
        |it| {
            it.session = Client::connect(it.address, "/echo");
            outcome(it.session.next())
        },
        "closed with 1001",
    ),
    row(
        ("handshake_timeout", "\"1h\"", "\"1s\""),
        "",
        |it| {
            let mut stream = dial(it.address);
            // A client that has sent no request gets no response.
            stream.write_all(b"GET /").unwrap();
            read_head(&mut stream)[9..12].to_owned()
        },
        "408",
    ),
    row(
        ("keep_alive_timeout", "\"1h\"", "\"1s\""),
        "",
        |it| {
            let mut stream = dial(it.address);
            write!(stream, "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
            let all = rest(&mut stream);
            all[9..12].to_owned()
        },
        "200",
    ),
    row(
        ("reassembly_timeout", "\"1h\"", "\"1s\""),
        "",
        |it| {
            it.session.stream.write_all(&[0x82, 0x85, 1, 2, 3, 4, 0]).unwrap();
            outcome(it.session.next())
        },
        "closed with 1008",
    ),
    row(
        ("close_timeout", "\"1h\"", "\"1s\""),
        "max_lifetime = \"1s\"",
        |it| {
            it.session = Client::connect(it.address, "/echo");
            let close = outcome(it.session.next());
            assert_eq!(close, "closed with 1001");
            outcome(it.session.next())
        },
        "ended",
    ),
    row(
        ("heartbeat.interval", "\"1h\"", "\"1s\""),
        "",
        |it| outcome(it.session.next_of_any_kind()),
        "pinged",
    ),
    row(
        ("heartbeat.timeout", "\"1h\"", "\"1s\""),
        "heartbeat.interval = \"1s\"",
        |it| outcome(it.session.next()),
        "ended",
    ),
    row(
        ("heartbeat.always", "false", "true"),
        "heartbeat.interval = \"1s\"",
        |it| {
            let mut echoes = 0u64;
            poll("a ping between messages", || {
                it.session.send_text("no silence");
                echoes += 1;
                matches!(it.session.next_of_any_kind(), Got::Ping(_)).then_some(())
            });
            "pinged".to_owned()
        },
        "pinged",
    ),
    row(
        ("max_memory", "\"1GiB\"", "\"4MiB\""),
        "max_message_size = \"64MiB\"",
        |it| {
            let mut stream = it.session.stream.try_clone().unwrap();
            let sender = std::thread::spawn(move || {
                // A binary frame of 64 MiB that would not end: the server closes the session first.
                let _ = stream.write_all(&[0x82, 0xff, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0]);
                while stream.write_all(&[0; 64 << 10]).is_ok() {}
            });
            let got = outcome(it.session.next());
            let _ = it.session.stream.shutdown(std::net::Shutdown::Both);
            sender.join().unwrap();
            got
        },
        "closed with 1008",
    ),
    row(
        ("drain.delay", "\"1h\"", "\"0s\""),
        "drain.window = \"0s\"",
        |it| {
            it.server.signal("TERM");
            outcome(it.session.next())
        },
        "closed with 1001",
    ),
    row(("drain.window", "\"3s\"", "\"0s\""), "", |it| drained(it, "window"), "0"),
    row(("drain.grace", "\"3s\"", "\"7s\""), "", |it| drained(it, "grace"), "7"),
    row(
        ("log.level", "\"error\"", "\"info\""),
        "",
        // The reload itself is the event.
        |it| it.server.logged("reloaded", 0)["level"].as_str().unwrap().to_owned(),
        "info",
    ),
    row(
        ("log.access", "\"off\"", "\"all\""),
        "",
        |it| {
            status(it, "GET /livez", "X: y");
            it.server.logged("request", 0)["status"].to_string()
        },
        "200",
    ),
    row(
        ("log.sample", "1000", "1"),
        "log.access = \"all\"",
        |it| {
            // Of the earlier ones, only the session was one in a thousand.
            status(it, "GET /livez", "X: y");
            it.server.logged("request", 0)["status"].to_string()
        },
        "200",
    ),
    row(
        ("log.max_rate", "1", "0"),
        "log.access = \"all\"",
        |it| {
            for _ in 0..100 {
                status(it, "GET /livez", "X: y");
            }
            // At one a second this would exceed the test's timeout.
            it.server.logged("request", 99)["status"].to_string()
        },
        "200",
    ),
];

/// The status of the answer to a request with this header.
fn status(it: &Changed, request: &str, header: &str) -> String {
    let mut stream = dial(it.address);
    let upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                   Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n";
    let upgrade = if request.contains("/echo") { upgrade } else { "" };
    write!(stream, "{request} HTTP/1.1\r\nHost: localhost\r\n{header}\r\n{upgrade}\r\n").unwrap();
    read_head(&mut stream)[9..12].to_owned()
}

fn rest(stream: &mut impl Read) -> String {
    let mut all = String::new();
    let _ = stream.read_to_string(&mut all);
    all
}

/// Sends this many bytes on the session.
fn echo(it: &mut Changed, bytes: usize) -> String {
    it.session.send(Opcode::Binary, &vec![7; bytes]);
    outcome(it.session.next())
}

/// Sends three messages at once.
fn several(it: &mut Changed) -> String {
    let three = [0x82, 0x81, 0, 0, 0, 0, 9].repeat(3);
    it.session.stream.write_all(&three).unwrap();
    loop {
        match it.session.next() {
            Got::Binary(_) => {}
            other => return outcome(other),
        }
    }
}

fn outcome(got: Got) -> String {
    match got {
        Got::Text(_) | Got::Binary(_) => "a message".to_owned(),
        Got::Close(code, _) => format!("closed with {code}"),
        Got::Ping(_) => "pinged".to_owned(),
        Got::Pong(_) => "a pong".to_owned(),
        Got::End => "ended".to_owned(),
    }
}

/// The length of the first frame of an answer to this many bytes.
fn first_frame(it: &mut Changed, bytes: usize) -> String {
    it.session.send(Opcode::Binary, &vec![7; bytes]);
    let mut header = [0; 2];
    it.session.stream.read_exact(&mut header).unwrap();
    header[1].to_string()
}

/// Returns `there` or `missing`: a label among the metrics.
fn metric(it: &Changed, label: &str) -> String {
    let mut stream = dial(it.address);
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .unwrap();
    if rest(&mut stream).contains(label) { "there" } else { "missing" }.to_owned()
}

/// A field of the event with which a shutdown begins.
fn drained(it: &mut Changed, field: &str) -> String {
    it.server.signal("TERM");
    let event = it.server.logged("drain", 0);
    format!("{:.0}", event[field].as_f64().unwrap())
}

fn settings(row: &Row, value: &str) -> String {
    format!("listen = \"127.0.0.1:0\"\nshards = 1\n{}\n{} = {value}\n", row.with, row.key)
}

/// Starts a server with the first value, opens a session, and changes to the second value.
fn change(row: &Row) -> Changed {
    let mut server = Started::start("serve", &settings(row, row.before));
    let address = server.address("listens on http://");
    let mut session = Client::connect(address, "/echo");
    session.send_text("before");
    assert_eq!(session.next(), Got::Text("before".to_owned()));
    server.configure(&settings(row, row.after));
    server.signal("HUP");
    let reloaded = server.logged("reloaded", 0);
    assert_eq!(reloaded["message"], format!("changed {}", row.key));
    Changed { server, address, session }
}

#[test]
fn every_setting_that_a_reload_changes_takes_effect() {
    std::thread::scope(|scope| {
        let looks = ROWS.iter().map(|row| {
            let look = move || {
                let mut changed = change(row);
                assert_eq!((row.look)(&mut changed), row.expected, "{}", row.key);
            };
            (row.key, scope.spawn(look))
        });
        for (key, look) in looks.collect::<Vec<_>>() {
            assert!(look.join().is_ok(), "{key}");
        }
    });
}

#[test]
fn the_table_says_which_settings_a_reload_changes() {
    let reloadable = TABLE.keys.iter().filter(|key| !key.at_start).map(|key| key.name);
    let shown = ROWS.iter().map(|row| row.key).chain(ELSEWHERE.iter().copied());
    assert_eq!(reloadable.collect::<BTreeSet<_>>(), shown.collect());
}

#[test]
fn a_mistake_in_the_file_changes_nothing_and_is_shown_with_its_place() {
    let limits = "listen = \"127.0.0.1:0\"\nmax_message_size = 100\n";
    let mut server = Started::start("serve", limits);
    let address = server.address("listens on http://");
    for (at, (mistake, parts)) in [
        ("max_backlog = \"many\"", &[":4:15: ", "max_backlog is \"many\"", "16KiB"][..]),
        ("channels = [\"a..b=latest\"]", &[":4:", "a..b", "empty token"]),
        ("heartbeat.timeout = \"20h\"", &[":4:", "heartbeat.timeout", "18h"]),
        ("max_bakclog = 1", &[":4:", "did you mean max_backlog?"]),
    ]
    .into_iter()
    .enumerate()
    {
        server.configure(&limits.replace("100", &format!("200\n{mistake}")));
        server.signal("HUP");
        let reason = server.logged("reload.failed", at)["reason"].as_str().unwrap().to_owned();
        let file = server.file.file_name().unwrap().to_str().unwrap();
        assert!(reason.contains(file), "{reason}");
        assert!(parts.iter().all(|part| reason.contains(part)), "{mistake}: {reason}");
        let mut session = Client::connect(address, "/echo");
        session.send(Opcode::Binary, &[7; 101]);
        assert_eq!(session.next().close_code(), Some(1009), "{mistake}");
    }
    assert!(events(&server.log, "reloaded").is_empty());
}

#[test]
fn connections_with_threads_of_their_own_get_new_limits_too() {
    let row = Row { with: "io = \"threads\"", ..ROWS[4] };
    assert_eq!(row.key, "max_message_size");
    let mut changed = change(&row);
    assert_eq!(echo(&mut changed, 101), "closed with 1009");
    changed.session = Client::connect(changed.address, "/echo");
    assert_eq!(echo(&mut changed, 100), "a message");
    assert_eq!(echo(&mut changed, 101), "closed with 1009");
}
