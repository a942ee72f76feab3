//! `throng doctor --live` on real servers: it finds what was planted, and nothing on healthy ones.
//!
//! Packets that the network loses cannot be planted on loopback; the rule about them has readings
//! in the tests of `throng-doctor`.
#![cfg(target_os = "linux")]

#[cfg(feature = "balance")]
mod balancer;
mod healthy;
mod planted;
mod plants;
mod program;
#[path = "../support/mod.rs"]
mod support;

use std::io::Write;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::Value;
use throng_doctor::{Finding, Status, diagnose_live};
use throng_testkit::{Client, dial, poll, read_head};

use support::operated::get;

/// Counters are of the last second.
const INTERVAL: Duration = Duration::from_millis(1500);

/// Rules about the network namespace, in which other programs run, too, and another test overflows
/// a queue.
const OF_NAMESPACE: [&str; 2] = ["live-overflows", "live-retransmits"];

/// The statistics of a server at a moment.
struct Reading {
    address: SocketAddr,
    path: &'static str,
    stats: Value,
    at: Instant,
}

impl Reading {
    fn of(address: SocketAddr) -> Self {
        Self::at(address, "/stats.json")
    }

    fn at(address: SocketAddr, path: &'static str) -> Self {
        Self { address, path, stats: read(address, path), at: Instant::now() }
    }

    /// Returns the statistics of this moment.
    fn now(&self) -> Value {
        read(self.address, self.path)
    }

    /// Returns what the rules find since then.
    fn findings(&self) -> Vec<Finding> {
        diagnose_live(&self.stats, &self.now(), self.at.elapsed().as_secs_f64())
    }

    /// Waits until the rule with this id finds something, and returns what. No other rule does,
    /// except `others`.
    fn until_found(&self, id: &str, others: &[&str]) -> Finding {
        let what = format!("{id} finds something");
        let findings = poll(&what, || {
            if self.at.elapsed() < INTERVAL {
                return None;
            }
            let findings = self.findings();
            let is_found = bad(&findings).any(|finding| finding.id == id);
            is_found.then_some(findings)
        });
        for finding in bad(&findings) {
            let is_expected =
                [id].iter().chain(others).chain(&OF_NAMESPACE).any(|it| *it == finding.id);
            assert!(is_expected, "{finding:?}");
        }
        findings.into_iter().find(|finding| finding.id == id).unwrap()
    }

    /// Waits until all that has happened is in the statistics, in which no rule finds anything.
    fn is_healthy(&self) {
        let from = Instant::now();
        poll("the counters are current", || (from.elapsed() > INTERVAL).then_some(()));
        let findings = self.findings();
        let mut alarms = bad(&findings).filter(|finding| !OF_NAMESPACE.contains(&finding.id));
        assert_eq!(alarms.next(), None);
        assert_eq!(findings.len(), 12);
    }
}

fn bad(findings: &[Finding]) -> impl Iterator<Item = &Finding> {
    findings.iter().filter(|it| matches!(it.status, Status::Fail | Status::Warn))
}

fn read(address: SocketAddr, path: &str) -> Value {
    serde_json::from_slice(&get(address, path, "").body).unwrap()
}

/// Opens a session with compression.
fn compressing(address: SocketAddr, path: &str) -> Client {
    let mut stream = dial(address);
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
         Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let head = read_head(&mut stream);
    assert!(head.contains("permessage-deflate"), "{head}");
    Client::opened(stream)
}

/// Opens so many sessions.
fn clients(address: SocketAddr, path: &str, number: usize) -> Vec<Client> {
    (0..number).map(|_| Client::connect(address, path)).collect()
}
