//! Clients of the Centrifuge protocol, on the wire.

use serde_json::{Value, json};
use throng_proto::ws::Opcode;
use throng_testkit::{Client, Got, poll};

use super::api;
use super::rights::{folder, seconds_from_now, start, token};
use super::{Served, dial, get};
use crate::support::speaker::{PATH, Speaker, anyone};

#[test]
fn both_protocols_share_channels() {
    let served = Served::start(&[]);
    let mut ann = Speaker::connect(served.address, &anyone());
    let mut bob = Speaker::connect(served.address, &anyone());
    for speaker in [&mut ann, &mut bob] {
        assert_eq!(speaker.subscribe("news"), json!({}));
    }
    let mut plain = Client::connect(served.address, "/ws/news?echo=1");
    let publish = json!({ "id": 3, "publish": { "channel": "news", "data": { "n": 1 } } });
    ann.send(&publish);
    let info = json!({ "user": "", "client": ann.id });
    let expected = json!({ "push": { "channel": "news", "pub": {
        "data": { "n": 1 }, "info": info
    } } });
    assert_eq!(ann.next(), expected, "the publisher gets it, too");
    assert_eq!(ann.next(), json!({ "id": 3, "publish": {} }));
    assert_eq!(bob.next(), expected);
    assert_eq!(plain.next(), Got::Text("{\"n\":1}".to_owned()));
    for (sent, data) in [("hello\nyou", json!("hello\nyou")), ("[1,\n2]", json!([1, 2]))] {
        plain.send_text(sent);
        assert_eq!(plain.next(), Got::Text(sent.to_owned()));
        let expected = json!({ "push": { "channel": "news", "pub": { "data": data } } });
        assert_eq!((ann.next(), bob.next()), (expected.clone(), expected));
    }
    plain.send(Opcode::Binary, &[0xff, 0xfe]);
    let expected = json!({ "push": { "channel": "news", "pub": { "data": "//4=" } } });
    assert_eq!(ann.next(), expected);
    let unsubscribe = json!({ "id": 4, "unsubscribe": { "channel": "news" } });
    assert_eq!(ann.ask(&unsubscribe), json!({ "id": 4, "unsubscribe": {} }));
    plain.send_text("gone");
    assert_eq!(bob.next(), expected);
    assert_eq!(bob.next()["push"]["pub"]["data"], "gone");
    ann.send(&json!({ "id": 5, "presence": { "channel": "news" } }));
    assert_eq!(ann.next()["error"]["code"], 108, "nothing came before it");
    served.process.signal("TERM");
    assert_eq!(ann.ws.next(), Got::Close(3001, "shutdown".to_owned()));
}

#[test]
fn a_client_that_comes_back_gets_all_that_it_missed_or_learns_that_it_does_not() {
    let rule = "chat.>=close,history=3/5m";
    let served = Served::start(&["--channel", rule]);
    let mut ann = Speaker::connect(served.address, &anyone());
    let begun = ann.subscribe("chat.a");
    assert_eq!((&begun["recoverable"], &begun["positioned"]), (&json!(true), &json!(true)));
    let epoch = begun["epoch"].as_str().unwrap().to_owned();
    let mut plain = Client::connect(served.address, "/ws/chat.a");
    plain.send_text("1");
    let first = ann.next();
    let at = first["push"]["pub"]["offset"].as_u64().unwrap();
    assert_eq!(first["push"]["pub"]["data"], 1, "{first}");
    drop(ann);
    plain.send_text("2");
    plain.send_text("3");
    let since = |epoch: &str, offset: u64, flag: u32| {
        json!({ "id": 2, "subscribe": {
            "channel": "chat.a", "recover": true, "epoch": epoch, "offset": offset, "flag": flag
        } })
    };
    let mut ann = Speaker::connect(served.address, &anyone());
    let limit = json!({ "id": 2, "history": { "channel": "chat.a", "limit": -1 } });
    poll("all are published", || (ann.ask(&limit)["history"]["offset"] == at + 2).then_some(()));
    let back = ann.ask(&since(&epoch, at, 0));
    let publications = json!([{ "data": 2, "offset": at + 1 }, { "data": 3, "offset": at + 2 }]);
    let expected = json!({
        "recoverable": true, "positioned": true, "epoch": epoch, "offset": at,
        "recovered": true, "was_recovering": true, "publications": publications
    });
    assert_eq!(back["subscribe"], expected);
    plain.send_text("4");
    assert_eq!(ann.next()["push"]["pub"], json!({ "data": 4, "offset": at + 3 }));
    for (epoch, offset) in
        [(epoch.as_str(), at - 1), ("0123456789abcdef", at), ("", at), (&epoch, at + 9)]
    {
        let mut late = Speaker::connect(served.address, &anyone());
        let lost = late.ask(&since(epoch, offset, 0));
        let lost = &lost["subscribe"];
        assert!(lost["recovered"].is_null() && lost["publications"].is_null(), "{lost}");
        assert_eq!((&lost["was_recovering"], &lost["offset"]), (&json!(true), &json!(at + 3)));
        let mut strict = Speaker::connect(served.address, &anyone());
        assert_eq!(strict.fails(&since(epoch, offset, 2)), 112);
        strict.subscribe("chat.a");
    }
    let history = |request: Value, expected: &[u64]| {
        let mut reader = Speaker::connect(served.address, &anyone());
        let reply = reader.ask(&json!({ "id": 7, "history": request }));
        let publications = reply["history"]["publications"].as_array().unwrap();
        let offsets: Vec<_> =
            publications.iter().map(|one| one["offset"].as_u64().unwrap()).collect();
        assert_eq!(offsets, expected, "{reply}");
        assert_eq!(
            (&reply["history"]["epoch"], &reply["history"]["offset"]),
            (&json!(epoch), &json!(at + 3))
        );
    };
    history(json!({ "channel": "chat.a" }), &[]);
    history(json!({ "channel": "chat.a", "limit": 2 }), &[at + 1, at + 2]);
    history(json!({ "channel": "chat.a", "limit": 2, "reverse": true }), &[at + 3, at + 2]);
    let position = json!({ "epoch": epoch, "offset": at + 1 });
    history(json!({ "channel": "chat.a", "limit": -1, "since": position }), &[at + 2, at + 3]);
    let elsewhere = json!({ "epoch": "other", "offset": at });
    let request = json!({ "channel": "chat.a", "limit": 1, "since": elsewhere });
    assert_eq!(ann.fails(&json!({ "id": 8, "history": request })), 112);
    assert_eq!(ann.fails(&json!({ "id": 9, "history": { "channel": "other" } })), 108);
}

#[test]
fn presence_names_users_and_members_learn_who_comes_and_goes() {
    let folder = folder("[[channel]]\nname = \"chat\"\npresence = true\njoin_leave = true\n");
    let served = start(&folder, &[]);
    let join = |name: &str, info: &str| {
        let claims = format!("{{\"sub\":\"{name}\",\"join\":\"chat\",\"info\":{info}}}");
        json!({ "token": token(&claims) })
    };
    let mut ann = Speaker::connect(served.address, &join("ann", "{\"name\":\"Ann\"}"));
    ann.subscribe("chat");
    let mut bob = Speaker::connect(served.address, &join("bob", "[1]"));
    bob.subscribe("chat");
    let ann_info = json!({ "user": "ann", "client": ann.id, "conn_info": { "name": "Ann" } });
    let bob_info = json!({ "user": "bob", "client": bob.id, "conn_info": [1] });
    let push = json!({ "push": { "channel": "chat", "join": { "info": bob_info } } });
    assert_eq!(ann.next(), push);
    let reply = ann.ask(&json!({ "id": 3, "presence": { "channel": "chat" } }));
    let mut listed = json!({});
    listed[&ann.id] = ann_info;
    listed[&bob.id] = bob_info.clone();
    assert_eq!(reply, json!({ "id": 3, "presence": { "presence": listed } }));
    let mut again = Speaker::connect(served.address, &join("ann", "null"));
    again.subscribe("chat");
    assert_eq!(ann.next()["push"]["join"]["info"]["client"], again.id.as_str());
    let stats = json!({ "id": 4, "presence_stats": { "channel": "chat" } });
    let counted = json!({ "num_clients": 3, "num_users": 2 });
    assert_eq!(ann.ask(&stats)["presence_stats"], counted);
    drop(bob);
    let push = json!({ "push": { "channel": "chat", "leave": { "info": bob_info } } });
    assert_eq!(ann.next(), push);
    // A client that chooses its information passes for no user.
    let forged = "/ws/chat?info=%7B%22%40user%22%3A%22ann%22%7D";
    let refused = Client::request(served.address, forged, &[]).unwrap_err();
    assert!(refused.starts_with("HTTP/1.1 400 "), "{refused}");
}

/// A subscription with a token of its own.
fn subscribe_with(channel: &str, token: &str) -> Value {
    json!({ "id": 2, "subscribe": { "channel": channel, "token": token } })
}

#[test]
fn tokens_decide_as_in_the_plain_protocol() {
    let rules = "[[channel]]\nname = \"public\"\nmay_join = \"anyone\"\n\
                 [[channel]]\nname = \"staff\"\nmay_join = \"none\"\n\
                 [[channel]]\nname = \"of.*\"\nmay_join = \"user\"\nmay_publish = \"user\"\n";
    let folder = folder(rules);
    let served = start(&folder, &[]);
    let connect = |token: &str| json!({ "id": 1, "connect": { "token": token } });
    let good = token(r#"{"sub":"ann","join":"chat.*","publish":"chat.a","channels":["chat.z"]}"#);
    let of_channel = token(r#"{"sub":"ann","channel":"chat.a"}"#);
    for bad in [format!("{good}x"), "none".to_owned(), of_channel.clone()] {
        let mut speaker = Speaker::open(served.address);
        speaker.send(&connect(&bad));
        assert_eq!(speaker.ws.next(), Got::Close(3500, "invalid token".to_owned()));
    }
    let old = token(&format!("{{\"sub\":\"ann\",\"exp\":{}}}", seconds_from_now(0) - 100));
    assert_eq!(Speaker::open(served.address).fails(&connect(&old)), 109);
    let mut stranger = Speaker::connect(served.address, &anyone());
    stranger.subscribe("public");
    assert_eq!(stranger.fails(&subscribe_with("chat.a", "")), 103);
    let mut ann = Speaker::open(served.address);
    let reply = ann.ask(&connect(&good));
    assert_eq!(reply["connect"]["subs"], json!({ "chat.z": {} }));
    for channel in ["chat.a", "chat.b", "of.ann"] {
        ann.subscribe(channel);
    }
    for (channel, own) in [
        ("other", String::new()),
        ("staff", String::new()),
        ("staff", token(r#"{"sub":"ann","channel":"staff"}"#)),
        ("of.bob", String::new()),
        ("other", token(r#"{"sub":"bob","channel":"other"}"#)),
        ("other", token(r#"{"sub":"ann","channel":"another"}"#)),
        ("other", "none".to_owned()),
    ] {
        assert_eq!(ann.fails(&subscribe_with(channel, &own)), 103, "{channel}");
    }
    let until = seconds_from_now(0) - 100;
    let old = token(&format!("{{\"sub\":\"ann\",\"channel\":\"other\",\"exp\":{until}}}"));
    assert_eq!(ann.fails(&subscribe_with("other", &old)), 109);
    let until = seconds_from_now(3600);
    let own = token(&format!("{{\"sub\":\"ann\",\"channel\":\"other\",\"exp\":{until}}}"));
    let reply = ann.ask(&subscribe_with("other", &own));
    assert_eq!(reply["subscribe"]["expires"], true, "{reply}");
    let refresh = json!({ "id": 3, "sub_refresh": { "channel": "other", "token": own } });
    assert_eq!(ann.ask(&refresh)["sub_refresh"]["expires"], true);
    let publish = |channel: &str| json!({ "id": 4, "publish": { "channel": channel, "data": 1 } });
    for (channel, code) in [("chat.b", 103), ("other", 103), ("chat.q", 103), ("staff", 103)] {
        assert_eq!(ann.fails(&publish(channel)), code, "{channel}");
    }
    for channel in ["chat.a", "of.ann"] {
        let push = ann.ask(&publish(channel));
        assert_eq!(push["push"]["pub"]["info"]["user"], "ann", "{push}");
        assert_eq!(ann.next(), json!({ "id": 4, "publish": {} }));
    }
    let later = token(&format!("{{\"sub\":\"ann\",\"exp\":{until}}}"));
    let reply = ann.ask(&json!({ "id": 5, "refresh": { "token": later } }));
    assert_eq!(reply["refresh"]["expires"], true, "{reply}");
    ann.send(&json!({ "id": 6, "refresh": { "token": token(r#"{"sub":"bob"}"#) } }));
    assert_eq!(ann.ws.next().close_code(), Some(3500));
    // The token may also come with the upgrade request.
    let bearer = format!("Bearer {good}");
    let ws = Client::request(served.address, PATH, &[("Authorization", &bearer)]).unwrap();
    let mut by_header = Speaker::of(ws);
    assert_eq!(by_header.ask(&connect(""))["connect"]["subs"], json!({ "chat.z": {} }));
    served.process.signal("TERM");
    let (_, _, log) = served.end();
    for secret in [&good, &of_channel, &own] {
        assert!(!log.contains(secret.rsplit('.').next().unwrap()), "the log has a token: {log}");
    }
}

#[test]
fn a_closed_server_admits_no_client_without_a_token() {
    let served = start(&folder(""), &[]);
    let mut speaker = Speaker::open(served.address);
    speaker.send(&json!({ "id": 1, "connect": {} }));
    assert_eq!(speaker.ws.next().close_code(), Some(3500));
}

#[test]
fn an_application_publishes_unsubscribes_and_disconnects() {
    let folder = api::folder();
    let served = api::start(&folder, &["--channel", "chat=close,presence=true"]);
    let mut ann = Speaker::connect(served.address, &anyone());
    ann.subscribe("chat");
    let done = json!({ "result": {} });
    let publication = json!({ "channel": "chat", "data": { "n": [1, 2] } });
    assert_eq!(api::ask(&served, "publish", &publication), done);
    let expected = json!({ "push": { "channel": "chat", "pub": { "data": { "n": [1, 2] } } } });
    assert_eq!(ann.next(), expected);
    let presence = api::ask(&served, "presence", &json!({ "channel": "chat" }));
    assert_eq!(presence["result"]["presence"][&ann.id]["user"], "", "{presence}");
    let of_ann = json!({ "client": ann.id, "user": "", "channel": "chat" });
    assert_eq!(api::ask(&served, "unsubscribe", &of_ann), done);
    let reason = json!({ "code": 2000, "reason": "server unsubscribe" });
    let expected = json!({ "push": { "channel": "chat", "unsubscribe": reason } });
    assert_eq!(ann.next(), expected);
    ann.subscribe("chat");
    assert_eq!(api::ask(&served, "disconnect", &of_ann), done);
    assert_eq!(ann.ws.next().close_code(), Some(3503), "it does not come back");
}

#[test]
fn malformed_and_huge_input_ends_with_a_code() {
    let served = Served::start(&[]);
    for (frame, code) in [
        ("", 3501),
        ("{", 3501),
        ("{\"id\":1,\"subscribe\":{\"channel\":\"a\"}}", 3501),
        ("{\"id\":1,\"connect\":{}}\n{\"id\":1,\"connect\":{}}", 3501),
        ("{\"id\":1,\"connect\":{}}\n{}", 3501),
        ("{\"id\":1,\"connect\":{}}\n{\"send\":{\"data\":1}}", 3508),
    ] {
        let mut client = Client::connect(served.address, PATH);
        client.send_text(frame);
        let end = loop {
            match client.next() {
                Got::Text(_) => {}
                other => break other,
            }
        };
        assert_eq!(end.close_code(), Some(code), "{frame}");
    }
    let mut huge = Speaker::connect(served.address, &anyone());
    huge.ws.try_send(Opcode::Text, &vec![b' '; (64 << 10) + 1]);
    assert_eq!(huge.ws.next().close_code(), Some(1009));
    // As many commands as a frame has, each with an error.
    let mut busy = Speaker::connect(served.address, &anyone());
    let commands = "{\"id\":7,\"ping\":{}}\n".repeat((64 << 10) / 20);
    busy.ws.send_text(&commands);
    for _ in 0..(64 << 10) / 20 {
        assert_eq!(busy.next()["error"]["code"], 108);
    }
    let deep = format!("{{\"id\":1,\"connect\":{{\"data\":{}", "[".repeat(60_000));
    let mut client = Client::connect(served.address, PATH);
    client.send_text(&deep);
    assert_eq!(client.next().close_code(), Some(3501));
}

#[test]
fn a_slow_client_is_closed_with_the_code_of_its_protocol() {
    let served = Served::start(&["--set", "max_backlog=64KiB", "--log-access", "all"]);
    let mut slow = Speaker::connect(served.address, &anyone());
    slow.subscribe("news");
    let mut plain = Client::connect(served.address, "/ws/news");
    let message = format!("\"{}\"", "x".repeat(32 << 10));
    poll("it is closed", || {
        plain.send_text(&message);
        let metrics = get(served.address, "/metrics");
        let mut lines = metrics.lines().filter(|it| it.starts_with("throng_slow_consumers_total"));
        lines.find(|line| !line.ends_with(" 0")).map(drop)
    });
    let end = loop {
        match slow.ws.next() {
            Got::Text(_) => {}
            other => break other,
        }
    };
    assert!(matches!(end.close_code(), Some(3008) | None), "{end:?}");
}

#[test]
fn a_client_may_speak_protobuf() {
    let served = Served::start(&[]);
    let connect = [4, 8, 1, 0x22, 0];
    let subscribe = [b"\x09\x08\x02\x2a\x05\x0a\x03".as_slice(), b"new"].concat();
    for target in ["?format=protobuf", "?cf_protocol=protobuf", ""] {
        let offers: &[&str] = if target.is_empty() { &["centrifuge-protobuf"] } else { &[] };
        let target = format!("{PATH}{target}");
        let mut client = Client::upgrade(dial(served.address), &target, offers, &[]).unwrap();
        client.send(Opcode::Binary, &[&connect[..], &subscribe].concat());
        let Got::Binary(replies) = client.next() else { panic!("not binary") };
        let (first, second) = replies.split_at(1 + usize::from(replies[0]));
        assert!(first[1..].starts_with(b"\x08\x01\x2a"), "{first:?}");
        assert_eq!(second, b"\x04\x08\x02\x32\0");
        let mut plain = Client::connect(served.address, "/ws/new");
        plain.send(Opcode::Binary, &[0xff, 0]);
        let push = b"\x0d\x22\x0b\x12\x03new\x22\x04\x22\x02\xff\0";
        assert_eq!(client.next(), Got::Binary(push.to_vec()));
        client.send(Opcode::Binary, &[1]);
        assert_eq!(client.next().close_code(), Some(3501));
    }
}
