//! Mail of a shard: commands of other threads, and of the shard itself, in one order.

use std::collections::VecDeque;

use crate::remote::losses::Lost;
use crate::remote::{Command, ShardInbox, ShardQueue};

/// The queue of a shard, with both of its ends.
#[derive(Debug)]
pub(crate) struct ShardMail {
    inbox: ShardInbox,
    /// Commands taken from the queue that have not been carried out yet.
    commands: VecDeque<Command>,
    queue: ShardQueue,
}

impl ShardMail {
    pub(crate) fn new((queue, inbox): (ShardQueue, ShardInbox)) -> Self {
        Self { inbox, commands: VecDeque::new(), queue }
    }

    /// Returns whether commands wait that were put before what comes next.
    #[inline]
    pub(crate) fn has_commands(&self) -> bool {
        !self.commands.is_empty() || self.queue.has_commands()
    }

    /// Returns whether the shard misses publications that it does not know of yet.
    pub(crate) fn has_losses(&self) -> bool {
        self.queue.has_losses()
    }

    /// Returns whether commands or losses wait.
    #[inline]
    pub(crate) fn has_any(&self) -> bool {
        !self.commands.is_empty() || self.inbox.has_any()
    }

    /// Takes the queue if all commands taken before are carried out. Returns the publications that
    /// were lost before these commands were queued.
    pub(crate) fn take(&mut self) -> Option<Vec<Lost>> {
        self.commands.is_empty().then(|| {
            self.commands.extend(self.inbox.commands.drain());
            self.inbox.losses.take()
        })
    }

    /// Returns the next command to carry out.
    pub(crate) fn next(&mut self) -> Option<Command> {
        self.commands.pop_front()
    }

    /// Puts back the rest of a command, which is next.
    pub(crate) fn put_back(&mut self, command: Command) {
        self.commands.push_front(command);
    }

    /// Queues a command of the shard itself, behind all that wait.
    pub(crate) fn put(&self, command: Command) {
        self.queue.put_always(command);
    }
}
