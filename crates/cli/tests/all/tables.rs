//! More connections than a descriptor table can hold, with one process at each end.
#![cfg(target_os = "linux")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Output, Stdio};

use throng_testkit::eventually;

/// Connections of both processes: more than fit in three tables of 20,000 descriptors.
const CONNECTIONS: &str = "60000";

/// Descriptors of a table: the limit of both processes, on any machine.
const LIMIT: u32 = 20_000;

/// The real binary, with the descriptor limit lowered.
fn throng(limit: u32, words: &[&str]) -> Command {
    let mut command = Command::new("sh");
    let program = env!("CARGO_BIN_EXE_throng");
    command.args(["-c", &format!("ulimit -n {limit} && exec \"$0\" \"$@\""), program]).args(words);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A process that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a server and returns it with the line that it began with and its address.
fn serve(limit: u32, words: &[&str]) -> (Running, String, String) {
    let words = [&["serve", "--listen", "127.0.0.1:0"], words].concat();
    let mut serve = Running(throng(limit, &words).spawn().unwrap());
    let mut line = String::new();
    let output = serve.0.stdout.take().unwrap();
    BufReader::new(output).read_line(&mut line).unwrap();
    if line.is_empty() {
        let mut why = String::new();
        serve.0.stderr.take().unwrap().read_to_string(&mut why).unwrap();
        panic!("the server did not start: {why}");
    }
    let address = line.split("http://").nth(1).unwrap().split(' ').next().unwrap().to_owned();
    (serve, line, address)
}

/// The report of `throng bench --json`.
fn report(bench: &Output) -> serde_json::Value {
    let (out, errors) =
        (String::from_utf8_lossy(&bench.stdout), String::from_utf8_lossy(&bench.stderr));
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out} {errors}"))
}

/// A figure of the server.
fn figure(admin: &str, name: &str) -> u64 {
    let mut connection = TcpStream::connect(admin).unwrap();
    let request = format!("GET /stats.json HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\r\n");
    connection.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    let body = answer.split_once("\r\n\r\n").unwrap().1;
    let stats: serde_json::Value = serde_json::from_str(body).unwrap();
    stats[name].as_u64().unwrap_or_else(|| panic!("{stats}"))
}

#[test]
fn sixty_thousand_websockets_answer_and_are_closed_with_twenty_thousand_descriptors_a_table() {
    let admin = free_address();
    let set = format!("admin.listen={admin}");
    let words = ["--max-connections", CONNECTIONS, "--set", "handshake_timeout=120s"];
    let words = [&words[..], &["--set", "drain.grace=120s"]].concat();
    let (mut serve, line, address) = serve(LIMIT, &[&words[..], &["--set", &set]].concat());
    assert!(line.contains("(up to 60000 connections, in "), "{line}");
    assert!(line.contains(" descriptor tables of 20000)"), "{line}");
    let url = format!("ws://{address}");
    let words = ["bench", "idle", &url, "-c", CONNECTIONS, "--hold", "1s", "--echo", "--json"];
    let words = [&words[..], &["--setup-timeout", "300s", "--sources", "6"]].concat();
    let words = [&words[..], &["--await-close", "300s"]].concat();
    let bench = throng(LIMIT, &words).spawn().unwrap();
    // In steps, because a busy machine may take minutes for all of them.
    for count in (5_000..=60_000).step_by(5_000) {
        eventually("more are connected", || figure(&admin, "connections") >= count);
    }
    for count in (5_000..=60_000).step_by(5_000) {
        eventually("more have sent a message", || figure(&admin, "messages_in") >= count);
    }
    stop(&serve.0);
    let report = report(&bench.wait_with_output().unwrap());
    assert_eq!(report["result"]["answered"], 60_000, "{report}");
    assert_eq!(report["result"]["closes"]["by_code"]["1001"], 60_000, "{report}");
    assert_eq!(report["errors"]["connections_lost"], 0, "{report}");
    assert!(serve.0.wait().unwrap().success());
}

#[test]
fn a_broadcast_reaches_subscribers_in_tables_of_their_own() {
    let (_serve, _, address) = serve(400, &["--max-connections", "1500"]);
    let url = format!("ws://{address}/ws/all");
    let words = ["bench", "broadcast", "--against", &url, "-n", "900", "-r", "3", "--json"];
    let report = report(&throng(400, &words).output().unwrap());
    assert_eq!(report["result"]["publishes"], 3, "{report}");
    assert_eq!(report["result"]["delivery"]["count"], 2_700, "{report}");
    assert_eq!(report["errors"]["wrong_answers"], 0, "{report}");
}

#[test]
fn http_requests_come_over_more_connections_than_a_descriptor_table_holds() {
    let pending = ["--set", "max_pending_handshakes=0"];
    let (_serve, _, address) =
        serve(2_000, &[&["--max-connections", "900"], &pending[..]].concat());
    let url = format!("http://{address}/livez");
    for more in [&[][..], &["-r", "2000"]] {
        let words = ["bench", "http", &url, "-c", "800", "-d", "1s", "--warmup", "0s", "--json"];
        let report = report(&throng(400, &[&words[..], more].concat()).output().unwrap());
        assert_eq!(report["connections"]["opened"], 800, "{report}");
        assert!(report["result"]["requests"].as_u64() >= Some(800), "{report}");
        assert!(report["errors"]["first"].is_null(), "{report}");
    }
}

#[cfg(feature = "balance")]
#[test]
fn a_balancer_holds_more_tunnels_than_a_descriptor_table() {
    let (_serve, _, backend) = serve(2_000, &["--max-connections", "900"]);
    let words = ["balance", "--listen", "127.0.0.1:0", "--backend", &backend];
    let words = [&words[..], &["--set", "max_connections=700"]].concat();
    let mut balance = Running(throng(400, &words).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(balance.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains(" (up to 700 connections, in "), "{line}");
    assert!(line.contains(" descriptor tables of 400)"), "{line}");
    let address = line.split("http://").nth(1).unwrap().split(' ').next().unwrap();
    let url = format!("ws://{address}/echo");
    let words = ["bench", "idle", &url, "-c", "600", "--hold", "100ms", "--echo", "--json"];
    let words = [&words[..], &["--await-close", "60s"]].concat();
    let bench = throng(2_000, &words).spawn().unwrap();
    eventually("all have sent a message", || figure(&backend, "messages_in") >= 600);
    stop(&balance.0);
    let report = report(&bench.wait_with_output().unwrap());
    assert_eq!(report["result"]["answered"], 600, "{report}");
    assert_eq!(report["result"]["closes"]["by_code"]["1001"], 600, "{report}");
    assert!(balance.0.wait().unwrap().success());
}

/// An address that no program listened on a moment ago.
fn free_address() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

/// Asks a process to end.
fn stop(process: &Child) {
    let pid = process.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
}

#[test]
fn more_than_the_tables_hold_is_refused_with_the_number_of_shards_that_would_do() {
    let words = ["serve", "--listen", "127.0.0.1:0", "--shards", "2", "--max-connections"];
    let refused = throng(LIMIT, &[&words[..], &[CONNECTIONS]].concat()).output().unwrap();
    let errors = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{errors}");
    assert!(errors.contains("2 descriptor tables of 20000 hold"), "{errors}");
    assert!(errors.contains("set shards to 4 or more"), "{errors}");
}
