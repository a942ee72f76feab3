//! A run: shards, clients, backends and the control thread's commands, on one clock.

mod checks;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use throng_balance::shard_over_driver::BalanceCommand;
use throng_balance::{
    Backend, BackendReport, CloseOrder, Closing, Config, Configuration, DEFAULT_POOL, Metrics,
    Pool, Pools, State, Target,
};
use throng_io::ServerTls;
use throng_tls::{TlsConfig, TlsServer};

use super::node::{Most, Node, NodeOptions, backend_address, configuration, target};
use super::peers::{Client, Conn};
use super::plan::{BackendPlace, BalancePlan, ControlCommand, behaviour};
use super::wire::Wire;
use crate::net::{Bug, LinkId, Net, SharedNet, Side};
use crate::plan::SECOND;
use crate::rng::Rng;
use crate::secured::Configurations;

/// The result of a run.
#[derive(Clone, Debug, Default)]
pub struct BalanceOutcome {
    /// Broken rules.
    pub violations: Vec<String>,
    /// The hash of all that happened.
    pub trace: u64,
    /// The metrics of all shards at the end.
    pub metrics: Metrics,
    /// Turns of all shards.
    pub turns: u64,
    /// Virtual nanoseconds.
    pub took: u64,
}

/// A run of a plan.
pub struct World {
    pub(super) plan: BalancePlan,
    pub(super) net: SharedNet,
    pub(super) nodes: Vec<Node>,
    listeners: Vec<Option<usize>>,
    pub(super) clients: Vec<Client>,
    pub(super) conns: Vec<Conn>,
    /// All backends that were ever in a list.
    pub(super) backends: Vec<Arc<Backend>>,
    /// By backend_index, the backends that are in the list now.
    members: Vec<Option<Arc<Backend>>>,
    /// By backend_index, whether it is in the other pool.
    moved: Vec<bool>,
    weights: Vec<u32>,
    commands: Vec<(u64, ControlCommand)>,
    /// Backends whose tunnels a command must close.
    pub(super) closed: Vec<Arc<Backend>>,
    /// Commands to close tunnels, each as rate, burst, and whether it has a deadline.
    pub(super) orders: Vec<(u32, Option<u32>, bool)>,
    pub(super) shut_down_at: Option<u64>,
    _reports: Receiver<BackendReport>,
    pub(super) violations: Vec<String>,
    turns: u64,
    rng: Rng,
    /// The TLS configurations, if the run uses TLS, and the random numbers for them.
    tls: Option<(Configurations, Rng)>,
    /// The TLS of the listeners, where connections are passed through.
    passthrough: Option<Arc<TlsServer>>,
    /// The site of all hosts, if there is one.
    sites: Option<Config>,
}

/// Returns a configuration with a site of all hosts with these keys.
fn site(keys: &str) -> Config {
    let text =
        format!("backends = [\"127.0.0.1:9\"]\n[[site]]\nhosts = [\"*\"]\npaths = \"raw\"\n{keys}");
    Config::parse(&text, "plan.toml").expect("the plan writes valid keys")
}

impl World {
    /// A world in which nothing has happened yet.
    #[must_use]
    pub fn new(plan: BalancePlan) -> Self {
        let net = Net::shared();
        net.borrow_mut().log = std::env::var_os("THRONG_SIM_LOG").is_some();
        net.borrow().say(|| format!("{plan:#?}"));
        let mut rng = Rng::new(plan.seed ^ 0x0077_6f72_6c64);
        let listeners = listeners(&plan, &net);
        let weights: Vec<u32> = plan.backends.iter().map(|backend| backend.weight).collect();
        let new = |(at, weight): (usize, &u32)| {
            plan.backends[at].is_member.then(|| new_backend(&plan, at, *weight))
        };
        let members: Vec<_> = weights.iter().enumerate().map(new).collect();
        let (sender, reports) = channel();
        let tls = plan.secured.any().then(Configurations::new);
        net.borrow_mut().is_secured = tls.is_some();
        let mut world = Self {
            listeners,
            nodes: Vec::new(),
            clients: plan.clients.iter().map(|client| Client::new(client, rng.fork())).collect(),
            conns: Vec::new(),
            backends: members.iter().flatten().cloned().collect(),
            moved: plan.backends.iter().map(|it| it.place == BackendPlace::Fallback).collect(),
            members,
            weights,
            commands: plan.commands.clone(),
            closed: Vec::new(),
            orders: Vec::new(),
            shut_down_at: None,
            _reports: reports,
            violations: Vec::new(),
            turns: 0,
            tls: tls.map(|tls| (tls, Rng::new(plan.seed ^ 0x0074_6c73))),
            passthrough: None,
            sites: plan.site.as_deref().map(site),
            net,
            rng,
            plan,
        };
        world.passthrough = world.passthrough_server();
        let options = NodeOptions {
            net: &world.net,
            shards: world.plan.shards,
            first: 0,
            faults: &world.plan.faults,
            configuration: world.configuration(),
            reports: sender,
            descriptors_for: world.plan.most_connections,
            tls: world.listeners_tls(),
            seed: world.plan.seed,
        };
        world.nodes = options.start(&mut world.rng);
        world
    }

    /// Plants a bug that strikes after so many pieces.
    #[must_use]
    pub fn with_bug(self, bug: Bug, before: usize) -> Self {
        self.net.borrow_mut().bug = Some((bug, before));
        self
    }

    /// Returns a TLS server without a certificate, which passed-through connections do not need.
    fn passthrough_server(&self) -> Option<Arc<TlsServer>> {
        if !self.plan.passes_through() {
            return None;
        }
        let config = TlsConfig { passthrough: self.patterns(), ..TlsConfig::new(Vec::new()) };
        let server = TlsServer::load(config).expect("no file is read");
        server.accept_plain(true);
        Some(server)
    }

    /// Returns the configuration of the listeners, if they have TLS.
    fn listeners_tls(&self) -> Option<ServerTls> {
        let secured = self.tls.as_ref().filter(|_| self.plan.secured.front);
        let of_front = secured.map(|(tls, _)| &tls.listeners);
        self.passthrough.as_ref().or(of_front).map(|server| Arc::clone(server) as _)
    }

    /// Returns the server names whose connections are passed through to the backends in the list.
    fn patterns(&self) -> Vec<Box<str>> {
        let listed = self.plan.backends.iter().zip(&self.members);
        let listed = listed.filter(|(_, member)| member.is_some());
        listed.flat_map(|(plan, _)| plan.patterns.iter().map(|name| Box::from(*name))).collect()
    }

    fn configuration(&self) -> Arc<Configuration> {
        let tls = self.tls.as_ref().filter(|_| self.plan.secured.back);
        let back = tls.map(|(tls, _)| Arc::clone(&tls.connects));
        let listed = self.members.iter().zip(&self.plan.backends).zip(&self.moved);
        let targets = |in_other: bool| {
            let listed = listed.clone().filter(move |(_, moved)| **moved == in_other);
            listed.filter_map(|((member, plan), _)| {
                Some(Target {
                    send_proxy: plan.send_proxy,
                    tls: back.clone(),
                    passthrough: plan.patterns.iter().map(|name| Box::from(*name)).collect(),
                    ..target(member.as_ref()?)
                })
            })
        };
        let mut default = configuration(&self.plan.settings, targets(false).collect());
        if let Some(config) = &self.sites {
            default = Arc::new((*default).clone().with_sites(config));
        }
        if !self.moved.contains(&true) {
            return default;
        }
        let settings = self.plan.settings.pool();
        let pool = |name: &str, targets| Pool::new(name.into(), settings.clone(), targets);
        let other = pool("other", targets(true).collect());
        let pools = Pools::new(pool(DEFAULT_POOL, targets(false).collect()), vec![other]);
        Arc::new(Configuration { pools, ..(*default).clone() })
    }

    /// Executes everything that is due now, once. Returns false if nothing was due.
    pub(super) fn step(&mut self) -> bool {
        let now = self.now();
        let mut acted = false;
        // Drops sockets that a shard refused.
        self.net.borrow_mut().settle();
        while self.commands.first().is_some_and(|(at, _)| *at <= now) {
            let (_, command) = self.commands.remove(0);
            self.net.borrow().say(|| format!("tell {command:?}"));
            self.control_command(command);
            acted = true;
        }
        for at in 0..self.clients.len() {
            if self.clients[at].next_at().is_some_and(|at| at <= now) {
                acted = true;
                self.step_client(at, now);
            }
        }
        acted |= self.accept();
        for conn in &mut self.conns {
            if conn.next_at().is_some_and(|at| at <= now) {
                conn.step(now);
                acted = true;
            }
        }
        for at in 0..self.nodes.len() {
            acted |= self.turn(at);
        }
        acted
    }

    /// Returns the next time at which anything is due.
    pub(super) fn next_at(&self) -> Option<u64> {
        let commands = self.commands.first().map(|(at, _)| *at);
        let clients = self.clients.iter().filter_map(Client::next_at);
        let conns = self.conns.iter().filter_map(Conn::next_at);
        let listeners = self.listeners.iter().flatten();
        let incoming = listeners.filter_map(|listener| self.net.borrow().next_incoming(*listener));
        let nodes = self.nodes.iter().filter_map(Node::next_at);
        let all = commands.into_iter().chain(clients).chain(conns).chain(incoming).chain(nodes);
        all.filter(|at| *at < u64::MAX).min()
    }

    fn step_client(&mut self, at: usize, now: u64) {
        let client = &mut self.clients[at];
        if client.has_come() {
            client.step(now);
            if self.net.borrow().log {
                let state = client.describe();
                self.net.borrow().say(|| state);
            }
            return;
        }
        let plan = &client.plan;
        let door = self.nodes[plan.id as usize % self.nodes.len()].door;
        let from = SocketAddr::from(([127, 0, 0, plan.address], 20_000 + plan.id as u16));
        let link = self.net.borrow_mut().dial(door, from, plan.link);
        let wire = link.map(|link| {
            let fork = self.rng.fork();
            if let Some((tls, rng)) = self.tls.as_mut().filter(|_| self.plan.secured.front) {
                self.net.borrow_mut().secure(link, Side::Dialer, tls.client(rng));
            }
            Wire::new(&self.net, link, Side::Dialer, plan.behaviour, fork)
        });
        client.come(wire);
    }

    /// Lets backends accept their pending connections.
    fn accept(&mut self) -> bool {
        let mut acted = false;
        for backend_index in 0..self.listeners.len() {
            let Some(listener) = self.listeners[backend_index] else { continue };
            while let Some((socket, _)) = { self.net.borrow_mut().accept(listener) } {
                acted = true;
                let (link, side) = socket.into_link();
                self.serve(backend_index, link, side);
            }
        }
        acted
    }

    /// Begins to serve a connection that a backend has accepted.
    fn serve(&mut self, backend_index: usize, link: LinkId, side: Side) {
        let plan = &self.plan.backends[backend_index];
        let finely = self.plan.faults.is_fine();
        let behaviour = behaviour(&mut self.rng, finely);
        let (fork, service) = plan.service(&mut self.rng, finely);
        if let Some((tls, rng)) = self.tls.as_mut().filter(|_| self.plan.secured.back) {
            self.net.borrow_mut().secure(link, side, tls.server(rng));
        }
        let wire = Wire::new(&self.net, link, side, behaviour, fork);
        self.conns.push(Conn::new(backend_index, wire, plan.send_proxy, service));
    }

    fn turn(&mut self, at: usize) -> bool {
        // An earlier turn may have taken time.
        let now = self.now();
        let node = &mut self.nodes[at];
        if node.progress().is_none_or(|due| due > now) {
            return false;
        }
        self.turns += 1;
        node.turn();
        node.publish();
        for fault in node.faults_after_turn(self.plan.clients.len()) {
            self.violation(format!("shard {at}: {fault}"));
        }
        checks::caps_hold(self);
        true
    }

    fn post(&self, command: impl Fn() -> BalanceCommand) {
        self.nodes.iter().for_each(|node| node.post(command()));
    }

    fn close(&mut self, backend: &Arc<Backend>, closing: &Closing, most: Option<u32>) {
        self.closed.push(Arc::clone(backend));
        self.orders.push((closing.rate, most, closing.deadline.is_some()));
        let most = most.map(|most| Arc::new(AtomicU32::new(most)));
        self.post(|| BalanceCommand::CloseTunnels {
            backend: Arc::clone(backend),
            closing: closing.clone(),
            most: most.clone(),
        });
    }

    /// Carries out a command of the control thread.
    fn control_command(&mut self, command: ControlCommand) {
        match command {
            ControlCommand::Add(at) => {
                if self.members[at].is_none() {
                    let backend = new_backend(&self.plan, at, self.weights[at]);
                    self.backends.push(Arc::clone(&backend));
                    self.members[at] = Some(backend);
                    self.reconfigure();
                }
            }
            ControlCommand::Remove(at) => self.retire(at, State::Removed, None),
            ControlCommand::Down(at) => self.retire(at, State::Down, None),
            ControlCommand::Drain(at, window) => {
                self.retire(at, State::Draining, Some(Duration::from_nanos(window)));
            }
            ControlCommand::Weight(at, weight) => {
                self.weights[at] = weight;
                if let Some(backend) = &self.members[at] {
                    backend.set_weight(weight);
                    self.reconfigure();
                }
            }
            ControlCommand::Close { backend_index, code, rate, order, most, deadline } => {
                if let Some(backend) = self.members[backend_index].clone() {
                    let deadline = deadline.map(Duration::from_nanos);
                    let later = most.is_none();
                    let closing = Closing { code, rate, order, deadline, later };
                    self.close(&backend, &closing, most);
                }
            }
            ControlCommand::Keep(at) => {
                if let Some(backend) = &self.members[at] {
                    self.post(|| BalanceCommand::KeepTunnels(Arc::clone(backend)));
                }
            }
            ControlCommand::Move(at) => {
                let others = (0..self.moved.len()).filter(|other| *other != at);
                let stays = others.into_iter().any(|other| {
                    !self.moved[other] && self.plan.backends[other].patterns.is_empty()
                });
                if stays && self.plan.backends[at].patterns.is_empty() {
                    self.moved[at] ^= true;
                    self.reconfigure();
                }
            }
            ControlCommand::ShutDown { window, deadline } => {
                self.shut_down_at.get_or_insert(self.now());
                let (window, deadline) =
                    (Duration::from_nanos(window), Duration::from_nanos(deadline));
                self.post(|| BalanceCommand::ShutDown { window, deadline, hand_over: false });
            }
        }
    }

    /// Takes a backend out of use, except the last one in a calm run. Closes its tunnels unless the
    /// backend is only removed.
    fn retire(&mut self, at: usize, state: State, deadline: Option<Duration>) {
        let others = self.members.iter().flatten();
        let is_last = others.filter(|it| it.state() == State::Up).count() < 2;
        let Some(backend) = self.members[at].clone().filter(|_| !self.plan.calm || !is_last) else {
            return;
        };
        backend.set_state(state);
        if state == State::Removed {
            self.members[at] = None;
            return self.reconfigure();
        }
        let rate = self.plan.settings.close_rate;
        let (order, later) = (CloseOrder::Shuffled, state == State::Draining);
        let closing = Closing { code: 1012, rate, order, deadline, later };
        self.close(&backend, &closing, None);
    }

    /// Sends the present list to the shards, and then to the TLS server.
    fn reconfigure(&self) {
        let configuration = self.configuration();
        self.post(|| BalanceCommand::Configure(Arc::clone(&configuration)));
        if let Some(server) = &self.passthrough {
            server.pass_through(&self.patterns());
        }
    }

    /// Runs to the end, and checks everything.
    #[must_use]
    pub fn run(mut self) -> BalanceOutcome {
        let time_limit = self.plan.time_limit() + 40_000 * SECOND * u64::from(self.plan.calm);
        let all_gone = self.run_until(time_limit, |world| {
            world.commands.is_empty() && world.clients.iter().all(Client::is_gone)
        });
        if !all_gone {
            let left = self.clients.iter().filter(|client| !client.is_gone());
            let left: Vec<_> = left.map(Client::describe).collect();
            self.violation(format!("clients never end: {left:?}"));
        }
        // Runs until time has ended everything that remains, such as what clients left behind.
        self.run_until(self.plan.time_limit(), |_| false);
        checks::nothing_is_held(&mut self);
        self.control_command(ControlCommand::ShutDown { window: 0, deadline: 2 * SECOND });
        let time_limit = 30 * SECOND;
        if !self.run_until(time_limit, |world| world.nodes.iter().all(|node| node.has_ended)) {
            self.violation("a shard does not end".to_owned());
        }
        self.run_until(time_limit, |_| false);
        checks::nothing_is_held(&mut self);
        checks::at_the_end(&mut self);
        let failures = self.net.borrow().failures().to_vec();
        failures.into_iter().for_each(|failure| self.violation(failure));
        let metrics = self.metrics();
        let net = self.net.borrow();
        BalanceOutcome {
            violations: self.violations.clone(),
            trace: net.trace.value(),
            metrics,
            turns: self.turns,
            took: net.now(),
        }
    }

    /// Returns the last published metrics of all shards.
    pub(super) fn metrics(&self) -> Metrics {
        let mut metrics = Metrics::default();
        self.nodes.iter().for_each(|node| metrics += node.metrics());
        metrics
    }

    /// Returns the maximum that any shard has held.
    pub(super) fn most(&self) -> Most {
        self.nodes.iter().fold(Most::default(), |most, node| most.max(node.most))
    }
}

fn new_backend(plan: &BalancePlan, at: usize, weight: u32) -> Arc<Backend> {
    let backend = Backend::new(backend_address(at), weight);
    backend.set_max_connections(plan.backends[at].max_connections);
    backend.set_backup(plan.backends[at].place == BackendPlace::Backup);
    Arc::new(backend)
}

/// Opens the sockets of backends that are running.
fn listeners(plan: &BalancePlan, net: &SharedNet) -> Vec<Option<usize>> {
    let mut net = net.borrow_mut();
    let mut listeners = Vec::new();
    for (at, backend) in plan.backends.iter().enumerate() {
        if backend.is_silent {
            net.silence(backend_address(at));
        }
        let is_there = !backend.is_dead && !backend.is_silent;
        listeners.push(is_there.then(|| net.listen_with(backend_address(at), backend.link)));
    }
    listeners
}
