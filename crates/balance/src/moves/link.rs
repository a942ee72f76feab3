//! The two directions of an end of a link.

use std::collections::VecDeque;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::thread;

use throng_carry::link::LinkMessage;
use throng_carry::{Inbox, Secret};
use throng_engine::mailbox::Mailbox;
use throng_io::handover::{self, MAX_AT_ONCE, ProcessWatch};

use crate::command::BalanceCommand;
use crate::moving::{LinkNumber, MoveCommand, PREDECESSOR};

/// The longest message: a batch of tunnels, each with the input of one turn queued for both sides
/// and in flight to both, and the start of a TLS record.
const MAX_MESSAGE: usize = 32 << 20;

/// Bytes that are read from a link at once.
const READ_AT_ONCE: usize = 64 << 10;

/// The messages of a shard that wait for space in its link.
#[derive(Debug)]
pub(super) struct LinkOut {
    stream: UnixStream,
    queue: VecDeque<Outgoing>,
}

/// A message whose last byte has not left.
#[derive(Debug)]
struct Outgoing {
    bytes: Secret,
    sent: usize,
    /// They go with the first byte.
    descriptors: Vec<OwnedFd>,
    is_yours: bool,
}

impl LinkOut {
    pub(super) fn new(stream: UnixStream) -> Self {
        Self { stream, queue: VecDeque::new() }
    }

    /// Queues a message, and descriptors that go before it.
    pub(super) fn push(&mut self, message: &LinkMessage, descriptors: Vec<OwnedFd>) {
        debug_assert!(descriptors.len() <= MAX_AT_ONCE);
        let is_yours = matches!(message, LinkMessage::Yours { .. });
        self.queue.push_back(Outgoing { bytes: message.encode(), sent: 0, descriptors, is_yours });
    }

    /// Sends what the kernel takes at once. Returns whether all of a YOURS has left.
    ///
    /// # Errors
    /// The other end is gone.
    pub(super) fn flush(&mut self) -> io::Result<bool> {
        let mut has_yours_left = false;
        while let Some(first) = self.queue.front_mut() {
            let with: Vec<_> = first.descriptors.iter().map(AsFd::as_fd).collect();
            match handover::try_send(&self.stream, &first.bytes[first.sent..], &with) {
                Ok(sent) => first.sent += sent,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            first.descriptors.clear();
            if first.sent == first.bytes.len() {
                has_yours_left |= first.is_yours;
                self.queue.pop_front();
            }
        }
        Ok(has_yours_left)
    }

    /// Returns whether everything has left.
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

impl Drop for LinkOut {
    /// Ends both directions, so that the threads that read them end.
    fn drop(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// The shard of a link, and its number for the link.
pub(super) type ShardOf = (LinkNumber, Mailbox<BalanceCommand>);

/// Reads what a successor sends, on a thread of its own, until the link ends.
pub(super) fn listen_to_successor(stream: UnixStream, shard: ShardOf) -> io::Result<()> {
    spawn(move || read(&stream, &shard))
}

/// Reads what a predecessor sends, on a thread of its own, and reports its end, which is after the
/// link's. Where the system has no descriptors of processes, the end is never known, and no batch
/// under way is claimed.
///
/// # Errors
/// It is of another user; no thread is left.
pub(super) fn listen_to_predecessor(
    stream: UnixStream,
    mailbox: Mailbox<BalanceCommand>,
) -> io::Result<()> {
    handover::check_peer(&stream)?;
    let watch = ProcessWatch::of_peer(&stream).ok();
    spawn(move || {
        let shard = (PREDECESSOR, mailbox);
        read(&stream, &shard);
        // It still has the connections that did not move. Only its end proves that it will never
        // continue those in flight.
        if watch.is_some_and(|watch| watch.wait().is_ok()) {
            post(&shard.1, MoveCommand::Died(PREDECESSOR));
        }
    })
}

fn spawn(run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let thread = thread::Builder::new().name("balance-link".to_owned()).stack_size(256 << 10);
    thread.spawn(run).map(drop).map_err(|error| throng_io::limits::thread_not_started(&error))
}

/// Reads messages until the end of the link, or a message that breaks a rule.
fn read(stream: &UnixStream, shard: &ShardOf) {
    let mut inbox = Inbox::new(MAX_MESSAGE);
    let mut descriptors = VecDeque::new();
    // It is wiped at the end: it has had keys.
    let mut buffer = Secret::zeros(READ_AT_ONCE);
    while let Ok((count @ 1.., passed)) = handover::receive(stream, &mut buffer) {
        inbox.push(&buffer[..count]);
        descriptors.extend(passed);
        let is_bounded = descriptors.len() <= MAX_AT_ONCE;
        if !is_bounded || post_all(&mut inbox, &mut descriptors, shard).is_none() {
            break;
        }
    }
    post(&shard.1, MoveCommand::LinkEnded(shard.0));
}

/// Posts the whole messages. Returns `None` if one breaks a rule, or the shard does not take them.
fn post_all(
    inbox: &mut Inbox,
    descriptors: &mut VecDeque<OwnedFd>,
    (link, mailbox): &ShardOf,
) -> Option<()> {
    while let Some(message) = inbox.next_message().ok()? {
        // A later release may send messages that this one does not know.
        let Some(message) = LinkMessage::decode(&message).ok()? else { continue };
        let wanted = match &message {
            LinkMessage::Batch { records, .. } => 2 * records.len(),
            _ => 0,
        };
        if descriptors.len() < wanted {
            return None;
        }
        let with = descriptors.drain(..wanted).collect();
        mailbox.send(BalanceCommand::Move(MoveCommand::Message(*link, message, with))).ok()?;
    }
    Some(())
}

fn post(mailbox: &Mailbox<BalanceCommand>, command: MoveCommand) {
    mailbox.send_always(BalanceCommand::Move(command));
}
