//! `throng cluster status` of addresses that are not nodes; tests/cluster.rs asks nodes.
#![cfg(unix)]

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Output;
use std::thread;

use crate::support::{Served, throng};

fn status(words: &[&str]) -> Output {
    throng().args(["cluster", "status"]).args(words).output().unwrap()
}

/// The standard output of a failing status.
fn bad(words: &[&str]) -> String {
    let output = status(words);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// An address whose server gives every connection this answer.
fn answering(answer: impl Into<String>) -> String {
    let answer = answer.into();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    address
}

#[test]
fn an_address_with_nothing_behind_it_is_named_with_the_reason() {
    let text = bad(&["127.0.0.1:1"]);
    assert!(text.contains("127.0.0.1:1 ") && text.contains("connection refused"), "{text}");
}

#[test]
fn a_server_that_does_not_answer_does_not_hold_the_others_up() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let text = bad(&["--timeout", "100ms", &address, "127.0.0.1:1"]);
    assert!(text.contains("no answer in time") && text.contains("connection refused"), "{text}");
}

#[test]
fn a_server_that_is_no_node_is_named_with_what_it_is() {
    let plain = Served::start(&["--listen", "127.0.0.1:0"]);
    let hidden = Served::start(&["--listen", "127.0.0.1:0", "--set", "public_metrics=false"]);
    let server = |served: &Served| served.addresses[0].to_string();
    for (address, expected) in [
        (server(&plain), "it has no cluster; start it with --cluster"),
        (server(&hidden), "--admin"),
        (answering("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"), "no Throng server"),
        (answering("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"), "404"),
        (answering("SSH-2.0-OpenSSH\r\n\r\n"), "no HTTP"),
    ] {
        let text = bad(&[&address]);
        assert!(text.contains(expected), "{expected}: {text}");
    }
}

#[test]
fn an_answer_of_a_server_cannot_move_the_cursor() {
    let refusal = r#"{"error":"a\u001b[2Jb\nc"}"#;
    let reason = r#"{"cluster":{"up":false,"why":"a\u001b[2Jb\nc","channels":"\u001b[2J"}}"#;
    for (status, body) in [("403 Forbidden", refusal), ("200 OK", reason)] {
        let length = body.len();
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n");
        let text = bad(&[&answering(head + body)]);
        assert!(!text.contains('\u{1b}') && text.lines().count() == 2, "{text:?}");
        assert!(text.contains("a\\u001b[2Jb\\u000ac"), "{text:?}");
    }
}

#[test]
fn json_has_the_reason_and_no_figures() {
    let text = bad(&["--json", "127.0.0.1:1"]);
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value[0]["node"], "http://127.0.0.1:1");
    assert_eq!(value[0]["up"], false);
    assert_eq!(value[0]["why"], "cannot connect: connection refused");
    assert_eq!(value[0]["channels"], serde_json::Value::Null);
}

#[test]
fn a_wrong_address_is_a_wrong_flag() {
    for words in [&["https://127.0.0.1:1"][..], &["http://127.0.0.1:1/metrics"]] {
        let output = status(words);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(!output.stderr.is_empty());
    }
}
