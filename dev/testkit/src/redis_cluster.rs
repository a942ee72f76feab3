//! A Redis Cluster for one test.

use std::net::TcpListener;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::redis::{Redis, RedisTls};
use crate::waiting::{eventually, poll};

/// Time after which a failover that was begun by hand has failed.
const ATTEMPT: Duration = Duration::from_secs(6);

/// Servers in cluster mode, masters and a replica of each, which end with the test.
#[derive(Debug)]
pub struct RedisCluster {
    /// The servers; at the start the masters come first, in the order of their slots.
    pub servers: Vec<Redis>,
}

impl RedisCluster {
    /// Starts this many masters with one replica each; returns `None` if Redis is not installed.
    ///
    /// # Panics
    /// Redis is not installed, and the environment has `TEST_PEERS`; or the servers form no
    /// cluster.
    #[must_use]
    pub fn start(name: &str, masters: usize) -> Option<Self> {
        if !Redis::can_start() {
            return None;
        }
        let server = |number| Self::start_server(&format!("{name}-{number}"));
        let cluster = Self { servers: (0..2 * masters).map(server).collect() };
        cluster.create(address, &[]);
        Some(cluster)
    }

    /// Starts a cluster whose servers also have TLS, as [`RedisCluster::start`] does.
    ///
    /// # Panics
    /// As for [`RedisCluster::start`].
    #[must_use]
    pub fn start_with_tls(name: &str, masters: usize, tls: RedisTls<'_>) -> Option<Self> {
        if !Redis::can_start() {
            return None;
        }
        let server = |number| {
            let mut server = Self::server(&format!("{name}-{number}"));
            // With this setting a server redirects clients to TLS ports.
            server.add_words(&["--tls-cluster", "yes"]);
            server.add_tls(tls, free_port());
            server.run();
            server
        };
        let cluster = Self { servers: (0..2 * masters).map(server).collect() };
        let authority = tls.authority.display().to_string();
        let (certificate, key) =
            (tls.certificate.display().to_string(), tls.key.display().to_string());
        let with = ["--tls", "--cacert", &authority, "--cert", &certificate, "--key", &key];
        cluster.create(|server| format!("127.0.0.1:{}", server.tls_port()), &with);
        Some(cluster)
    }

    fn create(&self, address: impl Fn(&Redis) -> String, with: &[&str]) {
        let addresses: Vec<_> = self.servers.iter().map(address).collect();
        let mut create = [with, &["--cluster", "create"]].concat();
        create.extend(addresses.iter().map(String::as_str));
        create.extend(["--cluster-replicas", "1", "--cluster-yes"]);
        self.cli(&create);
        self.await_ok();
    }

    fn start_server(name: &str) -> Redis {
        let mut server = Self::server(name);
        server.run();
        server
    }

    fn server(name: &str) -> Redis {
        let words = [
            ["--cluster-enabled", "yes"],
            ["--cluster-node-timeout", "2000"],
            ["--repl-diskless-sync-delay", "0"],
        ];
        Redis::at(name, free_port(), words.concat())
    }

    /// Adds a master without slots, which all servers know afterwards; returns its number.
    ///
    /// # Panics
    /// It does not become a part of the cluster.
    pub fn add(&mut self, name: &str) -> usize {
        self.servers.push(Self::start_server(name));
        let number = self.servers.len() - 1;
        let (new, old) = (address(&self.servers[number]), address(&self.servers[0]));
        self.cli(&["--cluster", "add-node", &new, &old]);
        self.await_ok();
        // Only one server has assigned the new slots; the others learn of them from each other
        // later.
        let id = self.id(number);
        eventually("all servers know it", || {
            (0..number).all(|at| self.cli_at(at, &["CLUSTER", "NODES"]).contains(&id))
        });
        number
    }

    /// Returns the URL of the cluster, with the name and password of a user (`user:password@`) or
    /// without.
    #[must_use]
    pub fn url(&self, user: &str) -> String {
        let addresses: Vec<_> = self.servers.iter().map(address).collect();
        format!("redis-cluster://{user}{}", addresses.join(","))
    }

    /// Moves this many slots from one master to another.
    ///
    /// # Panics
    /// The slots cannot be moved.
    pub fn reshard(&self, from: usize, to: usize, slots: usize) {
        let (from, to) = (self.id(from), self.id(to));
        self.cli(&[
            "--cluster",
            "reshard",
            &address(&self.servers[0]),
            "--cluster-from",
            &from,
            "--cluster-to",
            &to,
            "--cluster-slots",
            &slots.to_string(),
            "--cluster-yes",
        ]);
        self.await_ok();
    }

    /// Removes a server without slots from the cluster.
    ///
    /// # Panics
    /// The server cannot be removed.
    pub fn remove(&self, number: usize) {
        self.cli(&["--cluster", "del-node", &address(&self.servers[0]), &self.id(number)]);
    }

    /// Makes the replica of a master the new master without loss, and returns its number.
    ///
    /// # Panics
    /// The master has no replica, or the replica does not become a master.
    pub fn fail_over(&self, master: usize) -> usize {
        let replica = self.replica_of(master);
        let mut tried = None::<Instant>;
        eventually("the replica is a master", || {
            // A server abandons the failover after five seconds, for example if the others do not
            // vote in time.
            if tried.is_none_or(|tried| tried.elapsed() > ATTEMPT) && !self.is_master(replica) {
                tried = Some(Instant::now());
                self.servers[replica].ask("CLUSTER FAILOVER");
            }
            self.is_master(replica)
        });
        eventually("the master is a replica", || !self.is_master(master));
        self.await_ok();
        replica
    }

    /// Returns the number of a master's replica.
    ///
    /// # Panics
    /// It has none.
    #[must_use]
    pub fn replica_of(&self, master: usize) -> usize {
        let id = self.id(master);
        let is_it = |line: &str| line.contains("slave") && line.contains(&id);
        let line = poll("the master knows its replica", || {
            let nodes = self.cli_at(master, &["CLUSTER", "NODES"]);
            nodes.lines().find(|line| is_it(line)).map(str::to_owned)
        });
        let of = |server: &Redis| line.contains(&format!("{}@", address(server)));
        self.servers.iter().position(of).expect("it is one of the test's")
    }

    /// Returns whether a server is a master, as it sees it.
    #[must_use]
    pub fn is_master(&self, number: usize) -> bool {
        self.cli_at(number, &["ROLE"]).starts_with("master")
    }

    /// Returns whether the replica of a master has acknowledged all writes to the master. WAIT
    /// alone covers only the writes of its own connection.
    #[must_use]
    pub fn has_replicated(&self, master: usize) -> bool {
        let info = self.cli_at(master, &["INFO", "replication"]);
        let number = |before: &str| {
            let digits = info.split(before).nth(1)?;
            digits.split(|end: char| !end.is_ascii_digit()).next()?.parse::<u64>().ok()
        };
        let (written, acknowledged) = (number("master_repl_offset:"), number(",offset="));
        written.is_some() && acknowledged >= written
    }

    /// Waits until all running servers see a complete cluster, and replicas have their data.
    ///
    /// # Panics
    /// The wait takes too long.
    pub fn await_ok(&self) {
        let runs = |number: &usize| self.servers[*number].is_running();
        eventually("the cluster is complete", || {
            (0..self.servers.len()).filter(runs).all(|number| {
                let replication = self.cli_at(number, &["INFO", "replication"]);
                self.cli_at(number, &["CLUSTER", "INFO"]).contains("cluster_state:ok")
                    && !replication.contains("master_link_status:down")
            })
        });
    }

    /// Returns a server's identifier in the cluster.
    fn id(&self, number: usize) -> String {
        self.cli_at(number, &["CLUSTER", "MYID"]).trim().to_owned()
    }

    /// Executes a command at a server, and returns its answer.
    ///
    /// # Panics
    /// The server does not answer.
    #[must_use]
    pub fn cli_at(&self, number: usize, command: &[&str]) -> String {
        let port = self.servers[number].port().to_string();
        let arguments = [&["-h", "127.0.0.1", "-p", &port][..], command].concat();
        self.cli(&arguments)
    }

    fn cli(&self, arguments: &[&str]) -> String {
        let output = Command::new("redis-cli").args(arguments).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{arguments:?}: {text}");
        text
    }
}

fn address(server: &Redis) -> String {
    format!("127.0.0.1:{}", server.port())
}

/// Returns a free port whose cluster bus port is also free. Both are below the ports that the
/// system assigns to connections, and reserved within this process.
fn free_port() -> u16 {
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    let first = std::process::id().wrapping_mul(127);
    loop {
        let number = first.wrapping_add(GIVEN.fetch_add(1, Ordering::Relaxed)) % 12_000;
        let port = 10_000 + number as u16;
        let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
        if is_free(port) && is_free(port + 10_000) {
            return port;
        }
    }
}
