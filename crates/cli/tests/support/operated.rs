//! A server with an address for operators.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use super::{Answer, dial, exchange, throng};

/// An answer to GET, with more header fields.
pub(crate) fn get(address: SocketAddr, path: &str, fields: &str) -> Answer {
    let fields = match fields.contains("Host: ") {
        true => fields.to_owned(),
        false => format!("Host: {address}\r\n{fields}"),
    };
    exchange(
        &mut dial(address),
        format!("GET {path} HTTP/1.1\r\n{fields}Connection: close\r\n\r\n"),
    )
}

/// A server with an address for operators.
pub(crate) struct Operated {
    process: Child,
    pub(crate) address: SocketAddr,
    pub(crate) admin: SocketAddr,
}

impl Operated {
    /// Sends SIGTERM.
    pub(crate) fn terminate(&self) {
        let pid = self.process.id().to_string();
        assert!(Command::new("kill").arg(pid).status().unwrap().success());
    }

    pub(crate) fn start(words: &[&str]) -> Self {
        let mut command = throng();
        command.args(["serve", "--shards", "1", "--listen", "127.0.0.1:0"]).args(words);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn().unwrap();
        let out = std::io::BufReader::new(process.stdout.take().unwrap());
        let mut lines = std::io::BufRead::lines(out).map(Result::unwrap);
        let mut address = |before: &str| -> SocketAddr {
            let line = lines.find(|line| line.contains(before)).unwrap();
            let rest = line.split(before).nth(1).unwrap();
            rest.split([' ', '/']).next().unwrap().parse().unwrap()
        };
        let (address, admin) = (address("listens on http://"), address("metrics: http://"));
        Self { process, address, admin }
    }
}

impl Drop for Operated {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
