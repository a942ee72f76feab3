//! The program: its output, exit codes and errors.

use std::net::{SocketAddr, TcpListener};
use std::process::{Output, Stdio};

use serde_json::Value;
use throng_testkit::TempFolder;

use crate::clients;
use crate::support::operated::Operated;
use crate::support::{Served, throng};

fn doctor(words: &[&str]) -> (Option<i32>, String, String) {
    let mut command = throng();
    command.args(["doctor", "--interval", "1s", "--live"]).args(words).stdin(Stdio::null());
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

fn address(of: SocketAddr) -> String {
    of.to_string()
}

#[test]
fn findings_are_text_or_json_and_strict_makes_them_failures() {
    let served = Served::start(&["--listen", "127.0.0.1:0", "--max-connections", "20"]);
    let server = address(served.addresses[0]);
    let (code, text, errors) = doctor(&[&server]);
    assert_eq!((code, errors.as_str()), (Some(0), ""), "{text}");
    assert!(text.starts_with(&format!("http://{server}/stats.json, over 1 s:\n\n")), "{text}");
    assert!(text.contains("\nPASS  ") && text.contains("0 failed, "), "{text}");
    let _open = clients(served.addresses[0], "/echo", 18);
    let (code, text, _) = doctor(&[&server]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("\nWARN  live-descriptors "), "{text}");
    assert!(text.contains(" of 20 connections, want less than 90 %"), "{text}");
    let (code, text, _) = doctor(&[&server, "--strict", "--json"]);
    assert_eq!(code, Some(1), "{text}");
    let report: Value = serde_json::from_str(&text).unwrap();
    let findings = report["findings"].as_array().unwrap();
    assert_eq!(findings.len(), 12);
    let found = findings.iter().find(|it| it["id"] == "live-descriptors").unwrap();
    assert_eq!(found["status"], "warn", "{found}");
    assert_eq!(found["remedies"][0]["kind"], "systemd", "{found}");
}

#[test]
fn a_server_that_shows_no_statistics_is_an_error_with_the_remedy() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (code, _, errors) = doctor(&[&address(closed)]);
    assert_eq!(code, Some(1), "{errors}");
    assert!(errors.contains("/stats.json: cannot connect"), "{errors}");
    let token = "0123456789abcdef";
    let served =
        Operated::start(&["--admin", "127.0.0.1:0", "--set", &format!("admin.token={token}")]);
    let (code, _, errors) = doctor(&[&address(served.address)]);
    assert_eq!(code, Some(1), "{errors}");
    assert!(errors.contains("name the address of admin.listen"), "{errors}");
    let (code, _, errors) = doctor(&[&address(served.admin)]);
    assert_eq!(code, Some(1), "{errors}");
    assert!(errors.contains("401"), "{errors}");
    let folder = TempFolder::new("doctor-live");
    let file = folder.write("token", token);
    let (code, text, _) = doctor(&[&address(served.admin), "--token-file", file.to_str().unwrap()]);
    assert_eq!(code, Some(0), "{text}");
}

#[cfg(feature = "balance")]
#[test]
fn a_balancer_is_asked_for_its_status() {
    let balancer = crate::balancer::Balancer::start("127.0.0.1:9");
    let (code, text, _) = doctor(&[&address(balancer.admin), "--all"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("/status.json, over 1 s:"), "{text}");
    assert!(text.contains("SKIP  live-deflate"), "{text}");
}

#[test]
fn flags_that_do_not_fit_are_refused() {
    for (words, expected) in [
        (&["--live", "127.0.0.1:1", "--for", "9"][..], "--for"),
        (&["--interval", "5s"], "--live"),
        (&["--live", "127.0.0.1:1", "--interval", "10ms"], "write 1s or more"),
        (&["--live", "https://127.0.0.1:1"], "is not asked with TLS"),
        (&["--explain", "live-lagg"], "did you mean live-lag?"),
    ] {
        let output = throng().arg("doctor").args(words).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {errors}");
        assert!(errors.contains(expected), "{words:?}: {errors}");
    }
    let output = throng().args(["doctor", "--explain", "live-lag"]).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("### live-lag\n"));
}
