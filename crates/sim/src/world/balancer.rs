//! A balancer between the peers and the server: peers dial its real shards, which dial the
//! server's.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use throng_balance::{Backend, BackendReport, Target};
use throng_io::ConnId;

use crate::balance::node::{Most, Node, NodeOptions, configuration, still_counted, target};
use crate::net::SharedNet;
use crate::plan::{BalancerPlan, SimPlan};
use crate::rng::Rng;
use crate::secured::{Configurations, Hops};

/// The first shard number of the balancer in connection ids, which distinguishes its shards from
/// the server's.
const FIRST_SHARD: u16 = 100;

/// Returns whether a connection belongs to the balancer instead of the server.
pub(super) fn is_own(id: ConnId) -> bool {
    id.shard() >= usize::from(FIRST_SHARD)
}

/// The balancer of a run.
pub(super) struct Balancer {
    plan: BalancerPlan,
    secured: Hops,
    /// The number of peers.
    peers: usize,
    nodes: Vec<Node>,
    /// The addresses that peers dial.
    pub(super) listeners: Vec<usize>,
    backends: Vec<Arc<Backend>>,
    reports: Receiver<BackendReport>,
    turns: u64,
}

impl Balancer {
    /// Creates the balancer of a plan for a server that listens at `servers`.
    pub(super) fn new(
        of: &SimPlan,
        net: &SharedNet,
        servers: &[SocketAddr],
        tls: Option<&Configurations>,
        rng: &mut Rng,
    ) -> Self {
        let plan = of.balancer.clone().expect("a plan with a balancer");
        let front = tls.filter(|_| of.secured.front).map(|tls| Arc::clone(&tls.listeners) as _);
        let back = tls.filter(|_| of.secured.back).map(|tls| Arc::clone(&tls.connects));
        let backends: Vec<_> =
            servers.iter().map(|address| Arc::new(Backend::new(*address, 1))).collect();
        let targets = backends.iter().map(|it| Target { tls: back.clone(), ..target(it) });
        let (sender, reports) = channel();
        let options = NodeOptions {
            net,
            shards: plan.shards,
            first: FIRST_SHARD,
            faults: &plan.faults,
            configuration: configuration(&plan.settings, targets.collect()),
            reports: sender,
            descriptors_for: 1000,
            tls: front,
            seed: of.seed,
        };
        let nodes = options.start(rng);
        let listeners = nodes.iter().map(|node| node.door).collect();
        let (secured, peers) = (of.secured, of.parts.len());
        Self { plan, secured, peers, nodes, listeners, backends, reports, turns: 0 }
    }

    /// Returns when each shard is due: now, or at a later time.
    pub(super) fn due(&mut self) -> Vec<(usize, u64)> {
        let nodes = self.nodes.iter_mut().enumerate();
        nodes.filter_map(|(index, node)| Some((index, node.progress()?))).collect()
    }

    /// Runs a turn of one shard. Returns the broken rules after every fourth turn.
    pub(super) fn turn(&mut self, index: usize) -> Vec<String> {
        let node = &mut self.nodes[index];
        node.turn();
        node.publish();
        self.turns += 1;
        if !self.turns.is_multiple_of(4) {
            return Vec::new();
        }
        let mut faults = node.faults_after_turn(self.peers);
        // The server is always up, so no client's action may count as the server's failure.
        for BackendReport::Failed { backend, failure, .. } in self.reports.try_iter() {
            if failure.is_of_connection() {
                faults.push(format!("{} is there, and failed: {failure}", backend.address()));
            }
        }
        faults.iter().map(|fault| format!("balancer's shard {index}: {fault}")).collect()
    }

    /// Returns the number of connections of all shards.
    pub(super) fn connections(&self) -> usize {
        self.nodes.iter().map(Node::connections).sum()
    }

    /// Returns the tunnels that were opened.
    pub(super) fn tunnels_opened(&self) -> u64 {
        self.nodes.iter().map(|node| node.metrics().tunnels_opened).sum()
    }

    /// Checks the conditions that hold when all peers and the servers have left.
    pub(super) fn at_the_end(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for (index, node) in self.nodes.iter().enumerate() {
            let upstreams = node.audit().upstreams;
            let left = (upstreams > 0).then(|| format!("has {upstreams} connections to servers"));
            let held = node.still_held().into_iter().chain(left);
            faults.extend(held.map(|what| format!("balancer's shard {index} {what}")));
        }
        faults.extend(still_counted(&self.backends));
        let BalancerPlan { faults: of_network, settings, .. } = &self.plan;
        let read = self.secured.most_received(of_network.receive_buffer);
        let most = self.nodes.iter().fold(Most::default(), |most, node| most.max(node.most));
        faults.extend(most.above_bounds(read, settings.max_header_bytes));
        faults
    }
}
