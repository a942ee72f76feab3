//! Limits of rates: what is beyond them gets an answer, and no backend sees it.

use throng_balance::{Config, LimitRow};
use throng_testkit::eventually;

use crate::sites::{Running, get};
use crate::support::{Peer, Scripted, upgrade};

/// A site that answers every request itself, with a limit.
fn answering(limit: &str) -> String {
    format!(
        "[[site]]\nhosts = [\"*\"]\nrespond.text = \"ok\"\nlimits = [\"l\"]\n\
         [[limit]]\nname = \"l\"\n{limit}\n"
    )
}

/// The status of the answer to a request with this header.
fn status(client: &mut Peer, header: &str) -> String {
    client.send(format!("GET / HTTP/1.1\r\nHost: a\r\n{header}\r\n").as_bytes());
    let (head, _) = client.answer();
    head[9..12].to_owned()
}

fn row(running: &Running) -> LimitRow {
    running.0.status().limits.pop().unwrap()
}

#[test]
fn requests_beyond_a_rate_get_429_and_the_time_to_come_again() {
    let running = Running::start(&answering("rate = \"1/h\"\nburst = 2"));
    let mut client = running.connect();
    for _ in 0..3 {
        assert_eq!(status(&mut client, ""), "200");
    }
    client.send(&get("a", "/x"));
    let (head, _) = client.answer();
    assert!(head.starts_with("HTTP/1.1 429 Too Many Requests\r\n"), "{head}");
    assert!(!head.contains("Connection: close"), "{head}");
    let after = head.lines().find_map(|line| line.strip_prefix("Retry-After: ")).unwrap();
    let after: u64 = after.parse().unwrap();
    // Up to half of the hour more, so that clients do not come back together.
    assert!((3500..=5400).contains(&after), "{after}");
    // Another connection of the client has the same limit.
    assert_eq!(status(&mut running.connect(), ""), "429");
    running.until_logged("429 /x * - - beyond the limit l of 1/h");
    let row = row(&running);
    assert_eq!((row.passed, row.refused, row.forgotten_keys), (3, 2, 0));
}

#[test]
fn a_key_may_be_a_header_and_leaving_it_out_is_no_way_around() {
    let running =
        Running::start(&answering("rate = \"1/h\"\nburst = 1\nkey = [\"header:X-Key\", \"host\"]"));
    let mut client = running.connect();
    for (header, expected) in [
        ("X-Key: a\r\n", ["200", "200", "429"]),
        ("X-Key: b\r\n", ["200", "200", "429"]),
        ("", ["200", "200", "429"]),
        // As if it were not there.
        ("X-Key:\r\n", ["429", "429", "429"]),
    ] {
        for (at, expected) in expected.into_iter().enumerate() {
            assert_eq!(status(&mut client, header), expected, "{header} {at}");
        }
    }
}

/// The table of hosts does not compare them either.
#[test]
fn neither_port_nor_final_dot_of_a_host_gets_around_a_limit() {
    let running = Running::start(&answering("rate = \"1/h\"\nburst = 1\nkey = \"host\""));
    let mut client = running.connect();
    let hosts = ["b.example", "B.example:81", "b.example.", "b.example:82", "c.example"];
    for (host, expected) in hosts.into_iter().zip(["200", "200", "429", "429", "200"]) {
        client.send(&get(host, "/"));
        assert_eq!(&client.answer().0[9..12], expected, "{host}");
    }
}

/// Backends differ in which one they take.
#[test]
fn several_values_count_for_the_address_and_none_stands_for_one() {
    for (key, several) in [
        ("header:X-Key", ["X-Key: 1\r\nX-Key: a\r\n", "X-Key: 2\r\nX-Key: a\r\n"]),
        ("cookie:id", ["Cookie: id=1; id=a\r\n", "Cookie: id=2\r\nCookie: id=a\r\n"]),
    ] {
        let limit = format!("rate = \"1/h\"\nburst = 0\nkey = \"{key}\"");
        let running = Running::start(&answering(&limit));
        let mut client = running.connect();
        assert_eq!(status(&mut client, several[0]), "200");
        assert_eq!(status(&mut client, several[1]), "429");
    }
    let running = Running::start(&answering("rate = \"1/h\"\nburst = 0\nkey = \"query:k\""));
    let mut client = running.connect();
    for (path, expected) in
        [("/?k=1&k=a", "200"), ("/?%6b=2&k=a", "429"), ("/?k=a", "200"), ("/?%6b=a", "429")]
    {
        client.send(&get("a", path));
        assert_eq!(&client.answer().0[9..12], expected, "{path}");
    }
    // The bytes of the address 65.66.67.68.
    let running = Running::start(&format!(
        "trusted_proxies = [\"127.0.0.1\"]\n{}",
        answering("rate = \"1/h\"\nburst = 0\nkey = \"header:X-Key\"")
    ));
    let mut client = running.connect();
    assert_eq!(status(&mut client, "X-Forwarded-For: 1.2.3.4\r\nX-Key: ABCD\r\n"), "200");
    assert_eq!(status(&mut client, "X-Forwarded-For: 65.66.67.68\r\n"), "200");
}

#[test]
fn a_limit_of_a_site_and_its_route_counts_a_request_once() {
    let limited = answering("rate = \"1/h\"\nburst = 1");
    let twice = limited.replace("\"l\"]\n", "\"l\", \"l\"]\nroutes = [{ limits = [\"l\"] }]\n");
    let running = Running::start(&twice);
    let mut client = running.connect();
    for expected in ["200", "200", "429"] {
        assert_eq!(status(&mut client, ""), expected);
    }
}

/// Browsers do not show pages the status of a failed handshake.
#[test]
fn a_handshake_beyond_a_limit_is_closed_with_1013_and_no_backend_sees_it() {
    let backend = Scripted::bind();
    let running = Running::start(&format!(
        "backends = [\"{}\"]\n\
         [[site]]\nhosts = [\"*\"]\nlimits = [\"dial\"]\n\
         [[limit]]\nname = \"dial\"\non = \"handshakes\"\nrate = \"1/h\"\nburst = 1\n\
         refuse = \"close\"\n",
        backend.address
    ));
    let mut tunnels = Vec::new();
    for _ in 0..2 {
        let mut client = running.connect();
        client.send(&upgrade("/chat"));
        let server = backend.open();
        assert!(client.head().starts_with("HTTP/1.1 101 "));
        tunnels.push((client, server));
    }
    let handshake = String::from_utf8(upgrade("/chat")).unwrap();
    let offering = handshake.replace(
        "\r\n\r\n",
        "\r\nSec-WebSocket-Protocol: mqtt, stomp\r\nSec-WebSocket-Protocol: x\r\n\r\n",
    );
    for (text, subprotocol) in [(handshake, None), (offering, Some("mqtt"))] {
        let mut client = running.connect();
        // With a frame that does not wait for the answer.
        client.send(text.as_bytes());
        client.send(&[0x81, 0x80, 1, 2, 3, 4]);
        let head = client.head();
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        let chosen = head.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Protocol: "));
        assert_eq!(chosen, subprotocol, "{head}");
        let rest = client.rest();
        assert_eq!(rest[0], 0x88, "{rest:?}");
        assert_eq!(rest[2..4], 1013u16.to_be_bytes(), "{rest:?}");
        let reason = str::from_utf8(&rest[4..]).unwrap();
        assert!(reason.starts_with("retry in ") && reason.ends_with(" s"), "{reason}");
    }
    running.until_logged("429 /chat * - default beyond the limit dial of 1/h");
    // Other requests do not count.
    let mut client = running.connect();
    for _ in 0..3 {
        client.send(&get("a", "/page"));
        let mut server = backend.accept();
        server.head();
        server.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        assert!(client.answer().0.starts_with("HTTP/1.1 200 "));
    }
    let row = row(&running);
    assert_eq!((row.passed, row.refused), (2, 2));
    assert_eq!(tunnels.len(), 2);
}

#[test]
fn a_reload_keeps_what_a_limit_has_counted() {
    let text = |limit: &str| format!("listen = \"127.0.0.1:0\"\nshards = 1\n{}", answering(limit));
    let running = Running::start(&answering("rate = \"1/h\"\nburst = 1"));
    let mut client = running.connect();
    for expected in ["200", "200", "429"] {
        assert_eq!(status(&mut client, ""), expected);
    }
    let apply = |limit: &str| {
        let config = Config::parse(&text(limit), "b.toml").unwrap();
        assert!(running.0.apply(config).unwrap().settings);
    };
    apply("rate = \"1/h\"\nburst = 2");
    let one_more = || row(&running).passed == 3;
    eventually("the larger burst is in force", || {
        status(&mut client, "");
        one_more()
    });
    assert_eq!(status(&mut client, ""), "429", "what was counted before still counts");
    apply("rate = \"1/h\"\nburst = 2\ndry_run = true");
    eventually("it only counts", || status(&mut client, "") == "200");
    assert!(row(&running).refused > 2);
    // The counts of another key begin again.
    apply("rate = \"1/h\"\nburst = 2\nkey = \"site\"");
    eventually("its counters begin at zero", || {
        status(&mut client, "");
        row(&running).refused > 0
    });
    assert_eq!(row(&running).passed, 3);
}

#[test]
fn time_passes_for_a_limit() {
    let running = Running::start(&answering("rate = \"20/s\"\nburst = 1"));
    let mut client = running.connect();
    let mut passed = 0;
    eventually("more than a burst has passed", || {
        passed += u32::from(status(&mut client, "") == "200");
        passed > 6
    });
    assert_eq!(row(&running).passed, u64::from(passed));
}
