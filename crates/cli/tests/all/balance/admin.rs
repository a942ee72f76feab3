//! The admin API: changes, its page, tokens, registration.

use std::process::{Command, Stdio};

use serde_json::{Value, json};
use throng_proto::ws::Opcode;
use throng_testkit::eventually;

use super::{Balancer, File, TOKEN, echoes, error, nowhere};
use crate::support::operated::{Operated, get};
use crate::support::{Answer, Client, Got, Served};

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
        (
            "POST",
            "/backends",
            r#"{"address": "127.0.0.1:9", "passthrough": ["10.0.0.1"]}"#,
            400,
            "passthrough is \"10.0.0.1\": write a name such as",
        ),
        (
            "POST",
            "/backends",
            r#"{"address": "127.0.0.1:9", "passthrough": ["db.example.com"]}"#,
            400,
            "started without TLS of clients",
        ),
        ("PATCH", "/backends/unknown", r#"{"weight": 1}"#, 400, "127.0.0.1:9001"),
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
        // Requests that a page may send to any server: forms, and fetch without a preflight.
        ("Content-Type: text/plain\r\n".to_owned(), 415, "application/json"),
        ("Content-Type: application/x-www-form-urlencoded\r\n".to_owned(), 415, "--json"),
        (String::new(), 415, "application/json"),
        (format!("{json}Origin: http://evil.example\r\n"), 403, "another origin"),
        (format!("{json}Origin: null\r\n"), 403, "another origin"),
        (format!("{json}Origin: http://127.0.0.1:1\r\n"), 403, "another origin"),
        (format!("{json}Sec-Fetch-Site: cross-site\r\n"), 403, "another origin"),
        (format!("{json}Sec-Fetch-Site: same-site\r\n"), 403, "another origin"),
        // A name that resolves to this server: the same origin, as the browser reports it.
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
    // The server's own page, at any of its addresses.
    let port = admin.port();
    let own = format!(
        "{json}Host: localhost:{port}\r\nOrigin: http://localhost:{port}\r\n\
         Sec-Fetch-Site: same-origin\r\n"
    );
    let answer = balancer.ask_with("POST", "/backends", &own, body);
    assert_eq!(answer.status(), 201, "{}", answer.text());
    // A preflight is never allowed.
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
    // A client that kept its connection would keep its tunnel, half closed, for a minute.
    drop(client);
    eventually("it is gone", || balancer.backends().is_empty());
}

/// A silent connection to the admin API makes room for the next: otherwise backends would lose
/// their registrations, and operators their view.
#[test]
fn silent_connections_to_the_admin_api_keep_no_heartbeat_out() {
    let token = File::new("crowded-token", TOKEN);
    let balancer = Balancer::start(&["--register-token-file", token.path()]);
    let _silent: Vec<_> =
        (0..300).map(|_| std::net::TcpStream::connect(balancer.admin).unwrap()).collect();
    let authorized = format!("Authorization: Bearer {TOKEN}\r\n");
    let body = json!({ "address": nowhere() }).to_string();
    let register = || balancer.ask_with("POST", "/register", &authorized, &body);
    for _ in 0..10 {
        // A connection that came in between may keep its place for a second.
        eventually("the oldest makes room", || register().status() < 300);
        assert_eq!(balancer.backends().len(), 1);
    }
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
        // Under any name: no web page knows the token.
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

/// Neither in another form, nor by a reload or an operator.
#[test]
fn the_addresses_of_the_balancer_itself_are_no_backends() {
    let token = File::new("own-token", TOKEN);
    let balancer = Balancer::start(&["--register-token-file", token.path()]);
    let headers = format!("Authorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n");
    for own in [balancer.address, balancer.admin] {
        let port = own.port();
        for address in [own.to_string(), format!("[::ffff:127.0.0.1]:{port}")] {
            let body = json!({ "address": address }).to_string();
            for path in ["/register", "/backends"] {
                let answer = balancer.ask_with("POST", path, &headers, &body);
                assert_eq!(answer.status(), 400, "{path} {body}: {}", answer.text());
                assert!(error(&answer).contains("the balancer itself listens on"), "{body}");
            }
        }
    }
    let everyone = json!({ "address": "255.255.255.255:80" }).to_string();
    assert_eq!(balancer.ask_with("POST", "/register", &headers, &everyone).status(), 400);
    assert!(balancer.backends().is_empty());
    // Another port of this host is an ordinary backend.
    let body = json!({ "address": nowhere() }).to_string();
    assert_eq!(balancer.ask_with("POST", "/register", &headers, &body).status(), 200);
}

#[test]
fn requests_that_a_proxy_passes_on_reach_the_admin_api_with_a_token_only() {
    let balancer = Balancer::before(&[nowhere()], &[]);
    let token = File::new("proxied-token", TOKEN);
    let guarded =
        Balancer::start(&["--admin-token-file", token.path(), "--backend", "127.0.0.1:9"]);
    let json = "Content-Type: application/json\r\n";
    for field in [
        "Forwarded: for=192.0.2.1",
        "X-Forwarded-For: 127.0.0.1",
        "x-forwarded-proto: http",
        "X-Real-IP: 127.0.0.1",
        "Via: 1.1 edge",
        "CDN-Loop: edge",
        "CF-Connecting-IP: 127.0.0.1",
        "True-Client-IP: 127.0.0.1",
        "X-Client-IP: 127.0.0.1",
    ] {
        for (method, path) in
            [("GET", "/status.json"), ("GET", "/metrics"), ("POST", "/reload"), ("GET", "/")]
        {
            let answer = balancer.ask_with(method, path, &format!("{json}{field}\r\n"), "");
            assert_eq!(answer.status(), 403, "{method} {path} {field}: {}", answer.text());
            assert!(error(&answer).contains("comes through a proxy"), "{}", answer.text());
        }
        let right = format!("{field}\r\nAuthorization: Bearer {TOKEN}\r\n");
        assert_eq!(guarded.ask_with("GET", "/status.json", &right, "").status(), 200, "{field}");
    }
    // A server's own admin API has the same guard.
    let served = Operated::start(&["--admin", "127.0.0.1:0"]);
    assert_eq!(get(served.admin, "/metrics", "Via: 1.1 edge\r\n").status(), 403);
    assert_eq!(get(served.admin, "/metrics", "").status(), 200);
}

#[test]
fn without_a_token_no_backend_registers() {
    let balancer = Balancer::before(&[nowhere()], &[]);
    let answer = balancer.ask("POST", "/register", &json!({ "address": "127.0.0.1:9" }));
    assert_eq!(answer.status(), 403);
    assert!(error(&answer).contains("[register]"), "{}", answer.text());
}

#[test]
fn a_backend_is_added_with_names_to_pass_through() {
    let balancer = Balancer::start(&["--backend", "127.0.0.1:1,passthrough=*"]);
    let [new, other] = [nowhere(), nowhere()];
    let added = balancer.ask(
        "POST",
        "/backends",
        &json!({ "address": new, "passthrough": ["DB.example.com", "*.example.org"] }),
    );
    assert_eq!(added.status(), 201, "{}", added.text());
    let said =
        format!("added {new}, weight 1, passthrough=db.example.com, passthrough=*.example.org");
    assert_eq!(balancer.message("operator"), said);
    let names = |answer: &Answer| {
        let body: Value = serde_json::from_str(answer.text()).unwrap();
        body["passthrough"].clone()
    };
    let stored = json!(["db.example.com", "*.example.org"]);
    assert_eq!((&balancer.row(new)["passthrough"], &names(&added)), (&stored, &stored));
    // One string is one name, as in the file.
    let one = json!({ "address": nowhere(), "passthrough": "a.example.com" });
    let added = balancer.ask("POST", "/backends", &one);
    assert_eq!(added.status(), 201, "{}", added.text());
    assert_eq!(names(&added), json!(["a.example.com"]));
    let admin = balancer.admin.to_string();
    let added = Command::new(env!("CARGO_BIN_EXE_throng"))
        .args(["balance", "ctl", "--admin", &admin, "add", &other.to_string()])
        .args(["--passthrough", "db.example.com", "--passthrough", "*"])
        .output()
        .unwrap();
    let said = format!("added {other}, weight 1, passthrough=db.example.com, passthrough=*\n");
    assert_eq!(String::from_utf8(added.stdout).unwrap(), said);
    assert_eq!(balancer.row(other)["passthrough"], json!(["db.example.com", "*"]));
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
        (&["remove", "[::1]:9", "--drain"], "removing [::1]:9: it has no tunnels"),
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
    let by_variable = Command::new(env!("CARGO_BIN_EXE_throng"))
        .args(["balance", "ctl", "list"])
        .env("THRONG_ADMIN_LISTEN", balancer.admin.to_string())
        .output()
        .unwrap();
    assert!(String::from_utf8(by_variable.stdout).unwrap().contains(&name));
    let away = Command::new(env!("CARGO_BIN_EXE_throng"))
        .args(["balance", "ctl", "--admin", &nowhere().to_string(), "reload"])
        .env("THRONG_ADMIN_LISTEN", balancer.admin.to_string())
        .output()
        .unwrap();
    assert_eq!(away.status.code(), Some(1));
    assert!(String::from_utf8(away.stderr).unwrap().contains("connection refused"));
}
