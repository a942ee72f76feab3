//! Servers that share channels through Redis.
//!
//! Skipped where there is no redis-server; with `TEST_PEERS=1` that is an error.
#![cfg(all(feature = "redis", unix))]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use throng_testkit::{Redis, RedisCluster, documented_user, eventually};

use crate::support::{Client, Got, Served, dial};

const CONFIG: [&str; 6] = [
    "--channel",
    "log.>=close,history=1000/5m",
    "--channel",
    "here.>=close,scope=local",
    "--channel",
    "wait.>=close,history=1000/5m,while_down=buffer",
];

/// Starts two servers with the documented rights.
fn servers(redis: &Redis) -> [Served; 2] {
    redis.ask(&format!("ACL SETUSER {}", documented_user()));
    // In another database: the user needs a further command for it.
    let url = redis.url("throng:secret@") + "/1";
    [server(&url), server(&url)]
}

fn server(url: &str) -> Served {
    let words = ["--listen", "127.0.0.1:0", "--cluster", url];
    Served::start(&[&words[..], &CONFIG].concat())
}

fn join(server: &Served, target: &str) -> Client {
    Client::connect(server.addresses[0], target)
}

/// The next text message, without the tag after its offset.
fn text(client: &mut Client) -> String {
    placed(client).1
}

/// The offset and tag of the next text message, if it has them, and the result of [`text`].
fn placed(client: &mut Client) -> (String, String) {
    let line = match client.next() {
        Got::Text(text) => text,
        other => panic!("no text: {other:?}"),
    };
    let is_tag = |tag: &str| tag.len() == 10 && u64::from_str_radix(tag, 16).is_ok();
    match line.split_once(' ').and_then(|(place, rest)| Some((place, place.split_once(':')?, rest)))
    {
        Some((place, (offset, tag), rest)) if is_tag(tag) => {
            (place.to_owned(), format!("{offset} {rest}"))
        }
        _ => (String::new(), line),
    }
}

/// The tag of a channel without a publication.
const FIRST: &str = "0000000000";

/// The epoch and offset of the first line of a client with `?since=`, and whether it continues.
fn position(client: &mut Client) -> (String, u64, bool) {
    let line: serde_json::Value = serde_json::from_str(&text(client)).unwrap();
    let epoch = line["epoch"].as_str().unwrap().to_owned();
    (epoch, line["offset"].as_u64().unwrap(), line["recovered"].as_bool().unwrap())
}

#[test]
fn a_message_reaches_the_members_of_all_servers_but_its_sender() {
    let Some(redis) = Redis::start("reaches", &[]) else { return };
    let [one, two] = servers(&redis);
    let (mut sender, mut beside) = (join(&one, "/ws/chat.a"), join(&one, "/ws/chat.a"));
    let mut elsewhere = join(&two, "/ws/chat.a");
    // A channel without history has no place from which on a member gets everything.
    send_until_one_comes(&mut sender, &mut elsewhere);
    sender.send_text("hello");
    while text(&mut beside) != "hello" {}
    while text(&mut elsewhere) != "hello" {}
    elsewhere.send_text("and back");
    assert_eq!(text(&mut sender), "and back", "a sender does not get its own message");
    assert_eq!(text(&mut beside), "and back");
}

/// A descriptor's number names another file in another table.
#[test]
#[cfg(target_os = "linux")]
fn event_loops_with_descriptor_tables_of_their_own_reach_the_cluster() {
    let Some(redis) = Redis::start("tables", &[]) else { return };
    let url = redis.url("");
    let words = ["--listen", "127.0.0.1:0", "--cluster", &url];
    let own = ["--set", "descriptors=per-shard"];
    let [one, two] = [(); 2].map(|()| Served::start(&[&words[..], &CONFIG, &own].concat()));
    let mut members: Vec<_> =
        (0..20).map(|at| join([&one, &two][at % 2], "/ws/log.a?since=")).collect();
    let begins: Vec<_> = members.iter_mut().map(|member| position(member).1).collect();
    let mut writer = join(&one, "/ws/log.a");
    for text in ["first", "second"] {
        writer.send_text(text);
    }
    for (member, begin) in members.iter_mut().zip(begins) {
        assert_eq!(text(member), format!("{} first", begin + 1));
        assert_eq!(text(member), format!("{} second", begin + 2));
    }
    join(&two, "/ws/log.b?since=");
    for member in &mut members {
        member.send_text("all");
    }
    let more = (0..19).map(|_| text(&mut members[0])).collect::<Vec<_>>();
    assert!(more.iter().all(|text| text.ends_with(" all")), "{more:?}");
}

#[test]
fn clients_of_two_servers_share_channels_on_a_redis_cluster_through_a_failover() {
    let Some(cluster) = RedisCluster::start("serve", 3) else { return };
    let [one, two] = [server(&cluster.url("")), server(&cluster.url(""))];
    // Their partitions are at all masters.
    let channels: Vec<_> = (0..12).map(|number| format!("/ws/wait.{number}")).collect();
    let mut readers: Vec<_> =
        channels.iter().map(|channel| join(&one, &format!("{channel}?since="))).collect();
    let begins: Vec<_> = readers.iter_mut().map(position).collect();
    let mut writers: Vec<_> = channels.iter().map(|channel| join(&two, channel)).collect();
    let mut places = vec![Vec::new(); channels.len()];
    let mut write = |first: u64, readers: &mut [Client]| {
        for number in first..first + 5 {
            writers.iter_mut().for_each(|writer| writer.send_text(&format!("message {number}")));
        }
        for ((reader, (_, begin, _)), places) in readers.iter_mut().zip(&begins).zip(&mut places) {
            for number in first..first + 5 {
                let (place, text) = placed(reader);
                assert_eq!(text, format!("{} message {number}", begin + number + 1));
                places.push(place);
            }
        }
    };
    write(0, &mut readers);
    cluster.fail_over(0);
    write(5, &mut readers);
    drop(readers);
    // They come back to the other server, and to a server that has not seen the channels.
    let three = server(&cluster.url(""));
    for (number, (channel, (epoch, begin, _))) in channels.iter().zip(&begins).enumerate() {
        let server = [&two, &three][number % 2];
        let place = &places[number][2];
        let mut reader = join(server, &format!("{channel}?since={epoch}:{place}"));
        assert_eq!(position(&mut reader), (epoch.clone(), begin + 10, true));
        for at in 3..10 {
            assert_eq!(text(&mut reader), format!("{} message {at}", begin + at + 1));
        }
    }
}

#[test]
fn a_channel_of_local_scope_ends_at_its_server() {
    let Some(redis) = Redis::start("local", &[]) else { return };
    let [one, two] = servers(&redis);
    let [mut here, mut there] = [&one, &two].map(|server| join(server, "/ws/here.a"));
    let mut beside = join(&one, "/ws/here.a");
    beside.send_text("one");
    assert_eq!(text(&mut here), "one");
    join(&two, "/ws/here.a").send_text("two");
    assert_eq!(text(&mut there), "two", "the message of the other server would have come before");
}

#[test]
fn a_client_continues_on_another_server_also_after_redis_was_killed() {
    let keeps = ["--appendonly", "yes", "--appendfsync", "always"];
    let Some(mut redis) = Redis::start("continues", &keeps) else { return };
    // A user would be lost with the server.
    let [one, two] = [server(&redis.url("")), server(&redis.url(""))];
    let mut reader = join(&one, "/ws/wait.a?since=");
    let (epoch, begin, _) = position(&mut reader);
    let mut writer = join(&two, "/ws/wait.a");
    for at in 0..100 {
        writer.send_text(&format!("message {at}"));
        if at == 50 {
            redis.kill();
        }
        if at == 60 {
            redis.run();
        }
    }
    let mut places = Vec::new();
    for at in 0..100 {
        let (place, text) = placed(&mut reader);
        assert_eq!(text, format!("{} message {at}", begin + 1 + at));
        places.push(place);
    }
    // The other server has not seen this client, and a third has not seen the channel.
    let three = server(&redis.url(""));
    for server in [&two, &three] {
        let mut back = join(server, &format!("/ws/wait.a?since={epoch}:{}", places[96]));
        assert_eq!(position(&mut back), (epoch.clone(), begin + 100, true));
        for at in [97, 98, 99] {
            assert_eq!(text(&mut back), format!("{} message {at}", begin + 1 + at));
        }
    }
}

/// The state after a failover with `appendfsync everysec`, or after restoring a dump.
#[test]
fn clients_learn_of_an_end_that_redis_has_lost_and_replaced_while_no_server_followed_it() {
    let Some(mut redis) = Redis::start("tail", &[]) else { return };
    let first = server(&redis.url(""));
    let mut reader = join(&first, "/ws/log.a?since=");
    let (epoch, begin, _) = position(&mut reader);
    let mut writer = join(&first, "/ws/log.a");
    let mut places = vec![format!("{begin}:{FIRST}")];
    for at in 1..=8 {
        writer.send_text(&format!("message {at}"));
        places.push(placed(&mut reader).0);
        if at == 5 {
            redis.ask("SAVE");
        }
    }
    first.signal("-KILL");
    first.exit();
    redis.kill();
    redis.run();
    let servers = [server(&redis.url("")), server(&redis.url(""))];
    let mut member = join(&servers[0], "/ws/log.a?since=");
    assert_eq!(position(&mut member), (epoch.clone(), 5, false));
    let back = |server: &Served, place: &str| {
        let mut client = join(server, &format!("/ws/log.a?since={epoch}:{place}"));
        (position(&mut client), client)
    };
    // Positions ahead of the remaining ones, before new publications replace them.
    for server in &servers {
        assert_eq!(back(server, &places[8]).0, (epoch.clone(), 5, false));
    }
    let mut writer = join(&servers[0], "/ws/log.a");
    for at in 6..=9 {
        writer.send_text(&format!("other {at}"));
        assert_eq!(text(&mut member), format!("{at} other {at}"));
    }
    // Servers that follow the channel, and a server that does not.
    for server in servers.iter().chain([&server(&redis.url(""))]) {
        let offset = |place: &str| place.split_once(':').unwrap().0.to_owned();
        for lost in &places[6..] {
            assert_eq!(back(server, lost).0, (epoch.clone(), 9, false), "{lost}");
        }
        // An unproven position, or a forged one.
        for place in [offset(&places[5]), "9".into(), "7:0000000001".into(), "5:0000000000".into()]
        {
            assert_eq!(back(server, &place).0, (epoch.clone(), 9, false), "{place}");
        }
        for (at, place) in places.iter().enumerate().take(6).skip(3) {
            let (position, mut client) = back(server, place);
            assert_eq!(position, (epoch.clone(), 9, true), "{place}");
            for at in at + 1..=9 {
                let of = if at > 5 { "other" } else { "message" };
                assert_eq!(text(&mut client), format!("{at} {of} {at}"));
            }
        }
    }
    // None of that affected the other clients.
    writer.send_text("last");
    assert_eq!(text(&mut member), "10 last");
}

#[test]
fn positions_that_a_client_makes_up_do_not_have_redis_asked_for_each() {
    let Some(redis) = Redis::start("made-up", &[]) else { return };
    let [server, _] = servers(&redis);
    let mut member = join(&server, "/ws/log.a?since=");
    let (epoch, ..) = position(&mut member);
    let (before, began) = (redis.calls("hmget"), std::time::Instant::now());
    let back = |place: &str| join(&server, &format!("/ws/log.a?since={place}"));
    for number in 0..50 {
        let mut client = back(&format!("{:016x}:{number}:{number:010x}", number + 1));
        assert_eq!(position(&mut client), (epoch.clone(), 0, false));
    }
    // Clients that may be ahead of this server wait until it asks again.
    let mut ahead: Vec<_> = (1..50).map(|at| back(&format!("{epoch}:{at}:{at:010x}"))).collect();
    for client in &mut ahead {
        assert_eq!(position(client), (epoch.clone(), 0, false));
    }
    let reads = redis.calls("hmget") - before;
    assert!(reads <= 1 + began.elapsed().as_secs(), "{reads} reads for 99 clients");
}

/// `bench/cluster/run --only comeback` measures the same with 100,000 clients.
#[test]
fn a_server_asks_once_for_a_channel_however_many_clients_come_back_to_it() {
    const CHANNELS: usize = 20;
    let Some(redis) = Redis::start("comeback", &[]) else { return };
    let [lived, fresh] = servers(&redis);
    let mut stay = Vec::new();
    let mut begins = Vec::new();
    for channel in 0..CHANNELS {
        let target = format!("/ws/log.c{channel}");
        let mut member = join(&lived, &format!("{target}?since="));
        begins.push(position(&mut member));
        join(&lived, &target).send_text("missed");
        text(&mut member);
        stay.push(member);
    }
    // Each read of a history calls this once, and so does each publication.
    let reads = || redis.calls("hmget");
    for (server, most) in [(&lived, 0), (&fresh, CHANNELS as u64)] {
        let before = reads();
        let mut back = Vec::new();
        for _ in 0..25 {
            for (channel, (epoch, offset, _)) in begins.iter().enumerate() {
                let since = format!("/ws/log.c{channel}?since={epoch}:{offset}:{FIRST}");
                back.push((join(server, &since), (epoch.clone(), offset + 1, true)));
            }
        }
        for (client, expected) in &mut back {
            assert_eq!(position(client), *expected);
            assert!(text(client).ends_with(" missed"));
        }
        let reads = reads() - before;
        assert!(reads <= most, "{reads} reads for {CHANNELS} channels");
    }
}

#[test]
fn a_client_gets_from_redis_what_its_server_has_no_memory_for() {
    let Some(redis) = Redis::start("memory", &[]) else { return };
    let url = redis.url("");
    let words = ["--listen", "127.0.0.1:0", "--cluster", &url];
    let little = ["--set", "max_history_memory=20KiB"];
    let server = Served::start(&[&words[..], &CONFIG, &little].concat());
    let mut reader = join(&server, "/ws/log.a?since=");
    let (epoch, begin, _) = position(&mut reader);
    let mut writer = join(&server, "/ws/log.b");
    for at in 0..20 {
        join(&server, "/ws/log.a").send_text(&format!("message {at}"));
        assert_eq!(text(&mut reader), format!("{} message {at}", begin + 1 + at));
    }
    let mut other = join(&server, "/ws/log.b?since=");
    position(&mut other);
    let large = "x".repeat(1_000);
    for _ in 0..40 {
        writer.send_text(&large);
        assert!(text(&mut other).ends_with(&large));
    }
    let mut back = join(&server, &format!("/ws/log.a?since={epoch}:{begin}:{FIRST}"));
    assert_eq!(position(&mut back), (epoch, begin + 20, true));
    for at in 0..20 {
        assert_eq!(text(&mut back), format!("{} message {at}", begin + 1 + at));
    }
    join(&server, "/ws/log.a").send_text("live");
    assert_eq!(text(&mut back), format!("{} live", begin + 21));
}

#[test]
fn a_client_is_closed_with_1013_when_redis_does_not_answer() {
    let Some(redis) = Redis::start("silent", &[]) else { return };
    let server = server(&redis.url(""));
    let mut member = join(&server, "/ws/log.a?since=");
    let (_, begin, _) = position(&mut member);
    redis.signal("-STOP");
    // A channel that the server does not follow.
    let mut waiting = join(&server, "/ws/log.b?since=");
    let mut events = stream(&server, "/sse/log.c", "");
    let Got::Close(code, reason) = waiting.next() else { panic!("not closed") };
    assert_eq!((code, &*reason), (1013, "the cluster does not answer; try again later"));
    std::io::copy(&mut events, &mut std::io::sink()).unwrap();
    redis.signal("-CONT");
    // Members have stayed, and clients that return are served.
    eventually("its connections are made again", || {
        let mut writer = join(&server, "/ws/log.a");
        writer.send_text("back");
        member.stream.set_nonblocking(true).unwrap();
        let has_come = member.stream.peek(&mut [0]).is_ok();
        member.stream.set_nonblocking(false).unwrap();
        has_come
    });
    assert_eq!(text(&mut member), format!("{} back", begin + 1));
    position(&mut join(&server, "/ws/log.b?since="));
}

#[test]
fn a_server_is_not_ready_when_nothing_is_delivered_for_as_long_as_is_set() {
    let Some(mut redis) = Redis::start("ready", &[]) else { return };
    let url = redis.url("");
    let start = |time: &str| {
        let set = format!("cluster.unready_after={time}");
        Served::start(&["--listen", "127.0.0.1:0", "--cluster", &url, "--set", &set])
    };
    let [soon, never] = ["100ms", "0s"].map(start);
    assert!(ready(&soon).starts_with("HTTP/1.1 200 "));
    redis.kill();
    eventually("it is not ready, and says why", || {
        let answer = ready(&soon);
        // Any client may ask, so the answer must not contain the address of Redis.
        assert!(!answer.contains(&redis.port().to_string()), "{answer}");
        answer.starts_with("HTTP/1.1 503 ") && answer.contains("the cluster has delivered nothing")
    });
    let answer = ready(&never);
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(answer.contains("degraded: the cluster has delivered nothing for"), "{answer}");
    redis.run();
    eventually("it is ready again", || ready(&soon).starts_with("HTTP/1.1 200 "));
    eventually("nothing is wrong", || ready(&never).ends_with("ready\n"));
}

/// The answer of a server's `/readyz`.
fn ready(server: &Served) -> String {
    let mut stream = dial(server.addresses[0]);
    let request = "GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// The exit code of `throng cluster status`, and its JSON.
fn status(words: &[&str]) -> (Option<i32>, serde_json::Value) {
    let output =
        crate::support::throng().args(["cluster", "status", "--json"]).args(words).output();
    let output = output.unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    (output.status.code(), serde_json::from_str(&text).unwrap())
}

#[test]
fn the_status_has_the_figures_of_each_node_and_why_one_is_not_up() {
    let Some(mut redis) = Redis::start("status", &[]) else { return };
    let [one, two] = servers(&redis);
    let (mut sender, mut member) = (join(&one, "/ws/log.a"), join(&two, "/ws/log.a?since="));
    position(&mut member);
    sender.send_text("hello");
    text(&mut member);
    let nodes = [&one, &two].map(|server| server.addresses[0].to_string());
    let nodes = [&*nodes[0], &*nodes[1]];
    eventually("the publication is acknowledged", || status(&nodes).1[0]["published"] == 1);
    let (code, value) = status(&nodes);
    assert_eq!(code, Some(0), "{value}");
    assert_eq!(value[0]["node"], format!("http://{}", nodes[0]));
    for node in value.as_array().unwrap() {
        assert_eq!((&node["up"], &node["why"]), (&true.into(), &serde_json::Value::Null), "{node}");
        assert_eq!(node["pending_bytes"], 0, "{node}");
        assert_eq!([&node["refused"], &node["unknown"], &node["lost"]], [0, 0, 0], "{node}");
    }
    assert_eq!(value[1]["channels"], 1, "{value}");
    assert!(value[1]["lag_microseconds"].as_u64().unwrap() > 0, "{value}");
    let table = crate::support::throng().args(["cluster", "status"]).args(nodes).output().unwrap();
    let table = String::from_utf8(table.stdout).unwrap();
    let rows: Vec<Vec<&str>> = table.lines().map(|row| row.split_whitespace().collect()).collect();
    assert_eq!(rows[0][..2], ["node", "channels"], "{table}");
    assert_eq!((rows.len(), rows[2][1], *rows[2].last().unwrap()), (3, "1", "up"), "{table}");
    redis.kill();
    eventually("both are down, and say why", || {
        let (code, value) = status(&nodes);
        let is_down = |node: &serde_json::Value| node["up"] == false && node["why"].is_string();
        code == Some(1) && value.as_array().unwrap().iter().all(is_down)
    });
    // The figures of a node that is down are present.
    assert_eq!(status(&nodes).1[1]["channels"], 1);
}

/// As while rules are changed on one server after the other.
#[test]
fn servers_whose_rules_differ_lose_nothing_and_say_which_rules_differ() {
    let Some(redis) = Redis::start("rules", &[]) else { return };
    let url = redis.url("");
    let start = |rule: &str| {
        let words = ["--listen", "127.0.0.1:0", "--cluster", &url, "--channel", rule];
        Served::start(&words)
    };
    let kept = start("log.>=close,history=1000/5m");
    let less = start("log.>=close,history=5/1m");
    let none = start("log.>=close");
    let mut readers = [&kept, &less].map(|server| join(server, "/ws/log.a?since="));
    let begins = readers.each_mut().map(|reader| position(reader).1);
    let mut plain = join(&none, "/ws/log.a");
    let mut writers = [&kept, &less, &none].map(|server| join(server, "/ws/log.a"));
    send_until_one_comes(&mut writers[0], &mut plain);
    for writer in &mut writers {
        writer.send_text("last");
    }
    // The attempts, and three final messages.
    let mut texts = Vec::new();
    for (reader, begin) in readers.iter_mut().zip(begins) {
        let (mut at, mut last, mut got) = (begin, 0, Vec::new());
        while last < 3 {
            let text = text(reader);
            at += 1;
            let (offset, text) = text.split_once(' ').unwrap();
            assert_eq!(offset, at.to_string(), "each has its place");
            last += usize::from(text == "last");
            got.push(text.to_owned());
        }
        texts.push(got);
    }
    assert_eq!(texts[0], texts[1]);
    let mut last = 0;
    while last < 3 {
        last += usize::from(text(&mut plain) == "last");
    }
    let nodes = [&kept, &less, &none].map(|server| server.addresses[0].to_string());
    let nodes = nodes.each_ref().map(String::as_str);
    eventually("each knows the two others", || {
        let figures = status(&nodes).1;
        let of = |node: &serde_json::Value| node["differing"].as_array().unwrap().len();
        figures.as_array().unwrap().iter().all(|node| of(node) == 2)
    });
    let figures = status(&nodes).1;
    assert!(figures[2]["other_rules"].as_u64().unwrap() > 2, "{figures}");
    assert_eq!(figures[0]["other_rules"], 1, "{figures}");
    let table = crate::support::throng().args(["cluster", "status"]).args(nodes).output().unwrap();
    let table = String::from_utf8(table.stdout).unwrap();
    let lines: Vec<_> = table.lines().filter(|line| line.starts_with("rules differ: ")).collect();
    assert_eq!(lines.len(), 2, "{table}");
    assert!(lines[0].contains("log.> history=1000/300s"), "{table}");
    assert!(lines[0].ends_with(&format!("not at {}, {}", nodes[1], nodes[2])), "{table}");
    let alone = crate::support::throng().args(["cluster", "status", nodes[0]]).output().unwrap();
    let alone = String::from_utf8(alone.stdout).unwrap();
    assert_eq!(alone.matches("has others, and was not asked").count(), 2, "{alone}");
}

/// A server without presence does not list its members. A server with another `while_down` refuses
/// publications that the others hold.
#[test]
fn servers_with_other_rules_for_presence_or_outages_differ() {
    let Some(redis) = Redis::start("other-rules", &[]) else { return };
    let url = redis.url("");
    let start = |rules: &[&str]| {
        let rules = rules.iter().flat_map(|rule| ["--channel", rule]);
        let words = ["--listen", "127.0.0.1:0", "--cluster", &url].into_iter().chain(rules);
        Served::start(&words.collect::<Vec<_>>())
    };
    let rules = ["p.>=close,presence=true,join_leave=true", "b.>=close,while_down=buffer"];
    let all = start(&rules);
    // A rule for messages here concerns no other server.
    let same = start(&[&rules[..], &["x.>=latest"]].concat());
    let fewer = start(&["p.>=close,presence=true", "b.>=close,while_down=buffer"]);
    let other = start(&["p.>=close,presence=true,join_leave=true", "b.>=close"]);
    let nodes = [&all, &same, &fewer, &other].map(|server| server.addresses[0].to_string());
    let nodes = nodes.each_ref().map(String::as_str);
    eventually("each knows those with others", || {
        let figures = status(&nodes).1;
        let of = |node: &serde_json::Value| node["differing"].as_array().unwrap().len();
        figures.as_array().unwrap().iter().map(of).eq([2, 2, 3, 3])
    });
    let table = crate::support::throng().args(["cluster", "status"]).args(nodes).output().unwrap();
    let table = String::from_utf8(table.stdout).unwrap();
    for rule in ["p.> presence=true join_leave=true max_announced=1000", "b.> while_down=buffer"] {
        assert!(table.contains(&format!("rules differ: {rule} at ")), "{table}");
    }
    assert!(!table.contains("x.>"), "{table}");
}

#[test]
fn the_status_of_a_node_needs_the_token_of_its_admin_server() {
    let Some(redis) = Redis::start("token", &[]) else { return };
    let folder = throng_testkit::TempFolder::new("status");
    let file = folder.write("token", "a-token-of-16-bytes-or-more");
    let url = redis.url("");
    let set = format!("admin.token_file={}", file.display());
    // A port that is free now: the server prints the clients' port first.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let admin = free.to_string();
    let words = ["--listen", "127.0.0.1:0", "--cluster", &url, "--admin", &admin];
    let _server = Served::start(&[&words[..], &["--set", &set]].concat());
    eventually("the admin server listens", || TcpStream::connect(free).is_ok());
    let (code, value) = status(&[&admin]);
    let why = value[0]["why"].as_str().unwrap();
    assert!(code == Some(1) && why.contains("--token-file"), "{value}");
    let (code, value) = status(&["--token-file", file.to_str().unwrap(), &admin]);
    assert_eq!(code, Some(0), "{value}");
}

#[test]
fn many_clients_that_wait_for_redis_all_get_in() {
    let Some(redis) = Redis::start("crowd", &[]) else { return };
    let server = server(&redis.url(""));
    redis.signal("-STOP");
    let mut waiting: Vec<_> = (0..100).map(|_| join(&server, "/ws/log.a?since=")).collect();
    // A client that leaves while it waits is dropped.
    drop(waiting.pop());
    redis.signal("-CONT");
    let begins: Vec<_> = waiting.iter_mut().map(position).collect();
    let mut writer = join(&server, "/ws/log.a");
    send_until_one_comes(&mut writer, &mut waiting[0]);
    for (client, (epoch, offset, _)) in waiting.iter_mut().zip(&begins) {
        assert_eq!(*epoch, begins[0].0);
        assert!(text(client).starts_with(&format!("{} try ", offset + 1)));
    }
}

#[test]
fn a_member_that_did_not_ask_for_positions_gets_none() {
    let Some(redis) = Redis::start("plain", &[]) else { return };
    let [one, two] = servers(&redis);
    // The first member of its server, which must ask Redis for the channel's place.
    let mut plain = join(&one, "/ws/log.b");
    let mut writer = join(&two, "/ws/log.b");
    send_until_one_comes(&mut writer, &mut plain);
    let first = text(&mut plain);
    assert!(first.starts_with("try "), "{first}");
}

/// Sends messages until another client has got one, which stays unread.
fn send_until_one_comes(sender: &mut Client, receiver: &mut Client) {
    let mut tries = 0;
    eventually("a message comes", || {
        tries += 1;
        sender.send_text(&format!("try {tries}"));
        receiver.stream.set_nonblocking(true).unwrap();
        let has_come = receiver.stream.peek(&mut [0]).is_ok();
        receiver.stream.set_nonblocking(false).unwrap();
        has_come
    });
}

/// As while servers are upgraded one after the other.
#[test]
fn members_learn_that_they_miss_a_message_of_a_form_that_only_later_releases_read() {
    let Some(redis) = Redis::start("upgraded", &[]) else { return };
    let [one, two] = [server(&redis.url("")), server(&redis.url(""))];
    let mut members = [&one, &two].map(|server| join(server, "/ws/log.a?since="));
    let [(epoch, begin, _), _] = members.each_mut().map(position);
    let mut writer = join(&two, "/ws/log.a");
    writer.send_text("first");
    let mut first = String::new();
    for member in &mut members {
        let text;
        (first, text) = placed(member);
        assert_eq!(text, format!("{} first", begin + 1));
    }
    let reads = redis.calls("hmget");
    // The effect of `publish.lua`.
    let (later, place) = ("\\x02\\x01\\x00\\x00", begin + 2);
    redis.ask(&format!("HSET throng.o.log.a p \"{place} 7 \""));
    redis.ask(&format!("XADD throng.s.log.a {place}-7 d \"{later}\""));
    redis.ask(&format!("PUBLISH throng.m.log.a \"{epoch}:{place}:7 {later}\""));
    for member in &mut members {
        assert_eq!(member.next().close_code(), Some(1008));
    }
    assert_eq!(redis.calls("hmget"), reads, "at once, not when the history is read");
    let mut back = join(&one, &format!("/ws/log.a?since={epoch}:{first}"));
    assert_eq!(position(&mut back), (epoch, place, false));
    join(&two, "/ws/log.a").send_text("later");
    assert_eq!(text(&mut back), format!("{} later", place + 1));
    // A channel without history has no place to miss: the message is counted.
    let mut plain = join(&one, "/ws/plain");
    let mut sender = join(&two, "/ws/plain");
    send_until_one_comes(&mut sender, &mut plain);
    redis.ask(&format!("PUBLISH throng.m.plain \"{later}\""));
    sender.send_text("known");
    while text(&mut plain) != "known" {}
    let figures = status(&[&one.addresses[0].to_string()]).1;
    assert_eq!(figures[0]["malformed"], 2, "{figures}");
}

#[test]
fn an_event_stream_continues_on_another_server() {
    let Some(redis) = Redis::start("events", &[]) else { return };
    let [one, two] = servers(&redis);
    let mut first = stream(&one, "/sse/log.a", "");
    let position = line(&mut first, "id: ");
    let mut writer = join(&two, "/ws/log.a");
    for at in 0..3 {
        writer.send_text(&format!("event {at}"));
    }
    let mut second = stream(&two, "/sse/log.a", &format!("Last-Event-ID: {position}\r\n"));
    for at in 0..3 {
        assert_eq!(line(&mut first, "data: "), format!("event {at}"));
        assert_eq!(line(&mut second, "data: "), format!("event {at}"));
    }
    let mut third = stream(&one, "/sse/log.a", "Last-Event-ID: 1:7\r\n");
    assert_eq!(line(&mut third, "event: "), "lost");
}

#[test]
fn a_server_waits_for_its_redis_and_refuses_clients_of_the_cluster_until_it_comes() {
    let Some(mut redis) = Redis::start("comes", &[]) else { return };
    let url = redis.url("");
    redis.kill();
    let server = server(&url);
    let answer = ready(&server);
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(answer.contains("has not been there since the start"), "{answer}");
    let (_, figures) = status(&[&server.addresses[0].to_string()]);
    assert_eq!(figures[0]["state"], "unlinked", "{figures}");
    // With a history and without one.
    for target in ["/ws/log.a?since=", "/ws/log.a", "/ws/chat.a"] {
        let Got::Close(code, reason) = join(&server, target).next() else { panic!("{target}") };
        assert_eq!((code, &*reason), (1013, "the cluster does not answer; try again later"));
    }
    let mut events = dial(server.addresses[0]);
    events.write_all(b"GET /sse/chat.a HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut status_line = String::new();
    BufReader::new(&events).read_line(&mut status_line).unwrap();
    assert!(status_line.starts_with("HTTP/1.1 503 "), "{status_line}");
    // Channels that the cluster does not carry are served.
    let (mut one, mut two) = (join(&server, "/ws/here.a"), join(&server, "/ws/here.a"));
    send_until_one_comes(&mut one, &mut two);
    redis.run();
    eventually("it is ready", || ready(&server).ends_with("ready\n"));
    let (mut one, mut two) = (join(&server, "/ws/chat.a"), join(&server, "/ws/chat.a"));
    send_until_one_comes(&mut one, &mut two);
}

#[test]
fn a_start_that_cannot_succeed_later_ends_with_2_and_one_that_requires_redis_with_1() {
    let start = |words: &[&str]| {
        let mut command = crate::support::throng();
        command.args(["serve", "--listen", "127.0.0.1:0"]).args(words);
        let output = command.output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(errors.contains("cluster.url") && !errors.contains("hidden"), "{errors}");
        (output.status.code(), errors)
    };
    let require = ["--set", "cluster.require_at_start=true"];
    let (code, errors) =
        start(&[&["--cluster", "redis://:hidden@127.0.0.1:1"], &require[..]].concat());
    assert!(code == Some(1) && errors.contains("127.0.0.1:1"), "{code:?} {errors}");
    let Some(redis) = Redis::start("lasting", &["--requirepass", "secret"]) else { return };
    let (code, errors) = start(&["--cluster", &redis.url(":hidden@")]);
    assert!(code == Some(2) && errors.contains("password"), "{code:?} {errors}");
    let (code, errors) =
        start(&["--cluster", &redis.url(":secret@").replace("redis:", "redis-cluster:")]);
    assert!(code == Some(2) && errors.contains("not in cluster mode"), "{code:?} {errors}");
}

/// Opens a stream of events.
fn stream(server: &Served, target: &str, header: &str) -> BufReader<TcpStream> {
    let mut stream = dial(server.addresses[0]);
    let request = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n{header}\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    BufReader::new(stream)
}

/// The rest of the next line that begins with this field.
fn line(stream: &mut BufReader<TcpStream>, field: &str) -> String {
    loop {
        let mut line = String::new();
        assert!(stream.read_line(&mut line).unwrap() > 0, "the stream ended before {field}");
        if let Some(value) = line.trim_end().strip_prefix(field) {
            return value.to_owned();
        }
    }
}
