//! A Redis server for one test, and sentinels.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::folder::TempFolder;
use crate::waiting::eventually;
use crate::wire::dial;

/// Returns the user in docs/cluster.md with its rights, in the syntax of `ACL SETUSER`.
///
/// # Panics
/// The page lacks such a line.
#[must_use]
pub fn documented_user() -> String {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cluster.md");
    let page = std::fs::read_to_string(page).expect("docs/cluster.md");
    let mut users = page.lines().filter_map(|line| line.strip_prefix("user "));
    let user = users.find(|user| user.starts_with("throng "));
    user.expect("docs/cluster.md has a line `user throng ...`").to_owned()
}

/// A Redis server, or a sentinel, which ends with the test.
#[derive(Debug)]
pub struct Redis {
    child: Option<Child>,
    address: SocketAddr,
    directory: TempFolder,
    arguments: Vec<String>,
    tls_port: u16,
}

/// PEM files of servers with TLS, which also have a port without TLS.
#[derive(Clone, Copy, Debug)]
pub struct RedisTls<'a> {
    /// The certificate of the server.
    pub certificate: &'a Path,
    /// Its private key.
    pub key: &'a Path,
    /// The authority that certifies clients and other servers.
    pub authority: &'a Path,
    /// Whether clients must have a certificate.
    pub demands: bool,
}

impl RedisTls<'_> {
    pub(crate) fn arguments(&self, port: u16) -> Vec<String> {
        let demands = if self.demands { "yes" } else { "no" };
        let file = |path: &Path| path.display().to_string();
        let words = [
            ["--tls-port".to_owned(), port.to_string()],
            ["--tls-cert-file".to_owned(), file(self.certificate)],
            ["--tls-key-file".to_owned(), file(self.key)],
            ["--tls-ca-cert-file".to_owned(), file(self.authority)],
            ["--tls-auth-clients".to_owned(), demands.to_owned()],
            ["--tls-replication".to_owned(), "yes".to_owned()],
        ];
        words.concat()
    }
}

impl Redis {
    /// Starts a server; returns `None` if Redis is not installed.
    ///
    /// # Panics
    /// Redis is not installed, and the environment has `TEST_PEERS`.
    #[must_use]
    pub fn start(name: &str, arguments: &[&'static str]) -> Option<Self> {
        if !Self::can_start() {
            return None;
        }
        let mut redis = Self::new(name);
        redis.arguments = arguments.iter().map(|word| (*word).to_owned()).collect();
        redis.run();
        Some(redis)
    }

    /// Starts a server that also supports TLS, as a master or as a replica of another such server.
    /// Returns `None` if Redis is not installed.
    ///
    /// # Panics
    /// Redis is not installed, and the environment has `TEST_PEERS`; or it does not support TLS.
    #[must_use]
    pub fn start_with_tls(name: &str, tls: RedisTls<'_>, master: Option<&Self>) -> Option<Self> {
        if !Self::can_start() {
            return None;
        }
        let mut redis = Self::new(name);
        redis.add_tls(tls, free_port());
        if let Some(master) = master {
            let of = format!("127.0.0.1 {}", master.tls_port);
            redis.arguments.extend(["--replicaof".to_owned(), of]);
        }
        redis.run();
        if let Some(master) = master {
            eventually("the replica is connected", || master.ask("WAIT 1 1000") == ":1");
        }
        Some(redis)
    }

    pub(crate) fn add_words(&mut self, words: &[&str]) {
        self.arguments.extend(words.iter().map(|word| (*word).to_owned()));
    }

    pub(crate) fn add_tls(&mut self, tls: RedisTls<'_>, port: u16) {
        self.tls_port = port;
        self.arguments.extend(tls.arguments(port));
    }

    /// Returns the port with TLS; 0 without TLS.
    #[must_use]
    pub fn tls_port(&self) -> u16 {
        self.tls_port
    }

    /// Returns the number of other clients at the port without TLS.
    ///
    /// # Panics
    /// The server does not answer.
    #[must_use]
    pub fn plain_clients(&self) -> usize {
        let mut connection = dial(self.address);
        connection.write_all(b"CLIENT LIST\r\n").unwrap();
        let mut reader = BufReader::new(connection);
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let length: u64 = line.trim_start_matches('$').trim_end().parse().unwrap();
        let lines = reader.take(length).lines().map(Result::unwrap);
        let port = format!("laddr={} ", self.address);
        let is_other = |line: &String| line.contains(&port) && !line.contains("cmd=client|list ");
        lines.filter(is_other).count()
    }

    /// Returns whether Redis is installed, and prints a message if it is not.
    pub(crate) fn can_start() -> bool {
        let can = Command::new("redis-server").arg("--version").output().is_ok();
        if !can {
            assert!(std::env::var_os("TEST_PEERS").is_none(), "install redis-server");
            println!("skipped: there is no redis-server");
        }
        can
    }

    /// Prepares a server on a port.
    pub(crate) fn at(name: &str, port: u16, arguments: Vec<&str>) -> Self {
        let mut redis = Self::with_address(name, ([127, 0, 0, 1], port).into());
        redis.arguments = arguments.into_iter().map(str::to_owned).collect();
        redis
    }

    /// Returns whether the server was started and has not been killed since.
    pub(crate) fn is_running(&self) -> bool {
        self.child.is_some()
    }

    fn new(name: &str) -> Self {
        Self::with_address(name, ([127, 0, 0, 1], free_port()).into())
    }

    fn with_address(name: &str, address: SocketAddr) -> Self {
        let directory = TempFolder::new(&format!("redis-{name}"));
        Self { child: None, address, directory, arguments: Vec::new(), tls_port: 0 }
    }

    /// Starts a replica of this server, and waits until it has its data.
    ///
    /// # Panics
    /// It cannot be started.
    #[must_use]
    pub fn start_replica(&self, name: &str) -> Self {
        let mut replica = Self::new(name);
        let master = format!("127.0.0.1 {}", self.address.port());
        replica.arguments = vec!["--replicaof".to_owned(), master];
        replica.run();
        eventually("the replica is connected", || self.ask("WAIT 1 1000") == ":1");
        replica
    }

    /// Starts a sentinel with this configuration.
    ///
    /// # Panics
    /// The sentinel cannot be started.
    #[must_use]
    pub fn start_sentinel(name: &str, configuration: &str) -> Self {
        Self::start_sentinel_with(name, configuration, None)
    }

    /// Starts a sentinel that may use TLS, also to its servers.
    ///
    /// # Panics
    /// The sentinel cannot be started.
    #[must_use]
    pub fn start_sentinel_with(name: &str, configuration: &str, tls: Option<RedisTls<'_>>) -> Self {
        let mut sentinel = Self::new(name);
        let file = sentinel.directory.join("sentinel.conf");
        std::fs::write(&file, configuration).unwrap();
        sentinel.arguments = vec![file.display().to_string(), "--sentinel".to_owned()];
        if let Some(tls) = tls {
            sentinel.add_tls(tls, free_port());
        }
        sentinel.run();
        sentinel
    }

    /// Returns the port that it listens on.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Starts the server, or restarts it with the same address and data.
    ///
    /// # Panics
    /// The server cannot be started.
    pub fn run(&mut self) {
        let mut command = Command::new("redis-server");
        let port = self.address.port().to_string();
        // The configuration file must come first.
        command.args(&self.arguments).args(["--port", &port, "--bind", "127.0.0.1"]);
        command.args(["--save", ""]).arg("--dir").arg(&*self.directory);
        self.child = Some(command.stdout(Stdio::null()).spawn().unwrap());
        // While the server loads its data, or if it requires a password, it answers with an error.
        eventually("the server answers", || {
            self.reply("PING").is_ok_and(|reply| reply == "+PONG" || reply.starts_with("-NOAUTH"))
        });
    }

    /// Sends a signal, such as `-STOP`.
    ///
    /// # Panics
    /// The server is not running.
    pub fn signal(&self, signal: &str) {
        let pid = self.child.as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    /// Kills the server with SIGKILL.
    ///
    /// # Panics
    /// The server is not running.
    pub fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Sends a command and returns the first line of its reply.
    ///
    /// # Panics
    /// The reply is an error, or there is none.
    pub fn ask(&self, command: &str) -> String {
        // A server whose role changes resets its clients, or ends their streams.
        let first = self.reply(command).ok().filter(|reply| !reply.is_empty());
        let reply = first.map_or_else(|| self.reply(command), Ok).unwrap();
        assert!(!reply.is_empty() && !reply.starts_with('-'), "{command}: {reply}");
        reply
    }

    /// Sends a command until the reply is not an error.
    ///
    /// # Panics
    /// The server refuses the command for too long.
    pub fn ask_until_taken(&self, command: &str) {
        eventually(command, || self.reply(command).is_ok_and(|reply| !reply.starts_with('-')));
    }

    /// Sends a command whose answer arrives late.
    ///
    /// # Panics
    /// The command cannot be sent.
    pub fn ask_nothing(&self, command: &str) {
        dial(self.address).write_all(format!("{command}\r\n").as_bytes()).unwrap();
    }

    /// Returns how often a command was called, including calls by scripts.
    ///
    /// # Panics
    /// The server does not answer.
    #[must_use]
    pub fn calls(&self, command: &str) -> u64 {
        let mut connection = dial(self.address);
        connection.write_all(b"INFO commandstats\r\nQUIT\r\n").unwrap();
        let lines: Vec<_> = BufReader::new(connection).lines().map_while(Result::ok).collect();
        let name = format!("cmdstat_{command}:calls=");
        let calls = lines.iter().find_map(|line| line.strip_prefix(&*name)?.split(',').next());
        calls.map_or(0, |calls| calls.parse().unwrap())
    }

    fn reply(&self, command: &str) -> std::io::Result<String> {
        // Refused while it starts.
        std::net::TcpStream::connect(self.address)?;
        let mut connection = dial(self.address);
        connection.write_all(format!("{command}\r\n").as_bytes())?;
        let mut reply = String::new();
        BufReader::new(connection).read_line(&mut reply)?;
        Ok(reply.trim_end().to_owned())
    }

    /// Returns its URL, with the name and password of a user (`user:password@`) or without.
    #[must_use]
    pub fn url(&self, user: &str) -> String {
        format!("redis://{user}{}", self.address)
    }
}

/// Returns a free port.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Drop for Redis {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
