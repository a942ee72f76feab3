//! One shard of the balancer in a simulation: when its next turn is due, and the conditions that
//! must hold after a turn, when it is idle, and at the end.

use std::net::SocketAddr;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};

use throng_balance::shard_over_driver::{Audit, BalanceCommand, BalanceStart, Holdings, Shard};
use throng_balance::{Backend, BackendReport, Configuration, Listeners, Metrics, Settings, Target};
use throng_engine::mailbox::{Mailbox, mailbox};
use throng_http::LiveDate;
use throng_io::{Driver, ServerTls};
use throng_tls::Tls;

use crate::driver::{SimDriver, Waiting};
use crate::faults::Faults;
use crate::net::SharedNet;
use crate::rng::Rng;
use crate::secured::is_ready;

/// The shards of a simulated balancer before they run.
pub(crate) struct NodeOptions<'a> {
    pub(crate) net: &'a SharedNet,
    pub(crate) shards: usize,
    /// The number of the first one in identifiers of connections.
    pub(crate) first: u16,
    pub(crate) faults: &'a Faults,
    pub(crate) configuration: Arc<Configuration>,
    pub(crate) reports: Sender<BackendReport>,
    /// Maximum client connections allowed by the descriptor limit.
    pub(crate) descriptors_for: usize,
    /// TLS of the listeners.
    pub(crate) tls: Option<ServerTls>,
    pub(crate) seed: u64,
}

impl NodeOptions<'_> {
    /// Starts the shards, each with a listener of its own.
    pub(crate) fn start(&self, rng: &mut Rng) -> Vec<Node> {
        // One count of clients, as in production.
        let admission = Arc::default();
        let node = |number| {
            let id = self.first + number as u16;
            let faults = self.faults.clone();
            let mut driver = SimDriver::new(self.net, id, faults, rng.fork(), Waiting::Tolerant);
            let door = self.net.borrow_mut().listen(local(80 + number as u16));
            driver.add_listener(door);
            let (mailbox, commands) = mailbox(1 << 16, driver.waker());
            let published = Arc::new(Mutex::new(Metrics::default()));
            let start = BalanceStart {
                configuration: Arc::clone(&self.configuration),
                commands,
                reports: self.reports.clone(),
                published: Arc::clone(&published),
                shard: number as u32,
                shards: self.shards as u32,
                descriptors_for: self.descriptors_for,
                admission: Arc::clone(&admission),
                tls: vec![self.tls.clone()],
                listeners: Listeners::default(),
                seed: self.seed + number as u64,
                access: None,
                date: LiveDate::beginning_at(0),
            };
            Node {
                net: SharedNet::clone(self.net),
                shard: Shard::new(Tls::new(driver), start),
                mailbox,
                published,
                door,
                has_ended: false,
                most: Most::default(),
                begun: Vec::new(),
                begun_before: 0,
                refused_before: 0,
            }
        };
        (0..self.shards).map(node).collect()
    }
}

/// A real shard of the balancer on a simulated driver.
pub(crate) struct Node {
    net: SharedNet,
    shard: Shard<Tls<SimDriver>>,
    mailbox: Mailbox<BalanceCommand>,
    published: Arc<Mutex<Metrics>>,
    /// The listener that clients dial.
    pub(crate) door: usize,
    pub(crate) has_ended: bool,
    pub(crate) most: Most,
    /// The times at which the balancer began to end tunnels, and their numbers.
    pub(crate) begun: Vec<(u64, u64)>,
    begun_before: u64,
    refused_before: u64,
}

impl Node {
    /// Returns its shard, to move tunnels.
    pub(crate) fn shard(&mut self) -> &mut Shard<Tls<SimDriver>> {
        &mut self.shard
    }

    /// Posts a command of the control thread.
    pub(crate) fn post(&self, command: BalanceCommand) {
        self.mailbox.send_always(command);
    }

    /// Does the kernel's work. Returns when the next turn is due, as [`Node::next_at`] does.
    pub(crate) fn progress(&mut self) -> Option<u64> {
        self.shard.driver_mut().inner().progress();
        self.next_at()
    }

    /// Returns when the next turn is due, as far as is known now.
    pub(crate) fn next_at(&self) -> Option<u64> {
        let driver = self.shard.driver();
        if self.has_ended {
            return None;
        }
        if is_ready(driver) {
            return Some(self.net.borrow().now());
        }
        let deadline = self.shard.next_deadline().map(|deadline| deadline.0);
        deadline.into_iter().chain(driver.driver().next_event_at()).min()
    }

    /// Runs a turn.
    pub(crate) fn turn(&mut self) {
        self.has_ended = !self.shard.turn().expect("a simulated wait does not fail");
    }

    /// Publishes its metrics, and returns them.
    pub(crate) fn publish(&mut self) -> Metrics {
        self.shard.publish();
        self.metrics()
    }

    /// Returns the last published metrics of the shard.
    pub(crate) fn metrics(&self) -> Metrics {
        *self.published.lock().expect("no holder of the lock panics")
    }

    /// Returns its contents.
    pub(crate) fn audit(&self) -> Audit {
        self.shard.audit()
    }

    /// Returns the number of connections of its driver.
    pub(crate) fn connections(&self) -> usize {
        self.shard.driver().driver().connections()
    }

    /// Returns the rules broken after a turn with this many clients. Records the maximum memory
    /// and, from the published metrics, the tunnels that began to end.
    pub(crate) fn faults_after_turn(&mut self, clients: usize) -> Vec<String> {
        let audit = self.audit();
        self.most = self.most.max(Most::of(self.shard.driver(), &audit));
        let begun = self.metrics().closed + audit.closing as u64;
        if begun > self.begun_before {
            self.begun.push((self.net.borrow().now(), begun - self.begun_before));
        }
        self.begun_before = begun;
        let mut faults = Vec::new();
        if audit.spare > 65 * (16 << 10) {
            faults.push(format!("keeps {} bytes for later", audit.spare));
        }
        if audit.waiting.max(audit.orphans).max(audit.listed) > clients {
            faults.push(format!("lists more than {clients} clients: {audit:?}"));
        }
        if audit.refused > self.refused_before && audit.could_make_room {
            faults.push("refuses a client while another waits for nothing or is gone".to_owned());
        }
        self.refused_before = audit.refused;
        if let Some((id, what)) = audit.broken {
            faults.push(format!("{id:?}: {what}"));
        }
        if audit.actions > 0 {
            faults.push(format!("{} actions were left", audit.actions));
        }
        if self.shard.driver().driver().calls.idle_turns_in_a_row > 100 {
            faults.push("spins".to_owned());
        }
        faults
    }

    /// Returns the state that the shard still holds when no client is left.
    pub(crate) fn still_held(&self) -> Vec<String> {
        let (audit, metrics, connections) = (self.audit(), self.metrics(), self.connections());
        let mut held = Vec::new();
        let left = audit.clients
            + audit.sides
            + audit.queued
            + audit.waiting
            + audit.closing
            + audit.listed
            + audit.beyond_limits
            + audit.addresses;
        if left > 0 || audit.upstreams != audit.idle {
            held.push(format!("still holds {audit:?}"));
        }
        if metrics.connections + metrics.tunnels + metrics.queued > 0 {
            held.push(format!("still counts {metrics:?}"));
        }
        // An ended shard leaves idle connections, and ends that were not reported, to its driver's
        // end.
        if self.has_ended {
            return held;
        }
        if connections != audit.upstreams {
            held.push(format!("has {connections} connections in its driver"));
        }
        let tls = self.shard.driver();
        let of_tls = tls.secured() + tls.input_holders().len() + usize::from(tls.is_busy());
        if of_tls > audit.upstreams {
            held.push(format!("has {of_tls} connections in its TLS driver"));
        }
        held
    }
}

/// Maximum bytes that were held at the same time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Most {
    /// For any connection, of each kind.
    connection: Holdings,
    /// In a send in flight.
    in_flight: usize,
    /// Bytes for incomplete TLS input.
    pub(crate) tls_input: usize,
}

impl Most {
    fn of(driver: &Tls<SimDriver>, audit: &Audit) -> Self {
        let holders = driver.input_holders().into_iter();
        Self {
            connection: audit.most,
            in_flight: driver.driver().most_in_flight(),
            tls_input: holders.map(|id| driver.output_memory(id)).max().unwrap_or(0),
        }
    }

    /// Returns the larger of each kind.
    pub(crate) fn max(self, other: Self) -> Self {
        Self {
            connection: self.connection.max(other.connection),
            in_flight: self.in_flight.max(other.in_flight),
            tls_input: self.tls_input.max(other.tls_input),
        }
    }

    /// Returns the exceeded bounds for reads of `read` bytes and heads of up to `head` bytes. For
    /// any peer a connection holds, of each kind, at most one read above the mark at which reading
    /// stops.
    pub(crate) fn above_bounds(self, read: usize, head: usize) -> Vec<String> {
        const HIGH_WATER: usize = 64 << 10;
        // Pieces of input may leave as chunks, and each chunk needs a few more bytes.
        let passed_on = HIGH_WATER + head + 2 * read;
        let Holdings { client_input, client_head, replay, client_output, backend_output, tunnel } =
            self.connection;
        let table = [
            // The buffer last grew when its used part was at most as long as the rest.
            ("of a client's input", client_input, 2 * HIGH_WATER + read),
            ("of a client's head", client_head, head),
            ("for another try", replay, passed_on),
            ("for a client", client_output, passed_on),
            ("for a backend", backend_output, passed_on),
            ("behind a tunnel's send", tunnel, passed_on),
            ("in a send", self.in_flight, passed_on),
        ];
        let above = table.into_iter().filter(|(_, held, bound)| held > bound);
        above
            .map(|(what, held, bound)| format!("{held} bytes were held {what}, above {bound}"))
            .collect()
    }
}

/// Returns the counts of backends that remain without clients.
pub(crate) fn still_counted(backends: &[Arc<Backend>]) -> Vec<String> {
    let counts = |backend: &Backend| (backend.tunnels(), backend.requests(), backend.handshakes());
    let wrong = backends.iter().filter(|backend| counts(backend) != (0, 0, 0));
    wrong.map(|it| format!("{} still counts {:?}", it.address(), counts(it))).collect()
}

/// A configuration of these settings and backends.
pub(crate) fn configuration(settings: &Settings, backends: Vec<Target>) -> Arc<Configuration> {
    // A fixed id, unlike the random id of a process, so that a run is repeatable.
    let loop_id = Arc::from("simulated");
    Arc::new(Configuration { loop_id, ..Configuration::new(settings.clone(), backends) })
}

/// A backend that serves requests without TLS.
pub(crate) fn target(backend: &Arc<Backend>) -> Target {
    Target {
        backend: Arc::clone(backend),
        send_proxy: false,
        tls: None,
        passthrough: Arc::default(),
        name: None,
    }
}

/// Returns the address of the backend with this index.
pub(super) fn backend_address(backend_index: usize) -> SocketAddr {
    local(9000 + backend_index as u16)
}

/// The address of a port of the balancer or of a backend.
pub(crate) fn local(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}
