//! A node of a cluster whose broker is Redis or Valkey.
//!
//! One thread (`start.rs`) has its own runtime and two connections to each server: one for
//! commands, one for subscriptions. A node has an independent part for each server, or for each
//! partition of a Redis Cluster; the events of a channel go to its part. Partitions share the
//! connections to their master (`shared.rs`), which `masters.rs` finds. `node.rs` and `node/`
//! handle one event after the other; tasks (`task.rs`) wait for the server's answers and add them
//! to the events; other threads do so with `events.rs`, connections with `signals.rs`. `link.rs`
//! has the connections. `open.rs` opens them to the server that `address.rs` has parsed or
//! `sentinel.rs` has found; `endpoint.rs` opens each of them, with TLS (`tls.rs`) if its URL asks
//! for it. `names.rs` has the names of channels and keys at the broker, `scripts.rs` the scripts,
//! `calls.rs` the commands, `explain.rs` the explanations of the server's errors; `node/presence/`
//! has the members of channels.

mod address;
mod calls;
mod endpoint;
mod events;
mod explain;
mod link;
mod masters;
mod names;
mod node;
mod open;
mod pool;
mod reply;
mod rights;
mod scripts;
mod sentinel;
mod shared;
mod signals;
mod start;
mod status;
mod task;
mod tls;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use crate::announcement::Announcement;
use crate::control::Control;
use crate::envelope::Place;
use crate::outbox::WhileDown;
use crate::outcome::{Ticket, Unpublished};
use crate::partition::partition_of;
use crate::sequencer::Tail;
use events::Events;
use node::NodeEvent;
use pool::{Reserved, SendBudget};

pub use node::control::Recipients;
pub use node::presence::{Listed, RemoteMember};
pub use node::survey::{Counted, Surveyed};
pub use pool::Fill;
pub use reply::{AskError, Reply, block_on, is_thread_of_a_node};
pub use start::Starter;
pub use status::{Health, Status, StatusSnapshot};
pub use tls::Tls;

/// Time for which a stopped node still publishes accepted messages.
const STOP_LIMIT: Duration = Duration::from_secs(2);

/// Settings of a node.
#[derive(Clone)]
pub struct Settings {
    /// The server: `redis://[user[:password]@]host[:port][/database]`, or the server named by
    /// sentinels: `redis-sentinel://[user[:password]@]host[:port][,...]/master[/database]`; or
    /// several of these, separated by commas, each with a part of the channels; or a Redis Cluster:
    /// `redis-cluster://[user[:password]@]host[:port][,...]`. With `rediss` in place of `redis`
    /// every connection uses TLS, including connections to servers that another server names.
    pub url: String,
    /// The prefix of all channels and keys at the server. [`check_prefix`] must accept it.
    pub prefix: String,
    /// A random number that identifies this node.
    pub node: u64,
    /// The TLS settings of URLs with `rediss`.
    pub tls: Tls,
}

/// Maximum bytes of a prefix.
const MAX_PREFIX: usize = 64;

/// Checks the prefix of all names at the server. A dot follows it there: a prefix with a dot would
/// reach into another application's channels, if that application's prefix is the part before the
/// dot. With braces, names in a Redis Cluster would be in other slots than their partitions.
///
/// # Errors
/// The prefix is not 1 to 64 letters, digits, `-` and `_`.
pub fn check_prefix(prefix: &str) -> Result<(), String> {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if (1..=MAX_PREFIX).contains(&prefix.len()) && prefix.bytes().all(is_name) {
        return Ok(());
    }
    let replaced = prefix.chars().map(|one| if one.is_ascii_alphanumeric() { one } else { '-' });
    let like: String = match prefix.is_empty() {
        true => "throng".to_owned(),
        false => replaced.take(MAX_PREFIX).collect(),
    };
    Err(format!(
        "cluster.prefix {prefix:?} is not a prefix: it has 1 to {MAX_PREFIX} letters, digits, - \
         and _; use {like:?}, for example"
    ))
}

/// Omits the URL, which may contain a password.
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { prefix, node, .. } = self;
        f.debug_struct("Settings")
            .field("prefix", prefix)
            .field("node", node)
            .finish_non_exhaustive()
    }
}

/// History of a channel at the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepRule {
    /// Maximum publications.
    pub count: usize,
    /// Maximum bytes of publications, plus 128 for each. A larger publication is published, but the
    /// history then keeps neither this nor any earlier publication.
    pub bytes: usize,
    /// Time after the last publication.
    pub age: Duration,
}

/// A publication for the broker.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// The channel.
    pub channel: Arc<str>,
    /// The [encoded](crate::encode) publication.
    pub envelope: Arc<[u8]>,
    /// Its history; `None`: it has none.
    pub keep: Option<KeepRule>,
    /// Whether it waits while the broker is away.
    pub while_down: WhileDown,
}

/// The number of receivers of a broadcast on this node, when it is known; `None`: some may not get
/// it.
pub type ReceiverCount = Pin<Box<dyn Future<Output = Option<u64>> + Send>>;

/// The members of channels on this node. Called on the node's thread.
pub trait Members: Send + 'static {
    /// The sequence of a channel begins after these publications. `is_loss`: members have missed
    /// publications.
    fn begin(&mut self, channel: &Arc<str>, tail: Tail<Vec<u8>>, is_loss: bool);
    /// The next publication of a sequence.
    fn deliver(&mut self, channel: &Arc<str>, place: Place, envelope: &[u8]);
    /// Passes publications that [`Bus::fetch`] has requested; they end at the members' place.
    fn refill(&mut self, channel: &Arc<str>, tail: Tail<Vec<u8>>);
    /// Members have received all publications of the broker: members that wait for the sequence can
    /// join.
    fn live(&mut self, channel: &Arc<str>);
    /// A publication of a channel without history.
    fn publish(&mut self, channel: &str, envelope: &[u8]);
    /// Members of a channel without history may have missed publications: the broker did not
    /// deliver it for a moment, or has delivered a publication in an unknown format.
    fn missed(&mut self, channel: &Arc<str>) {
        let _ = channel;
    }
    /// The node is about to stop following the channel. Returns false if the channel has members.
    fn end(&mut self, channel: &Arc<str>) -> bool;
    /// A client has joined or left a channel whose members get joins and leaves.
    fn presence(&mut self, channel: &str, announcement: Announcement<'_>);
    /// A node has sent a command to this one.
    fn control(&mut self, control: Control<'_>);
    /// Returns the number of subscribers of a channel on this node.
    fn subscribers(&mut self, channel: &str) -> u64;
    /// Returns a hash of the rules for channels, which all nodes should share.
    /// [`Status::differing`] lists nodes with other rules.
    fn rules(&self) -> u64 {
        0
    }
    /// Accepted publications of a connection are lost, or may be lost.
    fn unpublished(&mut self, publisher: u64, lost: Unpublished) {
        let _ = (publisher, lost);
    }
    /// Sends a broadcast to all receivers of this node; `None`: it has an unknown format.
    fn broadcast(&mut self, envelope: &[u8]) -> Option<ReceiverCount> {
        let _ = envelope;
        None
    }
    /// Answers a question of the program; `None`: no answer.
    fn answer(&mut self, question: &[u8]) -> Option<Vec<u8>> {
        let _ = question;
        None
    }
}

/// Error of a node that cannot connect.
#[derive(Clone, Debug)]
pub struct StartError {
    message: String,
    is_lasting: bool,
}

impl StartError {
    /// Creates an error that another attempt may not repeat.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), is_lasting: false }
    }

    /// Creates an error that lasts until someone changes settings.
    pub(crate) fn lasting(message: impl Into<String>) -> Self {
        Self { message: message.into(), is_lasting: true }
    }

    /// Returns whether the error lasts until settings change, here or at the server: an invalid
    /// URL, a user without the rights or with another password, or a server of another kind.
    #[must_use]
    pub fn is_lasting(&self) -> bool {
        self.is_lasting
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for StartError {}

/// Access to a node from any thread.
#[derive(Clone, Debug)]
pub struct Bus {
    events: Events,
    parts: Parts,
    status: Arc<Status>,
    /// Memory of publications that were accepted and have no outcome yet.
    pool: Arc<SendBudget>,
    /// Questions that wait for an answer.
    asks: Arc<AtomicUsize>,
}

/// The independent parts of a node, each for one server or partition.
#[derive(Clone, Debug)]
enum Parts {
    One,
    /// A part for each server; contains the server of each partition.
    Servers(Arc<[u16]>),
    /// One for each partition of a Redis Cluster.
    Partitions,
}

impl Parts {
    /// Returns the part that has a channel.
    fn of(&self, channel: &str) -> u16 {
        match self {
            Self::One => 0,
            Self::Servers(servers) => servers[usize::from(partition_of(channel))],
            Self::Partitions => partition_of(channel),
        }
    }
}

impl Bus {
    /// Creates a node.
    ///
    /// # Errors
    /// The URL is not a valid URL of a Redis server.
    pub fn new(settings: Settings) -> Result<(Self, Starter), StartError> {
        Starter::create(settings, false)
    }

    /// Creates a node for threads with separate descriptor tables. There, the descriptor number
    /// that wakes the node's runtime may belong to another file, so an intermediate thread wakes
    /// the runtime.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn for_own_tables(settings: Settings) -> Result<(Self, Starter), StartError> {
        Starter::create(settings, true)
    }

    fn part_of(&self, channel: &str) -> u16 {
        self.parts.of(channel)
    }

    /// Returns the part that sends commands to one node and questions to all: a part that all nodes
    /// use from the start.
    fn part_of_nodes(&self) -> u16 {
        match self.parts {
            Parts::One | Parts::Servers(_) => self.status.first_up(),
            Parts::Partitions => 0,
        }
    }

    /// Returns the figures of the node.
    #[must_use]
    pub fn status(&self) -> &Status {
        &self.status
    }

    /// Returns whether the channel's part of the broker has been reached since the start. Before
    /// that, no member of the channel can be served.
    #[must_use]
    pub fn was_linked(&self, channel: &str) -> bool {
        self.status.was_part_up(self.part_of(channel))
    }

    /// Records that a channel has a member on this node.
    pub fn follow(&self, channel: Arc<str>, keep: Option<KeepRule>) {
        let _ = self.events.send(self.part_of(&channel), NodeEvent::Follow(channel, keep));
    }

    /// Records that a channel has no members left on this node.
    pub fn unfollow(&self, channel: Arc<str>) {
        let _ = self.events.send(self.part_of(&channel), NodeEvent::Unfollow(channel));
    }

    /// Asks the broker for the end of a channel's sequence: [`Members::live`] follows.
    pub fn check(&self, channel: Arc<str>) {
        let _ = self.events.send(self.part_of(&channel), NodeEvent::Check(channel));
    }

    /// Asks the broker for all publications that it keeps of a channel. [`Members::refill`] or
    /// [`Members::begin`] follows, then [`Members::live`].
    pub fn fetch(&self, channel: Arc<str>) {
        let _ = self.events.send(self.part_of(&channel), NodeEvent::Fetch(channel));
    }

    /// Accepts a publication whose publisher does not wait for capacity; returns false if it is
    /// refused.
    #[must_use]
    pub fn publish(&self, outgoing: Outgoing) -> bool {
        self.publish_by(outgoing, None, Ticket::default()).is_some()
    }

    /// Accepts a publication; returns `None` if it is refused, and its ticket then reports nothing.
    /// A `publisher`, identified by any number, waits for [capacity](Self::await_capacity) after it
    /// has used its share of the memory, and may use the reserve for waiting publishers. If an
    /// accepted publication is lost, [`Members::unpublished`] reports the outcome of the ticket.
    #[must_use]
    pub fn publish_by(
        &self,
        outgoing: Outgoing,
        publisher: Option<u64>,
        ticket: Ticket,
    ) -> Option<Fill> {
        let part = self.part_of(&outgoing.channel);
        let (fill, reserved) = self.admit(part, &outgoing, publisher)?;
        if self.events.send(part, NodeEvent::Publish(outgoing, reserved, ticket)) {
            return Some(fill);
        }
        self.pool.release(reserved);
        self.status.count_refused();
        None
    }

    /// Registers `wake` to be called, on any thread, as soon as there is
    /// [capacity](Fill::Available) for publications to a part, if the part is crowded now; returns
    /// false if it is not. A registration replaces an earlier one of the same `sender` for the
    /// part.
    #[must_use]
    pub fn await_capacity(
        &self,
        part: u16,
        sender: usize,
        wake: impl FnOnce() + Send + 'static,
    ) -> bool {
        self.pool.await_capacity(part, sender, Box::new(wake))
    }

    /// Reserves memory for a publication that may wait, or whose part is up; otherwise counts it as
    /// refused.
    fn admit(
        &self,
        part: u16,
        outgoing: &Outgoing,
        publisher: Option<u64>,
    ) -> Option<(Fill, Reserved)> {
        let may_wait = outgoing.while_down != WhileDown::Refuse;
        let is_taken = may_wait || self.status.is_part_up(part);
        let cost = node::cost_of(outgoing);
        let reserved = is_taken.then(|| self.pool.reserve(part, cost, publisher)).flatten();
        if reserved.is_none() {
            self.status.count_refused();
        }
        reserved
    }

    /// Ends the node, and waits until accepted messages are published, for at most two seconds.
    pub fn stop(&self) {
        let (ended, end) = std::sync::mpsc::channel();
        for part in 0..self.status.parts().0 {
            let _ = self.events.send(part as u16, NodeEvent::Stop(ended.clone()));
        }
        drop(ended);
        // The end of all parts closes the channel.
        let _ = end.recv_timeout(STOP_LIMIT + Duration::from_secs(1));
    }
}
