//! The metrics of `throng serve`: their meaning, and their readers.
#![cfg(target_os = "linux")]

use std::net::SocketAddr;
use std::process::Command;

use throng_proto::ws::Opcode;
use throng_testkit::poll;

use crate::support::operated::{Operated, get};
use crate::support::{Client, Got, Served, throng};

/// Waits until the metrics have these lines.
fn until_metrics(address: SocketAddr, lines: &[&str]) -> String {
    poll("the metrics have these lines", || {
        let metrics = get(address, "/metrics", "");
        let has = |line: &&str| metrics.text().lines().any(|found| found == *line);
        lines.iter().all(has).then(|| metrics.text().to_owned())
    })
}

#[test]
fn handshakes_requests_publications_and_closes_are_measured() {
    let served = Served::start(&["--listen", "127.0.0.1:0"]);
    let address = served.addresses[0];
    let mut client = Client::connect(address, "/ws/a?echo=1");
    client.send(Opcode::Text, b"hello");
    assert_eq!(client.next(), Got::Text("hello".to_owned()));
    client.send(Opcode::Close, &1000u16.to_be_bytes());
    assert_eq!(client.next().close_code(), Some(1000));
    let text = until_metrics(
        address,
        &[
            "throng_handshake_duration_seconds_count 1",
            "throng_publish_write_duration_seconds_count 1",
            "throng_sessions_closed_total{code=\"1000\"} 1",
            "throng_sessions_closed_total{code=\"1006\"} 0",
        ],
    );
    let value = |name: &str| -> f64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| {
            panic!("no {name} in {text}");
        });
        line.trim().parse().unwrap()
    };
    assert!(value("throng_loop_lag_seconds_count ") >= 1.0);
    assert!(value("throng_loop_lag_seconds_sum ") > 0.0);
    assert_eq!(value("throng_worker_wait_duration_seconds_count "), 0.0);
    assert!(value("process_cpu_seconds_total ") >= 0.0);
    assert!(text.contains("\nthrong_build_info{version=\""), "{text}");
    // The upgrade was the first request of the sample, and is a handshake instead.
    (0..20).for_each(|_| drop(get(address, "/livez", "")));
    let text = until_metrics(address, &[]);
    assert!(!text.contains("\nthrong_http_request_duration_seconds_count 0\n"), "{text}");
}

#[test]
fn each_reader_gets_the_format_that_it_accepts() {
    let served = Served::start(&["--listen", "127.0.0.1:0"]);
    let plain = get(served.addresses[0], "/metrics", "");
    assert_eq!(plain.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    assert!(plain.text().contains("# TYPE throng_publications_total counter"), "{}", plain.text());
    assert!(!plain.text().contains("# EOF"));
    let accept = "Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\n";
    let open = get(served.addresses[0], "/metrics", accept);
    assert!(open.header("content-type").unwrap().starts_with("application/openmetrics-text"));
    assert!(open.text().contains("# TYPE throng_publications counter"), "{}", open.text());
    assert!(open.text().ends_with("# EOF\n"));
}

#[test]
fn with_an_address_for_operators_clients_do_not_see_metrics() {
    let served = Operated::start(&["--admin", "127.0.0.1:0"]);
    for path in ["/metrics", "/stats.json"] {
        let refused = get(served.address, path, "");
        assert_eq!(refused.status(), 404, "{path}");
        assert!(refused.text().contains("--admin"), "{}", refused.text());
        assert_eq!(get(served.admin, path, "").status(), 200, "{path}");
        let rebound = get(served.admin, path, "Host: evil.example\r\n");
        assert_eq!(rebound.status(), 403, "{path}");
    }
    for path in ["/livez", "/readyz"] {
        assert_eq!(get(served.admin, path, "").status(), 200, "{path}");
        assert_eq!(get(served.address, path, "").status(), 200, "{path}");
    }
    let both = ["--admin", "127.0.0.1:0", "--set", "public_metrics=true"];
    let both = Operated::start(&both);
    assert_eq!(get(both.address, "/metrics", "").status(), 200);
}

#[test]
fn with_a_token_only_its_holders_read_metrics() {
    let token = "0123456789abcdef";
    let served =
        Operated::start(&["--admin", "127.0.0.1:0", "--set", &format!("admin.token={token}")]);
    let refused = get(served.admin, "/metrics", "");
    assert_eq!((refused.status(), refused.header("www-authenticate")), (401, Some("Bearer")));
    let wrong = "Authorization: Bearer 0123456789abcdeF\r\n";
    assert_eq!(get(served.admin, "/stats.json", wrong).status(), 401);
    let right = format!("Authorization: Bearer {token}\r\n");
    assert_eq!(get(served.admin, "/metrics", &right).status(), 200);
}

#[test]
fn metrics_for_everybody_have_to_be_asked_for() {
    let served = Served::start(&["--listen", "0.0.0.0:0"]);
    let address = SocketAddr::from(([127, 0, 0, 1], served.addresses[0].port()));
    assert_eq!(get(address, "/metrics", "").status(), 404);
    let check = |words: &[&str]| -> (Option<i32>, String) {
        let output = throng().args(["config", "check"]).args(words).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, errors) = check(&["--admin", "0.0.0.0:9101"]);
    assert_eq!(code, Some(2));
    assert!(errors.contains("admin.listen") && errors.contains("admin.token_file"), "{errors}");
    let (code, errors) = check(&["--admin", "127.0.0.1:9001"]);
    assert_eq!(code, Some(2));
    assert!(errors.contains("take another port"), "{errors}");
}

#[test]
fn the_dashboard_and_the_alert_rules_are_printed() {
    let print = |what: &str| {
        let output =
            Command::new(throng().get_program()).args(["generate", what]).output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    let dashboard: serde_json::Value = serde_json::from_str(&print("dashboard")).unwrap();
    assert_eq!(dashboard["uid"], "throng");
    let panels = dashboard["panels"].as_array().unwrap();
    assert_eq!(panels.iter().filter(|panel| panel["type"] != "row").count(), 12);
    assert!(print("alerts").starts_with("groups:\n"));
}

#[test]
fn a_channel_with_a_history_lets_clients_continue_and_shows_it_to_operators() {
    let rules = "chat.vip=latest;chat.>=close,history=2/5m";
    let flags = ["--admin", "127.0.0.1:0", "--set", &format!("channels={rules}")];
    let served = Operated::start(&flags);
    let mut client = Client::connect(served.address, "/ws/chat.a?since=");
    let Got::Text(began) = client.next() else { panic!("no text") };
    let epoch = began.split('"').nth(3).unwrap().to_owned();
    let tag = began.split('"').nth(9).unwrap();
    let line =
        format!("{{\"epoch\":\"{epoch}\",\"offset\":0,\"tag\":\"{tag}\",\"recovered\":false}}");
    assert_eq!(began, line);
    let mut places = vec![format!("0:{tag}")];
    for number in 1..=3 {
        client.send(Opcode::Text, format!("line {number}").as_bytes());
        let Got::Text(line) = client.next() else { panic!("no text") };
        let (place, text) = line.split_once(' ').unwrap();
        assert!(place.starts_with(&format!("{number}:")) && text == format!("line {number}"));
        places.push(place.to_owned());
    }
    drop(client);
    let since = |at: usize| {
        let path = format!("/ws/chat.a?since={epoch}:{}", places[at]);
        let mut client = Client::connect(served.address, &path);
        let Got::Text(began) = client.next() else { panic!("no text") };
        (began.contains("\"recovered\":true"), client)
    };
    let (recovered, mut client) = since(1);
    assert!(recovered);
    for (number, place) in places.iter().enumerate().take(4).skip(2) {
        assert_eq!(client.next(), Got::Text(format!("{place} line {number}")));
    }
    assert!(!since(0).0, "the first line is not kept");
    for channel in ["other", "chat.vip"] {
        let none = Client::connect(served.address, &format!("/ws/{channel}?since=")).next();
        assert_eq!(none.close_code(), Some(1008), "{channel}");
    }
    let answer = get(served.admin, "/history/chat.a?limit=1", "");
    let publications = "[{\"data\":\"line 3\",\"offset\":3}]";
    assert!(answer.text().contains(publications), "{}", answer.text());
    assert_eq!(get(served.admin, "/history/other", "").status(), 404);
    assert_eq!(get(served.admin, "/history/chat.a?limit=x", "").status(), 400);
    until_metrics(
        served.admin,
        &[
            "throng_history_channels 1",
            "throng_history_publications 2",
            "throng_history_recovered_total 1",
            "throng_history_unrecovered_total 1",
            "throng_history_evicted_total 0",
        ],
    );
}

#[test]
fn a_channel_with_presence_shows_its_members_to_operators_and_to_each_other() {
    let rules = "chat.>=close,presence=true,join_leave=true";
    let flags = ["--admin", "127.0.0.1:0", "--set", &format!("channels={rules}")];
    let served = Operated::start(&flags);
    let mut ann = Client::connect(served.address, "/ws/chat.a?echo=1&info=ann");
    ann.send(Opcode::Text, b"joined");
    assert_eq!(ann.next(), Got::Text("joined".to_owned()));
    let bob = Client::connect(served.address, "/ws/chat.a?info=bob");
    let Got::Text(join) = ann.next() else { panic!("no text") };
    let client = join.split('"').nth(3).unwrap();
    assert_eq!(join, format!("{{\"join\":\"{client}\",\"info\":\"bob\"}}"));
    let answer = get(served.admin, "/presence/chat.a", "").text().to_owned();
    let listed = format!("{{\"client\":\"{client}\",\"info\":\"bob\"}}");
    assert!(answer.contains(&listed) && answer.contains("\"info\":\"ann\""), "{answer}");
    assert!(answer.contains("\"subscribers\":2"), "{answer}");
    drop(bob);
    assert_eq!(ann.next(), Got::Text(join.replace("join", "leave")));
    assert_eq!(get(served.admin, "/presence/other", "").status(), 404);
    assert_eq!(get(served.admin, "/presence/chat.a?limit=x", "").status(), 400);
    let long = format!("/sse/chat.a?info={}", "x".repeat(257));
    assert_eq!(get(served.address, &long, "").status(), 400);
    until_metrics(served.admin, &["throng_presence_clients 1", "throng_presence_joins_total 2"]);
}
