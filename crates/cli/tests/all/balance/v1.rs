//! Version 1 of the admin API, and the commands of `ctl` that use it.

use std::net::SocketAddr;
use std::process::Output;

use serde_json::{Value, json};
use throng_testkit::eventually;

use super::{Balancer, File, TOKEN, error, nowhere};
use crate::support::{Answer, Client, Served, throng};

fn of(answer: &Answer) -> Value {
    assert!(matches!(answer.status(), 200 | 201), "{}", answer.text());
    serde_json::from_str(answer.text()).unwrap()
}

impl Balancer {
    fn got(&self, path: &str) -> Value {
        of(&self.ask_with("GET", path, "", ""))
    }

    fn done(&self, method: &str, path: &str, body: &Value) -> Value {
        of(&self.ask(method, path, body))
    }

    /// The output of a command of `throng balance` with the address of the admin API.
    fn balance(&self, words: &[&str]) -> Output {
        let admin = self.admin.to_string();
        let (name, words) = words.split_first().unwrap();
        throng().args(["balance", name, "--admin", &admin]).args(words).output().unwrap()
    }

    fn ctl(&self, words: &[&str]) -> String {
        let output = self.balance(&[&["ctl"], words].concat());
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

/// A file with a pool b, a site with a split and a limit.
fn file(default: SocketAddr, other: SocketAddr, weight: u32) -> File {
    File::new(
        "b.toml",
        &format!(
            "backends = [\"{default}\"]\nregister.token = \"{TOKEN}\"\n\
             [[pool]]\nname = \"blue\"\npick = \"least_connections\"\nbackends = [\"{other}\"]\n\
             [[limit]]\nname = \"l\"\nrate = \"10/s\"\n\
             [[site]]\nhosts = [\"a.example\"]\nname = \"shop\"\nlimits = [\"l\"]\n\
             [[site.route]]\npath = \"/ws\"\nsplit_by = \"client\"\n\
             split = [{{ pool = \"default\", weight = {weight} }}, \
             {{ pool = \"blue\", weight = 0 }}]\n\
             [[site.route]]\nprefix = \"/old\"\nredirect.to = \"/new\"\n"
        ),
    )
}

#[test]
fn backends_are_added_weighed_drained_and_removed_in_their_pool() {
    let (default, other, new) = (nowhere(), nowhere(), nowhere());
    let file = file(default, other, 1);
    let balancer = Balancer::start(&["--config", file.path()]);
    let pools = balancer.got("/v1/pools");
    let names: Value =
        pools["pools"].as_array().unwrap().iter().map(|it| it["name"].clone()).collect();
    assert_eq!((names, &pools["next"]), (json!(["default", "blue"]), &Value::Null));
    let path = "/v1/pools/blue";
    let add = json!({ "address": new, "weight": 2 });
    assert_eq!(balancer.ask("POST", &format!("{path}/backends"), &add).status(), 201);
    // One address may be in several pools.
    let again = json!({ "address": default });
    balancer.done("POST", &format!("{path}/backends"), &again);
    let pool = balancer.got(path);
    assert_eq!(pool["pool"]["pick"], "least_connections");
    assert_eq!(pool["pool"]["backends"].as_array().unwrap().len(), 3);
    let backend = format!("{path}/backends/{new}");
    let changed = balancer.done("PATCH", &backend, &json!({ "weight": 5 }));
    assert_eq!((&changed["before"], &changed["weight"]), (&json!(2), &json!(5)));
    balancer.done("POST", &format!("{backend}/drain"), &json!({ "window": "1h" }));
    assert_eq!(balancer.row(new)["state"], "draining");
    balancer.done("POST", &format!("{backend}/undrain"), &json!({}));
    assert_eq!(balancer.done("DELETE", &backend, &json!({}))["tunnels"], 0);
    eventually("it is gone", || balancer.row(new).is_null());
    let all = balancer.done("POST", &format!("{path}/drain"), &json!({ "window": "1h" }));
    assert_eq!(all["backends"], 2);
    let plan = balancer.done("POST", &format!("{path}/rebalance"), &json!({ "dry_run": true }));
    assert_eq!(plan["total"], 0);
    // A backend registers itself in a pool; its heartbeats name only its address.
    let headers = format!("Content-Type: application/json\r\nAuthorization: Bearer {TOKEN}\r\n");
    let body = json!({ "address": new, "pool": "blue" }).to_string();
    of(&balancer.ask_with("POST", "/register", &headers, &body));
    assert_eq!(balancer.row(new)["pool"], "blue");
    of(&balancer.ask_with("POST", &format!("/register/{new}/heartbeat"), &headers, "{}"));
    of(&balancer.ask_with("DELETE", &format!("/register/{new}"), &headers, ""));
    for (method, path, body, status, part) in [
        ("GET", "/v1/pools/z", json!({}), 404, "pool z is unknown: write one of default, blue"),
        ("POST", "/v1/pools/z/backends", add, 404, "pool z is unknown"),
        ("POST", "/v1/pools/z/drain", json!({}), 404, "pool z is unknown"),
        ("PATCH", "/v1/pools/blue/backends/127.0.0.1:9", json!({"weight": 1}), 404, "no backend"),
        ("GET", "/v1/pools?from=x", json!({}), 400, "follow `next`"),
    ] {
        let answer = balancer.ask(method, path, &body);
        assert_eq!(answer.status(), status, "{path}: {}", answer.text());
        assert!(error(&answer).contains(part), "{path}: {}", answer.text());
    }
    let weight = balancer.ask("PATCH", &format!("/backends/{default}"), &json!({ "weight": 0 }));
    let weight: Value = serde_json::from_str(weight.text()).unwrap();
    assert_eq!(weight["key"], "weight");
}

#[test]
fn maintenance_of_a_site_is_switched_until_the_file_changes_it() {
    let file = file(nowhere(), nowhere(), 1);
    let balancer = Balancer::start(&["--config", file.path()]);
    let path = "/v1/sites/shop/maintenance";
    let is_on = || balancer.got("/v1/sites/shop")["site"]["maintenance"] == true;
    assert!(!is_on());
    let set = |on: Value| balancer.done("PUT", path, &json!({ "on": on }))["maintenance"].clone();
    assert_eq!((set(json!(true)), is_on()), (json!(true), true));
    assert!(balancer.ctl(&["sites"]).contains("maintenance"));
    balancer.done("POST", "/v1/reload", &json!({}));
    assert!(is_on(), "the file has the same as before");
    assert_eq!((set(Value::Null), is_on()), (json!(false), false));
    assert_eq!(balancer.ctl(&["maintenance", "shop", "on"]).trim(), "shop is under maintenance");
    let off = balancer.ctl(&["maintenance", "shop", "off"]);
    assert_eq!((off.trim(), is_on()), ("shop is not under maintenance", false));
    let answer = balancer.ask("PUT", "/v1/sites/z/maintenance", &json!({ "on": true }));
    assert_eq!(answer.status(), 404);
    assert!(error(&answer).contains("is unknown: write one of"), "{}", answer.text());
}

#[test]
fn sites_are_shown_and_a_split_is_changed_while_it_runs() {
    let (default, other) = (nowhere(), nowhere());
    let (file, changed) = (file(default, other, 1), file(default, other, 2));
    let balancer = Balancer::start(&["--config", file.path()]);
    let site = &balancer.got("/v1/sites/shop")["site"];
    assert_eq!(
        (&site["hosts"][0], &site["action"]["pool"]),
        (&json!("a.example"), &json!("default"))
    );
    assert_eq!(site["routes"][1]["action"], json!({ "kind": "redirect", "status": 308 }));
    let asked = json!({ "url": "ws://a.example/ws", "from": "203.0.113.5" });
    let pool = || balancer.done("POST", "/v1/route", &asked)["pool"].clone();
    assert_eq!(pool(), "default");
    let path = "/v1/sites/shop/routes/%2Fws/split";
    let weights = json!({ "weights": { "blue": 3, "default": 0 } });
    let split = balancer.done("PATCH", path, &weights);
    assert_eq!((&split["split"][0]["to"], &split["split"][1]["to"]), (&json!(0), &json!(65536)));
    assert_eq!(pool(), "blue");
    // The same file keeps it, another split does not.
    balancer.done("POST", "/v1/reload", &json!({}));
    assert_eq!(pool(), "blue");
    file.write(&std::fs::read_to_string(changed.path()).unwrap());
    balancer.done("POST", "/v1/reload", &json!({}));
    assert_eq!(pool(), "default");
    for (path, weights, status, part) in [
        (path, json!({ "z": 1 }), 400, "no pool z"),
        ("/v1/sites/shop/routes/-/split", json!({ "blue": 1 }), 404, "no split of its own"),
        ("/v1/sites/z/routes/-/split", json!({ "blue": 1 }), 404, "site z is unknown"),
    ] {
        let answer = balancer.ask("PATCH", path, &json!({ "weights": weights }));
        assert_eq!(answer.status(), status, "{path}: {}", answer.text());
        assert!(error(&answer).contains(part), "{}", answer.text());
    }
    assert_eq!(balancer.got("/v1/limits")["limits"][0]["name"], "l");
    let refused = balancer.ask("POST", "/v1/route", &json!({ "url": "a.example" }));
    assert!(error(&refused).contains("is not a URL"), "{}", refused.text());
    file.write("pick = \"x\"\n");
    let refused = balancer.ask("POST", "/v1/reload", &json!({}));
    let refused: Value = serde_json::from_str(refused.text()).unwrap();
    assert_eq!(refused["line"], 1, "{refused}");
}

#[test]
fn long_lists_have_pages_and_ctl_shows_them_as_one() {
    let site = |at| format!("[[site]]\nhosts = [\"s{at}.example\"]\nrespond.text = \"ok\"\n");
    let file = File::new("b.toml", &(0..230).map(site).collect::<String>());
    let balancer = Balancer::start(&["--config", file.path()]);
    let (mut path, mut sites, mut pages) = ("/v1/sites".to_owned(), 0, 0);
    loop {
        let page = balancer.got(&path);
        sites += page["sites"].as_array().unwrap().len();
        pages += 1;
        match page["next"].as_str() {
            Some(next) => path = next.to_owned(),
            None => break,
        }
    }
    assert_eq!((sites, pages), (230, 3));
    assert_eq!(balancer.ctl(&["sites"]).lines().count(), 231);
}

#[test]
fn the_configuration_is_shown_without_secrets() {
    let balancer = Balancer::start(&["--config", file(nowhere(), nowhere(), 1).path()]);
    let config = balancer.got("/v1/config");
    assert_eq!(config["program"], "balance");
    let settings = config["settings"].as_array().unwrap();
    let token = settings.iter().find(|it| it["key"] == "register.token").unwrap();
    assert_eq!(token["value"], "(secret)");
    assert!(!config.to_string().contains(TOKEN));
    let schema = balancer.got("/v1/schema");
    assert!(schema["answers"]["GET /v1/schema"].is_object());
    assert_eq!(balancer.got("/v1/status")["pools"][1]["name"], "blue");
}

#[test]
fn ctl_speaks_of_pools_sites_and_limits() {
    let served = Served::start(&["--listen", "127.0.0.1:0"]);
    let file = file(served.addresses[0], nowhere(), 1);
    let balancer = Balancer::start(&["--config", file.path()]);
    let _client = Client::connect(balancer.address, "/echo");
    let lines = |words: &[&str]| {
        let text = balancer.ctl(words);
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let pools = lines(&["pools"]);
    assert_eq!(words(&pools[1]), ["default", "power_of_two", "1", "1", "1", "0", "0"]);
    let sites = lines(&["sites"]);
    assert_eq!(words(&sites[1])[..4], ["shop", "pool", "default", "2"]);
    assert_eq!(words(&lines(&["limits"])[1]), ["l", "0", "0", "0"]);
    let new = nowhere().to_string();
    let added = balancer.ctl(&["add", &new, "--pool", "blue"]);
    assert!(added.starts_with(&format!("added {new}")), "{added}");
    let listed = lines(&["list", "--pool", "blue"]);
    assert_eq!(listed.len(), 3, "{listed:?}");
    assert!(listed[2].starts_with(&format!("{new} (blue)")), "{listed:?}");
    let split = balancer.ctl(&["split", "shop", "/ws", "blue=3"]);
    assert_eq!(split, "default: weight 1, 25.00 %; blue: weight 3, 75.00 %\n");
    let plan = balancer.ctl(&["rebalance", "--dry-run", "--pool", "blue"]);
    assert!(plan.starts_with("would close 0 tunnels"), "{plan}");
    let drained = balancer.ctl(&["drain-pool", "blue", "--window", "10m"]);
    assert!(drained.starts_with("draining 2 backends of blue: 0 tunnels, "), "{drained}");
    let output = balancer.balance(&["route", "ws://a.example/ws", "--from", "203.0.113.5"]);
    let route = String::from_utf8(output.stdout).unwrap();
    assert!(route.contains("share    blue: 75.00 %, points 16384 to 65535\n"), "{route}");
    let output = balancer.balance(&["ctl", "drain-pool", "z"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("pool z is unknown"));
}

#[test]
fn networks_are_blocked_and_shown_with_who_set_it() {
    let balancer = Balancer::before(&[nowhere()], &[]);
    let body = json!({ "network": "203.0.113.9/24", "for": "1h", "by": "fail2ban" });
    let block = balancer.done("POST", "/v1/blocks", &body);
    assert_eq!(block["block"]["network"], "203.0.113.0/24");
    assert!(balancer.message("operator").contains("fail2ban blocked 203.0.113.0/24"));
    let blocked = balancer.ctl(&["block", "2001:db8::/64", "--for", "10m", "--by", "ops"]);
    assert_eq!(blocked, "2001:db8::/64 is blocked for 10m\n");
    let listed = balancer.ctl(&["blocks"]);
    let last = listed.lines().nth(2).unwrap();
    assert!(last.starts_with("2001:db8::/64 ") && last.ends_with("Z  ops"), "{listed}");
    balancer.ctl(&["unblock", "203.0.113.0/24"]);
    assert_eq!(balancer.got("/v1/blocks")["blocks"].as_array().unwrap().len(), 1);
    for (method, path, body, status) in [
        ("DELETE", "/v1/blocks?network=203.0.113.0/24", json!({}), 404),
        ("DELETE", "/v1/blocks", json!({}), 400),
        ("POST", "/v1/blocks", json!({ "network": "x", "for": "1h" }), 400),
        ("POST", "/v1/blocks", json!({ "network": "10.0.0.1", "for": "x" }), 400),
        ("POST", "/v1/blocks", json!({ "network": "10.0.0.1" }), 400),
    ] {
        let answer = balancer.ask(method, path, &body);
        assert_eq!(answer.status(), status, "{method} {path} {body}: {}", answer.text());
    }
}
