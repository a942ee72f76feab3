//! A client that accounts for every message of its channel, and moves when its server is killed.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use throng_load::{Record, machine_now_ns};

use crate::wire::Client;

/// The longest wait for a message before the client checks for new instructions.
const LOOK: Duration = Duration::from_millis(100);

/// The longest wait for the end of a closing handshake.
const CLOSE: Duration = Duration::from_secs(5);

/// The pause after a failed attempt to connect.
const PAUSE: Duration = Duration::from_millis(20);

/// Counts of one server, and its address.
#[derive(Default)]
pub(super) struct NodeCounts {
    /// `None`: it is not running.
    address: Mutex<Option<SocketAddr>>,
    pub(super) clients: AtomicU64,
    pub(super) sent: AtomicU64,
    pub(super) delivered: AtomicU64,
    /// Messages of `delivered` that were published at other nodes.
    pub(super) from_others: AtomicU64,
    /// Delivery times of these messages since the last status line.
    latency: Mutex<Record>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl NodeCounts {
    pub(super) fn address(&self) -> Option<SocketAddr> {
        *lock(&self.address)
    }

    pub(super) fn set_address(&self, address: Option<SocketAddr>) {
        *lock(&self.address) = address;
    }

    /// Returns the times since the last call.
    pub(super) fn take_latency(&self) -> Record {
        std::mem::take(&mut lock(&self.latency))
    }
}

/// State that all clients share.
pub(super) struct MemberShared {
    pub(super) nodes: Vec<NodeCounts>,
    /// The last offset of each channel that a client has seen.
    tops: Vec<AtomicU64>,
    pub(super) members: Vec<Progress>,
    /// Clients send while it is set.
    pub(super) sends: AtomicBool,
    pub(super) ends: AtomicBool,
    /// The time between two messages of a client.
    pub(super) interval: Duration,
}

/// Progress of a client.
#[derive(Default)]
pub(super) struct Progress {
    pub(super) has_joined: AtomicBool,
    at: AtomicU64,
    /// Messages sent and not received back yet.
    waits_for: AtomicU64,
}

impl MemberShared {
    pub(super) fn new(nodes: usize, clients: usize, interval: Duration) -> Self {
        let channels = (clients / nodes / 2).clamp(1, 50);
        Self {
            nodes: (0..nodes).map(|_| NodeCounts::default()).collect(),
            tops: (0..channels).map(|_| AtomicU64::default()).collect(),
            members: (0..clients).map(|_| Progress::default()).collect(),
            sends: AtomicBool::new(false),
            ends: AtomicBool::new(false),
            interval,
        }
    }

    /// Returns the number of channels.
    pub(super) fn channels(&self) -> usize {
        self.tops.len()
    }

    /// The channel of a client: each has members on every server.
    fn channel(&self, member: usize) -> usize {
        member / self.nodes.len() % self.tops.len()
    }

    /// Returns the last known offset of a client's channel.
    pub(super) fn top(&self, member: usize) -> u64 {
        self.tops[self.channel(member)].load(Relaxed)
    }

    /// Returns whether each client has all messages of its channel.
    pub(super) fn is_settled(&self) -> bool {
        self.members.iter().enumerate().all(|(member, progress)| {
            progress.waits_for.load(SeqCst) == 0 && progress.at.load(Relaxed) == self.top(member)
        })
    }
}

/// Outcomes of messages, counted by one client.
#[derive(Debug, Default)]
pub(super) struct Account {
    pub(super) sent: u64,
    /// Own messages that came back, and so have a place in their channel.
    pub(super) accepted: u64,
    /// Messages in flight when a connection broke that never came.
    pub(super) broken_off: u64,
    /// Messages of others, and its own.
    pub(super) delivered: u64,
    pub(super) lost: u64,
    pub(super) doubled: u64,
    /// Times that it had to start over, with an unknown loss.
    pub(super) started_over: u64,
    /// Connections that broke, or were closed to return to its own server.
    pub(super) moves: u64,
}

/// A client.
pub(super) struct Member<'a> {
    shared: &'a MemberShared,
    number: usize,
    /// The server that it is connected to.
    node: usize,
    client: Option<Client>,
    /// Epoch, offset and tag of the last message.
    at: Option<(String, u64, String)>,
    /// Own messages in flight, and own messages whose connection broke.
    outstanding: Vec<u64>,
    in_doubt: Vec<u64>,
    account: Account,
}

impl<'a> Member<'a> {
    pub(super) fn new(shared: &'a MemberShared, number: usize) -> Self {
        let node = number % shared.nodes.len();
        Self {
            shared,
            number,
            node,
            client: None,
            at: None,
            outstanding: Vec::new(),
            in_doubt: Vec::new(),
            account: Account::default(),
        }
    }

    /// Sends and receives until the end.
    pub(super) fn run(mut self) -> Account {
        let (shared, home) = (self.shared, self.number % self.shared.nodes.len());
        // Real clients do not all send at once.
        let clients = shared.members.len() as u32;
        let mut due: Option<Instant> = None;
        while !shared.ends.load(Relaxed) {
            if self.client.is_none() && !self.connect() {
                self.node = (self.node + 1) % shared.nodes.len();
                std::thread::sleep(PAUSE);
                due = None;
                continue;
            }
            let goes_home = self.node != home && shared.nodes[home].address().is_some();
            if goes_home && self.outstanding.is_empty() {
                self.leave();
                self.node = home;
                continue;
            }
            let sends = shared.sends.load(Relaxed) && !goes_home;
            let now = Instant::now();
            let first = || now + shared.interval * self.number as u32 / clients;
            let next = if sends { *due.get_or_insert_with(first) } else { now + LOOK };
            let left = next.saturating_duration_since(now);
            let done = match left.is_zero() {
                true => {
                    due = Some(next + shared.interval);
                    self.send_next()
                }
                false => self.listen(left.min(LOOK)),
            };
            if done.is_err() {
                self.disconnected();
            }
            let progress = &shared.members[self.number];
            progress.waits_for.store(self.outstanding.len() as u64, Relaxed);
        }
        self.disconnected();
        let (_, at, _) = self.at.unwrap_or_default();
        self.account.lost += shared.top(self.number).saturating_sub(at);
        self.account.broken_off = self.in_doubt.len() as u64;
        self.account
    }

    fn send_next(&mut self) -> io::Result<()> {
        let Some(client) = &mut self.client else { return Ok(()) };
        // In this order: when sending has ended and no message is announced, none follows.
        let waits_for = &self.shared.members[self.number].waits_for;
        waits_for.store(self.outstanding.len() as u64 + 1, SeqCst);
        if !self.shared.sends.load(SeqCst) {
            return Ok(());
        }
        let number = self.account.sent;
        let text = format!("{} {} {number} {}", self.number, self.node, machine_now_ns());
        self.account.sent += 1;
        self.outstanding.push(number);
        self.shared.nodes[self.node].sent.fetch_add(1, Relaxed);
        client.send(&text)
    }

    /// Waits for a message.
    fn listen(&mut self, most: Duration) -> io::Result<()> {
        let Some(client) = &mut self.client else { return Ok(()) };
        // Zero would mean no limit.
        client.stream.set_read_timeout(Some(most.max(Duration::from_millis(1))))?;
        match client.next_text() {
            Ok(text) => {
                self.on_message(&text);
                Ok(())
            }
            Err(error) if is_timeout(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Handles a message: its offset and tag, and the text that [`send_next`](Self::send_next)
    /// wrote, or any text of a client that joined manually.
    fn on_message(&mut self, text: &str) {
        let Some((place, rest)) = text.split_once(' ') else { return };
        let Some((offset, tag)) = place.split_once(':') else { return };
        let Ok(offset) = offset.parse() else { return };
        let mut words = rest.split(' ');
        let mut number = || words.next()?.parse::<u64>().ok();
        let Some((_, at, last)) = &mut self.at else { return };
        if offset <= *at {
            self.account.doubled += 1;
            return;
        }
        self.account.lost += offset - *at - 1;
        self.account.delivered += 1;
        (*at, *last) = (offset, tag.to_owned());
        self.shared.tops[self.shared.channel(self.number)].fetch_max(offset, Relaxed);
        self.shared.members[self.number].at.store(offset, Relaxed);
        let counts = &self.shared.nodes[self.node];
        counts.delivered.fetch_add(1, Relaxed);
        let (Some(from), Some(node), Some(message)) = (number(), number(), number()) else {
            return;
        };
        if from == self.number as u64 {
            let before = self.outstanding.len() + self.in_doubt.len();
            self.outstanding.retain(|sent| *sent != message);
            self.in_doubt.retain(|sent| *sent != message);
            let now = self.outstanding.len() + self.in_doubt.len();
            self.account.accepted += (before - now) as u64;
        }
        if let Some(sent) = number().filter(|_| node != self.node as u64) {
            counts.from_others.fetch_add(1, Relaxed);
            lock(&counts.latency).add(machine_now_ns().saturating_sub(sent));
        }
    }

    /// Opens a session at its server; returns false if there is none.
    fn connect(&mut self) -> bool {
        let Some(address) = self.shared.nodes[self.node].address() else { return false };
        let since = self.at.as_ref();
        let since = since.map(|(epoch, offset, tag)| format!("{epoch}:{offset}:{tag}"));
        let channel = self.shared.channel(self.number) + 1;
        let path = format!("/ws/demo.{channel}?since={}", since.unwrap_or_default());
        let begin = || {
            let mut client = Client::open(address, &path, "")?;
            let line = client.next_text()?;
            Ok::<_, io::Error>((client, line))
        };
        let Ok((client, line)) = begin() else { return false };
        let line: Value = serde_json::from_str(&line).unwrap_or_default();
        let (Some(epoch), Some(offset), Some(tag)) =
            (line["epoch"].as_str(), line["offset"].as_u64(), line["tag"].as_str())
        else {
            return false;
        };
        if line["recovered"] != true || self.at.is_none() {
            self.begin(epoch, offset, tag);
        }
        self.client = Some(client);
        self.shared.nodes[self.node].clients.fetch_add(1, Relaxed);
        self.shared.members[self.number].has_joined.store(true, Relaxed);
        true
    }

    /// Continues after a message that it did not get: all messages in between are lost.
    fn begin(&mut self, epoch: &str, offset: u64, tag: &str) {
        let top = &self.shared.tops[self.shared.channel(self.number)];
        match self.at.replace((epoch.to_owned(), offset, tag.to_owned())) {
            Some((before, at, _)) if before == epoch => {
                self.account.lost += offset.saturating_sub(at);
                top.fetch_max(offset, Relaxed);
            }
            Some(_) => {
                self.account.started_over += 1;
                top.store(offset, Relaxed);
            }
            None => drop(top.fetch_max(offset, Relaxed)),
        }
        self.shared.members[self.number].at.store(offset, Relaxed);
    }

    fn leave(&mut self) {
        let Some(client) = &mut self.client else { return };
        if client.close().is_ok() {
            let latest = Instant::now() + CLOSE;
            while Instant::now() < latest && self.listen(CLOSE).is_ok() {}
        }
        self.disconnected();
    }

    fn disconnected(&mut self) {
        if self.client.take().is_some() {
            self.shared.nodes[self.node].clients.fetch_sub(1, Relaxed);
            self.account.moves += u64::from(!self.shared.ends.load(Relaxed));
            if self.shared.ends.load(Relaxed) {
                return;
            }
            self.in_doubt.append(&mut self.outstanding);
        }
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_is_a_loss_and_what_comes_again_is_doubled() {
        let shared = MemberShared::new(2, 8, Duration::from_secs(1));
        assert_eq!(shared.channels(), 2);
        let mut member = Member::new(&shared, 2);
        member.begin("a", 4, "1");
        member.outstanding = vec![0, 1];
        for text in ["5:1 3 1 7 0", "5:1 3 1 7 0", "7:2 2 0 1 0", "8:3 by hand", "no offset"] {
            member.on_message(text);
        }
        let Account { delivered, lost, doubled, accepted, .. } = member.account;
        assert_eq!((delivered, lost, doubled, accepted), (3, 1, 1, 1));
        assert_eq!((shared.top(2), &member.outstanding), (8, &vec![0]));
        assert_eq!(shared.nodes[0].from_others.load(Relaxed), 1, "of those that say so");
        member.begin("a", 10, "2");
        assert_eq!((member.account.lost, member.account.started_over, shared.top(2)), (3, 0, 10));
        member.begin("b", 2, "3");
        assert_eq!((member.account.lost, member.account.started_over, shared.top(2)), (3, 1, 2));
        assert!(!shared.is_settled(), "others are not there");
    }

    #[test]
    fn nothing_is_sent_after_the_end_of_sending() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            throng_testkit::read_head(&mut stream);
            io::Write::write_all(&mut stream, b"HTTP/1.1 101 Switching Protocols\r\n\r\n").unwrap();
            stream
        });
        let shared = MemberShared::new(1, 1, Duration::from_secs(1));
        let mut member = Member::new(&shared, 0);
        member.client = Some(Client::open(address, "/", "").unwrap());
        shared.sends.store(true, SeqCst);
        member.send_next().unwrap();
        assert_eq!(member.account.sent, 1);
        // The member has seen that it may send, and then learns that it may not.
        shared.sends.store(false, SeqCst);
        member.send_next().unwrap();
        assert_eq!((member.account.sent, member.outstanding.len()), (1, 1));
        drop(server.join().unwrap());
    }
}
