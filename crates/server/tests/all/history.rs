//! Channels with history over real sockets: the messages of a client that comes back, as a
//! WebSocket, as a stream of events and with the library's own client.

#[path = "../../examples/client_resume.rs"]
mod example;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use example::{Line, Member};
use throng::channel::{HistoryMode, Position, Since};
use throng::http::EventStream;
use throng::prelude::*;
use throng::server::Shards;

use crate::support::events::Events;
use crate::support::served::{self, start, stop, total};
use crate::support::{Client, EXTREMES, Got, dial, eventually};

const HOUR: Duration = Duration::from_secs(3600);

/// `/ws?since=` joins `chat.a`, and answers with its position and whether it continues.
fn chat() -> Ws<Option<Position>> {
    Ws::from_request(|request| Ok(request.query("since").and_then(|since| since.parse().ok())))
        .on_open(|ws, since| {
            ws.send_offsets(true);
            let recovery = ws.subscribe_since("chat.a", *since);
            let position = recovery.position.expect("it has a history");
            ws.send(format!("{position} {}", recovery.recovered));
            ws.send_missed(&recovery);
        })
        .on_message(|ws, _, message| {
            ws.publish_to_others("chat.a", message);
        })
}

fn server(history: History) -> Server {
    let app = served::app().ws("/ws", chat()).sse("/sse", |_| Ok("chat.a"));
    Server::new(app).channels(Channels::new().history("chat.*", history))
}

fn publish(hub: &Hub, numbers: std::ops::RangeInclusive<u32>) {
    for number in numbers {
        total(&hub.publish("chat.a", number.to_string()).unwrap());
    }
}

/// The next message, without the tag after its offset.
fn text(client: &mut Client) -> String {
    match client.next() {
        Got::Text(text) => without_tag(&text),
        other => panic!("not a text: {other:?}"),
    }
}

/// The part of a text before its first space, without a tag at the end.
fn without_tag(text: &str) -> String {
    let (place, rest) = text.split_once(' ').unwrap_or((text, ""));
    let separator = if rest.is_empty() { "" } else { " " };
    match place.rsplit_once(':').filter(|(_, tag)| tag.len() == 10) {
        Some((place, _)) => format!("{place}{separator}{rest}"),
        None => text.to_owned(),
    }
}

/// The position of a publication that is kept, or of the last one.
fn at(hub: &Hub, offset: u64) -> Position {
    let page = hub.history("chat.a", 1000).unwrap();
    let kept = page.publications.iter().map(|publication| publication.position());
    let mut all = kept.chain([page.position]);
    all.find(|position| position.offset == offset).expect("it is kept")
}

#[test]
fn a_client_that_comes_back_gets_what_it_missed_on_every_backend() {
    for io in EXTREMES {
        let (address, running) =
            start(server(History::new(10, HOUR)).shards(Shards::new().io(io).count(2)));
        let hub = running.hub();
        let open = |target: &str| Client::upgrade(dial(address), target, &[], &[]).unwrap();
        let mut client = open("/ws");
        let began = text(&mut client);
        let (epoch, rest) = began.split_once(':').unwrap();
        assert_eq!(rest, "0 false");
        publish(&hub, 1..=2);
        assert_eq!([text(&mut client), text(&mut client)], ["1 1", "2 2"]);
        drop(client);
        let second = at(&hub, 2);
        publish(&hub, 3..=5);
        let mut client = open(&format!("/ws?since={second}"));
        assert_eq!(text(&mut client), format!("{epoch}:5 true"));
        publish(&hub, 6..=6);
        for expected in ["3 3", "4 4", "5 5", "6 6"] {
            assert_eq!(text(&mut client), expected);
        }
        drop(client);
        let sixth = at(&hub, 6);
        for unproven in [format!("{epoch}:4"), format!("{epoch}:4:0000000000")] {
            let mut client = open(&format!("/ws?since={unproven}"));
            assert_eq!(text(&mut client), format!("{epoch}:6 false"), "{unproven}");
        }
        publish(&hub, 7..=20);
        let mut client = open(&format!("/ws?since={sixth}"));
        assert_eq!(text(&mut client), format!("{epoch}:20 false"), "10 are kept");
        let mut client = open("/ws?since=0000000000000001:19:0000000001");
        assert_eq!(text(&mut client), format!("{epoch}:20 false"), "another server's");
        let page = hub.history("chat.a", 2).unwrap();
        assert_eq!(without_tag(&page.position.to_string()), format!("{epoch}:20"));
        let offsets = page.publications.iter().map(|publication| publication.position().offset);
        assert_eq!(offsets.collect::<Vec<_>>(), [19, 20]);
        assert!(hub.history("other", 2).is_none());
        stop(running);
    }
}

#[test]
fn a_new_client_begins_with_the_last_publications_and_misses_none_that_follow() {
    for io in EXTREMES {
        let last = Ws::new().on_open(|ws, ()| {
            let recovery = ws.subscribe_since("chat.a", Since::Last(3));
            ws.send(format!("{} {}", recovery.missed.len(), recovery.recovered));
            ws.send_missed(&recovery);
        });
        let app =
            served::app().ws("/ws", last).sse("/sse", |_| Ok(EventStream::new("chat.a").last(3)));
        let server =
            Server::new(app).channels(Channels::new().history("chat.*", History::new(10, HOUR)));
        let (address, running) = start(server.shards(Shards::new().io(io).count(2)));
        let hub = running.hub();
        let mut first = Client::connect(address, "/ws");
        assert_eq!(text(&mut first), "0 false");
        publish(&hub, 1..=2);
        let mut second = Client::connect(address, "/ws");
        let both = ["2 false", "1", "2"];
        assert_eq!([text(&mut second), text(&mut second), text(&mut second)], both);
        // From any join on, each gets messages without a gap.
        let is_over = Arc::new(AtomicBool::new(false));
        let its = Arc::clone(&is_over);
        let publisher = std::thread::spawn(move || {
            let last = (3..).find(|number| {
                publish(&hub, *number..=*number);
                its.load(Ordering::Relaxed)
            });
            last.unwrap()
        });
        for _ in 0..20 {
            let mut client = Client::connect(address, "/ws");
            text(&mut client);
            let numbers: Vec<u32> = (0..5).map(|_| text(&mut client).parse().unwrap()).collect();
            assert!(numbers.is_sorted_by(|a, b| a + 1 == *b), "{io:?}: {numbers:?}");
        }
        is_over.store(true, Ordering::Relaxed);
        let last = publisher.join().unwrap();
        let mut events = Events::open(address, "/sse");
        for expected in last - 2..=last {
            let event = events.next_event().unwrap();
            assert!(event.contains(&format!("data: {expected}")), "{io:?}: {event}");
        }
        stop(running);
    }
}

#[test]
fn a_publisher_that_is_left_out_of_its_message_gets_it_from_the_history() {
    let (address, running) = start(server(History::new(10, HOUR)).shards(2));
    let open = |target: &str| Client::upgrade(dial(address), target, &[], &[]).unwrap();
    let (mut client, mut other) = (open("/ws"), open("/ws"));
    let began = text(&mut client);
    let epoch = began.split_once(':').unwrap().0;
    let first = at(&running.hub(), 0);
    text(&mut other);
    client.send_text("mine");
    assert_eq!(text(&mut other), "1 mine");
    drop(client);
    let mut client = open(&format!("/ws?since={first}"));
    assert_eq!(
        [text(&mut client), text(&mut client)],
        [format!("{epoch}:1 true"), "1 mine".into()]
    );
    stop(running);
}

#[test]
fn a_receipt_has_the_position_of_its_publication() {
    let callback = Ws::new().on_message(|ws, (), message| {
        let receipt = ws.publish("chat.a", message);
        ws.send(receipt.position().map_or("none".to_owned(), |position| position.to_string()));
        let receipt = ws.publish("other", "without a history");
        ws.send(receipt.position().map_or("none".to_owned(), |position| position.to_string()));
    });
    let server = Server::new(served::app().ws("/ws", callback))
        .channels(Channels::new().history("chat.*", History::new(10, HOUR)));
    let (address, running) = start(server);
    let hub = running.hub();
    let receipt = hub.publish("chat.a", "first").unwrap();
    assert_eq!(receipt.position(), Some(at(&hub, 1)));
    assert_eq!(hub.publish("other", "first").unwrap().position(), None);
    let mut client = Client::connect(address, "/ws");
    client.send_text("second");
    assert_eq!(client.next(), Got::Text(at(&hub, 2).to_string()));
    assert_eq!(client.next(), Got::Text("none".into()));
    stop(running);
}

#[test]
fn a_stream_of_events_continues_behind_the_last_event() {
    let (address, running) = start(server(History::new(3, HOUR)).shards(2));
    let hub = running.hub();
    let open = |id: Option<&str>| {
        let header = id.map(|id| ("Last-Event-ID", id));
        Events::request(dial(address), "GET", "/sse", header.as_slice())
    };
    let mut stream = open(None);
    let first = stream.next_event().unwrap();
    assert_eq!(first, format!("id: {}", at(&hub, 0)));
    publish(&hub, 1..=1);
    let first = at(&hub, 1);
    assert_eq!(stream.next_event().unwrap(), format!("id: {first}\ndata: 1"));
    drop(stream);
    publish(&hub, 2..=3);
    let mut stream = open(Some(&first.to_string()));
    publish(&hub, 4..=4);
    for number in 2..=4 {
        let position = at(&hub, number);
        assert_eq!(stream.next_event().unwrap(), format!("id: {position}\ndata: {number}"));
    }
    let fourth = at(&hub, 4);
    publish(&hub, 5..=9);
    let unproven = Position { tag: None, ..at(&hub, 8) };
    for lost in [&fourth.to_string(), &unproven.to_string(), "made up"] {
        let mut stream = open(Some(lost));
        let position = at(&hub, 9);
        assert_eq!(
            stream.next_event().unwrap(),
            format!("id: {position}\nevent: lost\ndata: {position}")
        );
    }
    // Without a value it is a first visit, as with `?since=`.
    let mut stream = open(Some(""));
    assert_eq!(stream.next_event().unwrap(), format!("id: {}", at(&hub, 9)));
    let mut stream = Events::open(address, &format!("/sse?last_event_id={}", at(&hub, 8)));
    assert_eq!(stream.next_event().unwrap(), format!("id: {}\ndata: 9", at(&hub, 9)));
    stop(running);
}

/// As an event an empty line is seven times as long.
#[test]
fn a_stream_that_would_begin_with_more_than_fits_into_its_queue_begins_with_a_loss() {
    let limits = Limits::default().max_backlog(200_000);
    let cache = History::new(1, HOUR).mode(HistoryMode::Cache);
    let app = served::app().sse("/sse", |_| Ok("chat.a")).sse("/cache", |_| Ok("cache"));
    let server = Server::new(app).channels(
        Channels::new().history("chat.*", History::new(1000, HOUR)).history("cache", cache),
    );
    let (address, running) = start(server.limits(limits).shards(1));
    let hub = running.hub();
    let first = at(&hub, 0);
    for _ in 0..40 {
        total(&hub.publish("chat.a", "\n".repeat(2000)).unwrap());
    }
    let open = |path: &str, id: Position| {
        Events::request(dial(address), "GET", path, &[("Last-Event-ID", &id.to_string())])
    };
    let lost = |position: Position| format!("id: {position}\nevent: lost\ndata: {position}");
    let mut stream = open("/sse", first);
    assert_eq!(stream.next_event().unwrap(), lost(at(&hub, 40)));
    total(&hub.publish("chat.a", "live").unwrap());
    assert_eq!(stream.next_event().unwrap(), format!("id: {}\ndata: live", at(&hub, 41)));
    let metric = |name: &str| {
        let metrics = served::get(address, "/metrics");
        metrics.lines().any(|line| line == name)
    };
    assert!(
        metric("throng_history_unrecovered_total 1") && metric("throng_history_recovered_total 0")
    );
    let mut stream = open("/sse", at(&hub, 31));
    for offset in 32..=40 {
        let event = stream.next_event().unwrap();
        assert!(event.starts_with(&format!("id: {}\n", at(&hub, offset))), "{event:.50}");
        assert_eq!(event.lines().count(), 2002);
    }
    total(&hub.publish("cache", "\n".repeat(80_000)).unwrap());
    let mut stream = Events::open(address, "/cache");
    let newest = hub.history("cache", 1).unwrap().position;
    assert_eq!(stream.next_event().unwrap(), lost(newest), "also of a first visit");
    stop(running);
}

#[test]
fn the_client_of_the_library_continues_where_it_was() {
    let (address, running) = start(example::server().shards(2));
    let (hub, channel) = (running.hub(), "chat.lobby");
    let mut member = Member::new(&format!("ws://{address}/chat"));
    let said = |text: &str| Some(Line::Message(text.to_owned()));
    let reader = std::thread::spawn(move || {
        let mut lines = Vec::new();
        while lines.len() < 8 {
            lines.push(member.next().unwrap());
        }
        lines
    });
    eventually("the client has joined", || hub.subscribers(channel) == 1);
    for round in 0..4usize {
        total(&hub.publish(channel, format!("{round} heard")).unwrap());
        // Each connection ends; the client is away for the second line, or is back for it.
        let (code, reason) = [(1012, ""), (1008, "slow consumer")][round % 2];
        total(&hub.close_all(&Filter::new(), code, reason).unwrap());
        total(&hub.publish(channel, format!("{round} missed")).unwrap());
    }
    let lines = reader.join().unwrap();
    let expected = (0..4).flat_map(|n| [said(&format!("{n} heard")), said(&format!("{n} missed"))]);
    assert_eq!(lines, expected.collect::<Vec<_>>());
    stop(running);
}

#[test]
fn histories_are_in_the_metrics_and_bounded_together() {
    let limits = Limits::default().max_history_memory(100_000);
    let app = served::app().ws("/ws", chat()).sse("/sse", |_| Ok("chat.a"));
    let server = Server::new(app)
        .channels(Channels::new().history(">", History::new(10, HOUR)))
        .limits(limits);
    let (address, running) = start(server.shards(2));
    let hub = running.hub();
    for channel in 0..2000 {
        let _ = hub.publish(&format!("channel.{channel}"), "x".repeat(500)).unwrap();
    }
    let metrics = served::get(address, "/metrics");
    let value = |name: &str| -> u64 {
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in {metrics}")).parse().unwrap()
    };
    let bytes = value("throng_history_bytes");
    assert!((50_000..=100_000).contains(&bytes), "{bytes}");
    assert_eq!(value("throng_history_max_bytes"), 100_000);
    assert!(value("throng_history_evicted_total") > 1500);
    assert_eq!(value("throng_history_unrecovered_total"), 0);
    stop(running);
}

#[test]
fn a_history_that_cannot_be_kept_is_a_mistake_that_names_the_remedy() {
    let check = |pattern: &str, history: History| {
        let server = Server::new(App::new()).channels(Channels::new().history(pattern, history));
        server.check().unwrap_err().to_string()
    };
    let error = check("chat.*", History::new(0, HOUR));
    assert!(error.contains("\"chat.*\"") && error.contains("at least 1"), "{error}");
    let error = check("chat.*", History::new(1, Duration::ZERO));
    assert!(error.contains("7 days"), "{error}");
    let error = check("chat.*", History::new(1, HOUR).max_bytes(1 << 20));
    assert!(error.contains("max_backlog"), "{error}");
    assert!(check("a..b", History::new(1, HOUR)).contains("empty token"));
}

/// The policy is always to close: a receiver that missed a message comes back for it.
#[test]
fn a_slow_member_is_closed_and_loses_nothing() {
    let limits = Limits::default().max_backlog(200_000);
    let server = server(History::new(1000, HOUR)).limits(limits);
    let (address, running) = start(server.backpressure(SlowPolicy::DropOldest).shards(1));
    let hub = running.hub();
    let mut client = Client::upgrade(served::dial_narrow(address), "/ws", &[], &[]).unwrap();
    let began = text(&mut client);
    let epoch = began.split_once(':').unwrap().0.to_owned();
    let mut published = 0;
    eventually("the member is closed", || {
        for _ in 0..50 {
            total(&hub.publish("chat.a", "x".repeat(1000)).unwrap());
            published += 1;
        }
        served::figure(address, "chat.*", "slow_consumers") == 1
    });
    let mut got = 0;
    loop {
        match client.next() {
            Got::Text(text) => {
                got += 1;
                let text = without_tag(&text);
                assert!(text.starts_with(&format!("{got} ")), "{got}: {text:.20}");
            }
            other => break assert_eq!(other.close_code(), Some(1008)),
        }
    }
    assert!(got < published);
    let mut client =
        Client::upgrade(dial(address), &format!("/ws?since={}", at(&hub, published - 9)), &[], &[])
            .unwrap();
    assert_eq!(text(&mut client), format!("{epoch}:{published} true"));
    stop(running);
}
