//! Presence of servers that share channels through Redis.
//!
//! Skipped where there is no redis-server; with `TEST_PEERS=1` that is an error.
#![cfg(all(feature = "redis", target_os = "linux"))]

use serde_json::Value;
use throng_testkit::{Redis, documented_user, eventually};

use crate::support::operated::{Operated, get};
use crate::support::{Client, Got};

/// A server that uses a database: the user needs a further command for it.
fn server(redis: &Redis, database: &str) -> Operated {
    redis.ask(&format!("ACL SETUSER {}", documented_user()));
    let url = redis.url("throng:secret@") + database;
    let rules = "here.>=close,scope=local,presence=true;>=close,presence=true,join_leave=true";
    let rules = format!("channels={rules}");
    Operated::start(&["--admin", "127.0.0.1:0", "--cluster", &url, "--set", &rules])
}

/// Returns the information and the id of each member of a channel.
fn members(server: &Operated, channel: &str) -> Vec<(String, String)> {
    let answer = get(server.admin, &format!("/presence/{channel}"), "");
    let answer: Value = serde_json::from_str(answer.text()).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let clients = answer["clients"].as_array().unwrap();
    let mut members: Vec<_> =
        clients.iter().map(|client| (text(&client["info"]), text(&client["client"]))).collect();
    assert!(answer["members"].is_null() || answer["members"] == members.len(), "{answer}");
    members.sort();
    members
}

fn names(server: &Operated, channel: &str) -> Vec<String> {
    members(server, channel).into_iter().map(|(name, _)| name).collect()
}

/// The next join or leave: its kind, its information, and the id.
fn change(client: &mut Client) -> (bool, String, String) {
    let Got::Text(text) = client.next() else { panic!("no text") };
    let change: Value = serde_json::from_str(&text).unwrap();
    let id = if change["join"].is_string() { &change["join"] } else { &change["leave"] };
    let of = |value: &Value| value.as_str().unwrap().to_owned();
    (change["join"].is_string(), of(&change["info"]), of(id))
}

#[test]
fn members_of_all_servers_are_listed_and_those_of_a_killed_one_leave_once() {
    let Some(redis) = Redis::start("killed-server", &[]) else { return };
    let [one, two] = [server(&redis, "/1"), server(&redis, "/1")];
    let mut ann = Client::connect(one.address, "/ws/chat.a?info=ann");
    eventually("ann is listed", || names(&two, "chat.a") == ["ann"]);
    let bob = Client::connect(two.address, "/ws/chat.a?info=bob");
    let others: Vec<_> = ["cid", "dan"]
        .map(|name| Client::connect(two.address, &format!("/ws/chat.a?info={name}")))
        .into();
    let mut joined: Vec<_> = (0..3).map(|_| change(&mut ann)).collect();
    joined.sort();
    let listed = members(&one, "chat.a");
    assert_eq!(members(&two, "chat.a"), listed);
    assert_eq!(names(&one, "chat.a"), ["ann", "bob", "cid", "dan"]);
    let joins: Vec<_> = joined.iter().map(|(_, name, id)| (name.clone(), id.clone())).collect();
    assert_eq!(joins, listed[1..], "joins name members as the list does");
    drop(bob);
    assert_eq!(change(&mut ann), (false, "bob".to_owned(), listed[1].1.clone()));
    // Its process is killed: it can send no leaves.
    drop(two);
    let mut left = [change(&mut ann), change(&mut ann)];
    left.sort();
    let expected = [2, 3].map(|at: usize| (false, listed[at].0.clone(), listed[at].1.clone()));
    assert_eq!(left, expected);
    assert_eq!(names(&one, "chat.a"), ["ann"]);
    drop(others);
    // Nothing came twice.
    let eve = Client::connect(one.address, "/ws/chat.a?info=eve");
    assert_eq!(change(&mut ann).1, "eve");
    drop(eve);
}

#[test]
fn members_of_a_server_that_is_stopped_leave_with_it() {
    let Some(redis) = Redis::start("stopped-server", &[]) else { return };
    let [one, two] = [server(&redis, ""), server(&redis, "")];
    let mut ann = Client::connect(one.address, "/ws/chat.a?info=ann");
    eventually("ann is listed", || names(&two, "chat.a") == ["ann"]);
    let mut bob = Client::connect(two.address, "/ws/chat.a?info=bob");
    assert!(change(&mut ann).0);
    two.terminate();
    while !matches!(bob.next(), Got::Close(..)) {}
    drop(bob);
    assert!(!change(&mut ann).0);
    // Before its heartbeat would have expired.
    eventually("it is forgotten", || redis.ask("SCARD throng.nodes") == ":1");
}

#[test]
fn members_of_a_local_channel_are_those_of_their_server() {
    let Some(redis) = Redis::start("local-presence", &[]) else { return };
    let [one, two] = [server(&redis, "/1"), server(&redis, "/1")];
    let _ann = Client::connect(one.address, "/ws/here.a?info=ann");
    let _bob = Client::connect(two.address, "/ws/here.a?info=bob");
    eventually("each is listed", || {
        names(&one, "here.a") == ["ann"] && names(&two, "here.a") == ["bob"]
    });
    assert_eq!(members(&one, "here.a")[0].1.len(), 16);
}
