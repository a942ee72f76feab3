//! Server-sent events over real sockets: the bytes that a raw client sees, admission, and the end
//! of a stream.

use std::io::{Read, Write};
use std::time::Duration;

use throng::channel::Delivery;
use throng::http::{EventStream, Origins, Topic};
use throng::prelude::*;

use crate::support::events::Events;
use crate::support::served::{self, dial_narrow, figure, start, start_narrow, stop, total};
use crate::support::{Client, Got, counts_of, dial, eventually, exchange};

/// Channels at `/sse/{channel}` and `/ws/{channel}`.
fn channels() -> Server {
    let member = Ws::from_request(|request| Ok(request.param("channel").unwrap().to_owned()))
        .on_open(|ws, channel| ws.subscribe_pattern(channel).unwrap())
        .on_message(|ws, channel, message| ws.publish_to_others(channel, message));
    Server::new(served::app().ws("/ws/{channel}", member).sse("/sse/{channel}", |request| {
        match request.param("channel") {
            Some("secret") => Err(Reject::forbidden().with_reason("not for everyone")),
            channel => Ok(Topic::Pattern(channel.unwrap().to_owned())),
        }
    }))
    .shards(2)
}

fn wait_for(running: &Running, channel: &str, subscribers: usize) {
    let hub = running.hub();
    eventually("all listen", || hub.subscribers(channel) == subscribers);
}

#[test]
fn texts_are_lines_and_anything_else_is_base64() {
    let (address, running) = start(channels());
    let mut stream = Events::open(address, "/sse/news");
    for part in [
        "HTTP/1.1 200 ",
        "\r\nContent-Type: text/event-stream\r\n",
        "\r\nCache-Control: no-store\r\n",
        "\r\nX-Accel-Buffering: no\r\n",
        "\r\nConnection: close\r\n",
    ] {
        assert!(stream.head.contains(part), "no {part:?} in {:?}", stream.head);
    }
    for header in ["Content-Length", "Transfer-Encoding", "Access-Control-Allow-Origin"] {
        assert!(!stream.head.contains(header), "{header} in {:?}", stream.head);
    }
    assert_eq!(stream.next().as_deref(), Some(":"), "a comment, so that proxies pass the head on");
    wait_for(&running, "news", 1);
    let mut member = Client::connect(address, "/ws/news");
    wait_for(&running, "news", 2);
    member.send_text("plain");
    member.send_text("two\nlines, and \r\nthree");
    member.send_text("");
    member.send_text("data: x\n\nevent: y");
    member.send(throng_proto::ws::Opcode::Binary, &[0, 1, 255]);
    let large = "häuser".repeat(20_000);
    member.send_text(&large);
    for event in [
        "data: plain",
        "data: two\ndata: lines, and \ndata: three",
        "data: ",
        "data: data: x\ndata: \ndata: event: y",
        "event: binary\ndata: AAH/",
    ] {
        assert_eq!(stream.next().as_deref(), Some(event));
    }
    assert!(stream.next() == Some(format!("data: {large}")));
    // Read-only: input from its client has no effect.
    stream.stream.write_all(b"GET /sse/other HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    running.hub().publish("news", "still here").unwrap();
    assert_eq!(stream.next().as_deref(), Some("data: still here"));
    assert_eq!(running.hub().subscribers("other"), 0);
    stop(running);
}

#[test]
fn head_has_the_same_head_and_ends() {
    let (address, running) = start(channels());
    let head = exchange(address, b"HEAD /sse/news HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 ") && head.ends_with("\r\n\r\n"), "{head}");
    assert!(head.contains("\r\nContent-Type: text/event-stream\r\n"), "{head}");
    assert_eq!(running.hub().subscribers("news"), 0);
    for (request, status) in [
        ("POST /sse/news HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n", "405"),
        ("GET /sse/secret HTTP/1.1\r\nHost: x\r\n", "403"),
        ("GET /sse/ HTTP/1.1\r\nHost: x\r\n", "404"),
    ] {
        let request = format!("{request}Connection: close\r\n\r\n");
        let answer = exchange(address, request.as_bytes());
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {answer}");
    }
    let mut old = dial(address);
    old.write_all(b"GET /sse/news HTTP/1.0\r\n\r\n").unwrap();
    wait_for(&running, "news", 1);
    running.hub().publish("news", "to HTTP/1.0, too").unwrap();
    stop(running);
    let mut answer = String::new();
    old.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with("data: to HTTP/1.0, too\n\n"), "{answer}");
}

#[test]
fn pages_of_other_hosts_are_refused_or_may_read() {
    let allowed = "https://app.example";
    let server = channels().origins(Origins::list([allowed]));
    let (address, running) = start(server);
    let request = |origin| {
        let headers = [("Origin", origin)];
        Events::request(dial(address), "GET", "/sse/news", &headers)
    };
    let refused = request("https://evil.example").head;
    assert!(refused.starts_with("HTTP/1.1 403 "), "{refused}");
    assert!(!refused.contains("Access-Control"), "{refused}");
    let mut stream = request(allowed);
    assert!(stream.head.starts_with("HTTP/1.1 200 "), "{}", stream.head);
    let cors = format!("\r\nAccess-Control-Allow-Origin: {allowed}\r\n");
    assert!(stream.head.contains(&cors), "{}", stream.head);
    assert!(stream.head.contains("\r\nVary: Origin\r\n"), "{}", stream.head);
    wait_for(&running, "news", 1);
    running.hub().publish("news", "hello").unwrap();
    assert_eq!(stream.next_event().as_deref(), Some("data: hello"));
    stop(running);
}

#[test]
fn patterns_are_streamed_and_malformed_ones_refused() {
    let (address, running) = start(channels());
    let (mut some, mut all) =
        (Events::open(address, "/sse/news.*"), Events::open(address, "/sse/%3E"));
    wait_for(&running, "news.*", 1);
    wait_for(&running, ">", 1);
    let hub = running.hub();
    for channel in ["news.eu", "sport.eu", "news.us"] {
        hub.publish(channel, channel).unwrap();
    }
    for channel in ["news.eu", "news.us"] {
        assert_eq!(some.next_event(), Some(format!("data: {channel}")));
    }
    for channel in ["news.eu", "sport.eu", "news.us"] {
        assert_eq!(all.next_event(), Some(format!("data: {channel}")));
    }
    let malformed = Events::open(address, "/sse/news..eu").head;
    assert!(malformed.starts_with("HTTP/1.1 400 "), "{malformed}");
    stop(running);
}

#[test]
fn streams_are_receivers_like_any_other_and_have_no_subprotocol() {
    let (address, running) = start(channels());
    let mut stream = Events::open(address, "/sse/news");
    let mut member = Client::connect(address, "/ws/news");
    wait_for(&running, "news", 2);
    let hub = running.hub();
    let to = |delivered| counts_of(|counts| counts.delivered = delivered);
    assert_eq!(total(&hub.publish("news", "published").unwrap()), to(2));
    assert_eq!(total(&hub.broadcast("broadcast").unwrap()), to(2));
    let speaking = Filter::new().subprotocol("v1");
    assert_eq!(total(&hub.broadcast_to(&speaking, "no one").unwrap()), to(0));
    for text in ["published", "broadcast"] {
        assert_eq!(stream.next_event(), Some(format!("data: {text}")));
        assert_eq!(member.next(), Got::Text(text.to_owned()));
    }
    eventually("it is counted", || running.stats().streams == 1);
    drop(stream);
    wait_for(&running, "news", 1);
    eventually("its end is counted", || running.stats().streams == 0);
    stop(running);
}

#[test]
fn a_silent_stream_gets_comments() {
    let limits = Limits::default().heartbeat_interval(Duration::from_secs(1));
    let (address, running) = start(channels().limits(limits));
    let mut stream = Events::open(address, "/sse/quiet");
    for n in 0..3 {
        assert_eq!(stream.next().as_deref(), Some(":"), "comment {n}");
    }
    stop(running);
}

/// Events of 1 KB, more than the kernel's buffers and the cap together.
fn publish_many(running: &Running) -> Delivery {
    let (hub, mut sum) = (running.hub(), Delivery::default());
    for n in 0..1500 {
        let delivery = total(&hub.publish("feed", format!("{n:01000}")).unwrap());
        sum.delivered += delivery.delivered;
        sum.queued += delivery.queued;
        sum.dropped += delivery.dropped;
    }
    sum
}

fn late_reader(address: std::net::SocketAddr, running: &Running) -> Events {
    let stream = Events::request(dial_narrow(address), "GET", "/sse/feed", &[]);
    wait_for(running, "feed", 1);
    stream
}

#[test]
fn a_slow_stream_is_ended_by_the_close_policy() {
    let rules = Backpressure::new(SlowPolicy::Close).max_backlog(100_000);
    let (address, running) =
        start_narrow(channels().channels(Channels::new().backpressure("feed", rules)));
    let mut stream = late_reader(address, &running);
    let delivery = publish_many(&running);
    assert_eq!(delivery.dropped, 1, "the event that made it end");
    let mut next = 0;
    while let Some(event) = stream.next_event() {
        assert_eq!(event, format!("data: {next:01000}"), "none is missing before the end");
        next += 1;
    }
    assert!(next > 0);
    eventually("it is counted", || figure(address, "feed", "slow_consumers") == 1);
    wait_for(&running, "feed", 0);
    stop(running);
}

#[test]
fn a_slow_stream_loses_events_by_the_other_policies() {
    let rules = Backpressure::new(SlowPolicy::DropOldest).max_backlog(100_000);
    let (address, running) =
        start_narrow(channels().channels(Channels::new().backpressure("feed", rules)));
    let mut stream = late_reader(address, &running);
    let delivery = publish_many(&running);
    assert_eq!((delivery.delivered + delivery.queued, delivery.dropped), (1500, 0));
    let (mut heard, mut last) = (0, None);
    while last != Some(1499) {
        let event = stream.next_event().expect("the stream goes on");
        let number: u32 = event.strip_prefix("data: ").unwrap().parse().unwrap();
        assert!(Some(number) > last, "in order");
        (heard, last) = (heard + 1, Some(number));
    }
    assert!(heard < 1500);
    eventually("they add up", || figure(address, "feed", "dropped_oldest") == 1500 - heard);
    stop(running);
}

#[test]
fn a_drain_ends_streams_in_good_order() {
    let (address, running) = start(channels());
    let mut streams: Vec<Events> = (0..10).map(|_| Events::open(address, "/sse/news")).collect();
    wait_for(&running, "news", 10);
    running.hub().publish("news", "the last").unwrap();
    let drained = running.shutdown(DrainPlan::DEFAULT.window(Duration::ZERO)).wait().unwrap();
    assert_eq!(drained.forced, 0, "no client has to answer");
    for stream in &mut streams {
        assert_eq!(stream.next_event().as_deref(), Some("data: the last"));
        assert_eq!(stream.next_event(), None);
    }
}

/// A text of line ends alone is seven times as long as an event. One publisher must not end the
/// streams of others with it, under any policy.
#[test]
fn a_message_that_would_be_much_larger_as_an_event_is_reported_as_lost_and_counted() {
    let lines = "\n".repeat(100_000);
    for policy in [SlowPolicy::Close, SlowPolicy::DropOldest] {
        let limits = Limits::default().max_message_size(64 << 10).max_frame_size(4 << 20);
        let app =
            served::app().sse("/sse/{channel}", |r| Ok(r.param("channel").unwrap().to_owned()));
        let server = Server::new(app).limits(limits).backpressure(Backpressure::new(policy));
        let (address, running) = start(server.shards(1));
        let mut events = Events::open(address, "/sse/lines");
        eventually("it listens", || running.hub().subscribers("lines") == 1);
        let receipt = running.hub().publish("lines", &lines).unwrap();
        assert_eq!(total(&receipt), counts_of(|counts| counts.dropped = 1));
        assert_eq!(events.next_event().as_deref(), Some("event: lost\ndata: "));
        let numbered = Frame::text(&lines).event_id("1.17");
        let receipt = running.hub().publish("lines", &numbered).unwrap();
        assert_eq!(total(&receipt), counts_of(|counts| counts.dropped = 1));
        assert_eq!(events.next_event().as_deref(), Some("id: 1.17\nevent: lost\ndata: 1.17"));
        // Base64 is a third longer, which is acceptable.
        let binary = vec![7; 100_000];
        let after = total(&running.hub().publish("lines", &binary).unwrap());
        assert_eq!(after.delivered, 1);
        let event = events.next_event().unwrap();
        assert!(event.starts_with("event: binary\ndata: BwcH"));
        assert!(event.len() > binary.len() * 4 / 3);
        eventually("both are counted", || figure(address, "default", "too_large") == 2);
        assert_eq!(figure(address, "default", "slow_consumers"), 0);
        stop(running);
    }
}

#[test]
fn a_stream_begins_with_what_its_client_has_missed_and_events_have_ids_and_names() {
    let app = served::app().sse("/prices", |request| {
        let seen: u32 = request.last_event_id().and_then(|id| id.parse().ok()).unwrap_or(0);
        let missed = (seen + 1..=3).map(|n| Frame::text(n.to_string()).event_id(n.to_string()));
        Ok(EventStream::new("prices").retry(Duration::from_secs(2)).first(missed))
    });
    let (address, running) = start(Server::new(app).shards(2));
    let headers = [("Last-Event-ID", "1")];
    let mut stream = Events::request(dial(address), "GET", "/prices", &headers);
    let mut first = Events::open(address, "/prices");
    wait_for(&running, "prices", 2);
    let price = Frame::text("1.17").event_id("4\nretry: 0").event_name("price");
    running.hub().publish("prices", &price).unwrap();
    running.hub().publish("prices", Frame::binary([1]).event_name("raw")).unwrap();
    let published = ["id: 4retry: 0\nevent: price\ndata: 1.17", "event: raw\ndata: AQ=="];
    let missed = ["retry: 2000", "id: 2\ndata: 2", "id: 3\ndata: 3"];
    for expected in missed.into_iter().chain(published) {
        assert_eq!(stream.next_event().as_deref(), Some(expected));
    }
    let all = ["retry: 2000", "id: 1\ndata: 1", "id: 2\ndata: 2", "id: 3\ndata: 3"];
    for expected in all.into_iter().chain(published) {
        assert_eq!(first.next_event().as_deref(), Some(expected));
    }
    stop(running);
}
