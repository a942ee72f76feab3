//! A run: a shard, clients, backends and the control thread's commands, on one clock.

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use throng_balance::shard_over_driver::{Command, Holdings, Shard, Start};
use throng_balance::{Backend, CloseOrder, Closing, Configuration, Metrics, Report, State, Target};
use throng_engine::mailbox::{Mailbox, mailbox};
use throng_io::{Driver, Instant};
use throng_tls::{Tls, TlsConfig, TlsServer};

use super::backend::Conn;
use super::checks;
use super::client::Client;
use super::plan::{ControlCommand, Plan};
use crate::balance::Outcome;
use crate::balance::plan::behaviour;
use crate::balance::run::Run;
use crate::balance::wire::Wire;
use crate::balance::world::Look;
use crate::driver::{SimDriver, Waiting};
use crate::net::{Bug, Net, SharedNet, Side};
use crate::plan::SECOND;
use crate::rng::Rng;

/// A run of a plan.
pub struct World {
    pub(super) plan: Plan,
    pub(super) net: SharedNet,
    shard: Shard<Tls<SimDriver>>,
    mailbox: Mailbox<Command>,
    published: Arc<Mutex<Metrics>>,
    server: Arc<TlsServer>,
    has_ended: bool,
    door: usize,
    listeners: Vec<Option<usize>>,
    pub(super) clients: Vec<Client>,
    pub(super) conns: Vec<Conn>,
    /// Every backend that ever was in a list.
    pub(super) backends: Vec<Arc<Backend>>,
    /// By backend_index, the backends that are in the list now.
    members: Vec<Option<Arc<Backend>>>,
    commands: Vec<(u64, ControlCommand)>,
    _reports: Receiver<Report>,
    violations: Vec<String>,
    /// The most that any connection held, of each kind...
    pub(super) most: Holdings,
    /// ...of bytes in a send in flight...
    pub(super) most_in_flight: usize,
    /// ...and of a ClientHello that is not whole.
    pub(super) most_of_hello: usize,
    turns: u64,
    rng: Rng,
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
        // Sockets that the shard turned away.
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
                self.step_client(at);
            }
        }
        acted |= self.accept();
        for conn in &mut self.conns {
            if conn.next_at().is_some_and(|at| at <= now) {
                conn.step();
                acted = true;
            }
        }
        acted | self.turn()
    }

    fn next_at(&self) -> Option<u64> {
        let commands = self.commands.first().map(|(at, _)| *at);
        let clients = self.clients.iter().filter_map(Client::next_at);
        let conns = self.conns.iter().filter_map(Conn::next_at);
        let listeners = self.listeners.iter().flatten();
        let incoming = listeners.filter_map(|listener| self.net.borrow().next_incoming(*listener));
        let all = commands.into_iter().chain(clients).chain(conns).chain(incoming);
        let next = all.filter(|at| *at < u64::MAX).min();
        if self.has_ended {
            return next;
        }
        let event = self.shard.driver().driver().next_event_at();
        let due = self.shard.next_deadline().map(|at| at.0);
        next.into_iter().chain(event).chain(due).filter(|at| *at < u64::MAX).min()
    }
}

impl World {
    /// A world in which nothing has happened yet.
    ///
    /// # Panics
    /// Never: the patterns that are passed through need no certificate.
    #[must_use]
    pub fn new(plan: Plan) -> Self {
        let net = Net::shared();
        net.borrow_mut().log = std::env::var_os("THRONG_SIM_LOG").is_some();
        net.borrow().say(|| format!("{plan:#?}"));
        let mut rng = Rng::new(plan.seed ^ 0x0077_6f72_6c64);
        let listeners = listeners(&plan, &net);
        let members: Vec<_> = (0..plan.backends.len())
            .map(|at| plan.backends[at].is_member.then(|| new_backend(at)))
            .collect();
        let clients = plan.clients.iter().map(|client| Client::new(client.clone(), rng.fork()));
        let clients = clients.collect();
        let passthrough = patterns(&plan, &members);
        let config = TlsConfig { passthrough, ..TlsConfig::new(Vec::new()) };
        let server = TlsServer::load(config).expect("no file is read");
        server.accept_plain(true);
        let mut driver =
            SimDriver::new(&net, 0, plan.faults.clone(), rng.fork(), Waiting::Tolerant);
        let door = net.borrow_mut().listen(address(1, 80));
        driver.add_listener(door);
        let (mailbox, commands) = mailbox(1 << 16, driver.waker());
        let (sender, reports) = channel();
        let published = Arc::new(Mutex::new(Metrics::default()));
        let start = Start {
            configuration: configuration(&plan, &members),
            commands,
            reports: sender,
            published: Arc::clone(&published),
            shard: 0,
            shards: 1,
            descriptors_for: plan.most_connections,
            admission: Arc::default(),
            tls: vec![Some(Arc::clone(&server) as _)],
            seed: plan.seed,
            access: None,
        };
        Self {
            shard: Shard::new(Tls::new(driver), start),
            mailbox,
            published,
            server,
            has_ended: false,
            door,
            listeners,
            clients,
            conns: Vec::new(),
            backends: members.iter().flatten().cloned().collect(),
            members,
            commands: plan.commands.clone(),
            _reports: reports,
            violations: Vec::new(),
            most: Holdings::default(),
            most_in_flight: 0,
            most_of_hello: 0,
            turns: 0,
            net,
            rng,
            plan,
        }
    }

    /// Plants a bug that strikes after so many pieces.
    #[must_use]
    pub fn with_bug(self, bug: Bug, before: usize) -> Self {
        self.net.borrow_mut().bug = Some((bug, before));
        self
    }

    /// Sends the present list to the shard, and then to the TLS server.
    fn reconfigure(&mut self) {
        let configuration = configuration(&self.plan, &self.members);
        self.mailbox.send_always(Command::Configure(configuration));
        self.server.pass_through(&patterns(&self.plan, &self.members));
    }

    /// Carries out a command of the control thread.
    fn control_command(&mut self, command: ControlCommand) {
        let close = |backend: &Arc<Backend>, rate, deadline| Command::CloseTunnels {
            backend: Arc::clone(backend),
            closing: Closing { code: 1012, rate, order: CloseOrder::Shuffled, deadline },
            most: None,
        };
        let rate = self.plan.settings.close_rate;
        match command {
            ControlCommand::Add(at) => {
                if self.members[at].is_none() {
                    let backend = new_backend(at);
                    self.backends.push(Arc::clone(&backend));
                    self.members[at] = Some(backend);
                    self.reconfigure();
                }
            }
            ControlCommand::Remove(at) => {
                if let Some(backend) = self.members[at].take() {
                    backend.set_state(State::Removed);
                    self.reconfigure();
                    self.mailbox.send_always(close(&backend, rate, None));
                }
            }
            ControlCommand::Drain(at, window) => {
                if let Some(backend) = &self.members[at] {
                    backend.set_state(State::Draining);
                    let window = Some(Duration::from_nanos(window));
                    self.mailbox.send_always(close(backend, rate, window));
                }
            }
            ControlCommand::ShutDown { window, deadline } => {
                let (window, deadline) =
                    (Duration::from_nanos(window), Duration::from_nanos(deadline));
                self.mailbox.send_always(Command::ShutDown { window, deadline });
            }
        }
    }

    fn step_client(&mut self, at: usize) {
        let client = &mut self.clients[at];
        if std::mem::replace(&mut client.came, true) {
            return client.step();
        }
        let from = address(client.plan.address, 20_000 + client.plan.id as u16);
        let link = self.net.borrow_mut().dial(self.door, from, client.plan.link);
        if let Some(link) = link {
            let (behaviour, fork) = (client.plan.behaviour, self.rng.fork());
            client.begin(Wire::new(&self.net, link, Side::Dialer, behaviour, fork));
        }
    }

    /// Lets backends accept what has come to them.
    fn accept(&mut self) -> bool {
        let mut acted = false;
        for (backend_index, listener) in self.listeners.iter().enumerate() {
            let Some(listener) = *listener else { continue };
            while let Some((socket, _)) = { self.net.borrow_mut().accept(listener) } {
                acted = true;
                let (link, side) = socket.into_link();
                let plan = &self.plan.backends[backend_index];
                let behaviour = behaviour(&mut self.rng, self.plan.faults.is_fine());
                let conduct = self.rng.pick(&plan.conducts);
                let wire = Wire::new(&self.net, link, side, behaviour, self.rng.fork());
                self.conns.push(Conn::new(backend_index, wire, conduct, plan.send_proxy));
            }
        }
        acted
    }

    fn turn(&mut self) -> bool {
        let now = self.now();
        self.shard.driver_mut().inner().progress();
        let driver = self.shard.driver();
        let is_ready = driver.is_busy() || driver.driver().is_ready();
        let is_due = self.shard.next_deadline().is_some_and(|due| due <= Instant(now));
        if self.has_ended || !(is_ready || is_due) {
            return false;
        }
        self.turns += 1;
        self.has_ended = !self.shard.turn().expect("a simulated wait does not fail");
        self.shard.publish();
        self.look_at();
        true
    }

    /// Checks the conditions that must hold after each turn.
    fn look_at(&mut self) {
        let audit = self.shard.audit();
        let driver = self.shard.driver();
        let below = driver.driver();
        self.most = self.most.max(audit.most);
        self.most_in_flight = self.most_in_flight.max(below.most_in_flight());
        let hello = driver.input_holders().into_iter().map(|id| driver.output_memory(id)).max();
        self.most_of_hello = self.most_of_hello.max(hello.unwrap_or(0));
        let idle = below.calls.idle_turns_in_a_row;
        let clients = self.plan.clients.len();
        if audit.waiting.max(audit.orphans).max(audit.new_clients) > clients {
            self.violation(format!("it lists more than {clients} clients: {audit:?}"));
        }
        if let Some((id, what)) = audit.broken {
            self.violation(format!("{id:?}: {what}"));
        }
        if audit.actions > 0 {
            self.violation(format!("{} actions were left", audit.actions));
        }
        if idle > 100 {
            self.violation("it spins".to_owned());
        }
        let cap = self.plan.settings.max_handshakes;
        let above = self.backends.iter().map(|backend| backend.handshakes()).max();
        if let Some(count) = above.filter(|count| cap > 0 && *count > cap) {
            self.violation(format!("{count} places for handshakes are taken of {cap}"));
        }
    }

    /// Runs to the end, and checks everything.
    #[must_use]
    pub fn run(mut self) -> Outcome {
        let time_limit = self.plan.time_limit() + 40_000 * SECOND * u64::from(self.plan.calm);
        let all_gone = self.run_until(time_limit, |world| {
            world.commands.is_empty() && world.clients.iter().all(Client::is_gone)
        });
        if !all_gone {
            let left = self.clients.iter().filter(|client| !client.is_gone());
            let left: Vec<_> = left.map(|client| client.plan.clone()).collect();
            self.violation(format!("clients never end: {left:?}"));
        }
        // Whatever time still has to end, such as what clients left behind.
        self.run_until(self.plan.time_limit(), |_| false);
        checks::nothing_is_held(&mut self);
        self.control_command(ControlCommand::ShutDown { window: 0, deadline: 2 * SECOND });
        if !self.run_until(30 * SECOND, |world| world.has_ended) {
            self.violation("the shard does not end".to_owned());
        }
        self.run_until(30 * SECOND, |_| false);
        checks::nothing_is_held(&mut self);
        checks::at_the_end(&mut self);
        let net = self.net.borrow();
        Outcome {
            violations: self.violations.clone(),
            trace: net.trace.value(),
            metrics: self.metrics(),
            turns: self.turns,
            took: net.now(),
        }
    }

    pub(super) fn metrics(&self) -> Metrics {
        *self.published.lock().expect("no holder of the lock panics")
    }

    /// Returns the state of the shard.
    pub(super) fn look(&self) -> Look {
        Look {
            audit: self.shard.audit(),
            connections: self.shard.driver().driver().connections(),
            metrics: self.metrics(),
            ended: self.has_ended,
        }
    }

    /// Connections that the TLS driver still has anything for.
    pub(super) fn held_by_tls(&self) -> usize {
        let driver = self.shard.driver();
        driver.secured() + driver.input_holders().len() + usize::from(driver.is_busy())
    }
}

fn new_backend(at: usize) -> Arc<Backend> {
    Arc::new(Backend::new(backend_address(at), 1))
}

/// Opens the sockets of backends that are there.
fn listeners(plan: &Plan, net: &SharedNet) -> Vec<Option<usize>> {
    let mut listeners = Vec::new();
    for (at, backend) in plan.backends.iter().enumerate() {
        if backend.is_silent {
            net.borrow_mut().silence(backend_address(at));
        }
        let is_there = !backend.is_dead && !backend.is_silent;
        let listen = || net.borrow_mut().listen_with(backend_address(at), backend.link);
        listeners.push(is_there.then(listen));
    }
    listeners
}

/// The server names that are passed through to those in the list.
fn patterns(plan: &Plan, members: &[Option<Arc<Backend>>]) -> Vec<Box<str>> {
    let listed = plan.backends.iter().zip(members).filter(|(_, member)| member.is_some());
    listed.flat_map(|(plan, _)| plan.patterns.iter().map(|name| Box::from(*name))).collect()
}

fn configuration(plan: &Plan, members: &[Option<Arc<Backend>>]) -> Arc<Configuration> {
    let target = |(plan, member): (&super::plan::BackendPlan, &Option<Arc<Backend>>)| {
        Some(Target {
            backend: Arc::clone(member.as_ref()?),
            send_proxy: plan.send_proxy,
            tls: None,
            passthrough: plan.patterns.iter().map(|name| Box::from(*name)).collect(),
        })
    };
    let backends = plan.backends.iter().zip(members).filter_map(target).collect();
    let settings = plan.settings.clone();
    Arc::new(Configuration { settings, backends, ..Configuration::default() })
}
