//! A node of a cluster whose broker is Redis or Valkey.
//!
//! One thread has a runtime of its own and two connections: one for commands, one for
//! subscriptions. Everything happens in `node.rs`, one event after the other; tasks (`task.rs`)
//! wait for the server's answers and put them among the events, as other threads do by way of
//! `events.rs`. `link.rs` connects, to the server
//! of which `address.rs` has read, or that which `sentinel.rs` finds; `calls.rs` has the commands,
//! `presence/` what concerns members of channels.

mod address;
mod calls;
mod control;
mod events;
mod link;
mod node;
mod pool;
mod presence;
mod reply;
mod rights;
mod sentinel;
mod status;
mod survey;
mod task;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;

use crate::{Announcement, Control, Place, WhileDown};
use events::Events;
use link::Target;
use node::{Event, Node};
use pool::Pool;

pub use pool::Fill;
pub use presence::{Listed, RemoteMember};
pub use reply::{AskError, Reply, block_on};
pub use status::{Status, StatusSnapshot};
pub use survey::Counted;

/// Time for which a node that is stopped goes on publishing what it has accepted.
const STOP_LIMIT: Duration = Duration::from_secs(2);

/// Settings of a node.
#[derive(Clone)]
pub struct Settings {
    /// The server: `redis://[user[:password]@]host[:port][/database]`, or the one that sentinels
    /// name: `redis-sentinel://[user[:password]@]host[:port][,...]/master[/database]`.
    pub url: String,
    /// The beginning of all names that are used at the server.
    pub prefix: String,
    /// Number of this node, at random.
    pub node: u64,
}

/// Without the URL, which may have a password.
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
pub struct Keep {
    /// Publications.
    pub count: usize,
    /// Bytes of publications, with 128 for each besides its own. One that is larger is published,
    /// and neither it nor what came before it is kept.
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
    pub keep: Option<Keep>,
    /// Whether it waits while the broker is away.
    pub while_down: WhileDown,
}

/// The members of channels on this node. Called on the node's thread.
pub trait Members: Send + 'static {
    /// The sequence of a channel begins behind `place`; `is_loss`: members miss publications.
    fn begin(
        &mut self,
        channel: &Arc<str>,
        place: Place,
        entries: Vec<(u64, Vec<u8>)>,
        is_loss: bool,
    );
    /// The next publication of a sequence.
    fn deliver(&mut self, channel: &Arc<str>, place: Place, envelope: &[u8]);
    /// These publications, which were asked for with [`Bus::fetch`], lead up to `place`, at which
    /// members are.
    fn refill(&mut self, channel: &Arc<str>, place: Place, entries: Vec<(u64, Vec<u8>)>);
    /// Members have got all that the broker had: members that wait for the sequence can join.
    fn live(&mut self, channel: &Arc<str>);
    /// A publication of a channel without history.
    fn publish(&mut self, channel: &str, envelope: &[u8]);
    /// The node is about to follow the channel no longer. Returns false if it has members.
    fn end(&mut self, channel: &Arc<str>) -> bool;
    /// A client has joined or left a channel whose members get such.
    fn presence(&mut self, channel: &str, announcement: Announcement<'_>);
    /// A node has a command for this one.
    fn control(&mut self, control: Control<'_>);
    /// Returns the number of subscribers of a channel on this node.
    fn subscribers(&mut self, channel: &str) -> u64;
}

/// The way to a node from any thread.
#[derive(Clone, Debug)]
pub struct Bus {
    events: Events,
    status: Arc<Status>,
    /// Memory of publications that were accepted and have no outcome yet.
    pool: Arc<Pool>,
    /// Questions that wait for an answer.
    asks: Arc<AtomicUsize>,
}

/// Error of a node that cannot start.
#[derive(Clone, Debug)]
pub struct StartError(pub(crate) String);

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for StartError {}

/// A node that does not run yet.
#[derive(Debug)]
pub struct Starter {
    target: Target,
    bus: Bus,
    receiver: mpsc::UnboundedReceiver<Event>,
    relayed: Option<events::Relayed>,
}

impl Bus {
    /// Creates a node.
    ///
    /// # Errors
    /// The URL is none of a Redis server.
    pub fn new(settings: Settings) -> Result<(Self, Starter), StartError> {
        Self::create(settings, false)
    }

    /// Creates a node for threads with descriptor tables of their own, in which the number of the
    /// descriptor that wakes the node's runtime is that of another file: a thread in between wakes
    /// it.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn for_own_tables(settings: Settings) -> Result<(Self, Starter), StartError> {
        Self::create(settings, true)
    }

    fn create(settings: Settings, is_relayed: bool) -> Result<(Self, Starter), StartError> {
        let target = Target::new(settings)?;
        let (direct, receiver) = mpsc::unbounded_channel();
        let (events, relayed) = Events::new(direct, is_relayed);
        let bus =
            Self { events, status: Arc::default(), pool: Arc::default(), asks: Arc::default() };
        Ok((bus.clone(), Starter { target, bus, receiver, relayed }))
    }

    /// Returns the figures of the node.
    #[must_use]
    pub fn status(&self) -> &Status {
        &self.status
    }

    /// Notes that a channel has a member.
    pub fn follow(&self, channel: Arc<str>, keep: Option<Keep>) {
        let _ = self.events.send(Event::Follow(channel, keep));
    }

    /// Notes that a channel has no member any more.
    pub fn unfollow(&self, channel: Arc<str>) {
        let _ = self.events.send(Event::Unfollow(channel));
    }

    /// Has the broker asked for the end of a channel's sequence: [`Members::live`] follows.
    pub fn check(&self, channel: Arc<str>) {
        let _ = self.events.send(Event::Check(channel));
    }

    /// Has the broker asked for all that it keeps of a channel: [`Members::refill`] follows, or
    /// [`Members::begin`], and then [`Members::live`].
    pub fn fetch(&self, channel: Arc<str>) {
        let _ = self.events.send(Event::Fetch(channel));
    }

    /// Accepts a publication of a publisher that does not wait; returns false if it is refused.
    #[must_use]
    pub fn publish(&self, outgoing: Outgoing) -> bool {
        self.publish_within(outgoing, false).is_some()
    }

    /// Accepts a publication; `None`: it is refused. A publisher that `waits` for
    /// [room](Self::await_room) when the memory is crowded may use what is reserved for such.
    #[must_use]
    pub fn publish_within(&self, outgoing: Outgoing, waits: bool) -> Option<Fill> {
        let bytes = node::cost_of(&outgoing);
        let fill = self.admit(&outgoing, waits)?;
        if self.events.send(Event::Publish(outgoing)) {
            return Some(fill);
        }
        self.pool.release(bytes);
        self.count_refused();
        None
    }

    /// Has `wake` called, on any thread, as soon as there is [room](Fill::Room) for publications,
    /// if the memory is crowded now; returns false if it is not. It replaces what the same
    /// `sender` waits with already.
    #[must_use]
    pub fn await_room(&self, sender: usize, wake: impl FnOnce() + Send + 'static) -> bool {
        self.pool.await_room(sender, Box::new(wake))
    }

    /// Takes memory for a publication that may wait, or need not; otherwise counts it as refused.
    fn admit(&self, outgoing: &Outgoing, waits: bool) -> Option<Fill> {
        let may_wait = outgoing.while_down != WhileDown::Refuse;
        let is_taken = may_wait || self.status.is_up();
        let fill = is_taken.then(|| self.pool.reserve(node::cost_of(outgoing), waits)).flatten();
        if fill.is_none() {
            self.count_refused();
        }
        fill
    }

    fn count_refused(&self) {
        self.status.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends the node, and waits until what was accepted is published, for two seconds at most.
    pub fn stop(&self) {
        let (ended, end) = std::sync::mpsc::channel();
        if self.events.send(Event::Stop(ended)) {
            // The node's end closes the channel.
            let _ = end.recv_timeout(STOP_LIMIT + Duration::from_secs(1));
        }
    }
}

/// The node's thread: however it ends, the node does not claim to deliver any more, and publishers
/// do not wait for it.
struct Thread(Bus);

impl Drop for Thread {
    fn drop(&mut self) {
        let why = "the cluster's thread has ended; start the server again";
        self.0.status.set_down(why.to_owned());
        self.0.pool.close();
    }
}

impl Starter {
    /// Connects, and starts the node's thread.
    ///
    /// # Errors
    /// The server cannot be reached, does not let the node in, or is not one that it can use.
    pub fn start(self, members: impl Members) -> Result<(), StartError> {
        let (started, outcome) = std::sync::mpsc::channel();
        let Self { target, bus, receiver, relayed } = self;
        let cannot = |error: std::io::Error| {
            StartError(format!("cannot start the cluster's thread: {error}"))
        };
        if let Some(relayed) = relayed {
            relayed.start().map_err(cannot)?;
        }
        let run = move || {
            let _thread = Thread(bus.clone());
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            match runtime {
                Ok(runtime) => runtime.block_on(async {
                    match Node::connect(target, bus, members).await {
                        Ok(node) => {
                            let _ = started.send(Ok(()));
                            node.run(receiver).await;
                        }
                        Err(error) => drop(started.send(Err(error))),
                    }
                }),
                Err(error) => drop(started.send(Err(cannot(error)))),
            }
        };
        std::thread::Builder::new().name("cluster".to_owned()).spawn(run).map_err(cannot)?;
        outcome.recv().unwrap_or_else(|_| Err(StartError("the cluster's thread ended".to_owned())))
    }
}
