//! The queue of commands of a shard: a mailbox, and the publications lost while it was full.

use std::sync::Arc;
use std::time::{Duration, Instant};

use throng_io::Waker;

use crate::configuration::Configuration;
use crate::pubsub::delivery::AckSlot;
use crate::remote::Command;
use crate::remote::losses::{Losses, Receivers};
use crate::remote::mailbox::{Fill, Inbox, Mailbox, mailbox, mailbox_with_mark};

/// Factor by which shards of event loops may fill each other's queues more than other threads may.
/// Their publishers are delayed from [`super::MAILBOX_MARK`] on; this capacity is for the
/// publications that very many publishers may each make before that.
const RESERVE: usize = 4;

/// Interval at which a publisher that waits for room looks again.
pub(super) const RETRY: Duration = Duration::from_millis(1);

/// The sending half of a shard's queue.
#[derive(Clone, Debug)]
pub(crate) struct ShardQueue {
    pub(super) mailbox: Mailbox<Command>,
    pub(super) losses: Arc<Losses>,
    /// Factor by which shards may use more of the capacity than other threads.
    reserve: usize,
}

/// The receiving half of a shard's queue.
pub(crate) struct ShardInbox {
    pub(crate) commands: Inbox<Command>,
    pub(crate) losses: Arc<Losses>,
}

impl std::fmt::Debug for ShardInbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShardInbox").finish_non_exhaustive()
    }
}

impl ShardInbox {
    /// Returns whether there is anything to take.
    #[inline]
    pub(crate) fn has_any(&self) -> bool {
        self.commands.has_commands() || self.losses.are_any()
    }
}

/// Creates the queue of a shard that `waker` wakes, crowded with more commands than `mark`.
pub(crate) fn shard_queue(capacity: usize, mark: usize, waker: Waker) -> (ShardQueue, ShardInbox) {
    queue_of(mailbox_with_mark(capacity, mark, waker))
}

/// Creates the queue of a shard of one connection.
pub(crate) fn thread_queue(capacity: usize, waker: Waker) -> (ShardQueue, ShardInbox) {
    let (queue, inbox) = queue_of(mailbox(capacity, waker));
    // Publishers are not held back: commands that wait for one connection are its backlog.
    (ShardQueue { reserve: 1, ..queue }, inbox)
}

fn queue_of((mailbox, commands): (Mailbox<Command>, Inbox<Command>)) -> (ShardQueue, ShardInbox) {
    let losses = Arc::<Losses>::default();
    let queue = ShardQueue { mailbox, losses: Arc::clone(&losses), reserve: RESERVE };
    (queue, ShardInbox { commands, losses })
}

impl ShardQueue {
    /// Returns whether there are commands that the shard has not taken yet.
    #[inline]
    pub(crate) fn has_commands(&self) -> bool {
        self.mailbox.has_commands()
    }

    /// Returns whether the shard misses publications that it does not know of yet.
    pub(crate) fn has_losses(&self) -> bool {
        self.losses.are_any()
    }

    /// Queues a command of the shard itself, even if the queue is full.
    pub(crate) fn put_always(&self, command: Command) {
        self.mailbox.send_always(command);
    }

    /// Queues a command of another thread, or returns it.
    pub(super) fn put(&self, command: Command) -> Result<(), Command> {
        let bytes = command.bytes();
        self.mailbox.send_with(command, bytes)
    }

    /// Queues a command as soon as there is room, until `deadline`. Returns false if there was
    /// none.
    pub(super) fn put_by(&self, mut command: Command, deadline: Option<Instant>) -> bool {
        while let Err(returned) = self.put(command) {
            if deadline.is_none_or(|deadline| Instant::now() >= deadline) {
                return false;
            }
            command = returned;
            std::thread::sleep(RETRY);
        }
        true
    }

    /// Queues other limits and rules.
    pub(crate) fn configure(&self, configuration: &Arc<Configuration>, ack: AckSlot) {
        let configuration = Arc::clone(configuration);
        self.mailbox.send_always(Command::Configure { configuration, ack });
    }

    /// Queues a publication of another shard. Returns `None` if it is lost, which is recorded for
    /// the owner of the queue.
    pub(super) fn put_reserved(&self, command: Command, receivers: &Receivers) -> Option<Fill> {
        let bytes = command.bytes();
        let fill = self.mailbox.send_within(command, bytes, self.reserve).ok();
        if fill.is_none() {
            self.losses.add(receivers);
            self.mailbox.wake();
        }
        fill
    }
}
