//! `throng balance` with an admin API.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Stdio};

use crate::support::throng;

pub(crate) struct Balancer {
    process: Child,
    pub(crate) address: SocketAddr,
    pub(crate) admin: SocketAddr,
}

impl Balancer {
    pub(crate) fn start(backend: &str) -> Self {
        let mut command = throng();
        command.args(["balance", "--shards", "2", "--backend", backend]);
        command.args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn().unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut next = || -> SocketAddr {
            let line = lines.find(|line| line.as_ref().unwrap().contains("http://"));
            let line = line.unwrap().unwrap();
            let rest = line.split_once("http://").unwrap().1;
            rest.split([' ', '/']).next().unwrap().parse().unwrap()
        };
        let (address, admin) = (next(), next());
        Self { process, address, admin }
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
