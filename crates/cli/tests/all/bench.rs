//! `throng bench` as users run it: the real binary against `throng serve`, and against a port where
//! no program listens.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Output, Stdio};

use serde_json::{Value, json};

/// `throng serve` on a free port, ended with the test.
struct Served {
    child: Child,
    url: String,
}

impl Served {
    fn start() -> Self {
        Self::start_with(&[])
    }

    fn start_with(flags: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_throng"))
            .args(["serve", "--listen", "127.0.0.1:0", "--shards", "1"])
            .args(flags)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let (before, after) =
            line.split_once("://").unwrap_or_else(|| panic!("no address in {line:?}"));
        let address = after.split_whitespace().next().unwrap();
        let scheme = if before.ends_with("https") { "wss" } else { "ws" };
        Self { url: format!("{scheme}://{address}"), child }
    }

    fn pid(&self) -> u64 {
        u64::from(self.child.id())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn bench(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_throng")).arg("bench").args(words).output().unwrap()
}

fn bench_json(words: &[&str]) -> Value {
    let output = bench(words);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{words:?}: {errors}{}",
        String::from_utf8_lossy(&output.stdout)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn every_mode_measures_our_server_in_another_process() {
    let served = Served::start();
    let (bare, path) = (served.url.as_str(), format!("{}/echo", served.url));
    let short = ["--json", "--duration", "100ms", "--warmup", "20ms", "--connections", "20"];
    let closed = ["echo", bare, "--pipeline", "4", "--text", "--size", "1KiB"];
    let open = ["echo", &path, "--rate", "50", "--threads", "2"];
    for words in [&closed[..], &open[..]] {
        let report = bench_json(&[words, &short].concat());
        assert!(report["result"]["messages"].as_u64().unwrap() > 0, "{report}");
        assert_eq!(
            report["server"]["pids"][0].as_u64().unwrap(),
            served.pid(),
            "found by its port"
        );
        assert_eq!(report["errors"]["wrong_answers"], 0);
        assert!(!report["verdict"]["line"].as_str().unwrap().is_empty());
    }
    let report = bench_json(&["idle", bare, "--json", "-c", "50", "--hold", "50ms"]);
    assert!(report["result"]["rss_bytes_per_connection"].is_number(), "{report}");
    assert!(report["server"]["descriptors"].as_u64().unwrap() >= 50);
    let report =
        bench_json(&["connect", bare, "--json", "-d", "100ms", "-w", "0s", "--concurrency", "8"]);
    assert!(report["result"]["connections"].as_u64().unwrap() > 0, "{report}");
    let report =
        bench_json(&["broadcast", "--against", bare, "--json", "-n", "40", "--rounds", "3"]);
    assert_eq!(report["result"]["delivery"]["count"], 120, "{report}");
    let channels = ["--channels", "4", "--subscribers", "3", "--rate", "100/s"];
    let report = bench_json(&[&["fanout", "--against", bare], &channels[..], &short[..5]].concat());
    assert_eq!(report["result"]["lost"], 0, "{report}");
    assert_eq!(report["server"]["pids"][0].as_u64().unwrap(), served.pid());
}

#[test]
fn compression_is_measured_where_both_sides_have_it() {
    let short = ["--json", "-d", "150ms", "-w", "50ms", "-c", "8"];
    let served = Served::start_with(&["--deflate", "window:10"]);
    for (size, least, most) in [("136", 0.1, 0.6), ("1KiB", 0.1, 0.6)] {
        let words = ["echo", &served.url, "--deflate", "window:10", "--size", size];
        let report = bench_json(&[&words, &short[..]].concat());
        let deflate = &report["result"]["deflate"];
        assert_eq!(deflate["connections_agreed"], 8, "{report}");
        for direction in ["ratio_sent", "ratio_received"] {
            let ratio = deflate[direction].as_f64().unwrap();
            assert!((least..most).contains(&ratio), "{direction} {ratio}: {report}");
        }
        assert_eq!(
            (&report["plan"]["payload"], &report["plan"]["seed"]),
            (&json!("json"), &json!(1))
        );
        assert!(report["result"]["server_cpu_us_per_message"].is_number());
        assert_eq!(report["errors"]["wrong_answers"], 0);
    }
    let plain = Served::start();
    let report = bench_json(&[&["echo", &plain.url, "--deflate"], &short[..]].concat());
    assert_eq!(report["result"]["deflate"]["connections_agreed"], 0);
}

#[test]
fn a_number_of_connections_is_made_and_no_more() {
    let served = Served::start();
    let words = ["connect", &served.url, "--json", "--number", "50", "--concurrency", "7"];
    let report = bench_json(&[&words[..], &["--threads", "2"]].concat());
    let result = &report["result"];
    assert_eq!(
        (&result["connections"], &result["total"]["count"], &report["plan"]["number"]),
        (&json!(50), &json!(50), &json!(50)),
        "{report}"
    );
    assert!(result["measured_s"].as_f64().unwrap() > 0.0);
    assert_eq!((&result["tls"], &report["errors"]["missing_answers"]), (&Value::Null, &json!(0)));
    assert!(!report["histogram"].is_null());
}

#[test]
fn rates_follow_one_another_in_stages() {
    let served = Served::start();
    let http = served.url.replace("ws://", "http://") + "/livez";
    // 20 while it rises, 40 at the rate, and 20 while it falls.
    let stages = ["--stages", "200ms:200,0s:400/s,100ms:400,100ms:0", "-c", "8", "--json"];
    for (words, answers) in [
        (&["echo", &served.url, "--threads", "2"][..], "messages"),
        (&["http", &http], "requests"),
        (&["connect", &served.url], "connections"),
    ] {
        let report = bench_json(&[words, &stages].concat());
        let result = &report["result"];
        let planned = result["open_loop"]["planned"].as_u64().unwrap();
        assert!(planned.abs_diff(80) <= 3, "{report}");
        // The machine may be slow, and answer late.
        assert!(result[answers].as_u64().unwrap() <= planned + 1, "{report}");
        assert_eq!(report["errors"]["wrong_answers"].as_u64().unwrap_or(0), 0, "{report}");
        assert_eq!(report["plan"]["stages"][1]["rate_per_s"], 400.0, "{report}");
    }
}

#[test]
fn the_highest_rate_of_connections_is_searched() {
    let served = Served::start();
    let words = ["connect", &served.url, "--find-max", "--rate", "40/s", "-c", "30", "--quiet"];
    // No connection can be opened within that time.
    let short = ["--slo", "max<1us", "-d", "100ms", "-w", "0s", "--json"];
    let output = bench(&[&words[..], &short].concat());
    assert_eq!(output.status.code(), Some(99));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["of"], &report["connections"]), (&json!("connect"), &json!(30)));
    let steps = report["steps"].as_array().unwrap();
    assert!(steps[0]["rate_per_s"] == 40.0 && steps.iter().all(|step| step["kept"] == false));
}

#[test]
fn the_table_ends_with_the_verdict() {
    let served = Served::start();
    let output = bench(&["echo", &served.url, "-d", "50ms", "-w", "0s", "-c", "2"]);
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.lines().last().unwrap().starts_with("verdict "), "{table}");
    assert!(output.status.success() && output.stderr.is_empty(), "no progress off a terminal");
}

#[test]
fn failures_have_one_line_a_remedy_and_a_code() {
    // No program listens there.
    let url = "ws://127.0.0.1:1".to_owned();
    let served = Served::start();
    let wrong_path = format!("{}/nowhere", served.url);
    for (words, code, hint) in [
        (vec!["echo", &url], 1, "Is the server running"),
        (vec!["echo", &wrong_path], 1, "404"),
        (vec!["echo", "http://127.0.0.1:1"], 2, "did you mean ws://127.0.0.1:1?"),
        (vec!["echo", &url, "--connections", "0"], 2, "--connections"),
        (vec!["idle", &url, "--connections", "20000000"], 1, "hard limit"),
        (vec!["echo", &url, "--server-pid", "4294967295"], 2, "no such process"),
    ] {
        let output = bench(&words);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{words:?}: {text}");
        assert!(text.contains(hint) && text.lines().count() == 1, "{words:?}: {text}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn compare_finds_a_regression_between_files_of_reports() {
    let report = |per_cpu_s: f64| {
        json!({
            "schema": "throng-bench/1",
            "plan": {"mode": "echo", "url": "ws://h/echo", "connections": 1},
            "result": {"messages_per_server_cpu_s": per_cpu_s},
            "verdict": {"limit": "server", "line": "server-limited"},
        })
        .to_string()
    };
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let file = |name: &str, rates: &[f64]| {
        let path = folder.join(name);
        std::fs::write(&path, rates.iter().map(|&rate| report(rate)).collect::<String>()).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (fast, slow) = (file("fast.json", &[99.0, 100.0, 101.0]), file("slow.json", &[60.0, 61.0]));
    let output = bench(&["compare", &fast, &slow]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(99), "{text}");
    assert!(text.contains("-39.5 %") && text.contains("REGRESSION"), "{text}");
    assert_eq!(bench(&["compare", &slow, "--", &fast]).status.code(), Some(0));
    let json = bench_json(&["compare", "--json", &slow, &slow, "--", &fast]);
    assert_eq!((&json["base_runs"], &json["figures"][0]["outcome"]), (&json!(4), &json!("better")));
    // Reads a real report as it was printed.
    let served = Served::start();
    let real = bench(&["echo", &served.url, "--json", "-d", "50ms", "-w", "0s", "-c", "2"]);
    let path = folder.join("real.json");
    std::fs::write(&path, &real.stdout).unwrap();
    let real = path.to_str().unwrap();
    assert_eq!(bench(&["compare", real, real]).status.code(), Some(0));
    let output = bench(&["compare", &fast, real]);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && errors.contains("--force"), "{errors}");
}

#[test]
fn a_script_is_read_from_a_file_and_from_standard_input() {
    let served = Served::start();
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("chat.txt");
    let file = path.to_str().unwrap();
    std::fs::write(file, "send {token} {sequence}\nexpect {token} 0\n").unwrap();
    let tokens = path.with_file_name("tokens.txt");
    std::fs::write(&tokens, "first\nsecond\n").unwrap();
    let words = ["script", &served.url, file, "-c", "4", "--json", "-d", "600s"];
    let report = bench_json(&[&words[..], &["--tokens", tokens.to_str().unwrap()]].concat());
    assert_eq!((&report["result"]["answers"], &report["plan"]["tokens"]), (&json!(4), &json!(2)));
    assert_eq!(report["plan"]["headers"], Value::Null, "the tokens are in the messages");
    let mut child = Command::new(env!("CARGO_BIN_EXE_throng"))
        .args(["bench", "script", &served.url, "-", "-c", "2", "-d", "600s"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"send a\nexpect b\n").unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("standard input:2: connection "), "{text}");
    assert!(text.contains(r#"expected "b", and "a" came"#), "{text}");
    std::fs::write(file, "send a\nwait b\n").unwrap();
    let output = bench(&["script", &served.url, file]);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("chat.txt:2: \"wait\" is not a step: write send"), "{errors}");
}

/// The resumed handshakes that a server has counted.
#[cfg(feature = "tls")]
fn resumed(url: &str, chain: &str) -> u64 {
    use std::io::Read;

    use rustls::pki_types::pem::PemObject;
    let mut roots = rustls::RootCertStore::empty();
    roots.add(rustls::pki_types::CertificateDer::from_pem_file(chain).unwrap()).unwrap();
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let config = rustls::ClientConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let client =
        rustls::ClientConnection::new(config.into(), "bench.example".try_into().unwrap()).unwrap();
    let address = url.strip_prefix("wss://").and_then(|rest| rest.split('/').next()).unwrap();
    let tcp = std::net::TcpStream::connect(address).unwrap();
    let mut stream = rustls::StreamOwned::new(client, tcp);
    let request = "GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let sample = "\nthrong_tls_handshakes_total{kind=\"resumed\"} ";
    let (_, after) = answer.split_once(sample).unwrap_or_else(|| panic!("{answer}"));
    after.lines().next().unwrap().parse().unwrap()
}

/// Answers each request on a new TLS connection, with a body that lasts to the end of the stream.
/// It is complete if a close_notify `says_so`.
#[cfg(feature = "tls")]
fn serve_until_close(says_so: bool) -> std::net::SocketAddr {
    use rustls::pki_types::PrivateKeyDer;
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let config = rustls::ServerConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let config = std::sync::Arc::new(config);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        while let Ok((socket, _)) = listener.accept() {
            let connection = rustls::ServerConnection::new(config.clone()).unwrap();
            let mut stream = rustls::StreamOwned::new(connection, socket);
            let mut lines = BufReader::new(&mut stream).lines();
            // The head ends with an empty line. A client that leaves before has sent no request.
            if !lines.by_ref().any(|line| line.is_ok_and(|line| line.is_empty())) {
                continue;
            }
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nbody");
            if says_so {
                stream.conn.send_close_notify();
            }
            let _ = stream.flush();
        }
    });
    address
}

#[cfg(feature = "tls")]
#[test]
fn rfc9112_9_8_a_body_cut_without_close_notify_is_an_answer_cut_short() {
    for says_so in [true, false] {
        let url = format!("https://{}/", serve_until_close(says_so));
        let words = ["http", &url, "--insecure", "--no-keep-alive", "--json", "-c", "1", "-n", "3"];
        let output = bench(&words);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let cut = report["errors"]["cut_short"].as_u64().unwrap();
        assert_eq!(cut == 0, says_so, "{report}");
        assert_eq!(report["result"]["requests"].as_u64().unwrap() > 0, says_so, "{report}");
        let named = report["errors"]["tls_failures"]["TLS failure: truncated"].as_u64();
        assert_eq!(named.unwrap_or(0), cut, "{report}");
    }
}

/// Returns the parameters that all connections of a run negotiated.
#[cfg(feature = "tls")]
fn agreed(report: &Value) -> &Value {
    match report["tls"].as_array().unwrap().as_slice() {
        [tls] => tls,
        _ => panic!("not one combination: {report}"),
    }
}

#[cfg(feature = "tls")]
#[test]
fn servers_with_tls_are_measured_over_tls() {
    let dir = throng_testkit::TempFolder::new("bench-tls");
    let made = rcgen::generate_simple_self_signed(vec!["bench.example".to_owned()]).unwrap();
    let [chain, key] = ["bench.pem", "bench.key"].map(|name| dir.join(name));
    std::fs::write(&chain, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let [chain, key] = [&chain, &key].map(|file| file.to_str().unwrap());
    let served = Served::start_with(&["--tls-cert", chain, "--tls-key", key]);
    assert!(served.url.starts_with("wss://"), "{}", served.url);
    let trusted = ["--ca", chain, "--sni", "bench.example"];
    let short = ["--json", "--duration", "100ms", "--warmup", "20ms", "--connections", "20"];
    let own = ["--insecure", "--token", "{client}", "--payload", "n{sequence}"];
    for more in [&trusted[..], &["--insecure"], &["--insecure", "--tls12"], &own] {
        let report = bench_json(&[&["echo", &served.url], &short[..], more].concat());
        assert!(report["result"]["messages"].as_u64().unwrap() > 0, "{report}");
        assert_eq!(report["errors"]["wrong_answers"], 0);
        assert!(report["plan"]["url"].as_str().unwrap().starts_with("wss://"), "{report}");
        let tls = agreed(&report);
        let (version, suite) = match more.contains(&"--tls12") {
            true => ("TLS 1.2", "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"),
            false => ("TLS 1.3", "TLS_AES_128_GCM_SHA256"),
        };
        assert_eq!((&tls["version"], &tls["cipher_suite"]), (&json!(version), &json!(suite)));
        assert_eq!((&tls["connections"], &tls["resumed"]), (&json!(20), &json!(0)));
        assert!(tls["group"].is_string(), "{tls}");
    }
    let output = bench(&[&["echo", &served.url], &short[1..], &trusted].concat());
    let text = String::from_utf8_lossy(&output.stdout);
    let line = "TLS 1.3, TLS_AES_128_GCM_SHA256, X25519MLKEM768 (20 handshakes, 0 resumed)";
    assert!(text.contains(line), "{text}");
    let words = ["connect", &served.url, "--json", "-d", "2s", "-w", "0s", "--concurrency", "8"];
    let report = bench_json(&[&words[..], &trusted].concat());
    let result = &report["result"];
    assert!(result["connections"].as_u64().unwrap() > 0, "{report}");
    assert_eq!(
        result["tls"]["count"], result["connections"],
        "the handshakes have times of their own"
    );
    let rate = ["connect", &served.url, "--json", "-d", "200ms", "-w", "0s", "--rate", "50"];
    let report = bench_json(&[&rate[..], &trusted].concat());
    let result = &report["result"];
    assert_eq!(result["tls"]["count"], result["open_loop"]["planned"], "{report}");
    assert_eq!(result["open_loop"]["unanswered"], 0, "{report}");
    // Full handshakes until here. Resumed ones follow each thread's first.
    assert_eq!(resumed(&served.url, chain), 0);
    for version in [&[][..], &["--tls12"]] {
        let before = resumed(&served.url, chain);
        let report = bench_json(&[&words[..], &trusted, &["--resume"], version].concat());
        let connections = report["result"]["connections"].as_u64().unwrap();
        let resumed = resumed(&served.url, chain) - before;
        assert!(connections > 0 && resumed * 2 > connections, "{resumed} of {report}");
        let reported: u64 = report["tls"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|tls| tls["resumed"].as_u64())
            .sum();
        assert!(reported * 2 > connections, "{report}");
    }
    // A client certificate is presented only on request.
    let shown = ["--insecure", "--cert", chain, "--key", key];
    bench_json(&[&["echo", &served.url], &short[..], &shown].concat());
    let script = dir.join("script.txt");
    std::fs::write(&script, "send a\nexpect a\n").unwrap();
    let words = ["script", &served.url, script.to_str().unwrap(), "--json", "-c", "4"];
    let report = bench_json(&[&words[..], &trusted].concat());
    assert_eq!(report["result"]["answers"], 4, "{report}");
    let https = served.url.replace("wss://", "https://") + "/livez";
    let report = bench_json(&[&["http", &https], &short[..], &trusted].concat());
    assert!(report["result"]["requests"].as_u64().unwrap() > 0, "{report}");
    assert!(report["setup"]["tls"]["p50_us"].as_f64().unwrap() > 0.0, "{report}");
    assert_eq!(agreed(&report)["connections"], 20, "{report}");

    // A search reports the parameters of all its runs; no rate meets this threshold.
    let search = ["--insecure", "--find-max", "--rate", "0.2", "--slo", "max<1us"];
    for words in [["echo", &served.url], ["http", &https]] {
        let output = bench(&[&words[..], &short[..], &search].concat());
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let runs = report["steps"].as_array().unwrap().len();
        assert_eq!((output.status.code(), runs > 1), (Some(99), true), "{report}");
        let tls = agreed(&report);
        assert_eq!((&tls["version"], &tls["connections"]), (&json!("TLS 1.3"), &json!(20 * runs)));
        let output = bench(&[&words[..], &short[1..], &search].concat());
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("TLS 1.3, TLS_AES_128_GCM_SHA256, X25519MLKEM768 ("), "{text}");
    }

    // A server that requires a client certificate refuses it after the handshake.
    let client_ca = format!("tls.client_ca={chain}");
    let words = ["--tls-cert", chain, "--tls-key", key, "--set", &client_ca];
    let strict = Served::start_with(&words);
    let https = strict.url.replace("wss://", "https://") + "/livez";
    for words in [["echo", &strict.url], ["http", &https]] {
        let output = bench(&[&words[..], &["--insecure", "-c", "4"]].concat());
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert!(errors.contains("TLS alert 116 (certificate_required)"), "{errors}");
    }

    // Without its certificate the server is not trusted.
    let output = bench(&["echo", &served.url, "--ca", chain]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("certificate is for another name"), "{errors}");
    assert!(errors.contains("--sni"), "{errors}");
    for (words, hint) in [
        (&["echo", "ws://127.0.0.1:9", "--insecure"][..], "wss://"),
        (&["echo", "wss://127.0.0.1:9", "--ca", "missing.pem"], "missing.pem: cannot be read"),
    ] {
        let output = bench(words);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(errors.contains(hint), "{errors}");
    }
}

/// A bench that waits for the writer of a pipe ends with the first signal, whichever file it is.
#[cfg(unix)]
#[test]
fn a_signal_ends_a_wait_for_the_writer_of_a_pipe() {
    use std::os::unix::fs::OpenOptionsExt;
    use std::os::unix::process::ExitStatusExt;

    let folder = throng_testkit::TempFolder::new("bench-pipe");
    let pipe = folder.join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let shown = pipe.display().to_string();
    let url = "ws://127.0.0.1:1/";
    for words in [
        &["echo", url, "--payload-file", &shown][..],
        &["echo", url, "--tokens", &shown],
        &["http", "http://127.0.0.1:1/", "--body-file", &shown],
        &["script", url, &shown],
        &["compare", &shown, &shown],
    ] {
        let mut command = crate::support::throng();
        command.arg("bench").args(words).stdout(Stdio::null()).stderr(Stdio::null());
        let mut process = command.stdin(Stdio::null()).spawn().unwrap();
        // Opening to write succeeds once the other side reads, and waits for more.
        let mut writer = None;
        throng_testkit::eventually("it reads the pipe", || {
            let mut options = std::fs::File::options();
            let opened = options.write(true).custom_flags(O_NONBLOCK).open(&pipe);
            writer = opened.ok();
            writer.is_some()
        });
        let pid = process.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        let status = throng_testkit::poll("it ends", || process.try_wait().unwrap());
        assert!(status.code() == Some(130) || status.signal() == Some(15), "{words:?}: {status}");
    }
}

/// The flag of open(2).
#[cfg(target_os = "linux")]
const O_NONBLOCK: i32 = 0o4000;
#[cfg(all(unix, not(target_os = "linux")))]
const O_NONBLOCK: i32 = 4;
