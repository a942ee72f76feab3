//! More connections than a descriptor table holds, with one process at each end.
#![cfg(target_os = "linux")]

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

/// Connections of both processes: more than three tables of 20,000 descriptors hold.
const CONNECTIONS: &str = "60000";

/// Descriptors of a table: the limit of both processes, wherever the test runs.
const LIMIT: &str = "20000";

/// The real binary, with the descriptor limit lowered.
fn throng(words: &[&str]) -> Command {
    let mut command = Command::new("sh");
    let program = env!("CARGO_BIN_EXE_throng");
    command.args(["-c", &format!("ulimit -n {LIMIT} && exec \"$0\" \"$@\""), program]).args(words);
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

#[test]
fn sixty_thousand_websockets_answer_in_processes_limited_to_twenty_thousand_descriptors() {
    let words = [
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--max-connections",
        CONNECTIONS,
        "--set",
        "handshake_timeout=120s",
    ];
    let mut serve = Running(throng(&words).spawn().unwrap());
    let mut line = String::new();
    let output = serve.0.stdout.take().unwrap();
    BufReader::new(output).read_line(&mut line).unwrap();
    if line.is_empty() {
        let mut why = String::new();
        serve.0.stderr.take().unwrap().read_to_string(&mut why).unwrap();
        panic!("the server did not start: {why}");
    }
    assert!(line.contains("(up to 60000 connections, in "), "{line}");
    assert!(line.contains(" descriptor tables of 20000)"), "{line}");
    let address = line.split("http://").nth(1).unwrap().split(' ').next().unwrap();
    let url = format!("ws://{address}");
    let words = ["bench", "idle", &url, "-c", CONNECTIONS, "--hold", "1s", "--echo", "--json"];
    let words = [&words[..], &["--setup-timeout", "300s", "--sources", "6"]].concat();
    let bench = throng(&words).output().unwrap();
    let (out, errors) =
        (String::from_utf8_lossy(&bench.stdout), String::from_utf8_lossy(&bench.stderr));
    let report: serde_json::Value =
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out} {errors}"));
    assert_eq!(report["result"]["answered"], 60_000, "{report}");
    assert_eq!(report["errors"]["connections_lost"], 0, "{report}");
}

#[test]
fn more_than_the_tables_hold_is_refused_with_the_number_of_shards_that_would_do() {
    let words = ["serve", "--listen", "127.0.0.1:0", "--shards", "2", "--max-connections"];
    let refused = throng(&[&words[..], &[CONNECTIONS]].concat()).output().unwrap();
    let errors = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{errors}");
    assert!(errors.contains("2 descriptor tables of 20000 hold"), "{errors}");
    assert!(errors.contains("set shards to 4 or more"), "{errors}");
}
