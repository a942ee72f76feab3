//! A run: shards, clients, backends and the control thread's commands, on one clock.

use std::net::SocketAddr;
use std::sync::atomic::AtomicU32;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use throng_balance::shard_over_driver::{Audit, Command, Holdings, Shard, Start};
use throng_balance::{Backend, Closing, Configuration, Metrics, Report, State, Target};
use throng_engine::mailbox::{Mailbox, mailbox};
use throng_io::{Driver, Instant, ServerTls};
use throng_tls::Tls;

use super::backend::Conn;
use super::checks;
use super::client::Client;
use super::plan::{self, ControlCommand, Plan};
use super::run::Run;
use super::wire::Wire;
use crate::driver::{SimDriver, Waiting};
use crate::net::{Net, SharedNet, Side};
use crate::plan::SECOND;
use crate::rng::Rng;
use crate::secured::{Configurations, is_ready};

/// The result of a run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Rules that were broken.
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

/// A real shard.
pub(super) struct Node {
    shard: Shard<Tls<SimDriver>>,
    mailbox: Mailbox<Command>,
    published: Arc<Mutex<Metrics>>,
    pub(super) ended: bool,
    /// Tunnels that it began to end, when and how many at once.
    pub(super) begun: Vec<(u64, u64)>,
    begun_before: u64,
}

/// The state of a shard.
pub(super) struct Look {
    pub(super) audit: Audit,
    /// Connections of its driver.
    pub(super) connections: usize,
    pub(super) metrics: Metrics,
    pub(super) ended: bool,
}

/// A run of a plan.
pub struct World {
    pub(super) plan: Plan,
    pub(super) net: SharedNet,
    pub(super) nodes: Vec<Node>,
    listeners: Vec<Option<usize>>,
    doors: Vec<usize>,
    pub(super) clients: Vec<Client>,
    pub(super) conns: Vec<Conn>,
    /// Every backend that ever was in a list.
    pub(super) backends: Vec<Arc<Backend>>,
    /// By backend_index, the backends that are in the list now.
    members: Vec<Option<Arc<Backend>>>,
    weights: Vec<u32>,
    commands: Vec<(u64, ControlCommand)>,
    /// Orders to close tunnels, as (rate, most, whether it has a deadline).
    pub(super) orders: Vec<(u32, Option<u32>, bool)>,
    pub(super) shut_down_at: Option<u64>,
    _reports: Receiver<Report>,
    violations: Vec<String>,
    /// The most that any connection held, of each kind...
    pub(super) most: Holdings,
    /// ...and of bytes in a send in flight.
    pub(super) most_in_flight: usize,
    turns: u64,
    rng: Rng,
    /// TLS, where there is any, and what it draws.
    tls: Option<(Configurations, Rng)>,
}

fn address(last: u8, port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, last], port))
}

fn backend_address(backend_index: usize) -> SocketAddr {
    address(1, 9000 + backend_index as u16)
}

impl Run for World {
    fn net(&self) -> &SharedNet {
        &self.net
    }

    fn violations(&mut self) -> &mut Vec<String> {
        &mut self.violations
    }

    fn step(&mut self) -> bool {
        let now = self.now();
        let mut acted = false;
        // Sockets that a shard turned away.
        self.net.borrow_mut().settle();
        while self.commands.first().is_some_and(|(at, _)| *at <= now) {
            let (_, tell) = self.commands.remove(0);
            self.net.borrow().say(|| format!("tell {tell:?}"));
            self.control_command(tell);
            acted = true;
        }
        for at in 0..self.clients.len() {
            if self.clients[at].next_at().is_none_or(|at| at > now) {
                continue;
            }
            acted = true;
            if self.clients[at].came {
                self.clients[at].step(now);
                if self.net.borrow().log {
                    let stand = self.clients[at].describe();
                    self.net.borrow().say(|| stand);
                }
                continue;
            }
            self.clients[at].came = true;
            let client = &self.clients[at].plan;
            let door = self.doors[client.id as usize % self.doors.len()];
            let from = address(client.address, 20_000 + client.id as u16);
            let link = self.net.borrow_mut().dial(door, from, client.link);
            if let Some(link) = link {
                let behaviour = client.behaviour;
                let fork = self.rng.fork();
                if let Some((tls, rng)) = self.tls.as_mut().filter(|_| self.plan.secured.front) {
                    self.net.borrow_mut().secure(link, Side::Dialer, tls.client(rng));
                }
                let wire = Wire::new(&self.net, link, Side::Dialer, behaviour, fork);
                self.clients[at].begin(wire);
            }
        }
        for (backend_index, listener) in self.listeners.iter().enumerate() {
            let Some(listener) = *listener else { continue };
            while let Some((socket, _)) = { self.net.borrow_mut().accept(listener) } {
                acted = true;
                let (link, side) = socket.into_link();
                let plan = &self.plan.backends[backend_index];
                let finely = self.plan.faults.receive_buffer < 1000
                    || (1..1000).contains(&self.plan.faults.cut_receives);
                let behaviour = plan::behaviour(&mut self.rng, finely);
                let behaviours = (self.rng.pick(&plan.behaviours), self.rng.pick(&plan.leavings));
                let (fork, own) = (self.rng.fork(), self.rng.fork());
                if let Some((tls, rng)) = self.tls.as_mut().filter(|_| self.plan.secured.back) {
                    self.net.borrow_mut().secure(link, side, tls.server(rng));
                }
                let wire = Wire::new(&self.net, link, side, behaviour, fork);
                let largest = if finely { 300 } else { 20_000 };
                self.conns.push(Conn::new(
                    backend_index,
                    wire,
                    behaviours,
                    plan.send_proxy,
                    largest,
                    own,
                ));
            }
        }
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

    fn next_at(&self) -> Option<u64> {
        let mut next = self.commands.first().map(|(at, _)| *at);
        let mut note = |at: Option<u64>| {
            if let Some(at) = at.filter(|at| *at < u64::MAX) {
                next = Some(next.map_or(at, |known: u64| known.min(at)));
            }
        };
        self.clients.iter().for_each(|client| note(client.next_at()));
        self.conns.iter().for_each(|conn| note(conn.next_at()));
        for listener in self.listeners.iter().flatten() {
            note(self.net.borrow().next_incoming(*listener));
        }
        for node in self.nodes.iter().filter(|node| !node.ended) {
            note(node.shard.driver().driver().next_event_at());
            note(node.shard.next_deadline().map(|at| at.0));
        }
        next
    }
}

impl World {
    /// A world in which nothing has happened yet.
    #[must_use]
    pub fn new(plan: Plan) -> Self {
        let net = Net::shared();
        net.borrow_mut().log = std::env::var_os("THRONG_SIM_LOG").is_some();
        let mut rng = Rng::new(plan.seed ^ 0x0077_6f72_6c64);
        let mut listeners = Vec::new();
        for (at, backend_plan) in plan.backends.iter().enumerate() {
            if backend_plan.is_silent {
                net.borrow_mut().silence(backend_address(at));
            }
            let is_there = !backend_plan.is_dead && !backend_plan.is_silent;
            listeners.push(
                is_there
                    .then(|| net.borrow_mut().listen_with(backend_address(at), backend_plan.link)),
            );
        }
        let weights: Vec<u32> =
            plan.backends.iter().map(|backend_plan| backend_plan.weight).collect();
        let members: Vec<_> = plan
            .backends
            .iter()
            .enumerate()
            .map(|(at, backend_plan)| {
                let backend = || Arc::new(Backend::new(backend_address(at), backend_plan.weight));
                backend_plan.is_member.then(backend)
            })
            .collect();
        let (sender, reports) = channel();
        let tls = plan.secured.any().then(Configurations::new);
        net.borrow_mut().is_secured = tls.is_some();
        let mut world = Self {
            listeners,
            doors: Vec::new(),
            nodes: Vec::new(),
            clients: plan
                .clients
                .iter()
                .map(|client| Client::new(client.clone(), rng.fork()))
                .collect(),
            conns: Vec::new(),
            backends: members.iter().flatten().cloned().collect(),
            members,
            weights,
            commands: plan.commands.clone(),
            orders: Vec::new(),
            shut_down_at: None,
            _reports: reports,
            violations: Vec::new(),
            most: Holdings::default(),
            most_in_flight: 0,
            turns: 0,
            tls: tls.map(|tls| (tls, Rng::new(plan.seed ^ 0x0074_6c73))),
            net,
            rng,
            plan,
        };
        let configuration = world.configuration();
        let admission = Arc::default();
        for number in 0..world.plan.shards {
            let faults = world.plan.faults.clone();
            let fork = world.rng.fork();
            let mut driver =
                SimDriver::new(&world.net, number as u16, faults, fork, Waiting::Tolerant);
            let door = world.net.borrow_mut().listen(address(1, 80 + number as u16));
            driver.add_listener(door);
            world.doors.push(door);
            let (mailbox, commands) = mailbox(1 << 16, driver.waker());
            let published = Arc::new(Mutex::new(Metrics::default()));
            let start = Start {
                configuration: Arc::clone(&configuration),
                commands,
                reports: sender.clone(),
                published: Arc::clone(&published),
                shard: number as u32,
                shards: world.plan.shards as u32,
                descriptors_for: world.plan.most_connections,
                admission: Arc::clone(&admission),
                tls: vec![world.listeners_tls()],
                seed: world.plan.seed + number as u64,
                access: None,
            };
            let shard = Shard::new(Tls::new(driver), start);
            world.nodes.push(Node {
                shard,
                mailbox,
                published,
                ended: false,
                begun: Vec::new(),
                begun_before: 0,
            });
        }
        world
    }

    /// Returns the configuration of the doors, if they have TLS.
    fn listeners_tls(&self) -> Option<ServerTls> {
        let (tls, _) = self.tls.as_ref().filter(|_| self.plan.secured.front)?;
        Some(Arc::clone(&tls.listeners) as _)
    }

    fn configuration(&self) -> Arc<Configuration> {
        let tls = self.tls.as_ref().filter(|_| self.plan.secured.back);
        let back = tls.map(|(tls, _)| Arc::clone(&tls.connects));
        let listed = self.members.iter().zip(&self.plan.backends);
        let backends = listed
            .filter_map(|(member, backend_plan)| {
                let backend = Arc::clone(member.as_ref()?);
                Some(Target {
                    backend,
                    send_proxy: backend_plan.send_proxy,
                    tls: back.clone(),
                    passthrough: Arc::default(),
                })
            })
            .collect();
        Arc::new(Configuration {
            settings: self.plan.settings.clone(),
            backends,
            ..Configuration::default()
        })
    }

    fn post(&self, command: impl Fn() -> Command) {
        for node in &self.nodes {
            node.mailbox.send_always(command());
        }
    }

    fn close(&mut self, backend: &Arc<Backend>, closing: &Closing, most: Option<u32>) {
        self.orders.push((closing.rate, most, closing.deadline.is_some()));
        let most = most.map(|most| Arc::new(AtomicU32::new(most)));
        self.post(|| Command::CloseTunnels {
            backend: Arc::clone(backend),
            closing: closing.clone(),
            most: most.clone(),
        });
    }

    /// Carries out a command of the control thread.
    fn control_command(&mut self, tell: ControlCommand) {
        match tell {
            ControlCommand::Add(backend_index) => {
                if self.members[backend_index].is_none() {
                    let backend = Arc::new(Backend::new(
                        backend_address(backend_index),
                        self.weights[backend_index],
                    ));
                    self.backends.push(Arc::clone(&backend));
                    self.members[backend_index] = Some(backend);
                    self.reconfigure();
                }
            }
            ControlCommand::Remove(backend_index) | ControlCommand::Down(backend_index) => {
                let others = self.members.iter().flatten();
                let is_last = others.filter(|it| it.state() == State::Up).count() < 2;
                let Some(backend) =
                    self.members[backend_index].clone().filter(|_| !self.plan.calm || !is_last)
                else {
                    return;
                };
                let gone = matches!(tell, ControlCommand::Remove(_));
                backend.set_state(if gone { State::Removed } else { State::Down });
                if gone {
                    self.members[backend_index] = None;
                    self.reconfigure();
                }
                let rate = self.plan.settings.close_rate;
                let order = throng_balance::CloseOrder::Shuffled;
                let closing = Closing { code: 1012, rate, order, deadline: None };
                self.close(&backend, &closing, None);
            }
            ControlCommand::Weight(backend_index, weight) => {
                self.weights[backend_index] = weight;
                if let Some(backend) = &self.members[backend_index] {
                    backend.set_weight(weight);
                    self.reconfigure();
                }
            }
            ControlCommand::Close { backend_index, code, rate, order, most, deadline } => {
                if let Some(backend) = self.members[backend_index].clone() {
                    let deadline = deadline.map(Duration::from_nanos);
                    let closing = Closing { code, rate, order, deadline };
                    self.close(&backend, &closing, most);
                }
            }
            ControlCommand::Keep(backend_index) => {
                if let Some(backend) = &self.members[backend_index] {
                    self.post(|| Command::KeepTunnels(Arc::clone(backend)));
                }
            }
            ControlCommand::ShutDown { window, deadline } => {
                self.shut_down_at.get_or_insert(self.now());
                let (window, deadline) =
                    (Duration::from_nanos(window), Duration::from_nanos(deadline));
                self.post(|| Command::ShutDown { window, deadline });
            }
        }
    }

    fn reconfigure(&mut self) {
        let configuration = self.configuration();
        self.post(|| Command::Configure(Arc::clone(&configuration)));
    }

    fn turn(&mut self, at: usize) -> bool {
        let now = self.now();
        let node = &mut self.nodes[at];
        node.shard.driver_mut().inner().progress();
        let is_due = node.shard.next_deadline().is_some_and(|due| due <= Instant(now));
        if node.ended || !(is_ready(node.shard.driver()) || is_due) {
            return false;
        }
        self.turns += 1;
        let goes_on = node.shard.turn().expect("a simulated wait does not fail");
        node.shard.publish();
        node.ended = !goes_on;
        let audit = node.shard.audit();
        let metrics = *node.published.lock().expect("no thread panics with it");
        let begun = metrics.closed + audit.closing as u64;
        if begun > node.begun_before {
            node.begun.push((self.net.borrow().now(), begun - node.begun_before));
        }
        node.begun_before = begun;
        let idle = node.shard.driver().driver().calls.idle_turns_in_a_row;
        let in_flight = node.shard.driver().driver().most_in_flight();
        self.look_at(at, &audit, in_flight, idle);
        true
    }

    /// Checks the conditions that must hold after each turn.
    fn look_at(&mut self, at: usize, audit: &Audit, in_flight: usize, idle: usize) {
        self.most = self.most.max(audit.most);
        self.most_in_flight = self.most_in_flight.max(in_flight);
        if audit.spare > 65 * (16 << 10) {
            self.violation(format!("shard {at} keeps {} bytes for later", audit.spare));
        }
        let clients = self.plan.clients.len();
        if audit.waiting.max(audit.orphans).max(audit.new_clients) > clients {
            self.violation(format!("shard {at} lists more than {clients} clients: {audit:?}"));
        }
        if let Some((id, what)) = audit.broken {
            self.violation(format!("shard {at}, {id:?}: {what}"));
        }
        if audit.actions > 0 {
            self.violation(format!("shard {at}: {} actions were left", audit.actions));
        }
        if idle > 100 {
            self.violation(format!("shard {at} spins"));
        }
        checks::caps_hold(self);
    }

    /// Runs to the end, and checks everything.
    #[must_use]
    pub fn run(mut self) -> Outcome {
        let time_limit = self.plan.time_limit() + 40_000 * SECOND * u64::from(self.plan.calm);
        let all_gone = self.run_until(time_limit, |world| {
            world.commands.is_empty() && world.clients.iter().all(Client::is_gone)
        });
        if !all_gone && self.violations.is_empty() {
            let left = self.clients.iter().filter(|client| !client.is_gone());
            let left: Vec<_> = left.map(Client::describe).collect();
            self.violation(format!("clients never end: {left:?}"));
        }
        // Whatever time still has to end, such as what clients left behind.
        self.run_until(self.plan.time_limit(), |_| false);
        checks::nothing_is_held(&mut self);
        self.control_command(ControlCommand::ShutDown { window: 0, deadline: 2 * SECOND });
        let time_limit = 30 * SECOND;
        if !self.run_until(time_limit, |world| world.nodes.iter().all(|node| node.ended)) {
            self.violation("a shard does not end".to_owned());
        }
        self.run_until(time_limit, |_| false);
        checks::nothing_is_held(&mut self);
        checks::at_the_end(&mut self);
        let failures = self.net.borrow().failures().to_vec();
        failures.into_iter().for_each(|failure| self.violation(failure));
        let mut metrics = Metrics::default();
        for node in &self.nodes {
            metrics += *node.published.lock().expect("no thread panics with it");
        }
        let net = self.net.borrow();
        Outcome {
            violations: self.violations.clone(),
            trace: net.trace.value(),
            metrics,
            turns: self.turns,
            took: net.now(),
        }
    }

    /// Returns the state of each shard.
    pub(super) fn looks(&self) -> Vec<Look> {
        let look = |node: &Node| Look {
            audit: node.shard.audit(),
            connections: node.shard.driver().driver().connections(),
            metrics: *node.published.lock().expect("no thread panics with it"),
            ended: node.ended,
        };
        self.nodes.iter().map(look).collect()
    }
}
