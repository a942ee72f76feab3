//! `lab netbench` as people run it: on our own server, and on servers that get something wrong.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use throng_testkit::{eventually, hold_up};

const SHORT: [&str; 3] = ["-w", "0s", "--quiet"];

fn bench(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lab")).arg("netbench").args(words).output().unwrap()
}

/// Measures for a short time, or on a machine that answers nothing meanwhile, for a longer one.
fn measured(words: &[&str]) -> Output {
    let mut outputs = ["100ms", "2s", "20s"]
        .iter()
        .map(|duration| bench(&[words, &SHORT, &["-d", duration]].concat()));
    let is_enough = |output: &Output| {
        !String::from_utf8_lossy(&output.stdout).contains("not one request was answered")
    };
    outputs.find(is_enough).expect("an answer within 20 s")
}

fn free_port() -> String {
    // Below the ephemeral ports, so that no other program takes it before its server does.
    static CALLS: AtomicU16 = AtomicU16::new(0);
    let first = 10_000 + (std::process::id() % 1000 * 20) as u16;
    let mut ports = std::iter::repeat_with(|| first + CALLS.fetch_add(1, Ordering::Relaxed));
    let free = ports.find(|&port| TcpListener::bind(("127.0.0.1", port)).is_ok());
    free.unwrap().to_string()
}

/// This test binary as a server that behaves in a certain way.
fn fake(how: &str) -> String {
    let program = std::env::current_exe().unwrap();
    format!(
        "env FAKE_HOW={how} FAKE_MODE={{mode}} FAKE_PORT={{port}} '{}' --ignored --exact \
         netbench::fake_server",
        program.display()
    )
}

/// The exit code and the report of a run against a fake.
fn against(how: &str, words: &[&str]) -> (Option<i32>, Value) {
    let (command, port) = (fake(how), free_port());
    let head = ["--against", &command, "--port", &port, "--json"];
    let output = measured(&[&head[..], words].concat());
    let text = String::from_utf8_lossy(&output.stderr);
    let report = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{how}: {error}: {text}"));
    (output.status.code(), report)
}

/// Each case's connections, mode and failure.
fn failures(report: &Value) -> Vec<(u64, &str, Option<&str>)> {
    let cases = report["cases"].as_array().unwrap().iter();
    cases
        .map(|case| {
            let mode = case["mode"].as_str().unwrap();
            (case["connections"].as_u64().unwrap(), mode, case["failure"].as_str())
        })
        .collect()
}

#[test]
fn our_own_server_passes_all_cases_both_ways() {
    for reuse in ["keep-alive", "close"] {
        let output = measured(&["-c", "1,10", "--reuse", reuse, "--json", "-t", "2"]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && errors.is_empty(), "{reuse}: {errors}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(
            (&report["plan"]["reuse"], &report["interrupted"]),
            (&json!(reuse), &json!(false))
        );
        let cases = report["cases"].as_array().unwrap();
        let expected =
            [(1, "blank", None), (1, "work", None), (10, "blank", None), (10, "work", None)];
        assert_eq!(failures(&report), expected, "{report}");
        for case in cases {
            assert!(case["responses"].as_u64().unwrap() > 0, "{case}");
            assert!(case["requests"].as_u64().unwrap() > 0, "{case}");
            assert!(case["requests_per_server_cpu_s"].as_f64().unwrap() > 0.0, "{case}");
            assert!(case["limit"].is_string() && case["limit"] != "invalid", "{case}");
            let statuses = &case["load"]["result"]["statuses"];
            assert_eq!(statuses["200"], case["responses"], "{case}");
        }
        // The work document's body goes out with each request, and another number of bytes comes
        // back.
        assert_eq!(cases[1]["load"]["plan"]["body_bytes"], 516);
        assert_eq!(cases[0]["load"]["plan"]["body_bytes"], 0);
    }
}

#[test]
fn a_report_is_a_table_csv_or_a_page() {
    let folder = throng_testkit::TempFolder::new("netbench");
    let page = folder.join("page.html");
    let own = ["-c", "1,2", "--name", "ours", "--html", page.to_str().unwrap()];
    let output = measured(&own);
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{table}");
    let rows: Vec<&str> = table.lines().filter(|line| line.starts_with("  ours ")).collect();
    assert_eq!(rows.len(), 4, "{table}");
    assert!(table.contains("throughput/s") && table.contains("per CPU-s"), "{table}");
    assert!(table.lines().all(|line| !line.starts_with("  ours") || line.len() <= 100), "{table}");
    let html = std::fs::read_to_string(&page).unwrap();
    assert!(html.contains("<svg") && html.contains("keep-alive"), "{html}");
    let output = measured(&["-c", "1", "--modes", "work", "--csv"]);
    let csv = String::from_utf8(output.stdout).unwrap();
    assert!(csv.starts_with("server,reuse,connections,mode,requests,"), "{csv}");
    assert!(csv.lines().nth(1).unwrap().starts_with("lab,keep-alive,1,work,"), "{csv}");
}

#[test]
fn a_foreign_server_that_is_right_passes_however_it_is_started() {
    for reuse in ["keep-alive", "close"] {
        let (code, report) = against("good", &["-c", "1,3", "--reuse", reuse]);
        assert!(failures(&report).iter().all(|case| case.2.is_none()), "{report}");
        assert_eq!(code, Some(0));
    }
    let command =
        format!("{} serve-netbench --listen 127.0.0.1:{{port}}", env!("CARGO_BIN_EXE_lab"));
    let port = free_port();
    let words = ["--against", &command, "--port", &port, "-c", "2", "--json"];
    let output = measured(&words);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["plan"]["name"], failures(&report).len()), (&json!("lab"), 2));
}

#[test]
fn a_faulty_server_has_its_error_in_its_row_and_the_others_still_run() {
    for (how, mode, words) in [
        ("swapped", "work", "in this order"),
        ("canned", "work", "a fixed answer?"),
        ("text-balance", "work", "must be a number"),
        ("untyped", "both", "no Content-Type"),
        ("newline", "blank", "not exactly OK"),
        ("status", "both", "the status is 500"),
        ("mute", "both", "without an answer"),
        ("later", "both", "after the load"),
        ("crash", "both", "exit status 7"),
        ("refuse", "both", "status 503"),
        ("gone", "both", "the server ended at once: exit status 3; it said last: no luck"),
    ] {
        let (code, report) = against(how, &["-c", "1,3", "--timeout", "20s"]);
        let cases = failures(&report);
        assert_eq!((code, cases.len()), (Some(1), 4), "{how}: {report}");
        for (connections, ran, failure) in cases {
            if mode == "both" || mode == ran {
                let failure =
                    failure.unwrap_or_else(|| panic!("{how}, {connections} {ran}: no failure"));
                assert!(failure.contains(words), "{how}, {connections} {ran}: {failure}");
            } else {
                assert_eq!(failure, None, "{how}, {connections} {ran}");
            }
        }
    }
}

#[test]
fn a_server_that_never_listens_is_announced_from_one_that_listens_elsewhere() {
    let (code, report) =
        against("silent", &["-c", "1", "--modes", "work", "--start-timeout", "300ms"]);
    let failure = failures(&report)[0].2.unwrap();
    assert!(failure.contains("nothing listens on 127.0.0.1:"), "{failure}");
    assert!(failure.contains("300ms") && failure.contains("--port"), "{failure}");
    assert_eq!(code, Some(1));
    let (_, report) = against(
        "good",
        &["-c", "1", "--modes", "work", "--start-timeout", "300ms", "--address", "127.0.0.9"],
    );
    let failure = failures(&report)[0].2.unwrap();
    assert!(failure.contains("nothing listens on 127.0.0.9:"), "{failure}");
}

#[test]
fn failures_before_the_first_case_have_one_line_a_remedy_and_a_code() {
    let taken = free_port();
    let holder = TcpListener::bind(format!("127.0.0.1:{taken}")).unwrap();
    let own_id = format!("process {}", std::process::id());
    for (words, code, hint) in [
        (vec!["--against", "true", "--port", &taken], 1, own_id.as_str()),
        (vec!["--against", "true", "--port", &taken], 1, "end it, or give another --port"),
        (vec!["--against", "a && b"], 2, "sh -c 'exec ...'"),
        (vec!["--against", "true", "--duration", "0s"], 2, "--duration is 0s"),
    ] {
        let output = bench(&words);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{words:?}: {text}");
        assert!(text.contains(hint) && text.lines().count() == 1, "{words:?}: {text}");
        assert!(output.stdout.is_empty());
    }
    drop(holder);
    let output = bench(&["--against", "/nowhere/at/all", "--port", &taken, "-c", "1"]);
    let table = String::from_utf8(output.stdout).unwrap();
    assert_eq!(
        (output.status.code(), table.matches("in the PATH?").count()),
        (Some(1), 2),
        "{table}"
    );
}

#[test]
fn an_interrupt_ends_the_server_and_what_it_started() {
    let port = free_port();
    let folder = throng_testkit::TempFolder::new("netbench");
    let pids = folder.join("pids");
    let command = format!(
        "sh -c 'sleep 600 & echo $$ $! >{}; {}; exit 0' sh",
        pids.display(),
        fake("good").replace('\'', "")
    );
    let words = ["--against", &command, "--port", &port, "-c", "1", "--json", "-d", "10m"];
    let child = Command::new(env!("CARGO_BIN_EXE_lab"))
        .arg("netbench")
        .args(words)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let connect = || TcpStream::connect(format!("127.0.0.1:{port}"));
    eventually("it listens", || connect().is_ok());
    let started = std::fs::read_to_string(&pids).unwrap();
    let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(kill.success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let is_gone = |pid: &str| {
        // A process whose new parent does not wait for it is a zombie.
        let stat = std::fs::read_to_string(Path::new("/proc").join(pid).join("stat"));
        stat.map_or(true, |stat| stat.rsplit(')').next().unwrap().trim().starts_with('Z'))
    };
    assert_eq!(started.split_whitespace().count(), 2);
    if Path::new("/proc/self/stat").exists() {
        assert!(started.split_whitespace().all(is_gone), "{started}");
    }
    assert!(TcpStream::connect(format!("127.0.0.1:{port}")).is_err(), "the port is closed");
}

/// The server of the other tests, in a process of its own; see [`fake`].
#[test]
#[ignore = "a part of the other tests"]
fn fake_server() {
    let setting = |name| std::env::var(name).unwrap();
    let (how, is_work) = (setting("FAKE_HOW"), setting("FAKE_MODE") == "1");
    match how.as_str() {
        "silent" => hold_up(Duration::from_secs(600)),
        "gone" => {
            let _ = std::io::stderr().write_all(b"no luck\n");
            std::process::exit(3);
        }
        _ => {}
    }
    let port: u16 = setting("FAKE_PORT").parse().unwrap();
    let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
    for stream in listener.incoming() {
        let how = how.clone();
        thread::spawn(move || serve(stream.unwrap(), &how, is_work));
    }
}

fn serve(mut stream: TcpStream, how: &str, is_work: bool) {
    static ANSWERS: AtomicUsize = AtomicUsize::new(0);
    let mut bytes = Vec::new();
    while let Some((is_last, body)) = next_request(&mut stream, &mut bytes) {
        let before = ANSWERS.fetch_add(1, Ordering::Relaxed);
        let answer = match (how, is_work) {
            ("mute", _) => return,
            ("crash", _) if before > 5 => std::process::exit(7),
            ("later", _) if before > 5 => "OO".to_owned(),
            ("newline", false) => "OK\n".to_owned(),
            (_, false) => "OK".to_owned(),
            (_, true) => worked(&body, how),
        };
        let status = match how {
            "status" => 500,
            "refuse" if before > 5 => 503,
            _ => 200,
        };
        let content_type = match (how, is_work) {
            ("untyped", _) => "",
            (_, false) => "Content-Type: text/plain\r\n",
            (_, true) => "Content-Type: application/json\r\n",
        };
        let length = answer.len();
        let text = format!(
            "HTTP/1.1 {status} Whatever\r\n{content_type}Content-Length: {length}\r\n\r\n{answer}"
        );
        if stream.write_all(text.as_bytes()).is_err() || is_last {
            return;
        }
    }
}

/// Reads the next request: whether it is the connection's last, and its body.
fn next_request(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> Option<(bool, Vec<u8>)> {
    let mut piece = [0; 4096];
    loop {
        let head = bytes.windows(4).position(|end| end == b"\r\n\r\n").map(|at| at + 4);
        if let Some(head) = head {
            let text = String::from_utf8_lossy(&bytes[..head]).to_lowercase();
            let length = text
                .split("content-length: ")
                .nth(1)
                .map_or(0, |rest| rest.lines().next().unwrap().parse().unwrap());
            if bytes.len() >= head + length {
                let request: Vec<u8> = bytes.drain(..head + length).collect();
                return Some((text.contains("connection: close"), request[head..].to_vec()));
            }
        }
        match stream.read(&mut piece) {
            Ok(n @ 1..) => bytes.extend_from_slice(&piece[..n]),
            _ => return None,
        }
    }
}

/// The answer to a document; texts of its dates sort as the moments they stand for.
fn worked(body: &[u8], how: &str) -> String {
    let fixed = concat!(
        r#"{"product":"test","requestId":"{BC6B8989-DAB7-484E-9AD3-F7C34A800A1A}","client":"#,
        r#"{"balance":109240.59,"minDate":"2020-01-01T00:00:00.007Z","#,
        r#""maxDate":"2020-11-10T06:47:04.462Z"}}"#
    );
    if how == "canned" {
        return fixed.to_owned();
    }
    let document: Value = serde_json::from_slice(body).unwrap();
    let group = &document["group"];
    let dates = || group["dates"].as_array().unwrap().iter().map(|date| date.as_str().unwrap());
    let (least, greatest) = (dates().min().unwrap(), dates().max().unwrap());
    let (product, id, balance) = (&document["product"], &document["requestId"], &group["balance"]);
    let client = |balance: &str| {
        format!(r#"{{"balance":{balance},"minDate":"{least}","maxDate":"{greatest}"}}"#)
    };
    let (number, text) = (client(&balance.to_string()), client(&format!("\"{balance}\"")));
    match how {
        "swapped" => format!(r#"{{"requestId":{id},"product":{product},"client":{number}}}"#),
        "text-balance" => format!(r#"{{"product":{product},"requestId":{id},"client":{text}}}"#),
        _ => format!(r#"{{ "product":{product}, "requestId":{id}, "client":{number} }}"#),
    }
}
