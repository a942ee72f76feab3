//! Channels, as WebSockets and as streams of events, and their rules.

use std::io::{Read, Write};
use std::net::TcpStream;

use throng_proto::ws::{self, Opcode};
use throng_testkit::{Client, Got, poll};

use super::{Served, events, get, logged_events, throng};

#[test]
fn an_upload_may_be_larger_than_any_message_elsewhere_and_is_counted() {
    let server = Served::start(&["--set", "max_upload_size=12MiB"]);
    let mut client = Client::connect(server.address, "/upload");
    client.send(Opcode::Binary, &vec![7; 12 << 20]);
    assert_eq!(client.next(), Got::Text((12 << 20).to_string()));
    client.send(Opcode::Text, b"short");
    assert_eq!(client.next(), Got::Text("5".to_owned()));
    let head = ws::encode_header(Opcode::Binary, true, (12 << 20) + 1, Some([0; 4]));
    client.stream.write_all(&head).unwrap();
    assert_eq!(client.next().close_code(), Some(1009));
}

/// The stream's next bytes are these.
fn expect(stream: &mut TcpStream, bytes: &str) {
    let mut buffer = vec![0; bytes.len()];
    stream.read_exact(&mut buffer).unwrap();
    assert_eq!(String::from_utf8(buffer).unwrap(), bytes);
}

#[test]
fn a_channel_is_a_stream_of_events_too() {
    let served = Served::start(&[]);
    let mut stream = events(served.address, "/sse/x");
    let mut client = Client::connect(served.address, "/ws/x?echo=1");
    client.send(Opcode::Text, b"to\nall");
    assert_eq!(client.next(), Got::Text("to\nall".to_owned()));
    expect(&mut stream, "data: to\ndata: all\n\n");
    let long = "x".repeat(257);
    assert!(get(served.address, &format!("/sse/{long}")).starts_with("HTTP/1.1 400 "));
    // Without wildcards a star is an ordinary character, also for publishing.
    let mut star = Client::connect(served.address, "/ws/news.*?echo=1");
    star.send(Opcode::Text, b"mine");
    assert_eq!(star.next(), Got::Text("mine".to_owned()));
    served.process.signal("TERM");
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "", "a drain ends it");
}

#[test]
fn patterns_listen_and_cannot_be_published_to() {
    let served = Served::start(&["--set", "wildcards=true"]);
    let mut stream = events(served.address, "/sse/news.%3E");
    let mut all = Client::connect(served.address, "/ws/news.*");
    let mut one = Client::connect(served.address, "/ws/news.eu?echo=1");
    // When the client's own echo arrives, all have joined.
    one.send(Opcode::Text, b"hello");
    assert_eq!(one.next(), Got::Text("hello".to_owned()));
    assert_eq!(all.next(), Got::Text("hello".to_owned()));
    expect(&mut stream, "data: hello\n\n");
    all.send(Opcode::Text, b"to whom?");
    assert_eq!(all.next().close_code(), Some(1008));
    assert_eq!(Client::connect(served.address, "/ws/a..b").next().close_code(), Some(1008));
    assert!(get(served.address, "/sse/a..b").starts_with("HTTP/1.1 400 "));
}

/// A client that asks for more than a channel has is closed, and that is not silent.
#[test]
fn a_close_for_what_a_channel_does_not_have_is_logged_and_counted() {
    let served = Served::start(&["--set", "wildcards=true"]);
    for path in ["/ws/a?since=", "/ws/a.*?since=", "/ws/a..b"] {
        let closed = Client::connect(served.address, path).next();
        assert_eq!(closed.close_code(), Some(1008), "{path}");
    }
    let mut pattern = Client::connect(served.address, "/ws/a.*");
    pattern.send(Opcode::Text, b"to whom?");
    assert_eq!(pattern.next().close_code(), Some(1008));
    let metrics = get(served.address, "/metrics");
    let count = "throng_connections_ended_total{reason=\"channel\"} 4\n";
    assert!(metrics.contains(count), "{metrics}");
    served.process.signal("TERM");
    let (_, _, log) = served.end();
    let ended = logged_events(&log).filter(|event| event["event"] == "session.ended");
    let ended: Vec<_> = ended.filter(|event| event["code"] == 1008).collect();
    assert_eq!(ended.len(), 4, "{log}");
    for event in &ended {
        let has = |key: &str| event[key].is_string();
        assert!(has("session") && has("client") && has("peer"), "{event}");
    }
}

#[test]
fn rules_of_channels_are_shown_in_the_figures() {
    let served = Served::start(&[
        "--channel",
        "prices.*=latest,max_age=5s",
        "--channel",
        "logs.>=drop_oldest",
        "--set",
        "slow_policy=drop_newest",
    ]);
    let mut stream = events(served.address, "/sse/prices.eur");
    let mut client = Client::connect(served.address, "/ws/prices.eur");
    client.send(Opcode::Text, b"1.17");
    expect(&mut stream, "data: 1.17\n\n");
    let delivered = "throng_class_published_total{class=\"prices.*\",policy=\"latest\",\
                     outcome=\"delivered\",shard=\"0\"} 1";
    poll("Prometheus gets it", || {
        get(served.address, "/metrics").lines().any(|line| line == delivered).then_some(())
    });
    let stats = get(served.address, "/stats.json");
    let stats: serde_json::Value =
        serde_json::from_str(stats.split_once("\r\n\r\n").unwrap().1).unwrap();
    let classes: Vec<_> = stats["classes"].as_array().unwrap().iter().collect();
    let names: Vec<_> = classes.iter().map(|of| (&of["name"], &of["policy"])).collect();
    let expected = [("default", "drop_newest"), ("prices.*", "latest"), ("logs.>", "drop_oldest")];
    assert_eq!(names.len(), expected.len());
    for ((name, policy), (its_name, its_policy)) in names.into_iter().zip(expected) {
        assert_eq!((name, policy), (&its_name.into(), &its_policy.into()));
    }
    assert_eq!(classes[1]["delivered"], 1);
}

#[test]
fn rules_of_channels_are_settings_like_any_other() {
    let folder = throng_testkit::TempFolder::new("channels");
    let text = "wildcards = true\n\
                [[channel]]\nname = \"prices.*\"\nslow_policy = \"latest\"\nmax_age = \"5s\"\n";
    let file = folder.write("serve.toml", text);
    let path = file.to_str().unwrap();
    let show = |words: &[&str], variable: Option<&str>| {
        let mut command = throng(&["config", "show", "--origin", "--config", path]);
        let output =
            command.args(words).envs(variable.map(|text| ("THRONG_CHANNELS", text))).output();
        let out = String::from_utf8(output.unwrap().stdout).unwrap();
        let line = out.lines().find(|line| line.starts_with("channels = ")).unwrap();
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(
        show(&[], None),
        format!(
            "channels = [{{ name = \"prices.*\", slow_policy = \"latest\", max_age = \"5s\" }}] \
             # {path}:2"
        )
    );
    assert_eq!(
        show(&[], Some("a=close;b=latest")),
        "channels = [{ name = \"a\", slow_policy = \"close\" }, \
         { name = \"b\", slow_policy = \"latest\" }] # environment THRONG_CHANNELS"
    );
    let flags = ["--channel", "a=latest", "--channel", "b.>=drop_oldest,max_backlog=4KiB"];
    assert_eq!(
        show(&flags, Some("a=close")),
        "channels = [{ name = \"a\", slow_policy = \"latest\" }, \
         { name = \"b.>\", slow_policy = \"drop_oldest\", max_backlog = \"4KiB\" }] \
         # flag --channel"
    );
}
