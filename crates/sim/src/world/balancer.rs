//! A balancer between the peers and the server: real shards of it, which peers dial, and which dial
//! the server's.

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};

use throng_balance::shard_over_driver::{Command, Holdings, Shard, Start};
use throng_balance::{Backend, Configuration, Metrics, Report, Target};
use throng_engine::mailbox::{Mailbox, mailbox};
use throng_io::{ConnId, Driver};
use throng_tls::Tls;

use crate::balance::held_too_much;
use crate::driver::{SimDriver, Waiting};
use crate::net::SharedNet;
use crate::plan::{BalancerPlan, Plan};
use crate::rng::Rng;
use crate::secured::{Configurations, Hops, is_ready};

/// Numbers of its shards in identifiers of connections begin here, apart from the server's.
const FIRST_SHARD: u16 = 100;

/// Returns whether a connection is the balancer's, and not the server's.
pub(super) fn is_own(id: ConnId) -> bool {
    id.shard() >= usize::from(FIRST_SHARD)
}

/// The balancer of a run.
pub(super) struct Balancer {
    plan: BalancerPlan,
    secured: Hops,
    nodes: Vec<Node>,
    /// Where peers dial.
    pub(super) listeners: Vec<usize>,
    backends: Vec<Arc<Backend>>,
    reports: Receiver<Report>,
    /// The most that any connection held, of each kind, and in a send in flight.
    most: Holdings,
    most_in_flight: usize,
    turns: u64,
}

struct Node {
    shard: Shard<Tls<SimDriver>>,
    published: Arc<Mutex<Metrics>>,
    _mailbox: Mailbox<Command>,
}

impl Balancer {
    /// Creates the balancer of a plan for a server that listens at `servers`.
    pub(super) fn new(
        of: &Plan,
        net: &SharedNet,
        servers: &[SocketAddr],
        tls: Option<&Configurations>,
        rng: &mut Rng,
    ) -> Self {
        let seed = of.seed;
        let plan = of.balancer.clone().expect("a plan with a balancer");
        let front = tls.filter(|_| of.secured.front).map(|tls| Arc::clone(&tls.listeners) as _);
        let back = tls.filter(|_| of.secured.back).map(|tls| Arc::clone(&tls.connects));
        let backends: Vec<_> =
            servers.iter().map(|address| Arc::new(Backend::new(*address, 1))).collect();
        let target = |backend: &Arc<Backend>| Target {
            backend: Arc::clone(backend),
            send_proxy: false,
            tls: back.clone(),
            passthrough: Arc::default(),
        };
        let configuration = Arc::new(Configuration {
            settings: plan.settings.clone(),
            backends: backends.iter().map(target).collect(),
            ..Configuration::default()
        });
        let (sender, reports) = channel();
        let admission = Arc::default();
        let mut listeners = Vec::new();
        let nodes = (0..plan.shards).map(|number| {
            let shard = FIRST_SHARD + number as u16;
            let mut driver =
                SimDriver::new(net, shard, plan.faults.clone(), rng.fork(), Waiting::Tolerant);
            let address = SocketAddr::from(([127, 0, 0, 1], 80 + number as u16));
            let listener = net.borrow_mut().listen(address);
            driver.add_listener(listener);
            listeners.push(listener);
            let (mailbox, commands) = mailbox(1 << 10, driver.waker());
            let published = Arc::new(Mutex::new(Metrics::default()));
            let start = Start {
                configuration: Arc::clone(&configuration),
                commands,
                reports: sender.clone(),
                published: Arc::clone(&published),
                shard: number as u32,
                shards: plan.shards as u32,
                descriptors_for: 1000,
                admission: Arc::clone(&admission),
                tls: vec![front.clone()],
                seed: seed + number as u64,
                access: None,
            };
            Node { shard: Shard::new(Tls::new(driver), start), published, _mailbox: mailbox }
        });
        let nodes = nodes.collect();
        let most = Holdings::default();
        let secured = of.secured;
        Self {
            plan,
            secured,
            nodes,
            listeners,
            backends,
            reports,
            most,
            most_in_flight: 0,
            turns: 0,
        }
    }

    /// Returns when each shard has something to do: at `now`, or later.
    pub(super) fn due(&mut self, now: u64) -> Vec<(usize, u64)> {
        let mut due = Vec::new();
        for (index, node) in self.nodes.iter_mut().enumerate() {
            node.shard.driver_mut().inner().progress();
            let deadline = node.shard.next_deadline().map(|deadline| deadline.0);
            let driver = node.shard.driver();
            let at = match is_ready(driver) {
                true => Some(now),
                false => [deadline, driver.driver().next_event_at()].into_iter().flatten().min(),
            };
            due.extend(at.map(|at| (index, at)));
        }
        due
    }

    /// Runs a turn of one shard. Returns the rules that are broken after every fourth.
    pub(super) fn turn(&mut self, index: usize) -> Vec<String> {
        let node = &mut self.nodes[index];
        node.shard.turn().expect("a simulated wait does not fail");
        node.shard.publish();
        self.turns += 1;
        if !self.turns.is_multiple_of(4) {
            return Vec::new();
        }
        let audit = node.shard.audit();
        let driver = node.shard.driver().driver();
        self.most = self.most.max(audit.most);
        self.most_in_flight = self.most_in_flight.max(driver.most_in_flight());
        let mut faults = Vec::new();
        if let Some((id, what)) = audit.broken {
            faults.push(format!("{id:?}: {what}"));
        }
        if audit.actions > 0 {
            faults.push(format!("{} actions were left", audit.actions));
        }
        if driver.calls.idle_turns_in_a_row > 100 {
            faults.push("it spins".to_owned());
        }
        // The server is always there: whatever clients do, none of it is held against it.
        for Report::Failed { backend, failure, .. } in self.reports.try_iter() {
            if failure.is_of_connection() {
                faults.push(format!("{} is there, and failed: {failure}", backend.address()));
            }
        }
        faults.iter().map(|fault| format!("balancer's shard {index}: {fault}")).collect()
    }

    /// Returns the number of connections of all shards.
    pub(super) fn connections(&self) -> usize {
        self.nodes.iter().map(|node| node.shard.driver().driver().connections()).sum()
    }

    /// Returns the tunnels that were opened.
    pub(super) fn tunnels_opened(&self) -> u64 {
        let of = |node: &Node| node.published.lock().expect("no thread panics").tunnels_opened;
        self.nodes.iter().map(of).sum()
    }

    /// Checks what must hold when everybody has gone.
    pub(super) fn at_the_end(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for (index, node) in self.nodes.iter().enumerate() {
            let audit = node.shard.audit();
            let left = audit.clients + audit.upstreams + audit.sides + audit.queued + audit.waiting;
            if left + audit.new_clients > 0 {
                faults.push(format!("balancer's shard {index} still holds {audit:?}"));
            }
            let metrics = *node.published.lock().expect("no thread panics");
            if metrics.connections + metrics.tunnels + metrics.queued > 0 {
                faults.push(format!("balancer's shard {index} still counts {metrics:?}"));
            }
        }
        for backend in &self.backends {
            let counts = (backend.tunnels(), backend.requests(), backend.handshakes());
            if counts != (0, 0, 0) {
                faults.push(format!("{} still counts {counts:?}", backend.address()));
            }
        }
        let BalancerPlan { faults: of_network, settings, .. } = &self.plan;
        let read = self.secured.most_received(of_network.receive_buffer);
        let head = settings.max_header_bytes;
        faults.extend(held_too_much(self.most, self.most_in_flight, read, head));
        faults
    }
}
