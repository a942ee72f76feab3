//! An event loop, for functions that run on it outside of a session's callbacks.

use std::fmt;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};

use throng_engine::workers::{Busy, OverflowPolicy};
use throng_engine::{CloseCode, Core, Frame, QueueFull, Receipt, Remote, Sent};
use throng_io::ConnId;

use crate::events::Events;
use crate::handle::Handle;
use crate::hub::Hub;
use crate::panics::Callback;
use crate::workers::WorkerPool;

/// An event loop of the server, inside a function that runs on it:
/// [`Server::every_on_shard`](crate::Server::every_on_shard) and [`Hub::run_at`].
pub struct Shard<'a> {
    core: &'a mut Core,
    context: &'a ShardContext,
}

impl<'a> Shard<'a> {
    pub(crate) fn new(core: &'a mut Core, context: &'a ShardContext) -> Self {
        core.begin_tick();
        Self { core, context }
    }

    /// Returns its number, from 0 on.
    #[must_use]
    pub fn number(&self) -> usize {
        self.core.shard()
    }

    /// Returns the hub, which reaches all connections.
    #[must_use]
    pub fn hub(&self) -> Hub {
        Hub::of(self.core.remote().clone())
    }

    /// Sends a message to a session of this event loop, without a command through its queue, after
    /// messages that this call has [published](Self::publish). [`Sent::Closed`] if the session has
    /// ended, or belongs to another event loop: use [`Hub::send`] there.
    pub fn send(&mut self, to: Handle, message: impl Into<Frame>) -> Sent {
        self.core.send_in_tick(to.id(), &message.into())
    }

    /// Begins the closing handshake with a session of this event loop, like
    /// [`Socket::close`](crate::Socket::close). Nothing happens if it has ended, or belongs to
    /// another event loop.
    pub fn close(&mut self, session: Handle, code: impl Into<CloseCode>, reason: &str) {
        self.core.close_in_tick(session.id(), code.into().get(), reason);
    }

    /// Sends to every member of a channel, on all event loops, like
    /// [`Socket::publish`](crate::Socket::publish). Members on this loop need no command, unless
    /// others wait in its queue. Members on an event loop whose queue is full are counted as
    /// unreached.
    pub fn publish(&mut self, channel: &str, message: impl Into<Frame>) -> Receipt {
        self.core.publish_unheld(channel, &message.into())
    }

    /// Runs `work` on the server's worker pool, where it may block, and then `then` with its
    /// result on this event loop, with the loop's state of type `T`.
    ///
    /// Unlike [`Socket::offload`](crate::Socket::offload) it belongs to no session: a room can load
    /// its document for all members, also if the first of them leaves. Jobs run at once, in no
    /// order. If the event loop has ended, `then` is not called, and `work` may not be. A panic
    /// in either is counted, and reported as
    /// [`ServerEvent::CallbackPanicked`](crate::server::ServerEvent::CallbackPanicked).
    ///
    /// ```
    /// # use std::collections::HashMap;
    /// # use throng::prelude::*;
    /// # fn load(room: &str) -> String { room.to_uppercase() }
    /// #[derive(Default)]
    /// struct Documents(HashMap<String, String>);
    ///
    /// fn open(hub: &Hub, room: String) -> Result<(), QueueFull> {
    ///     hub.run_at(&room.clone(), move |_: &mut Documents, shard| {
    ///         let name = room.clone();
    ///         let loaded = shard.offload(
    ///             move || load(&name),
    ///             move |documents: &mut Documents, shard, text| {
    ///                 shard.publish(&format!("room.{room}"), text.clone());
    ///                 documents.0.insert(room, text);
    ///             },
    ///         );
    ///         if loaded.is_err() {
    ///             eprintln!("the workers are busy");
    ///         }
    ///     })
    /// }
    /// # use throng::channel::QueueFull;
    /// ```
    ///
    /// # Errors
    /// The pool's queue is full: `work` was dropped, for any
    /// [`Overload`](crate::workers::Overload).
    pub fn offload<T, R, W, C>(&mut self, work: W, then: C) -> Result<(), Busy>
    where
        T: Default + Send + 'static,
        R: Send + 'static,
        W: FnOnce() -> R + Send + 'static,
        C: FnOnce(&mut T, &mut Shard<'_>, R) + Send + 'static,
    {
        let Some(pool) = self.context.pool.get() else { return Err(Busy) };
        let (shard, remote) = (self.core.shard(), self.core.remote().clone());
        let events = self.context.events.clone();
        let work = move || {
            if let Some(result) = events.guard(Callback::ShardOffload, work) {
                let then = move |state: &mut T, shard: &mut Shard<'_>| then(state, shard, result);
                let call = ShardCall::new(Callback::ShardOffload, then);
                remote.call_always(shard, Box::new(call));
            }
        };
        let job = self.context.next_job(shard);
        pool.submit(job, &self.context.name, OverflowPolicy::Refuse, Box::new(work)).map(drop)
    }
}

// Here and not beside its other methods, since an event loop has a hub.
impl Hub {
    /// Runs `call` on the event loop of a key, with the loop's state of type `T`: the state that
    /// [`Socket::shard_state`](crate::Socket::shard_state) returns in sessions that
    /// [`Ws::place_by`](crate::Ws::place_by) placed by the same key, and that no other thread
    /// reaches. So a thread, a job or an HTTP handler can change a room without a lock.
    ///
    /// The calls of one thread for one key run in their order, after its earlier commands. A panic
    /// is counted and reported as
    /// [`ServerEvent::CallbackPanicked`](crate::server::ServerEvent::CallbackPanicked). If the
    /// server stops first, `call` is dropped. The memory of its captured values does not count
    /// in the queue.
    ///
    /// ```
    /// # use std::collections::HashMap;
    /// # use throng::prelude::*;
    /// #[derive(Default)]
    /// struct Scores(HashMap<String, u64>);
    ///
    /// fn add(hub: &Hub, room: String, points: u64) -> Result<(), throng::channel::QueueFull> {
    ///     hub.run_at(&room.clone(), move |scores: &mut Scores, shard| {
    ///         let score = scores.0.entry(room.clone()).or_default();
    ///         *score += points;
    ///         shard.publish(&format!("room.{room}"), score.to_string());
    ///     })
    /// }
    /// ```
    ///
    /// # Errors
    /// The event loop's queue is full, or there is no event loop: the server is not bound yet, or
    /// runs with [`IoBackend::Threads`](crate::server::IoBackend::Threads). `call` was dropped.
    pub fn run_at<K, T>(
        &self,
        key: &K,
        call: impl FnOnce(&mut T, &mut Shard<'_>) + Send + 'static,
    ) -> Result<(), QueueFull>
    where
        K: Hash + ?Sized,
        T: Default + Send + 'static,
    {
        let shard = shard_of(hash_of(key), self.remote());
        self.remote().call(shard, Box::new(ShardCall::new(Callback::RunAt, call)))
    }
}

/// The parts of a server that functions on its event loops use.
#[derive(Debug)]
pub(crate) struct ShardContext {
    pub(crate) events: Events,
    pool: WorkerPool,
    /// Stands for a route's path where metrics list running jobs.
    name: Arc<str>,
    jobs: AtomicU32,
}

impl ShardContext {
    pub(crate) fn new(pool: WorkerPool, events: Events) -> Self {
        Self { events, pool, name: "shard".into(), jobs: AtomicU32::new(0) }
    }

    /// Returns an id for a job, which keeps it apart from the jobs of connections and from those
    /// that run beside it. Its slot, the last, would be a shard's four-millionth connection.
    fn next_job(&self, shard: usize) -> ConnId {
        let number = self.jobs.fetch_add(1, Ordering::Relaxed);
        ConnId::new(shard as u16, ConnId::MAX_SLOTS as u32 - 1, number)
    }
}

type OnShard = dyn FnOnce(&mut Core, &ShardContext) + Send;

/// A function for an event loop, as its queue holds it.
pub(crate) struct ShardCall {
    callback: Callback,
    call: Box<OnShard>,
}

impl ShardCall {
    pub(crate) fn new<T: Default + Send + 'static>(
        callback: Callback,
        call: impl FnOnce(&mut T, &mut Shard<'_>) + Send + 'static,
    ) -> Self {
        let call = move |core: &mut Core, context: &ShardContext| {
            core.with_local(|state: &mut T, core| call(state, &mut Shard::new(core, context)));
        };
        Self { callback, call: Box::new(call) }
    }

    pub(crate) fn run(self, core: &mut Core, context: &ShardContext) {
        let _ = context.events.guard(self.callback, || (self.call)(core, context));
    }
}

impl fmt::Debug for Shard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shard").field("number", &self.number()).finish_non_exhaustive()
    }
}

/// The hash of keys that place sessions. Its keys are random, so that no client can choose names
/// that all map to one event loop.
static KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// Hashes a key that places a session.
pub(crate) fn hash_of<K: Hash + ?Sized>(key: &K) -> u64 {
    KEYS.hash_one(key)
}

/// Returns the shard of sessions whose key has this hash.
pub(crate) fn shard_of(hash: u64, remote: &Remote) -> usize {
    (hash % remote.shards().max(1) as u64) as usize
}
