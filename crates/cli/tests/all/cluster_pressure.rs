//! A server whose clients publish more than Redis accepts, or while Redis is away.
//!
//! Skipped where there is no redis-server; with `TEST_PEERS=1` that is an error.
#![cfg(all(feature = "redis", unix))]

use std::io::{ErrorKind, Write};

use serde_json::Value;
use throng_proto::ws::Opcode;
use throng_testkit::{Redis, TempFolder, eventually, poll};

use crate::support::{Answer, Client, Got, Served, exchange};

const CHANNELS: [&str; 2] = ["--channel", "log.>=close,history=1000/5m,while_down=buffer"];

fn start(redis: &Redis, more: &[&str]) -> Served {
    let words = ["--listen", "127.0.0.1:0", "--cluster", &redis.url("")];
    Served::start(&[&words[..], &CHANNELS, &["--set", "public_metrics=true"], more].concat())
}

fn figures(server: &Served) -> Value {
    let request = "GET /stats.json HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let Answer { body, .. } = exchange(&mut server.dial(), request);
    serde_json::from_slice(&body).unwrap()
}

/// A client that publishes as fast as it can, into a channel without members, until it is delayed
/// or its messages are refused.
fn flood(server: &Served) -> Client {
    let mut flooder = Client::connect(server.addresses[0], "/ws/empty");
    // A masked frame of one byte, with a key of zeros.
    let frames = [0x82, 0x81, 0, 0, 0, 0, b'x'].repeat(10_000);
    flooder.stream.set_nonblocking(true).unwrap();
    let mut rest = &frames[..];
    eventually("the flooder has met a limit", || {
        for _ in 0..10 {
            match flooder.stream.write(rest) {
                Ok(written) => rest = &rest[written..],
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            if rest.is_empty() {
                rest = &frames;
            }
        }
        let figures = figures(server);
        let is_any = |figure: &Value| figure.as_u64().unwrap() > 0;
        is_any(&figures["cluster"]["refused"]) || is_any(&figures["publishers_held"])
    });
    flooder
}

fn no_message_is_lost_beside_a_flood(io: &str) {
    let Some(redis) = Redis::start("flood", &[]) else { return };
    let server = start(&redis, &["--set", io]);
    let mut reader = Client::connect(server.addresses[0], "/ws/log.a?since=");
    assert!(matches!(reader.next(), Got::Text(line) if line.contains("epoch")));
    let mut writer = Client::connect(server.addresses[0], "/ws/log.a");
    // So that it falls behind at any speed.
    redis.signal("-STOP");
    let _flooder = flood(&server);
    for at in 0..500 {
        writer.send_text(&format!("message {at}"));
    }
    redis.signal("-CONT");
    for at in 0..500 {
        match reader.next() {
            Got::Text(text) => {
                assert!(text.ends_with(&format!(" message {at}")), "{text}, not {at}")
            }
            other => panic!("{other:?}, not message {at}; {}", figures(&server)["cluster"]),
        }
    }
    let figures = figures(&server);
    assert_eq!(figures["cluster"]["refused"], 0, "{figures}");
}

#[test]
fn no_message_is_lost_beside_a_client_that_publishes_more_than_redis_takes() {
    no_message_is_lost_beside_a_flood("io=auto");
}

#[test]
fn nor_where_each_connection_has_a_thread() {
    no_message_is_lost_beside_a_flood("io=threads");
}

#[test]
fn a_client_that_publishes_little_is_read_beside_one_that_publishes_more_than_redis_takes() {
    let Some(redis) = Redis::start("share", &[]) else { return };
    let server = start(&redis, &[]);
    let mut honest = Client::connect(server.addresses[0], "/ws/log.a");
    redis.signal("-STOP");
    let _flooder = flood(&server);
    for at in 0..50 {
        honest.send_text("little");
        // A delayed client is not read.
        honest.send(Opcode::Ping, &[at]);
        assert_eq!(honest.next_of_any_kind(), Got::Pong(vec![at]));
    }
    redis.signal("-CONT");
}

#[test]
fn publishers_whose_accepted_messages_are_lost_are_closed_and_no_others() {
    let Some(mut redis) = Redis::start("closed", &[]) else { return };
    let server = start(&redis, &[]);
    let open = |target| Client::connect(server.addresses[0], target);
    let assert_closed = |client: &mut Client| {
        let Got::Close(code, reason) = client.next() else { panic!("not closed") };
        assert_eq!(
            (code, &*reason),
            (1013, "the cluster does not take messages now; try again later")
        );
    };
    let ready = || {
        let request = "GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n";
        let Answer { head, body } = exchange(&mut server.dial(), request);
        (head[9..12].parse::<u16>().unwrap(), String::from_utf8(body).unwrap())
    };
    let (mut writer, mut silent) = (open("/ws/log.a"), open("/ws/log.a"));
    let (mut other, mut reader) = (open("/ws/plain"), open("/ws/plain"));
    redis.ask("CONFIG SET maxmemory 1");
    (0..300).for_each(|_| writer.send_text("lost"));
    eventually("the server is degraded", || {
        let (status, body) = ready();
        status == 200 && body.starts_with("degraded: the cluster has not taken all messages")
    });
    // The channels that work are not affected.
    other.send_text("taken");
    assert!(matches!(reader.next(), Got::Text(text) if text == "taken"));
    assert_closed(&mut writer);
    assert_eq!(figures(&server)["cluster"]["unknown"], 0);
    eventually("all are counted", || figures(&server)["cluster"]["refused"] == 300);
    redis.ask("CONFIG SET maxmemory 0");
    eventually("the server is ready", || ready() == (200, "ready\n".to_owned()));
    // Clients without a loss are still connected.
    let mut writer = open("/ws/log.a");
    writer.send_text("kept");
    assert!(matches!(silent.next(), Got::Text(text) if text == "kept"));
    other.send_text("taken, too");
    assert!(matches!(reader.next(), Got::Text(text) if text == "taken, too"));
    // With `buffer`, while Redis is away for longer than messages wait.
    redis.kill();
    eventually("the server knows", || figures(&server)["cluster"]["up"] == false);
    writer.send_text("lost");
    assert_closed(&mut writer);
}

#[test]
fn the_log_names_the_key_of_a_channel_that_redis_refuses() {
    let Some(redis) = Redis::start("other-type", &[]) else { return };
    let folder = TempFolder::new("other-type");
    let log = folder.join("log");
    let server = start(&redis, &["--log-file", log.to_str().unwrap()]);
    redis.ask("SET throng.o.log.a text");
    let mut writer = Client::connect(server.addresses[0], "/ws/log.a");
    writer.send_text("lost");
    assert!(matches!(writer.next(), Got::Close(1013, _)));
    let line = poll("a line of the log", || {
        let text = std::fs::read_to_string(&log).unwrap();
        text.lines().find(|line| line.contains("cluster.refused")).map(str::to_owned)
    });
    let line: Value = serde_json::from_str(&line).unwrap();
    let said = |field: &str, words: &str| line[field].as_str().unwrap().contains(words);
    assert!(said("reason", "WRONGTYPE") && said("reason", "throng.o.log.a"), "{line}");
    assert!(said("message", "remove a key of another type"), "{line}");
}

#[test]
fn a_publisher_whose_message_is_refused_is_closed_and_the_log_says_why() {
    let Some(mut redis) = Redis::start("refused", &[]) else { return };
    let folder = TempFolder::new("refused");
    let log = folder.join("log");
    let server = start(&redis, &["--log-file", log.to_str().unwrap()]);
    let mut reader = Client::connect(server.addresses[0], "/ws/chat.a");
    let mut writer = Client::connect(server.addresses[0], "/ws/chat.a");
    redis.kill();
    eventually("the server knows", || figures(&server)["cluster"]["up"] == false);
    writer.send_text("lost");
    let Got::Close(code, reason) = writer.next() else { panic!("not closed") };
    let expected = "the cluster does not take messages now; try again later";
    assert_eq!((code, &*reason), (1013, expected));
    assert_eq!(figures(&server)["cluster"]["refused"], 1);
    let line = poll("a line of the log", || {
        let text = std::fs::read_to_string(&log).unwrap();
        text.lines().find(|line| line.contains("cluster.refused")).map(str::to_owned)
    });
    let line: Value = serde_json::from_str(&line).unwrap();
    assert_eq!((&line["level"], &line["messages"]), (&"warn".into(), &1.into()), "{line}");
    let reason = line["reason"].as_str().unwrap();
    assert!(reason.starts_with("the cluster has delivered nothing for "), "{line}");
    assert!(line["message"].as_str().unwrap().contains("while_down"), "{line}");
    // Members stay.
    redis.run();
    eventually("the cluster is up", || figures(&server)["cluster"]["up"] == true);
    Client::connect(server.addresses[0], "/ws/chat.a").send_text("later");
    assert!(matches!(reader.next(), Got::Text(text) if text == "later"));
}
