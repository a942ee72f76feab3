//! Link-local IPv6 addresses, which have a zone, in a network namespace with two joined interfaces.
#![cfg(all(target_os = "linux", feature = "balance"))]

use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use throng_testkit::{TempFolder, eventually};

use crate::support::{may_unshare, throng};

/// Makes the interfaces, and becomes the program.
const SCRIPT: &str = "ip link set lo up && ip link add t0 type veth peer name t1 \
    && ip link set t0 up && ip link set t1 up && ip -6 addr add fe80::1/64 dev t0 nodad \
    && ip -6 addr add fe80::2/64 dev t1 nodad && exec \"$0\" \"$@\"";

const BALANCER: &str = r#"
listen = "[fe80::2%t1]:8080"
backends = ["[fe80::1%t0]:9001"]
sources = ["fe80::1"]

[admin]
listen = "[::1]:8081"

[health.check]
kind = "http"
path = "/livez"
interval = "100ms"
timeout = "100ms"
rise = 1
fall = 1
"#;

/// A process that ends with the test.
struct Running(Child);

impl Running {
    fn start(mut command: Command) -> Self {
        Self(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap())
    }

    /// A command in the network namespace of this process.
    fn beside(&self, words: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--net", "--target", &self.0.id().to_string()]);
        command.arg(throng().get_program()).args(throng().get_args()).args(words);
        command
    }

    fn output(&self, words: &[&str]) -> Output {
        self.beside(words).output().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A Host has no zone: a check and `throng health` that send one are answered with 400.
#[test]
fn servers_and_balancers_listen_connect_and_are_checked_at_addresses_with_a_zone() {
    if !may_unshare(&["--net"]) {
        return;
    }
    let folder = TempFolder::new("zone");
    let file = folder.write("balance.toml", BALANCER);
    let mut command = Command::new("unshare");
    command.args(["--net", "sh", "-c", SCRIPT]).arg(throng().get_program());
    command.args(throng().get_args()).args(["balance", "--config"]).arg(&file);
    let balancer = Running::start(command);
    let is_up = || {
        let list = balancer.output(&["balance", "ctl", "--admin", "[::1]:8081", "--json", "list"]);
        let rows: Value = serde_json::from_slice(&list.stdout).ok()?;
        Some(rows[0]["state"] == "up")
    };
    eventually("the backend is down", || is_up() == Some(false));
    let serve = ["serve", "--listen", "[fe80::1%t0]:9001", "--shards", "1"];
    let _served = Running::start(balancer.beside(&serve));
    eventually("the backend is up", || is_up() == Some(true));
    // The second is answered through the balancer.
    for listen in ["[fe80::1%t0]:9001", "[fe80::2%t1]:8080"] {
        let asked = balancer.output(&["health", "--listen", listen]);
        assert!(asked.status.success(), "{listen}: {asked:?}");
    }
    let url = "http://[fe80::2%25t1]:8080/livez";
    let measured = balancer.output(&["bench", "http", url, "-n", "20", "-c", "1", "-q"]);
    assert!(measured.status.success(), "{measured:?}");
}
