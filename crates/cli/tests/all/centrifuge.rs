//! Clients of the Centrifuge protocol on servers that share channels through Redis.
//!
//! Skipped where there is no redis-server; with `TEST_PEERS=1` that is an error.
#![cfg(all(feature = "redis", unix))]

use serde_json::{Value, json};
use throng_testkit::{Redis, eventually};

use crate::support::Served;
use crate::support::speaker::{Speaker, anyone};

fn server(redis: &Redis) -> Served {
    let rules = "log.>=close,history=1000/5m;here.>=close,presence=true,join_leave=true";
    let (url, rules) = (redis.url(""), format!("channels={rules}"));
    let words = ["--listen", "127.0.0.1:0", "--cluster", &url, "--set", &rules];
    Served::start(&[&words[..], &["--set", "heartbeat.interval=0s"]].concat())
}

fn connect(server: &Served) -> Speaker {
    Speaker::connect(server.addresses[0], &anyone())
}

/// A place in a channel, as a client keeps it.
#[derive(Clone, Debug, PartialEq)]
struct Known {
    epoch: String,
    offset: u64,
}

/// Subscribes from a position; returns whether the client recovers, and the publications.
fn back(server: &Served, known: &Known) -> (Speaker, bool, Vec<Value>) {
    let mut speaker = connect(server);
    let reply = speaker.ask(&json!({ "id": 2, "subscribe": {
        "channel": "log.a", "recover": true, "epoch": known.epoch, "offset": known.offset
    } }));
    let result = &reply["subscribe"];
    assert_eq!(result["was_recovering"], true, "{reply}");
    let publications = result["publications"].as_array().cloned().unwrap_or_default();
    let is_recovered = result["recovered"] == true;
    assert!(is_recovered || publications.is_empty(), "never a part: {reply}");
    (speaker, is_recovered, publications)
}

fn data(publications: &[Value]) -> Vec<Value> {
    publications.iter().map(|one| one["data"].clone()).collect()
}

fn publish(speaker: &mut Speaker, data: &Value) {
    speaker.send(&json!({ "id": 9, "publish": { "channel": "log.a", "data": data } }));
    loop {
        let reply = speaker.next();
        if reply["id"] == 9 {
            assert!(reply["publish"].is_object(), "{reply}");
            return;
        }
    }
}

/// The publication that comes next, and the place after it.
fn publication(speaker: &mut Speaker, epoch: &str) -> (Value, Known) {
    let push = speaker.next();
    let publication = &push["push"]["pub"];
    let offset = publication["offset"].as_u64().unwrap_or_else(|| panic!("{push}"));
    (publication["data"].clone(), Known { epoch: epoch.to_owned(), offset })
}

#[test]
fn clients_of_three_servers_share_channels_and_recover_on_any_of_them() {
    let Some(redis) = Redis::start("centrifuge", &[]) else { return };
    let servers = [server(&redis), server(&redis), server(&redis)];
    let mut ann = connect(&servers[0]);
    let begun = ann.subscribe("log.a");
    let epoch = begun["epoch"].as_str().unwrap().to_owned();
    let mut bob = connect(&servers[1]);
    bob.subscribe("log.a");
    let mut places =
        vec![Known { epoch: epoch.clone(), offset: begun["offset"].as_u64().unwrap_or_default() }];
    for n in 1..=5 {
        publish(&mut bob, &json!(n));
        let (data, place) = publication(&mut ann, &epoch);
        assert_eq!(data, n);
        assert!(place.offset > places.last().unwrap().offset, "offsets grow");
        places.push(place);
    }
    // Its server is killed; one of the others has seen the channel, and a new one has not.
    let [killed, second, third] = servers;
    killed.signal("-KILL");
    for server in [&second, &third, &server(&redis)] {
        for (at, place) in places.iter().enumerate() {
            let (mut ann, is_recovered, missed) = back(server, place);
            let expected: Vec<_> = (at + 1..=5).map(|n| json!(n)).collect();
            assert_eq!((is_recovered, data(&missed)), (true, expected));
            let page = ann.ask(&json!({ "id": 3, "history": { "channel": "log.a", "limit": -1 } }));
            assert_eq!(page["history"]["offset"], places[5].offset, "{page}");
        }
        for wrong in [1, u64::MAX >> 11] {
            let place = Known { offset: places[5].offset + wrong, ..places[5].clone() };
            assert!(!back(server, &place).1, "{place:?} is ahead");
        }
        let other = Known { epoch: "0123456789abcdef".to_owned(), ..places[5].clone() };
        assert!(!back(server, &other).1);
    }
}

#[test]
fn presence_is_of_all_servers() {
    let Some(redis) = Redis::start("centrifuge-presence", &[]) else { return };
    let servers = [server(&redis), server(&redis), server(&redis)];
    let mut speakers: Vec<_> = servers.iter().map(connect).collect();
    for speaker in &mut speakers {
        speaker.subscribe("here.a");
    }
    let presence = json!({ "id": 3, "presence": { "channel": "here.a" } });
    let mut asking = connect(&servers[2]);
    eventually("all are listed", || {
        let reply = asking.ask(&presence);
        let listed = reply["presence"]["presence"].as_object().unwrap();
        speakers.iter().all(|speaker| listed.contains_key(&speaker.id)) && listed.len() == 3
    });
    let stats = json!({ "id": 4, "presence_stats": { "channel": "here.a" } });
    let counted = json!({ "num_clients": 3, "num_users": 1 });
    assert_eq!(asking.ask(&stats)["presence_stats"], counted);
    let last = speakers.pop().unwrap();
    let gone = last.id.clone();
    drop(last);
    let left = loop {
        let push = speakers[0].next();
        if push["push"]["leave"].is_object() {
            break push;
        }
    };
    assert_eq!(left["push"]["leave"]["info"]["client"], gone.as_str());
}

/// The state after a failover with `appendfsync everysec`, or after restoring a dump.
#[test]
fn a_restarted_redis_is_noticed_only_by_those_whose_publications_it_has_lost() {
    let Some(mut redis) = Redis::start("centrifuge-tail", &[]) else { return };
    let first = server(&redis);
    let mut ann = connect(&first);
    let begun = ann.subscribe("log.a");
    let epoch = begun["epoch"].as_str().unwrap().to_owned();
    let mut places =
        vec![Known { epoch: epoch.clone(), offset: begun["offset"].as_u64().unwrap_or_default() }];
    let mut bob = connect(&first);
    for n in 1..=8 {
        publish(&mut bob, &json!(n));
        places.push(publication(&mut ann, &epoch).1);
        if n == 5 {
            redis.ask("SAVE");
        }
    }
    first.signal("-KILL");
    redis.kill();
    redis.run();
    let servers = [server(&redis), server(&redis), server(&redis)];
    assert!(!back(&servers[0], &places[8]).1, "it is ahead of what Redis has");
    let mut bob = connect(&servers[0]);
    bob.subscribe("log.a");
    for n in 6..=9 {
        publish(&mut bob, &json!(format!("other {n}")));
    }
    for server in &servers {
        for place in &places[6..] {
            assert!(!back(server, place).1, "{place:?} is of the lost end");
        }
        let (_, is_recovered, missed) = back(server, &places[5]);
        let expected: Vec<_> = (6..=9).map(|n| json!(format!("other {n}"))).collect();
        assert_eq!((is_recovered, data(&missed)), (true, expected));
    }
}

#[test]
fn a_redis_that_keeps_its_data_is_restarted_unnoticed() {
    let keeps = ["--appendonly", "yes", "--appendfsync", "always"];
    let Some(mut redis) = Redis::start("centrifuge-kept", &keeps) else { return };
    let servers = [server(&redis), server(&redis), server(&redis)];
    let mut ann = connect(&servers[0]);
    let begun = ann.subscribe("log.a");
    let epoch = begun["epoch"].as_str().unwrap().to_owned();
    let mut bob = connect(&servers[1]);
    publish(&mut bob, &json!(1));
    let (_, place) = publication(&mut ann, &epoch);
    redis.kill();
    redis.run();
    let mut cid = connect(&servers[2]);
    eventually("a publication is taken again", || {
        let reply = cid.ask(&json!({ "id": 5, "publish": { "channel": "log.a", "data": 2 } }));
        reply["publish"].is_object()
    });
    assert_eq!(publication(&mut ann, &epoch).0, 2, "it was not disconnected");
    let (_, is_recovered, missed) = back(&servers[2], &place);
    assert!(is_recovered && !missed.is_empty(), "{missed:?}");
}
