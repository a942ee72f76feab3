//! Clients with their own headers, tokens and subprotocols, against a server that requires them.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use throng_load::http;
use throng_load::report::Render as _;
use throng_load::{Common, Error, Mode, Pace, Plan, Report, Target, Tokens};

use crate::server::{Behaviour, Heads, start_recording};

fn echo() -> Mode {
    let duration = Duration::from_millis(100);
    Mode::Echo { pace: Pace::Closed { pipeline: 1 }, duration, warmup: Duration::ZERO }
}

fn run(
    behaviour: Behaviour,
    path: &str,
    change: impl FnOnce(&mut Plan),
) -> (Result<Report, Error>, Vec<String>) {
    let (address, heads) = start_recording(behaviour);
    let target = Target::parse(&format!("ws://{address}{path}")).unwrap();
    let setup_timeout = Duration::from_secs(60);
    let common = Common { connections: 6, setup_timeout, ..target.into() };
    let mut plan = Plan::new(common, echo());
    change(&mut plan);
    let report = throng_load::run(&plan, &AtomicBool::new(false), &mut |_| {});
    let heads = heads.lock().unwrap().clone();
    (report, heads)
}

fn bearer(plan: &mut Plan) {
    plan.common.headers = vec![("Authorization".to_owned(), "Bearer {token}".to_owned())];
    plan.common.tokens = Tokens::parse("tokens", "t0\nt1\nt2\n").unwrap();
}

#[test]
fn each_client_has_its_own_token_and_subprotocol() {
    for threads in [1, 2] {
        let (report, heads) = run(Behaviour::Guarded, "/ws?n={client}", |plan| {
            bearer(plan);
            plan.common.threads = threads;
            plan.subprotocols = vec!["v{client}".to_owned(), "other".to_owned()];
        });
        let report = report.unwrap();
        assert_eq!(report.errors.total(), 0, "{report}");
        assert_eq!(report.setup.subprotocol_agreed, Some(6));
        let asked: BTreeSet<String> = heads
            .iter()
            .map(|head| {
                let field =
                    |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).unwrap();
                let target = head.split(' ').nth(1).unwrap();
                let (token, names) =
                    (field("Authorization: Bearer "), field("Sec-WebSocket-Protocol: "));
                format!("{target} {token} {names}")
            })
            .collect();
        let expected = (0..6).map(|n| format!("/ws?n={n} t{} v{n}, other", n % 3));
        assert_eq!(asked, expected.collect());
        let (text, json) = (report.to_string(), report.to_json());
        assert!(text.contains("a subprotocol on 6 of them"), "{text}");
        assert!(text.contains("with Authorization, 3 tokens"), "{text}");
        assert!(!json.contains("Bearer") && !json.contains("t1\""), "no secrets: {json}");
    }
}

#[test]
fn a_connection_that_is_made_again_has_the_next_number() {
    let (report, heads) = run(Behaviour::Guarded, "/?{sequence}", |plan| {
        bearer(plan);
        plan.common.connections = 1;
        plan.mode = Mode::Connect {
            rate_per_s: None,
            duration: Duration::from_secs(1),
            warmup: Duration::ZERO,
        };
    });
    report.unwrap();
    for (number, head) in heads.iter().enumerate() {
        assert!(head.starts_with(&format!("GET /?{number} HTTP/1.1\r\n")), "{number}: {head}");
    }
    assert!(heads.len() > 1);
}

#[test]
fn a_server_that_wants_more_is_named_with_a_remedy() {
    let (report, _) = run(Behaviour::Guarded, "/", |_| ());
    let error = report.unwrap_err().to_string();
    assert!(error.contains("401") && error.contains("--token"), "{error}");
    let (report, _) = run(Behaviour::Imposes, "/", |_| ());
    let error = report.unwrap_err().to_string();
    assert!(error.contains("chose a subprotocol that was not asked for"), "{error}");
    let (report, _) = run(Behaviour::Echo, "/", |plan| plan.subprotocols = vec!["v1".to_owned()]);
    let text = report.unwrap().to_string();
    assert!(text.contains("the server declined the subprotocols"), "{text}");
}

/// Answers every request with 200, and keeps its first line, its token and its body.
fn start_http() -> (SocketAddr, Heads) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, seen) = (listener.local_addr().unwrap(), Heads::default());
    let recorded = seen.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, recorded) = (stream.unwrap(), recorded.clone());
            std::thread::spawn(move || {
                let mut input = BufReader::new(stream.try_clone().unwrap());
                loop {
                    let (mut record, mut length) = (String::new(), 0);
                    loop {
                        let mut line = String::new();
                        if input.read_line(&mut line).unwrap_or(0) == 0 {
                            return;
                        }
                        let line = line.trim_end();
                        match line.split_once(": ") {
                            Some(("Authorization", token)) => record += &format!(" {token}"),
                            Some(("Content-Length", value)) => length = value.parse().unwrap(),
                            None if !line.is_empty() => {
                                record += line.trim_end_matches(" HTTP/1.1")
                            }
                            None => break,
                            Some(_) => {}
                        }
                    }
                    let mut body = vec![0; length];
                    input.read_exact(&mut body).unwrap();
                    record += &format!(" {}", String::from_utf8(body).unwrap());
                    recorded.lock().unwrap().push(record);
                    let answer = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
                    if stream.write_all(answer.as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    (address, seen)
}

#[test]
fn http_requests_differ_by_client_and_number() {
    let (address, seen) = start_http();
    let target = Target::parse_http(&format!("http://{address}/u/{{client}}")).unwrap();
    let common = Common {
        connections: 2,
        headers: vec![("Authorization".to_owned(), "{token}".to_owned())],
        tokens: Tokens::parse("tokens", "t0\nt1").unwrap(),
        number: Some(60),
        setup_timeout: Duration::from_secs(60),
        ..target.into()
    };
    let plan = http::HttpPlan {
        method: "POST".to_owned(),
        pipeline: 3,
        body: b"number {sequence}".to_vec(),
        body_has_places: true,
        duration: Duration::from_secs(600),
        warmup: Duration::ZERO,
        ..http::HttpPlan::new(common)
    };
    let report = http::run(&plan, &AtomicBool::new(false), &mut |_| {}).unwrap();
    assert_eq!(report.errors.total(), 0, "{report}");
    assert!(report.result.requests == 60 && report.result.sent_bytes_per_s > Some(0.0), "{report}");
    let seen = seen.lock().unwrap();
    for client in 0..2 {
        let of_client: Vec<&String> = seen
            .iter()
            .filter(|record| record.starts_with(&format!("POST /u/{client} ")))
            .collect();
        for (number, record) in of_client.iter().enumerate() {
            assert_eq!(**record, format!("POST /u/{client} t{client} number {number}"));
        }
        assert_eq!(of_client.len(), 30);
    }
}
