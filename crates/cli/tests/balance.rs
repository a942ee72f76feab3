//! `throng balance` as operators run it: the real binary, its lines, its signals, its admin API,
//! its exit codes.

mod support;

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::sync::mpsc::{self, Receiver};

use serde_json::{Value, json};
use support::{Answer, Client, Got, Served, TIMEOUT, dial, exchange};
use throng_proto::ws::Opcode;
use throng_testkit::eventually;

/// What backends show.
const TOKEN: &str = "0123456789abcdef-token";

/// A file that goes with the test.
struct File(PathBuf);

impl File {
    fn new(name: &str, text: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("throng-balance-{}-{name}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        Self(path)
    }

    fn write(&self, text: &str) {
        std::fs::write(&self.0, text).unwrap();
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
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

    /// Whose admin API is where `words` say.
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

    /// Before `backends` and with quick ends.
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
        exchange(&mut dial(self.admin), request)
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

/// An address where nobody listens, and nobody will: port 1 is not given to who asks for any. Each
/// call has another.
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
fn a_reload_adds_and_removes_backends_and_touches_no_other_tunnel() {
    let served =
        [Served::start(&["--listen", "127.0.0.1:0"]), Served::start(&["--listen", "127.0.0.1:0"])];
    let [first, second] = served.each_ref().map(|served| served.addresses[0]);
    let text = |backends: &[SocketAddr]| {
        let list: Vec<String> = backends.iter().map(|backend| format!("\"{backend}\"")).collect();
        format!("backends = [{}]\n[shutdown]\nwindow = \"0\"\n", list.join(", "))
    };
    let file = File::new("reload.toml", &text(&[first]));
    let balancer = Balancer::start(&["--config", file.path()]);
    let mut old = Client::connect(balancer.address, "/echo");
    echoes(&mut old, "before");

    file.write(&text(&[first, second]));
    balancer.signal("HUP");
    assert_eq!(balancer.message("reloaded"), format!("added {second}"));
    echoes(&mut old, "after one was added");
    assert_eq!(balancer.backends(), [first.to_string(), second.to_string()]);

    file.write("backends = [\"127.0.0.1:1\"]\npick = \"rnadom\"\n");
    balancer.signal("HUP");
    let failed = balancer.event("reload.failed");
    assert_eq!(
        (&failed["level"], &failed["message"]),
        (&json!("error"), &json!("nothing was changed"))
    );
    let reason = failed["reason"].as_str().unwrap();
    assert!(reason.contains("reload.toml:2:8: pick") && reason.contains("random"), "{reason}");
    assert_eq!(balancer.backends(), [first.to_string(), second.to_string()]);
    echoes(&mut old, "after a bad file");

    let mut new = Client::connect(balancer.address, "/echo");
    eventually("both have one", || {
        [first, second].iter().all(|&backend| balancer.row(backend)["tunnels"] == 1)
    });
    file.write(&text(&[second]));
    balancer.signal("HUP");
    assert_eq!(balancer.message("reloaded"), format!("removed {first}"));
    let Got::Close(code, _) = old.next() else { panic!("no Close frame") };
    assert_eq!(code, 1012);
    old.send(Opcode::Close, &code.to_be_bytes());
    echoes(&mut new, "still there");
    eventually("it goes with its last tunnel", || balancer.backends() == [second.to_string()]);

    balancer.signal("HUP");
    assert_eq!(balancer.message("reloaded"), "nothing changed");
    let ctl = |words: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_throng"))
            .args(["balance", "ctl", "--admin", &balancer.admin.to_string()])
            .args(words)
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    file.write(&text(&[first, second]));
    assert_eq!(ctl(&["reload"]), format!("configuration read again: added {first}\n"));
    let changes: Value = serde_json::from_str(&ctl(&["reload", "--json"])).unwrap();
    assert_eq!((&changes["added"], &changes["settings"]), (&json!([]), &json!(false)));
    file.write(&text(&[second]));
    assert_eq!(ctl(&["reload"]), format!("configuration read again: removed {first}\n"));
    for _ in 0..3 {
        balancer.event("reloaded");
    }

    // What the process does by itself is a setting, too.
    file.write(&text(&[second]).replace("\"0\"", "\"1ms\""));
    balancer.signal("HUP");
    assert_eq!(balancer.message("reloaded"), "changed shutdown.window");
}

#[test]
fn a_reload_does_not_take_the_token_from_an_admin_api_that_others_reach() {
    let backend = nowhere();
    let with_token = format!("backends = [\"{backend}\"]\nadmin.token = \"{TOKEN}\"\n");
    let file = File::new("exposed.toml", &with_token);
    // By the file alone, as flags would win: it would listen on loopback from the next start on.
    let listen = |admin: &str| format!("{with_token}admin.listen = \"{admin}\"\n");
    file.write(&listen("0.0.0.0:0"));
    let balancer = Balancer::with(&["--config", file.path()]);
    file.write(&format!("backends = [\"{backend}\"]\nadmin.listen = \"127.0.0.1:0\"\n"));
    balancer.signal("HUP");
    let failed = balancer.event("reload.failed");
    let reason = failed["reason"].as_str().unwrap();
    assert!(reason.starts_with("admin.token is missing"), "{reason}");
    assert_eq!(balancer.ask_with("GET", "/backends", "", "").status(), 401);
    file.write(&listen("127.0.0.1:0"));
    balancer.signal("HUP");
    let changes = balancer.message("reloaded");
    assert!(
        changes.contains("admin.listen changed, which takes effect with the next"),
        "{changes}"
    );
}

#[test]
fn the_admin_api_adds_weighs_drains_and_removes() {
    let balancer = Balancer::before(&[nowhere()], &[]);
    let new = nowhere();
    let added = balancer.ask("POST", "/backends", &json!({ "address": new, "weight": 2 }));
    assert_eq!(added.status(), 201, "{}", added.text());
    assert_eq!(balancer.message("operator"), format!("added {new}, weight 2"));
    assert_eq!(balancer.row(new)["weight"], 2);
    assert_eq!(balancer.row(new)["source"], "api");
    let path = format!("/backends/{new}");
    for (method, weight) in [("PATCH", 3), ("PUT", 4)] {
        let answer = balancer.ask(method, &path, &json!({ "weight": weight }));
        assert_eq!(answer.status(), 200, "{}", answer.text());
        assert_eq!(balancer.row(new)["weight"], weight);
    }
    let drained = balancer.ask("POST", &format!("{path}/drain"), &json!({ "window": "1h" }));
    assert_eq!(drained.status(), 200, "{}", drained.text());
    assert_eq!(balancer.row(new)["state"], "draining");
    assert_eq!(balancer.ask("POST", &format!("{path}/undrain"), &json!({})).status(), 200);
    assert_eq!(balancer.row(new)["state"], "up");
    let plan = balancer.ask("POST", "/rebalance", &json!({ "dry_run": true }));
    let plan: Value = serde_json::from_str(plan.text()).unwrap();
    assert_eq!((&plan["total"], &plan["dry_run"]), (&json!(0), &json!(true)));
    assert_eq!(balancer.ask_with("DELETE", &path, "", "").status(), 200);
    eventually("it is gone", || balancer.row(new).is_null());

    for (method, path, body, status, part) in [
        ("POST", "/backends", "{", 400, "127.0.0.1:9003"),
        ("POST", "/backends", r#"{"address": "x"}"#, 400, "send for example"),
        ("POST", "/backends", r#"{"address": "127.0.0.1:9", "wieght": 2}"#, 400, "wieght"),
        ("POST", "/backends", r#"{"address": "127.0.0.1:9", "weight": 0}"#, 400, "weight is 0"),
        ("POST", "/backends", r#"{"address": "0.0.0.0:9"}"#, 400, "0.0.0.0:9"),
        ("PATCH", "/backends/nobody", r#"{"weight": 1}"#, 400, "127.0.0.1:9001"),
        ("PATCH", "/backends/127.0.0.1:9", r#"{"weight": 1}"#, 404, "no backend 127.0.0.1:9"),
        ("POST", "/backends/127.0.0.1:9/drain", r#"{"window": "5"}"#, 400, "window"),
        ("POST", "/rebalance", r#"{"rate": 0}"#, 400, "rate is 0"),
        ("POST", "/reload", "", 422, "--config"),
    ] {
        let answer = balancer.ask_with(method, path, "Content-Type: application/json\r\n", body);
        assert_eq!(answer.status(), status, "{method} {path} {body}: {}", answer.text());
        assert!(error(&answer).contains(part), "{path} {body}: {}", answer.text());
    }
}

#[test]
fn web_pages_can_neither_change_nor_read_anything() {
    let balancer = Balancer::before(&[nowhere()], &[]);
    let (admin, body) = (balancer.admin, r#"{"address": "127.0.0.1:9"}"#);
    let json = "Content-Type: application/json\r\n";
    for (headers, status, part) in [
        // What a page may send to anybody: forms, and fetch without asking.
        ("Content-Type: text/plain\r\n".to_owned(), 415, "application/json"),
        ("Content-Type: application/x-www-form-urlencoded\r\n".to_owned(), 415, "--json"),
        (String::new(), 415, "application/json"),
        (format!("{json}Origin: http://evil.example\r\n"), 403, "another origin"),
        (format!("{json}Origin: null\r\n"), 403, "another origin"),
        (format!("{json}Origin: http://127.0.0.1:1\r\n"), 403, "another origin"),
        (format!("{json}Sec-Fetch-Site: cross-site\r\n"), 403, "another origin"),
        (format!("{json}Sec-Fetch-Site: same-site\r\n"), 403, "another origin"),
        // A name that resolves to us: the same origin by the browser's word.
        (
            format!("{json}Host: evil.example:8081\r\nOrigin: http://evil.example:8081\r\n"),
            403,
            "by address or as localhost",
        ),
    ] {
        let answer = balancer.ask_with("POST", "/backends", &headers, body);
        assert_eq!(answer.status(), status, "{headers}: {}", answer.text());
        assert!(error(&answer).contains(part), "{headers}: {}", answer.text());
    }
    let removal = format!("Sec-Fetch-Site: cross-site\r\nOrigin: http://{admin}.evil.example\r\n");
    assert_eq!(balancer.ask_with("DELETE", "/backends/127.0.0.1:9", &removal, "").status(), 403);
    for path in ["/", "/status.json", "/backends", "/metrics"] {
        let answer = balancer.ask_with("GET", path, "Host: evil.example\r\n", "");
        assert_eq!(answer.status(), 403, "{path}");
    }
    assert_eq!(balancer.backends().len(), 1);
    // Our own page, by whatever address of ours.
    let port = admin.port();
    let own = format!(
        "{json}Host: localhost:{port}\r\nOrigin: http://localhost:{port}\r\nSec-Fetch-Site: same-origin\r\n"
    );
    let answer = balancer.ask_with("POST", "/backends", &own, body);
    assert_eq!(answer.status(), 201, "{}", answer.text());
    // And no preflight is ever allowed.
    let preflight = balancer.ask_with(
        "OPTIONS",
        "/backends",
        "Origin: http://evil.example\r\nAccess-Control-Request-Method: POST\r\n",
        "",
    );
    assert!(!preflight.head.to_ascii_lowercase().contains("access-control"), "{}", preflight.head);
}

#[test]
fn the_page_the_metrics_and_the_health_are_there() {
    let backend = nowhere();
    let balancer = Balancer::before(&[backend], &[]);
    let get = |path| balancer.ask_with("GET", path, "", "");
    let page = get("/");
    assert!(page.header("content-security-policy").unwrap().contains("default-src 'none'"));
    assert!(page.text().contains("<table") && !page.text().contains("https://"));
    assert_eq!((get("/livez").status(), get("/readyz").status()), (200, 200));
    let metrics = get("/metrics");
    for line in [
        format!("throng_balance_backend_state{{backend=\"{backend}\",state=\"up\"}} 1"),
        format!("throng_balance_backend_state{{backend=\"{backend}\",state=\"down\"}} 0"),
        format!("throng_balance_backend_tunnels_opened_total{{backend=\"{backend}\"}} 0"),
        "throng_balance_tunnels 0".to_owned(),
        "throng_balance_own_failures_total 0".to_owned(),
        "# TYPE process_open_fds gauge".to_owned(),
    ] {
        let found = metrics.text().lines().any(|found| {
            // Fractions are printed as such.
            found == line || found.strip_suffix(".0") == Some(&line)
        });
        assert!(found, "no {line} in {}", metrics.text());
    }
    let status = balancer.status();
    for name in ["uptime_seconds", "pick", "backends", "metrics", "resident_bytes"] {
        assert!(!status[name].is_null(), "no {name} in {status}");
    }
    balancer.ask("POST", &format!("/backends/{backend}/drain"), &json!({}));
    assert_eq!(get("/readyz").status(), 503);
}

#[test]
fn backends_register_with_the_token_and_go_again() {
    let token = File::new("register-token", TOKEN);
    let balancer =
        Balancer::start(&["--register-token-file", token.path(), "--set", "shutdown.window=0"]);
    let body = json!({ "address": "127.0.0.1:9" }).to_string();
    for headers in ["", "Authorization: Bearer 0123456789abcdef-tokeN\r\n"] {
        let answer = balancer.ask_with("POST", "/register", headers, &body);
        assert_eq!(answer.status(), 401, "{}", answer.text());
        assert!(answer.header("www-authenticate").is_some());
    }
    let admin = format!("http://{}", balancer.admin);
    let backend = Served::start(&[
        "--listen",
        "127.0.0.1:0",
        "--register",
        &admin,
        "--register-token-file",
        token.path(),
        "--register-weight",
        "5",
        "--set",
        "drain.window=0s",
    ]);
    let address = backend.addresses[0];
    assert_eq!(balancer.message("operator"), format!("{address} registered itself, weight 5"));
    assert_eq!(balancer.row(address)["weight"], 5);
    assert_eq!(balancer.row(address)["source"], "registered");
    let mut client = Client::connect(balancer.address, "/echo");
    echoes(&mut client, "through one that came by itself");
    backend.terminate();
    assert_eq!(balancer.message("operator"), format!("{address} deregistered itself"));
    assert!(matches!(client.next(), Got::Close(1001 | 1012, _)));
    client.send(Opcode::Close, &1001u16.to_be_bytes());
    assert_eq!(backend.exit().code(), Some(0));
    eventually("it is gone", || balancer.backends().is_empty());
}

#[test]
fn with_an_admin_token_everything_but_the_empty_page_needs_it() {
    let token = File::new("admin-token", TOKEN);
    let backend = nowhere().to_string();
    let balancer = Balancer::start(&["--backend", &backend, "--admin-token-file", token.path()]);
    let wrong = "Authorization: Bearer 0123456789abcdef-tokem\r\n";
    for path in ["/status.json", "/backends", "/metrics"] {
        for headers in ["", wrong] {
            let answer = balancer.ask_with("GET", path, headers, "");
            assert_eq!(answer.status(), 401, "{path}");
            // Clients without a token keep none of the few places.
            assert_eq!(answer.header("connection"), Some("close"), "{path}");
            assert!(answer.header("www-authenticate").is_some());
        }
        // Whatever the name: no web page knows the token.
        let right = format!("Host: balancer.example\r\nAuthorization: Bearer {TOKEN}\r\n");
        let answer = balancer.ask_with("GET", path, &right, "");
        assert_eq!((answer.status(), answer.header("connection")), (200, None), "{path}");
    }
    assert_eq!(balancer.ask_with("GET", "/", "", "").status(), 200);
    let json = "Content-Type: application/json\r\n";
    assert_eq!(balancer.ask_with("POST", "/rebalance", json, "{}").status(), 401);
    let foreign = format!("{json}Authorization: Bearer {TOKEN}\r\nOrigin: http://evil.example\r\n");
    assert_eq!(balancer.ask_with("POST", "/rebalance", &foreign, "{}").status(), 403);
    let admin = balancer.admin.to_string();
    let ctl = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
        command.args(["balance", "ctl", "--admin", &admin]).args(words);
        command.output().unwrap().status.code()
    };
    assert_eq!(ctl(&["--token-file", token.path(), "rebalance", "--dry-run"]), Some(0));
    assert_eq!(ctl(&["rebalance", "--dry-run"]), Some(1));
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

    // Its first line is no request.
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
fn without_a_token_nobody_registers() {
    let balancer = Balancer::before(&[nowhere()], &[]);
    let answer = balancer.ask("POST", "/register", &json!({ "address": "127.0.0.1:9" }));
    assert_eq!(answer.status(), 403);
    assert!(error(&answer).contains("[register]"), "{}", answer.text());
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
    for signal in [
        "USR1", "USR2", "ALRM", "VTALRM", "PROF", "IO", "XCPU", "PWR", "16", "XFSZ", "RTMIN",
        "RTMAX",
    ] {
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
fn ctl_speaks_to_it_in_words() {
    let backend = nowhere();
    let balancer = Balancer::before(&[backend], &[]);
    let ctl = |words: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_throng"))
            .args(["balance", "ctl", "--admin", &balancer.admin.to_string()])
            .args(words)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout) + &text(output.stderr))
    };
    let name = backend.to_string();
    let (code, text) = ctl(&["list"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.starts_with("backend") && text.lines().nth(1).unwrap().starts_with(&name));
    for (words, part) in [
        (&["add", "[::1]:9", "--weight", "2"][..], "added [::1]:9, weight 2"),
        (&["weight", "[::1]:9", "3"], "is 3, and was 2"),
        (&["drain", &name, "--window", "30s"], "draining"),
        (&["undrain", &name], "taken in again"),
        (&["rebalance", "--dry-run"], "would close 0 tunnels"),
        (&["remove", "[::1]:9"], "removing [::1]:9"),
        (&["add", &name, "--json"], "there is a backend"),
    ] {
        let (code, text) = ctl(words);
        assert_eq!(code, Some(i32::from(words.contains(&"--json"))), "{words:?}: {text}");
        assert!(text.contains(part), "{words:?}: {text}");
    }
    for words in [&["list", "--json"][..], &["weight", &name, "2", "--json"]] {
        let (code, text) = ctl(words);
        assert_eq!(code, Some(0), "{words:?}: {text}");
        assert!(serde_json::from_str::<Value>(&text).is_ok(), "{words:?}: {text}");
    }
    let (code, text) = ctl(&["drain", "9001"]);
    assert_eq!(code, Some(2));
    assert!(text.contains("127.0.0.1:9001"), "{text}");
    let (code, text) = ctl(&["weight", "127.0.0.1:9", "1"]);
    assert_eq!(code, Some(1));
    assert!(text.contains(&name), "what there is: {text}");
    let away = Command::new(env!("CARGO_BIN_EXE_throng"))
        .args(["balance", "ctl", "--admin", &nowhere().to_string(), "reload"])
        .output()
        .unwrap();
    assert_eq!(away.status.code(), Some(1));
    assert!(String::from_utf8(away.stderr).unwrap().contains("connection refused"));
}

#[test]
fn tls_of_clients_is_in_the_metrics_and_certificates_that_expire_are_warned_of() {
    let dir = std::env::temp_dir().join(format!("throng-balance-tls-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
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
        "throng_balance_tls_certificate_expiry_seconds{name=\"balancer.example\"} 1577836800",
    ] {
        assert!(metrics.text().lines().any(|found| found == line), "{line}: {}", metrics.text());
    }

    write((2100, 1, 1));
    balancer.event("certificate.reloaded");
    balancer.signal("HUP");
    assert_eq!(balancer.message("reloaded"), "nothing changed");
    std::fs::remove_dir_all(dir).unwrap();
}
