//! `throng balance` as operators run it: the real binary, its output, signals, admin API and exit
//! codes.

mod admin;
mod examples;
mod reload;
mod schema;
mod v1;

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{self, Receiver};

use serde_json::{Value, json};
use throng_proto::ws::Opcode;
use throng_testkit::{TempFolder, eventually};

use crate::support::{Answer, Client, Got, Served, TIMEOUT, dial, exchange, throng};

/// The token that backends register with.
const TOKEN: &str = "0123456789abcdef-token";

/// A file that goes with the test.
struct File {
    path: PathBuf,
    _folder: TempFolder,
}

impl File {
    fn new(name: &str, text: &str) -> Self {
        let folder = TempFolder::new("balance");
        Self { path: folder.write(name, text), _folder: folder }
    }

    fn write(&self, text: &str) {
        std::fs::write(&self.path, text).unwrap();
    }

    fn path(&self) -> &str {
        self.path.to_str().unwrap()
    }
}

/// `throng balance` on free ports, with an admin API.
struct Balancer {
    process: Child,
    log: Receiver<String>,
    address: SocketAddr,
    admin: SocketAddr,
}

impl Balancer {
    fn start(words: &[&str]) -> Self {
        Self::with(&[&["--admin", "127.0.0.1:0"], words].concat())
    }

    /// Starts a balancer with an admin API at the address in `words`.
    fn with(words: &[&str]) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_throng"))
            .args(["balance", "--shards", "1", "--listen", "127.0.0.1:0"])
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (out, errors) =
            (lines(process.stdout.take().unwrap()), lines(process.stderr.take().unwrap()));
        let line = || match out.recv_timeout(TIMEOUT) {
            Ok(line) => line,
            Err(_) => panic!("it did not start: {:?}", errors.recv_timeout(TIMEOUT)),
        };
        let address_in = |line: String, before: &str| {
            let rest = line.strip_prefix(before).unwrap_or_else(|| panic!("{line:?}"));
            rest.trim_end_matches('/').parse().unwrap()
        };
        let listens = line();
        let scheme = if listens.contains("https://") { "https" } else { "http" };
        let address = address_in(listens, &format!("throng balances on {scheme}://"));
        assert!(line().starts_with("backends: "));
        let admin = address_in(line(), "admin: http://");
        Self { process, log: errors, address, admin }
    }

    /// Starts a balancer for `backends` with quick ends.
    fn before(backends: &[SocketAddr], words: &[&str]) -> Self {
        let backends: Vec<String> = backends.iter().map(SocketAddr::to_string).collect();
        let mut all = vec!["--set", "shutdown.window=0"];
        all.extend(backends.iter().flat_map(|backend| ["--backend", backend.as_str()]));
        all.extend(words);
        Self::start(&all)
    }

    fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.process.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }

    /// The next event of this name in the log.
    fn event(&self, name: &str) -> Value {
        loop {
            let line = self.log.recv_timeout(TIMEOUT).unwrap();
            let event: Value =
                serde_json::from_str(&line).unwrap_or_else(|_| panic!("no event: {line}"));
            if event["event"] == name {
                return event;
            }
        }
    }

    /// The message of the next event of this name.
    fn message(&self, name: &str) -> String {
        self.event(name)["message"].as_str().unwrap_or_default().to_owned()
    }

    /// Sends a request to the admin API as `curl --json` does.
    fn ask(&self, method: &str, path: &str, body: &Value) -> Answer {
        self.ask_with(method, path, "Content-Type: application/json\r\n", &body.to_string())
    }

    fn ask_with(&self, method: &str, path: &str, headers: &str, body: &str) -> Answer {
        let (host, length) = (self.admin, body.len());
        let host =
            if headers.contains("Host: ") { String::new() } else { format!("Host: {host}\r\n") };
        let request = format!(
            "{method} {path} HTTP/1.1\r\n{host}{headers}Content-Length: {length}\r\n\r\n{body}"
        );
        let answer = exchange(&mut dial(self.admin), request);
        schema::check(method, path, &answer);
        answer
    }

    fn status(&self) -> Value {
        let answer = self.ask_with("GET", "/status.json", "", "");
        assert_eq!(answer.status(), 200, "{}", answer.text());
        serde_json::from_str(answer.text()).unwrap()
    }

    /// The addresses of the backends in the list.
    fn backends(&self) -> Vec<String> {
        let rows = self.status();
        let rows = rows["backends"].as_array().unwrap().clone();
        rows.iter().map(|row| row["address"].as_str().unwrap().to_owned()).collect()
    }

    fn row(&self, backend: SocketAddr) -> Value {
        let status = self.status();
        let rows = status["backends"].as_array().unwrap();
        let wanted = backend.to_string();
        rows.iter().find(|row| row["address"] == wanted.as_str()).cloned().unwrap_or_default()
    }

    /// The exit code, after a signal.
    fn exit(mut self) -> Option<i32> {
        self.process.wait().unwrap().code()
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn lines(from: impl Read + Send + 'static) -> Receiver<String> {
    let (lines, received) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            let _ = lines.send(line);
        }
    });
    received
}

fn echoes(client: &mut Client, text: &str) {
    client.send(Opcode::Text, text.as_bytes());
    assert_eq!(client.next(), Got::Text(text.to_owned()));
}

/// Returns an address where no program listens, or will: the kernel does not assign port 1 to a
/// program that asks for any port. Each call returns another address.
fn nowhere() -> SocketAddr {
    static CALLS: AtomicU8 = AtomicU8::new(1);
    SocketAddr::from(([127, 0, 1, CALLS.fetch_add(1, Relaxed)], 1))
}

fn error(answer: &Answer) -> String {
    let value: Value = serde_json::from_str(answer.text()).unwrap_or_default();
    value["error"].as_str().unwrap_or_else(|| panic!("no error in {answer:?}")).to_owned()
}

#[test]
fn tunnels_and_requests_reach_the_backends() {
    let served =
        [Served::start(&["--listen", "127.0.0.1:0"]), Served::start(&["--listen", "127.0.0.1:0"])];
    let backends = served.each_ref().map(|served| served.addresses[0]);
    let balancer = Balancer::before(&backends, &["--pick", "round_robin"]);
    let mut clients: Vec<Client> =
        (0..4).map(|_| Client::connect(balancer.address, "/echo")).collect();
    for (at, client) in clients.iter_mut().enumerate() {
        echoes(client, &format!("h\u{e9}llo {at}"));
    }
    for backend in backends {
        assert_eq!(balancer.row(backend)["tunnels"], 2);
    }
    let refused = balancer.ask("POST", "/rebalance", &json!({ "dry_run": true }));
    assert_eq!(refused.status(), 409);
    assert!(error(&refused).contains("pick is \"round_robin\""), "{}", refused.text());
    let answer =
        exchange(&mut dial(balancer.address), "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!(answer.status(), 200);
    drop(clients);
    eventually("the counts return to zero", || {
        backends.iter().all(|&backend| balancer.row(backend)["tunnels"] == 0)
    });
    balancer.signal("TERM");
    assert_eq!(balancer.event("drain")["window"], 0.0);
    assert_eq!(balancer.message("stopped"), "every connection was closed cleanly");
    assert_eq!(balancer.exit(), Some(0));
}

#[test]
fn without_a_table_of_tls_an_address_is_one_of_http_although_names_are_passed_through() {
    let balancer = Balancer::start(&["--backend", "127.0.0.1:1,passthrough=db.example.com"]);
    let address = balancer.event("listening")["address"].clone();
    assert_eq!(address, json!(format!("http://{}", balancer.address)));
}

#[test]
fn a_backend_that_goes_down_is_logged_with_the_reason_of_each_502() {
    let backend = nowhere();
    let balancer = Balancer::before(&[backend], &["--set", "health.failures=1"]);
    let mut client = dial(balancer.address);
    let answer = exchange(&mut client, "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(answer.status(), 502, "{}", answer.text());
    let failed = balancer.event("request.failed");
    assert_eq!((&failed["status"], &failed["path"]), (&json!(502), &json!("/")));
    let why = json!("the backend refused the connection");
    assert_eq!((&failed["backend"], &failed["reason"]), (&json!(backend), &why));
    let down = balancer.event("backend.down");
    assert_eq!((&down["backend"], &down["reason"]), (&json!(backend), &why));
    let mut client = dial(balancer.address);
    let answer = exchange(&mut client, "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(answer.status(), 502, "asked all the same: {}", answer.text());
    assert_eq!(balancer.ask_with("GET", "/readyz", "", "").status(), 503);
}

#[test]
fn every_request_and_tunnel_is_logged_where_it_is_asked_for() {
    let served = Served::start(&["--listen", "127.0.0.1:0"]);
    let backend = served.addresses[0];
    let balancer = Balancer::before(&[backend], &["--log-access", "all"]);
    let request = "GET /livez?token=secret HTTP/1.1\r\nHost: localhost\r\nX-Request-ID: abc-1\r\n\
                   traceparent: 00-1-2-01\r\n\r\n";
    assert_eq!(exchange(&mut dial(balancer.address), request).status(), 200);
    let event = balancer.event("request");
    assert_eq!((&event["method"], &event["path"]), (&json!("GET"), &json!("/livez")));
    assert_eq!((&event["status"], &event["backend"]), (&json!(200), &json!(backend)));
    assert_eq!(event["bytes_out"], "alive\n".len());
    assert_eq!(
        (&event["request_id"], &event["traceparent"]),
        (&json!("abc-1"), &json!("00-1-2-01"))
    );
    assert!(event["duration"].as_f64().unwrap() > 0.0 && !event.to_string().contains("secret"));

    // Its first line is not a request.
    exchange(&mut dial(balancer.address), "GET \x01 HTTP/1.1\r\n\r\n");
    let event = balancer.event("request");
    assert_eq!((&event["status"], &event["path"]), (&json!(400), &Value::Null));
    assert!(!event["reason"].as_str().unwrap().is_empty());

    let mut client = Client::connect(balancer.address, "/echo?token=secret");
    echoes(&mut client, "a message");
    client.send(Opcode::Close, &1000u16.to_be_bytes());
    assert!(matches!(client.next(), Got::Close(1000, _)));
    drop(client);
    let event = balancer.event("session");
    assert_eq!((&event["path"], &event["backend"]), (&json!("/echo"), &json!(backend)));
    assert_eq!(event.get("code"), None, "the balancer sent no Close frame: {event}");
    for bytes in ["bytes_in", "bytes_out"] {
        assert!(event[bytes].as_u64().unwrap() > "a message".len() as u64, "{event}");
    }

    let mut client = Client::connect(balancer.address, "/echo");
    echoes(&mut client, "to be lost");
    drop(served);
    let event = balancer.event("session.lost");
    assert_eq!((&event["level"], &event["backend"]), (&json!("warn"), &json!(backend)));
    drop(client);
}

#[test]
fn losses_are_logged_by_default_with_the_client() {
    let served = Served::start(&["--listen", "127.0.0.1:0"]);
    let backend = served.addresses[0];
    let balancer = Balancer::before(&[backend], &["--set", "timeouts.tunnel=1s"]);
    let mut client = Client::connect(balancer.address, "/echo");
    echoes(&mut client, "and then silent");
    let silent = balancer.event("session.ended");
    let mut client = Client::connect(balancer.address, "/echo");
    echoes(&mut client, "to be lost");
    drop(served);
    let lost = balancer.event("session.lost");
    for event in [&silent, &lost] {
        assert_eq!((&event["client"], &event["backend"]), (&json!("127.0.0.1"), &json!(backend)));
        assert_eq!(event["session"].as_str().unwrap().len(), 16, "{event}");
        assert!(event["peer"].as_str().unwrap().starts_with("127.0.0.1:"), "{event}");
    }
    assert_eq!(lost["peer"], json!(client.stream.local_addr().unwrap()));
    assert!(silent["reason"].as_str().unwrap().contains("timeouts.tunnel"), "{silent}");
}

/// A label that no metric has would make a panel empty, and an alert silent.
#[test]
fn the_dashboard_and_the_alerts_group_by_labels_that_exist() {
    let served = Served::start(&["--listen", "127.0.0.1:0"]);
    let balancer = Balancer::before(&[served.addresses[0]], &[]);
    let mut client = Client::connect(balancer.address, "/echo");
    echoes(&mut client, "a tunnel");
    let of_server = exchange(
        &mut dial(served.addresses[0]),
        "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    );
    let of_balancer = balancer.ask_with("GET", "/metrics", "", "");
    let scrape = [of_server.text(), of_balancer.text()].concat();
    let printed = ["dashboard", "alerts"].map(|what| {
        let output = throng().args(["generate", what]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    });
    let mut checked = 0;
    for text in printed.concat().split("expr\"").chain(printed[1].split("expr:")).skip(1) {
        let end = |text: &str, at: &str| text.split(at).next().unwrap().to_owned();
        let expression = end(&end(text, "legendFormat"), "for:");
        let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let names: Vec<&str> = words.filter(|word| word.starts_with("throng_")).collect();
        let is_its = |line: &&str| names.iter().any(|name| line.split('{').next() == Some(*name));
        let samples: Vec<&str> = scrape.lines().filter(is_its).collect();
        let groups = expression.split("by (").skip(1).map(|rest| end(rest, ")"));
        let labels = groups.flat_map(|of| of.split(", ").map(str::to_owned).collect::<Vec<_>>());
        // Metrics of a cluster, of TLS and of events that have not occurred have no samples.
        for label in labels.filter(|label| !samples.is_empty() && label != "instance") {
            let has_it = samples.iter().any(|line| line.contains(&format!("{label}=\"")));
            assert!(has_it, "no {label} in {expression}");
            checked += 1;
        }
    }
    assert!(checked >= 10, "only {checked} labels were found");
}

#[test]
fn a_peer_that_is_no_trusted_proxy_is_named() {
    let flags = ["--set", "accept_proxy=true", "--set", "trusted_proxies=192.0.2.1"];
    let balancer = Balancer::before(&[nowhere()], &flags);
    let client = dial(balancer.address);
    let refused = balancer.event("proxy_refused");
    assert_eq!(refused["peer"], json!(client.local_addr().unwrap()));
    assert!(refused["reason"].as_str().unwrap().contains("trusted_proxies"), "{refused}");
}

#[test]
fn tunnels_are_closed_at_the_end_and_those_that_do_not_go_are_cut() {
    let served = Served::start(&["--listen", "127.0.0.1:0"]);
    let start = |deadline: &str| {
        Balancer::before(
            &[served.addresses[0]],
            &["--set", "timeouts.close=1h", "--set", &format!("shutdown.deadline={deadline}")],
        )
    };
    let balancer = start("1h");
    let mut client = Client::connect(balancer.address, "/echo");
    for signal in
        ["USR1", "ALRM", "VTALRM", "PROF", "IO", "XCPU", "PWR", "16", "XFSZ", "RTMIN", "RTMAX"]
    {
        balancer.signal(signal);
        client.send(Opcode::Text, signal.as_bytes());
        assert_eq!(client.next(), Got::Text(signal.to_owned()));
    }
    balancer.signal("QUIT");
    assert!(matches!(client.next(), Got::Close(1001, _)));
    client.send(Opcode::Close, &1001u16.to_be_bytes());
    assert_eq!(client.next(), Got::End);
    drop(client);
    assert_eq!(balancer.exit(), Some(0));

    let balancer = start("1s");
    let mut client = Client::connect(balancer.address, "/echo");
    balancer.signal("TERM");
    // Never answered.
    assert!(matches!(client.next(), Got::Close(1001, _)));
    let forced = balancer.message("drain.forced");
    assert!(forced.contains("shutdown.deadline"), "{forced}");
    assert_eq!(balancer.exit(), Some(3));

    let balancer = start("1h");
    let mut client = Client::connect(balancer.address, "/echo");
    balancer.signal("INT");
    assert!(matches!(client.next(), Got::Close(1001, _)));
    balancer.signal("INT");
    assert_eq!(balancer.exit(), Some(130));
}

#[test]
fn a_check_says_what_is_wrong_and_where() {
    let run = |words: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_throng"))
            .arg("balance")
            .args(words)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let good =
        File::new("good.toml", "backends = [\"127.0.0.1:9001\"]\n[health.check]\nkind = \"tcp\"\n");
    let (code, out, errors) = run(&["--config", good.path(), "--check"]);
    assert_eq!((code, errors.as_str()), (Some(0), ""), "{out}");
    assert!(out.starts_with("the configuration is valid: backends: 127.0.0.1:9001; "), "{out}");
    let twice = "backends = [\n  \"127.0.0.1:9001\",\n  \"127.0.0.1:9001\",\n]\n";
    for (text, place) in [
        (twice, "bad.toml:3:3: backends[1]"),
        ("backends = [{ address = \"127.0.0.1:1\", weight = 0 }]\n", "bad.toml:1:"),
        ("backends = []\n", "bad.toml:1:"),
    ] {
        let bad = File::new("bad.toml", text);
        let (code, out, errors) = run(&["--config", bad.path(), "--check"]);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{errors}");
        // The mistake, its line of the file, and a mark below its place.
        assert!(errors.contains(place) && errors.lines().count() == 3, "{errors}");
        assert!(errors.contains(" | ") && errors.trim_end().ends_with('^'), "{errors}");
    }
    // `throng config check balance` is the same check.
    let config = |words: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_throng")).arg("config").args(words).output();
        let output = output.unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let again = config(&["check", "balance", "--config", good.path()]);
    assert_eq!(again, (Some(0), out, String::new()));
    let bad = File::new("bad.toml", twice);
    assert_eq!(config(&["check", "balance", "--config", bad.path()]).0, Some(2));
    let (code, shown, _) = config(&["show", "--origin", "balance", "--config", good.path()]);
    let kind = format!("health.check.kind = \"tcp\"                # {}:3", good.path());
    assert!(code == Some(0) && shown.contains(&kind), "{shown}");
    let (code, _, errors) = config(&["show", "--shards", "2", "balance"]);
    assert!(code == Some(2) && errors.contains("write them after it"), "{errors}");
    let (code, _, errors) =
        run(&["--backend", "127.0.0.1:9001", "--listen", "127.0.0.1:0", "--admin", "0.0.0.0:0"]);
    assert_eq!(code, Some(2));
    assert!(errors.contains("loopback"), "{errors}");
}

#[test]
fn tls_of_clients_is_in_the_metrics_and_certificates_that_expire_are_warned_of() {
    let dir = TempFolder::new("balance-tls");
    let [chain, key] = ["own.pem", "own.key"].map(|name| dir.join(name));
    let write = |expires: (i32, u8, u8)| {
        let names = vec!["balancer.example".to_owned()];
        let mut params = rcgen::CertificateParams::new(names).unwrap();
        params.not_after = rcgen::date_time_ymd(expires.0, expires.1, expires.2);
        let made = rcgen::KeyPair::generate().unwrap();
        std::fs::write(&chain, params.self_signed(&made).unwrap().pem()).unwrap();
        std::fs::write(&key, made.serialize_pem()).unwrap();
    };
    write((2020, 1, 1));
    let served = Served::start(&["--listen", "127.0.0.1:0"]);
    let files = [&chain, &key].map(|file| file.to_str().unwrap());
    let words = ["--tls-cert", files[0], "--tls-key", files[1]];
    let balancer = Balancer::before(&[served.addresses[0]], &words);
    let warning = balancer.message("certificate.expires");
    assert!(warning.contains("balancer.example has expired"), "{warning}");

    exchange(&mut dial(balancer.address), "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let metrics = balancer.ask("GET", "/metrics", &Value::Null);
    for line in [
        "throng_balance_tls_handshakes_total{kind=\"full\"} 0",
        "throng_balance_tls_handshake_failures_total{cause=\"not_tls\"} 1",
        "throng_balance_tls_session_failures_total{cause=\"truncated\"} 0",
        "throng_balance_tls_certificate_expiry_seconds{name=\"balancer.example\"} 1577836800",
    ] {
        assert!(metrics.text().lines().any(|found| found == line), "{line}: {}", metrics.text());
    }

    // A reload warns again, from any source.
    balancer.signal("HUP");
    balancer.event("certificate.expires");
    assert_eq!(balancer.ask("POST", "/reload", &json!({})).status(), 200);
    balancer.event("certificate.expires");

    write((2100, 1, 1));
    balancer.event("certificate.reloaded");
    balancer.signal("HUP");
    assert_eq!(balancer.message("reloaded"), "nothing changed");
}
