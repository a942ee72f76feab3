//! A balancer with clients and backends that a test controls step by step, in virtual time.
//!
//! While [`World`](super::World) draws everything from a seed, a test here decides each step, and
//! no event occurs between two steps. So a test can assert that nothing arrives in an hour, and
//! this takes no time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use throng_balance::shard_over_driver::{Audit, BalanceCommand};
use throng_balance::{Backend, BackendReport, Configuration, Metrics, Settings};
use throng_carry::link::LinkMessage;
use throng_io::Driver;

use super::node::{Node, NodeOptions, backend_address, configuration, local, target};
use crate::faults::Faults;
use crate::net::{LinkId, LinkOptions, Net, Readable, SharedNet, Side, SimSocket};
use crate::rng::Rng;

/// Number of a client or of a connection to a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerId(usize);

/// The end of the balancer's stream to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerEnd {
    /// An orderly end.
    Finished,
    /// A reset.
    Reset,
}

/// The end of a process while tunnels move: before this message of a link is delivered, counted
/// from 0 over both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveEnd {
    /// Neither ends.
    Never,
    /// The successor, after which the old balancer goes on.
    OfSuccessor(usize),
    /// The old balancer, whose messages still arrive.
    OfPredecessor(usize),
}

/// A message of a link, with the sockets that come before it.
type Sent = (LinkMessage, Vec<SimSocket>);

/// Slots that the old balancer keeps.
const KEPT: usize = 4;

/// Capacity of a link to a peer that does not read.
const CAPACITY: usize = 64 << 10;
const LINK: LinkOptions = LinkOptions { latency: 0, capacity: CAPACITY, cut_after: None };

/// A balancer of one shard, on a network without faults or latency.
pub struct Script {
    net: SharedNet,
    node: Node,
    listeners: Vec<usize>,
    backends: Vec<Arc<Backend>>,
    /// The reports of the shard to the control thread.
    pub reports: Receiver<BackendReport>,
    peers: Vec<(LinkId, Side)>,
}

impl Script {
    /// Starts a balancer over so many backends.
    #[must_use]
    pub fn new(backends: usize, settings: Settings) -> Self {
        let net = Net::shared();
        let listeners = (0..backends)
            .map(|number| net.borrow_mut().listen_with(backend_address(number), LINK))
            .collect();
        let backends: Vec<_> = (0..backends)
            .map(|number| Arc::new(Backend::new(backend_address(number), 1)))
            .collect();
        let (sender, reports) = channel();
        let options = NodeOptions {
            net: &net,
            shards: 1,
            first: 0,
            faults: &Faults::default(),
            configuration: of(&backends, &settings),
            reports: sender,
            descriptors_for: 1 << 20,
            tls: None,
            seed: 0,
        };
        let node = options.start(&mut Rng::new(0)).swap_remove(0);
        Self { net, node, listeners, backends, reports, peers: Vec::new() }
    }

    /// Returns a backend.
    #[must_use]
    pub fn backend(&self, number: usize) -> &Arc<Backend> {
        &self.backends[number]
    }

    /// Posts a command of the control thread, and lets the shard take it.
    pub fn command(&mut self, command: BalanceCommand) {
        self.node.post(command);
        self.settle();
    }

    /// Changes the settings.
    pub fn configure(&mut self, settings: Settings) {
        self.command(BalanceCommand::Configure(of(&self.backends, &settings)));
    }

    /// Connects a client.
    ///
    /// # Panics
    /// If the balancer does not listen.
    pub fn connect(&mut self) -> PeerId {
        let from = local(20_000 + (self.peers.len() % 40_000) as u16);
        let link = self.net.borrow_mut().dial(self.node.door, from, LINK);
        self.peers.push((link.expect("the balancer listens"), Side::Dialer));
        self.settle();
        PeerId(self.peers.len() - 1)
    }

    /// Accepts the connection that the balancer has made to a backend, if there is one.
    pub fn try_accept(&mut self, backend: usize) -> Option<PeerId> {
        self.settle();
        let (socket, _) = self.net.borrow_mut().accept(self.listeners[backend])?;
        self.peers.push(socket.into_link());
        self.settle();
        Some(PeerId(self.peers.len() - 1))
    }

    /// Accepts the connection that the balancer has made to a backend.
    ///
    /// # Panics
    /// If there is none.
    #[track_caller]
    pub fn accept(&mut self, backend: usize) -> PeerId {
        self.try_accept(backend).expect("the balancer has connected to the backend")
    }

    /// Sends as many bytes as fit, and returns their number. The rest must wait for the balancer.
    pub fn try_send(&mut self, peer: PeerId, bytes: &[u8]) -> usize {
        let (link, side) = self.peers[peer.0];
        let mut sent = 0;
        while sent < bytes.len() {
            let space = self.net.borrow().space(link, side).min(bytes.len() - sent);
            if space == 0 {
                break;
            }
            self.net.borrow_mut().write(link, side, &bytes[sent..sent + space]);
            sent += space;
            self.settle();
        }
        sent
    }

    /// Sends bytes that must fit.
    ///
    /// # Panics
    /// If they do not fit.
    #[track_caller]
    pub fn send(&mut self, peer: PeerId, bytes: &[u8]) {
        assert_eq!(self.try_send(peer, bytes), bytes.len(), "the balancer takes no more");
    }

    /// Ends a peer's stream; it can still receive.
    pub fn finish(&mut self, peer: PeerId) {
        let (link, side) = self.peers[peer.0];
        self.net.borrow_mut().finish(link, side);
        self.settle();
    }

    /// Closes a peer's socket.
    pub fn close(&mut self, peer: PeerId) {
        let (link, side) = self.peers[peer.0];
        self.net.borrow_mut().close(link, side);
        self.settle();
    }

    /// Receives all bytes that have arrived. A peer that does not receive is a slow reader.
    pub fn receive(&mut self, peer: PeerId) -> Vec<u8> {
        let (link, side) = self.peers[peer.0];
        let mut received = Vec::new();
        loop {
            self.settle();
            let readable = self.net.borrow_mut().readable(link, side);
            let Readable::Bytes(len) = readable else { return received };
            self.net.borrow_mut().read(link, side, len, &mut received);
        }
    }

    /// Receives at most this many of the bytes that have arrived.
    pub fn receive_some(&mut self, peer: PeerId, most: usize) -> Vec<u8> {
        let (link, side) = self.peers[peer.0];
        let mut received = Vec::new();
        self.settle();
        let readable = self.net.borrow_mut().readable(link, side);
        if let Readable::Bytes(len) = readable {
            self.net.borrow_mut().read(link, side, len.min(most), &mut received);
        }
        self.settle();
        received
    }

    /// Receives all bytes that have arrived, as text.
    pub fn receive_text(&mut self, peer: PeerId) -> String {
        String::from_utf8_lossy(&self.receive(peer)).into_owned()
    }

    /// Returns how the balancer has ended its stream to a peer that has received everything.
    pub fn end(&mut self, peer: PeerId) -> Option<PeerEnd> {
        self.settle();
        let (link, side) = self.peers[peer.0];
        match self.net.borrow_mut().readable(link, side) {
            Readable::Finished => Some(PeerEnd::Finished),
            Readable::Reset => Some(PeerEnd::Reset),
            _ => None,
        }
    }

    /// Lets time pass.
    pub fn run(&mut self, time: Duration) {
        let end = self.net.borrow().now() + time.as_nanos() as u64;
        loop {
            self.settle();
            let now = self.net.borrow().now();
            // A shard that has ended handles no event, even if one is due.
            let Some(next) = self.node.next_at().filter(|next| *next <= end) else { break };
            self.net.borrow_mut().advance_to(next.max(now + 1));
        }
        self.net.borrow_mut().advance_to(end);
        self.settle();
    }

    /// Runs the shard until it is idle at the current time.
    fn settle(&mut self) {
        turn_until_idle(&self.net, &mut self.node);
    }

    /// Moves all tunnels to a successor, which serves from then on. Returns how many it has got.
    ///
    /// # Panics
    /// A rule of the link is broken.
    pub fn move_to_successor(&mut self, settings: &Settings, ends: MoveEnd) -> u64 {
        let (sender, _) = channel();
        // Each process counts by itself.
        let backends: Vec<_> = self
            .backends
            .iter()
            .map(|backend| Arc::new(Backend::new(backend.address(), backend.weight())))
            .collect();
        let options = NodeOptions {
            net: &self.net,
            shards: 1,
            first: 0,
            faults: &Faults::default(),
            configuration: of(&backends, settings),
            reports: sender,
            descriptors_for: 1 << 20,
            tls: None,
            seed: 1,
        };
        let mut new = options.start(&mut Rng::new(1)).swap_remove(0);
        let slots = self.node.shard().begin_leaving(KEPT).expect("the first move of this driver");
        new.shard().driver_mut().begin_with(&slots).expect("a new driver");
        new.shard().begin_arriving(0, slots);
        let (mut to_new, mut to_old) = (VecDeque::<Sent>::new(), VecDeque::new());
        let mut delivered = 0;
        loop {
            turn_until_idle(&self.net, &mut self.node);
            turn_until_idle(&self.net, &mut new);
            let is_under_way = !(to_new.is_empty() && to_old.is_empty());
            match ends {
                MoveEnd::OfSuccessor(at) if is_under_way && at == delivered => {
                    // The sockets that it has, or that are on their way to it, are closed.
                    drop((new, to_new));
                    self.node.shard().handle_successor_death(false);
                    self.settle();
                    return 0;
                }
                MoveEnd::OfPredecessor(at) if is_under_way && at == delivered => {
                    for sent in to_new {
                        deliver(&mut new, sent);
                    }
                    self.node = new;
                    self.node.shard().handle_predecessor_death();
                    self.backends = backends;
                    self.settle();
                    return self.node.shard().moved();
                }
                _ => {}
            }
            let old = self.node.shard();
            if let Some(sent) = to_new.pop_front() {
                delivered += 1;
                to_old.extend(deliver(&mut new, sent));
            } else if let Some(message) = to_old.pop_front() {
                delivered += 1;
                for message in old.handle_link(message).expect("the successor keeps the rules") {
                    let is_yours = matches!(message, LinkMessage::Yours { .. });
                    to_new.push_back((message, Vec::new()));
                    if is_yours {
                        old.handle_yours_left();
                    }
                }
            } else if let Some(batch) = old.next_batch(|socket| Ok(socket.duplicate())) {
                to_new.push_back(batch);
            } else if !old.is_moving() && old.park_tunnels().parked == 0 {
                let moved = new.shard().moved();
                assert_eq!(self.node.shard().moved(), moved);
                self.node = new;
                self.backends = backends;
                return moved;
            }
        }
    }

    /// Returns the contents of the shard.
    #[must_use]
    pub fn audit(&self) -> Audit {
        self.node.audit()
    }

    /// Returns the metrics.
    #[must_use]
    pub fn metrics(&mut self) -> Metrics {
        self.node.publish()
    }
}

/// Runs a shard until it is idle at the current time.
fn turn_until_idle(net: &SharedNet, node: &mut Node) {
    loop {
        net.borrow_mut().settle();
        let now = net.borrow().now();
        if node.progress().is_none_or(|due| due > now) {
            break;
        }
        node.turn();
        // The shard's lists are not trimmed here, because tests also check that.
        assert_eq!(node.faults_after_turn(usize::MAX), [""; 0], "a rule is broken");
    }
}

/// Delivers a message of the predecessor; returns the answers.
fn deliver(new: &mut Node, (message, sockets): Sent) -> Vec<LinkMessage> {
    let shard = new.shard();
    let answers = match message {
        LinkMessage::Batch { number, records } => {
            let mut sockets = sockets.into_iter();
            let pairs = std::iter::from_fn(|| Some([sockets.next()?, sockets.next()?]));
            let answer = shard.handle_batch((number, records), pairs.collect());
            answer.map(|answer| answer.into_iter().collect())
        }
        message => shard.handle_link(message),
    };
    answers.expect("the predecessor keeps the rules")
}

/// The configuration of these backends.
fn of(backends: &[Arc<Backend>], settings: &Settings) -> Arc<Configuration> {
    configuration(settings, backends.iter().map(target).collect())
}
