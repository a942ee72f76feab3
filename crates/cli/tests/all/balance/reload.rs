//! Settings that are read again.

use std::net::SocketAddr;
use std::process::Command;

use serde_json::{Value, json};
use throng_proto::ws::Opcode;
use throng_testkit::eventually;

use super::{Balancer, File, TOKEN, echoes, error, nowhere};
use crate::support::{Client, Got, Served};

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
    let names_all = |reason: &str| {
        assert!(reason.contains("reload.toml:2:8: pick") && reason.contains("random"), "{reason}");
    };
    let by_signal = || balancer.signal("HUP");
    let by_request = || {
        let answer = balancer.ask("POST", "/reload", &json!({}));
        assert_eq!(answer.status(), 422);
        names_all(&error(&answer));
    };
    for reload in [&by_signal as &dyn Fn(), &by_request] {
        reload();
        let failed = balancer.event("reload.failed");
        assert_eq!(
            (&failed["level"], &failed["message"]),
            (&json!("error"), &json!("no setting was changed"))
        );
        names_all(failed["reason"].as_str().unwrap());
    }
    assert_eq!(balancer.backends(), [first.to_string(), second.to_string()]);
    echoes(&mut old, "after a bad file");

    let mut new = Client::connect(balancer.address, "/echo");
    eventually("both have one", || {
        [first, second].iter().all(|&backend| balancer.row(backend)["tunnels"] == 1)
    });
    file.write(&text(&[second]));
    balancer.signal("HUP");
    assert_eq!(balancer.message("reloaded"), format!("removed {first} (1 tunnels stay)"));
    let removed = balancer.event("backend.removed");
    assert_eq!((&removed["backend"], &removed["tunnels"]), (&json!(first.to_string()), &json!(1)));
    // After another reload it still stays, until draining is requested by name.
    balancer.signal("HUP");
    assert_eq!(balancer.message("reloaded"), "nothing changed");
    echoes(&mut old, "after its backend was removed");
    assert_eq!(balancer.row(first)["state"], "removed");
    let drained = balancer.ask("POST", &format!("/backends/{first}/drain"), &json!({}));
    assert_eq!((drained.status(), balancer.row(first)["state"].as_str()), (200, Some("draining")));
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

    // The process's own behavior is also a setting.
    file.write(&text(&[second]).replace("\"0\"", "\"1ms\""));
    balancer.signal("HUP");
    assert_eq!(balancer.message("reloaded"), "changed shutdown.window");
}

#[test]
fn a_reload_does_not_take_the_token_from_an_admin_api_that_others_reach() {
    let backend = nowhere();
    let with_token = format!("backends = [\"{backend}\"]\nadmin.token = \"{TOKEN}\"\n");
    let file = File::new("exposed.toml", &with_token);
    // Only by the file, since flags would win: it would listen on loopback from the next start on.
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

/// A session manager that ends sends SIGHUP to all: that must not be an error.
#[test]
fn without_a_file_a_hangup_is_one_line() {
    let balancer = Balancer::before(&[nowhere()], &[]);
    balancer.signal("HUP");
    let message = balancer.message("reloaded");
    assert!(message.contains("no file to read again"), "{message}");
}
