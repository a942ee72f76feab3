//! Two servers of the library that share channels: presence, and closing members.
//!
//! Skipped where there is no redis-server; with `TEST_PEERS=1` that is an error.
#![cfg(feature = "redis")]

use std::net::SocketAddr;
use std::time::Duration;

use throng::channel::PresenceEvent;
use throng::cluster::{Cluster, ClusterError, ClusterHandle};
use throng::http::EventStream;
use throng::prelude::*;
use throng_testkit::Redis;

use crate::support::events::Events;
use crate::support::served::{start, stop};
use crate::support::{Client, Got, dial, eventually};

/// `/ws?name=` joins `chat.a`, and gets the number of members.
fn server(redis: &Redis) -> Server {
    server_as(redis, "")
}

/// A server with its own user at Redis.
fn server_as(redis: &Redis, user: &str) -> Server {
    let chat = Ws::from_request(|request| Ok(request.query("name").unwrap_or_default().to_owned()))
        .on_open(|ws, name| {
            let asked = {
                let own = format!("user.{name}");
                assert!(ws.subscribe_as("chat.a", name, None).joined);
                ws.subscribe(&own);
                ws.subscribe("news");
                ws.hub().cluster().unwrap().presence("chat.a", 100).unwrap()
            };
            ws.offload(
                move || asked.wait(),
                |ws, _, here| {
                    ws.send(format!("{} here", here.unwrap().total));
                },
            );
        })
        .on_refresh(|ws, _, data| {
            ws.send(format!("refreshed {}", String::from_utf8_lossy(data)));
        });
    let stream = |request: &Request<'_>| {
        Ok(EventStream::new("chat.a").info(request.query("name").unwrap_or_default()))
    };
    let announce = |event: &PresenceEvent<'_>| match event.info {
        "silent" => None,
        "panic" => panic!("as it was asked to"),
        name => Some(Frame::text(format!("{name} {:?} {}", event.change, event.channel))),
    };
    Server::new(App::new().ws("/ws", chat).sse("/sse", stream))
        .shards(2)
        .cluster(Cluster::redis(redis.url(user)).local("here.*").answer(|question| {
            assert_ne!(question, b"panic");
            [question, b"!"].concat()
        }))
        .channels(
            Channels::new()
                .history("chat.*", History::new(100, Duration::from_secs(60)))
                .presence("chat.*", Presence::new().join_leave_with(announce))
                .presence("here.*", Presence::new()),
        )
}

fn open(address: SocketAddr, name: &str) -> Client {
    Client::upgrade(dial(address), &format!("/ws?name={name}"), &[], &[]).unwrap()
}

fn text(client: &mut Client) -> String {
    match client.next() {
        Got::Text(text) => text,
        other => panic!("not a text: {other:?}"),
    }
}

fn names(hub: &Hub) -> Vec<String> {
    let all = hub.cluster().unwrap().presence("chat.a", 100).unwrap().wait().unwrap();
    assert_eq!(all.total, all.clients.len());
    let mut names: Vec<_> = all.clients.into_iter().map(|one| one.info.to_string()).collect();
    names.sort_unstable();
    names
}

#[test]
fn redis_keeps_no_more_bytes_of_a_channel_than_its_rule_says() {
    let Some(redis) = Redis::start("library-bytes", &[]) else { return };
    let (_, running) = start(server(&redis));
    let hub = running.hub();
    // Half of `max_backlog` is kept.
    for (channel, bytes, exists) in [("chat.b", 1000, ":1"), ("chat.c", 600_000, ":0")] {
        hub.publish(channel, "x".repeat(bytes)).unwrap();
        let exist = |kind| redis.ask(&format!("EXISTS throng.{kind}.{channel}"));
        eventually("it is published", || exist("o") == ":1");
        assert_eq!(exist("s"), exists, "{bytes} bytes");
    }
    stop(running);
}

#[test]
fn a_member_knows_those_of_all_servers_and_is_informed_who_comes_and_goes() {
    let Some(redis) = Redis::start("library", &[]) else { return };
    let servers: [(SocketAddr, Running); 2] = [start(server(&redis)), start(server(&redis))];
    let [(one, _), (two, _)] = &servers;
    let hubs = [0, 1].map(|at: usize| servers[at].1.hub());
    let mut ann = open(*one, "ann");
    assert_eq!(text(&mut ann), "1 here");
    eventually("the other server lists her", || names(&hubs[1]) == ["ann"]);
    let mut bob = open(*two, "bob");
    assert_eq!(text(&mut ann), "bob Join chat.a");
    assert_eq!(text(&mut bob), "2 here", "a client does not get its own join");
    let silent = [open(*two, "silent"), open(*two, "panic")];
    let stream = Events::open(*two, "/sse?name=stream");
    for client in [&mut ann, &mut bob] {
        assert_eq!(text(client), "stream Join chat.a");
    }
    for hub in &hubs {
        eventually("all are listed", || names(hub) == ["ann", "bob", "panic", "silent", "stream"]);
    }
    // The members of one server, as without a cluster, and matching identifiers.
    let own = hubs[0].presence("chat.a", 9).unwrap();
    let all = hubs[1].cluster().unwrap().presence("chat.a", 9).unwrap().wait().unwrap();
    let number = hubs[0].cluster().unwrap().node();
    let of_one: Vec<_> = all.clients.iter().filter(|one| one.handle.node() == number).collect();
    assert_eq!((of_one.len(), of_one[0].handle.handle()), (1, own[0].handle));
    assert_eq!((own.len(), &*own[0].info), (1, "ann"));
    let some = hubs[0].cluster().unwrap().presence("chat.a", 2).unwrap().wait().unwrap();
    assert_eq!((some.clients.len(), some.total), (2, 5));
    drop((stream, silent));
    for client in [&mut ann, &mut bob] {
        assert_eq!(text(client), "stream Leave chat.a");
    }
    // The history does not contain joins and leaves.
    hubs[0].publish("chat.a", "last").unwrap();
    for client in [&mut ann, &mut bob] {
        assert_eq!(text(client), "last");
    }
    assert_eq!(hubs[1].history("chat.a", 100).unwrap().publications.len(), 1);
    let cluster = hubs[0].cluster().unwrap();
    assert!(cluster.presence("other", 9).is_none() && cluster.presence("here.a", 9).is_none());
    let [(_, one), (_, two)] = servers;
    stop(two);
    assert_eq!(text(&mut ann), "bob Leave chat.a");
    assert_eq!(names(&hubs[0]), ["ann"]);
    stop(one);
}

#[test]
fn a_member_gets_the_joins_and_leaves_that_its_server_has_missed() {
    let Some(redis) = Redis::start("repaired", &[]) else { return };
    redis.ask("ACL SETUSER two on >secret ~* &* +@all");
    let servers: [(SocketAddr, Running); 2] =
        [start(server(&redis)), start(server_as(&redis, "two:secret@"))];
    let [(one, _), (two, _)] = &servers;
    let hub = servers[0].1.hub();
    let mut ann = open(*two, "ann");
    assert_eq!(text(&mut ann), "1 here");
    let bob = open(*one, "bob");
    assert_eq!(text(&mut ann), "bob Join chat.a");
    redis.ask("ACL SETUSER two off");
    redis.ask("CLIENT KILL USER two");
    drop(bob);
    eventually("he has left", || !names(&hub).contains(&"bob".to_owned()));
    let cid = open(*one, "cid");
    eventually("he has joined", || names(&hub).contains(&"cid".to_owned()));
    redis.ask("ACL SETUSER two on");
    assert_eq!(text(&mut ann), "bob Leave chat.a");
    assert_eq!(text(&mut ann), "cid Join chat.a");
    drop(cid);
    assert_eq!(text(&mut ann), "cid Leave chat.a");
    let [(_, one), (_, two)] = servers;
    stop(two);
    stop(one);
}

#[test]
fn members_of_a_channel_without_history_learn_that_messages_may_be_lost() {
    let Some(redis) = Redis::start("missed", &[]) else { return };
    let members = Ws::new()
        .on_open(|ws, ()| {
            ws.subscribe("plain");
        })
        .on_missed(|ws, (), channel| ws.send(format!("missed {channel}")));
    let stream = |_: &Request<'_>| Ok(EventStream::new("plain"));
    let app = App::new().ws("/ws", members).sse("/sse", stream);
    let (address, running) =
        start(Server::new(app).shards(2).cluster(Cluster::redis(redis.url(""))));
    let (mut client, mut stream) = (Client::connect(address, "/ws"), Events::open(address, "/sse"));
    let hub = running.hub();
    eventually("both are members", || hub.subscribers("plain") == 2);
    hub.publish("plain", "first").unwrap();
    assert_eq!(text(&mut client), "first");
    assert_eq!(stream.next_event().as_deref(), Some("data: first"));
    redis.ask("CLIENT KILL TYPE pubsub");
    assert_eq!(text(&mut client), "missed plain");
    assert_eq!(stream.next_event().as_deref(), Some("event: lost\ndata: plain"));
    assert_eq!(hub.cluster().unwrap().gaps(), 1);
    stop(running);
}

fn closed(client: &mut Client) -> (u16, String) {
    loop {
        match client.next() {
            Got::Close(code, reason) => return (code, reason),
            Got::Text(_) => {}
            other => panic!("not closed: {other:?}"),
        }
    }
}

#[test]
fn a_client_or_a_user_is_disconnected_on_any_server() {
    let Some(redis) = Redis::start("disconnect", &[]) else { return };
    let servers: [(SocketAddr, Running); 2] = [start(server(&redis)), start(server(&redis))];
    let [(one, _), (two, _)] = &servers;
    let hubs = [0, 1].map(|at: usize| servers[at].1.hub());
    let mut anns = [open(*one, "ann"), open(*two, "ann")];
    let mut bobs = [open(*one, "bob"), open(*two, "bob")];
    let cluster = hubs[0].cluster().unwrap();
    let list = || cluster.presence("chat.a", 100).unwrap().wait().unwrap().clients;
    eventually("all are listed", || list().len() == 4);
    let count = |channel| cluster.subscribers(channel, Duration::from_secs(5)).wait().unwrap();
    for (channel, expected) in [("chat.a", 4), ("user.ann", 2), ("none", 0)] {
        let counted = count(channel);
        assert_eq!((counted.total, counted.missing), (expected, vec![]), "{channel}");
    }
    let publish = |channel| cluster.publish_counted(channel, "all", Duration::from_secs(5)).wait();
    for (channel, expected) in [("chat.a", 4), ("user.ann", 2), ("none", 0), ("here.none", 0)] {
        let counted = publish(channel).unwrap();
        assert_eq!((counted.total, counted.missing), (expected, vec![]), "{channel}");
    }
    for client in anns.iter_mut().chain(&mut bobs) {
        while text(client) != "all" {}
    }
    assert_eq!(cluster.close_members("user.ann", 4001, "signed out").wait(), Ok(2));
    for ann in &mut anns {
        assert_eq!(closed(ann), (4001, "signed out".to_owned()));
    }
    drop(anns);
    eventually("the others stay", || list().len() == 2);
    let listed = list();
    // One member is on the queried server.
    for bob in &listed {
        assert_eq!(cluster.close(bob.handle, 4002, "bye").wait(), Ok(true));
    }
    for bob in &mut bobs {
        assert_eq!(closed(bob), (4002, "bye".to_owned()));
    }
    drop(bobs);
    eventually("no member is counted any more", || count("chat.a").total == 0);
    let unknown = ClusterHandle::new(cluster.node() ^ 1, listed[0].handle.handle());
    assert_eq!(cluster.close(unknown, 1000, "").wait(), Ok(false), "there is no such server");
    let long = "x".repeat(1 << 16);
    assert!(matches!(cluster.close_members(&long, 1000, "").wait(), Err(ClusterError::Failed(_))));
    for (_, running) in servers {
        stop(running);
    }
}

/// The next text that is not a join, a leave, or the answer of an opening session.
fn sent(client: &mut Client) -> String {
    loop {
        let text = text(client);
        if !text.ends_with(" chat.a") && !text.ends_with(" here") {
            return text;
        }
    }
}

#[test]
fn sessions_of_all_servers_are_refreshed_and_removed_from_channels() {
    let Some(redis) = Redis::start("refreshed", &[]) else { return };
    let servers: [(SocketAddr, Running); 2] = [start(server(&redis)), start(server(&redis))];
    let [(one, _), (two, _)] = &servers;
    let hubs = [0, 1].map(|at: usize| servers[at].1.hub());
    let mut anns = [open(*one, "ann"), open(*two, "ann")];
    let mut bobs = [open(*one, "bob"), open(*two, "bob")];
    let mut stream = Events::open(*two, "/sse?name=ann");
    let cluster = hubs[0].cluster().unwrap();
    let list = || cluster.presence("chat.a", 100).unwrap().wait().unwrap().clients;
    eventually("all are listed", || list().len() == 5);
    let count =
        |channel| cluster.subscribers(channel, Duration::from_secs(5)).wait().unwrap().total;
    eventually("all have subscribed", || count("news") == 4);
    // A user's sessions, and one session of any server.
    assert_eq!(cluster.refresh_members("user.ann", "rights").wait(), Ok(2));
    for ann in &mut anns {
        assert_eq!(sent(ann), "refreshed rights");
    }
    let handles: Vec<_> = list().into_iter().filter(|one| &*one.info == "bob").collect();
    for bob in &handles {
        assert_eq!(cluster.refresh(bob.handle, [0x78, 0xff]).wait(), Ok(true));
    }
    for bob in &mut bobs {
        assert_eq!(sent(bob), "refreshed x\u{fffd}");
    }
    // They leave one channel, and stay in others.
    assert_eq!(cluster.unsubscribe_members("user.ann", "news").wait(), Ok(2));
    eventually("both have left", || count("news") == 2);
    assert_eq!(cluster.unsubscribe(handles[0].handle, "news").wait(), Ok(true));
    assert_eq!(cluster.unsubscribe(handles[1].handle, "news").wait(), Ok(true));
    eventually("all have left", || count("news") == 0);
    assert_eq!(count("user.bob"), 2);
    // A stream that has left its channel has nothing to wait for.
    assert_eq!(cluster.unsubscribe_members("chat.a", "chat.a").wait(), Ok(2));
    eventually("no one is there", || list().is_empty());
    while stream.next().is_some() {}
    let unknown = ClusterHandle::new(cluster.node() ^ 1, handles[0].handle.handle());
    assert_eq!(cluster.refresh(unknown, "").wait(), Ok(false));
    assert_eq!(cluster.unsubscribe(unknown, "news").wait(), Ok(false));
    let long = "x".repeat(1 << 16);
    let own = ClusterHandle::new(cluster.node(), handles[0].handle.handle());
    assert!(cluster.refresh(own, &long).wait().is_err());
    assert!(cluster.unsubscribe(own, &long).wait().is_err());
    assert!(cluster.unsubscribe(unknown, &long).wait().is_err());
    for refused in [
        cluster.refresh_members("user.ann", &long).wait(),
        cluster.unsubscribe_members(&long, "news").wait(),
        cluster.unsubscribe_members("user.ann", &long).wait(),
    ] {
        assert!(matches!(refused, Err(ClusterError::Failed(_))), "{refused:?}");
    }
    for (_, running) in servers {
        stop(running);
    }
}

#[test]
fn a_question_of_the_program_is_answered_by_all_servers_and_a_dead_one_is_named() {
    let Some(redis) = Redis::start("asked", &[]) else { return };
    let servers: [(SocketAddr, Running); 2] = [start(server(&redis)), start(server(&redis))];
    let hubs = [0, 1].map(|at: usize| servers[at].1.hub());
    let cluster = hubs[0].cluster().unwrap();
    let mut numbers = hubs.each_ref().map(|hub| hub.cluster().unwrap().node());
    numbers.sort_unstable();
    let survey = cluster.survey("who", Duration::from_secs(5)).wait().unwrap();
    assert_eq!(survey.answers, numbers.map(|number| (number, b"who!".to_vec())));
    assert!(survey.missing.is_empty());
    // As a killed server is listed for some 10 seconds.
    redis.ask("SET throng.n.0000000000000007 1");
    redis.ask("SADD throng.nodes 0000000000000007");
    let limit = Duration::from_millis(500);
    let survey = cluster.survey("who", limit).wait().unwrap();
    assert_eq!((survey.answers.len(), &survey.missing[..]), (2, &[7][..]));
    let count = cluster.publish_counted("chat.a", "all", limit).wait().unwrap();
    assert_eq!((count.total, &count.missing[..]), (0, &[7][..]));
    let count = cluster.broadcast("all", limit).wait().unwrap();
    assert_eq!((count.total, &count.missing[..]), (0, &[7][..]));
    // A panic of the function has no other effect.
    let survey = cluster.survey("panic", limit).wait().unwrap();
    assert_eq!((survey.answers.len(), survey.missing.len()), (0, 3));
    assert_eq!(cluster.survey("who", limit).wait().unwrap().answers.len(), 2);
    let long = "x".repeat((64 << 10) + 1);
    assert!(matches!(cluster.survey(long, limit).wait(), Err(ClusterError::Failed(_))));
    for (_, running) in servers {
        stop(running);
    }
}

#[test]
fn a_broadcast_reaches_the_sessions_and_streams_of_all_servers_once_and_counts_them() {
    let Some(redis) = Redis::start("library-broadcast", &[]) else { return };
    let servers: [(SocketAddr, Running); 2] = [start(server(&redis)), start(server(&redis))];
    let [one, two] = [0, 1].map(|at: usize| servers[at].0);
    let hubs = [0, 1].map(|at: usize| servers[at].1.hub());
    let mut clients = [open(one, "ann"), open(one, "bob"), open(two, "cid")];
    let mut stream = Events::open(two, "/sse?name=stream");
    eventually("all are listed", || names(&hubs[0]).len() == 4 && names(&hubs[1]).len() == 4);
    let seconds = Duration::from_secs(5);
    for (hub, message) in hubs.iter().zip(["first", "second"]) {
        let count = hub.cluster().unwrap().broadcast(message, seconds).wait().unwrap();
        assert_eq!((count.total, count.missing), (4, vec![]));
    }
    let _ = hubs[0].cluster().unwrap().broadcast("last", seconds).wait().unwrap();
    for client in &mut clients {
        while text(client) != "first" {}
        // The two servers' broadcasts have their order by the answers.
        assert_eq!([text(client), text(client)], ["second", "last"]);
    }
    while !stream.next_event().unwrap().ends_with("data: first") {}
    let long = "x".repeat(1 << 20);
    let failed = hubs[0].cluster().unwrap().broadcast(long, seconds).wait();
    assert!(matches!(failed, Err(ClusterError::Failed(_))), "{failed:?}");
    for (_, running) in servers {
        stop(running);
    }
}
