//! The queues between a shard and the futures of one session.
//!
//! Wakers are called, and messages dropped, outside of the lock: both may run user code that calls
//! back into this module.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use throng_engine::{Close, CloseCode, Cx, EndReason, Fault, Frame, Interest, Sent};
use throng_io::ConnId;
use throng_proto::ws::OwnedMessage;

use super::wakers::WakerSet;
use crate::hub::Hub;
use crate::panic_notice::{PanicNotice, Reporter};

/// Bytes counted for a queued message or command besides its payload, so that the byte limits also
/// bound the number of empty ones.
const OVERHEAD: usize = 128;

/// Maximum capacity, in entries, that empty queues keep.
const KEPT: usize = 16;

/// The error with which the future of a session ends.
///
/// Sends return it if the session has ended or is being closed. With `?`, an error of your own that
/// converts to a [`CloseReason`] converts to this type; the session is then closed with that code
/// and reason, after the messages already sent. The peer gets the reason, and the log contains it.
///
/// ```
/// use throng::asynchronous::{AsyncSocket, CloseReason, SessionClosed};
/// use throng::prelude::*;
///
/// enum LoginError {
///     WrongToken,
///     Database(std::io::Error),
/// }
///
/// impl From<LoginError> for CloseReason {
///     fn from(error: LoginError) -> Self {
///         match error {
///             LoginError::WrongToken => Self::new(CloseCode::POLICY_VIOLATION, "wrong token"),
///             LoginError::Database(_) => Self::new(CloseCode::INTERNAL_ERROR, "no database"),
///         }
///     }
/// }
///
/// # async fn look_up(_: &[u8]) -> Result<String, LoginError> { Ok(String::new()) }
/// async fn session(mut socket: AsyncSocket) -> Result<(), SessionClosed> {
///     let Some(token) = socket.next().await else { return Ok(()) };
///     let user = look_up(token.as_bytes()).await?;
///     socket.send(format!("hello {user}")).await
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionClosed {
    /// Code and reason for closing the session; `None` if the session has ended or is being closed.
    close: Option<Box<CloseReason>>,
}

impl SessionClosed {
    /// The session has ended or is being closed.
    pub(super) const ENDED: Self = Self { close: None };

    /// Returns how to close the session.
    pub(super) fn into_close(self) -> Option<CloseReason> {
        self.close.map(|close| *close)
    }
}

impl<E: Into<CloseReason>> From<E> for SessionClosed {
    fn from(error: E) -> Self {
        Self { close: Some(Box::new(error.into())) }
    }
}

impl fmt::Display for SessionClosed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.close {
            Some(close) => write!(f, "the session is closed with {close}"),
            None => f.write_str("the session has ended or is being closed"),
        }
    }
}

impl std::error::Error for SessionClosed {}

/// The reason why a session ended, or must end: an owned [`Close`](crate::Close).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CloseReason {
    /// The close code: the peer's if it closed, the server's if the server did, 1005 if a Close
    /// frame carried none, 1006 if the connection ended without a closing handshake.
    pub code: CloseCode,
    /// The reason that came with the code; usually empty.
    pub reason: String,
}

impl CloseReason {
    /// Creates the reason to close a session; for the codes, and the length of the reason, see
    /// [`Socket::close`](crate::Socket::close).
    pub fn new(code: CloseCode, reason: impl Into<String>) -> Self {
        Self { code, reason: reason.into() }
    }
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.code)?;
        match self.reason.as_str() {
            "" => Ok(()),
            reason => write!(f, ": {reason}"),
        }
    }
}

/// The limits of both queues.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    /// The number of messages waiting or being processed at which the connection is not read.
    pub(super) credits: usize,
    /// The number of messages at which it is read again.
    pub(super) resume_at: usize,
    /// The bytes of waiting messages at which the connection is not read.
    pub(super) receive: usize,
    /// The bytes of waiting commands at which senders wait.
    pub(super) send: usize,
}

/// A command of a future to its connection.
pub(super) enum AsyncCommand {
    Send(Frame),
    Publish {
        channel: Box<str>,
        frame: Frame,
        to_others: bool,
    },
    /// The interest makes publishers count this shard until the command has run.
    Subscribe(Box<str>, Interest),
    SubscribePattern(Box<str>, Interest),
    Unsubscribe(Box<str>),
    Close(CloseCode, Box<str>),
}

impl AsyncCommand {
    fn cost(&self) -> usize {
        OVERHEAD
            + match self {
                Self::Send(frame) => frame.as_bytes().len(),
                Self::Publish { channel, frame, .. } => channel.len() + frame.as_bytes().len(),
                Self::Subscribe(name, _)
                | Self::SubscribePattern(name, _)
                | Self::Unsubscribe(name)
                | Self::Close(_, name) => name.len(),
            }
    }
}

/// The state that a shard shares with the futures of one session.
pub(super) struct SessionShared {
    hub: Hub,
    id: ConnId,
    window: Window,
    reporter: Arc<Reporter>,
    state: Mutex<SharedState>,
}

#[derive(Default)]
struct SharedState {
    incoming: VecDeque<OwnedMessage>,
    incoming_bytes: usize,
    /// Messages that are being processed.
    running: u32,
    /// Tasks that process messages.
    pumps: u32,
    outgoing: VecDeque<AsyncCommand>,
    outgoing_bytes: usize,
    /// The waker of the future that waits for a message.
    reader: Option<Waker>,
    /// The wakers of futures that wait for room.
    writers: WakerSet,
    /// The wakers of futures that wait for the end.
    watchers: WakerSet,
    end: Option<CloseReason>,
    /// The shard has stopped reading.
    stopped: bool,
    /// The shard must resume reading, and has not seen this yet.
    read_on: bool,
    /// Whether an event is queued for the shard, which will then see this state.
    notified: bool,
    /// The connection is congested: the shard runs no commands before its next `on_drain`.
    congested: bool,
    /// Whether the session no longer accepts messages.
    closing: bool,
    /// The server shuts down.
    shutting_down: bool,
    /// Whether a future waits for the server's shutdown, and closes the session itself.
    handles_shutdown: bool,
    /// Whether no future receives messages.
    unread: bool,
    /// Whether the panic that dropped the session's socket has been reported.
    panicked: bool,
}

impl SharedState {
    /// Returns whether the shard must be notified now.
    #[must_use = "the caller must notify the shard"]
    fn needs_notice(&mut self) -> bool {
        let needed = !self.notified && self.end.is_none();
        self.notified |= needed;
        needed
    }

    /// Resumes reading if a dequeued or finished message freed enough capacity. Returns whether the
    /// shard must be notified.
    #[must_use = "the caller must notify the shard"]
    fn resume(&mut self, window: &Window) -> bool {
        let has_room = self.incoming.len() + self.running as usize <= window.resume_at
            && self.incoming_bytes <= window.receive / 2;
        if !self.stopped || !has_room {
            return false;
        }
        self.stopped = false;
        self.read_on = true;
        self.needs_notice()
    }

    fn pop(&mut self) -> Option<OwnedMessage> {
        let message = self.incoming.pop_front()?;
        self.incoming_bytes -= message.as_bytes().len() + OVERHEAD;
        if self.incoming.is_empty() && self.incoming.capacity() > KEPT {
            self.incoming = VecDeque::new();
        }
        Some(message)
    }
}

/// The event that makes the shard run the commands of futures.
pub(super) struct RunCommands(Arc<SessionShared>);

/// The event that a future has panicked.
pub(super) struct FuturePanicked(PanicNotice);

impl FuturePanicked {
    /// Panics on the shard, where it is handled like the panic of any handler, unless the session
    /// has ended: then the notice reports it.
    pub(super) fn panic_again(self, cx: &Cx<'_>) {
        if cx.is_open() {
            self.0.answer();
            // The panic hook already reported it.
            std::panic::resume_unwind(Box::new("a future of this session has panicked"));
        }
    }
}

impl RunCommands {
    pub(super) fn run_commands(&self, cx: &mut Cx<'_>) {
        self.0.run_commands(cx, false);
    }
}

/// The actions that a queued message requires of the shard.
pub(super) struct Pushed {
    /// Stop reading the connection.
    pub(super) stop: bool,
    /// Start a task that processes messages.
    pub(super) start: bool,
}

/// The outcome of commands that were run.
struct Done {
    congested: bool,
    closed: bool,
    /// Their bytes in the account of the queue.
    bytes: usize,
}

/// The shard's side.
impl SessionShared {
    pub(super) fn new(hub: Hub, id: ConnId, window: Window, reporter: &Arc<Reporter>) -> Arc<Self> {
        let reporter = Arc::clone(reporter);
        Arc::new(Self { hub, id, window, reporter, state: Mutex::default() })
    }

    /// Queues a message, for which up to `pumps` tasks are started.
    pub(super) fn push(&self, message: OwnedMessage, pumps: usize) -> Pushed {
        let mut state = self.lock();
        if state.unread {
            return Pushed { stop: false, start: false };
        }
        state.incoming_bytes += message.as_bytes().len() + OVERHEAD;
        state.incoming.push_back(message);
        let is_full = state.incoming.len() + state.running as usize >= self.window.credits
            || state.incoming_bytes >= self.window.receive;
        state.stopped |= is_full;
        let start = (state.pumps as usize) < pumps;
        state.pumps += u32::from(start);
        let reader = state.reader.take();
        drop(state);
        if let Some(reader) = reader {
            reader.wake();
        }
        // Stop even if it was stopped before: reading may have been resumed elsewhere.
        Pushed { stop: is_full, start }
    }

    /// Runs the commands of futures: because of an event, or because the connection's queue has
    /// drained.
    pub(super) fn run_commands(&self, cx: &mut Cx<'_>, drained: bool) {
        let mut state = self.lock();
        match drained {
            true => state.congested = false,
            false => state.notified = false,
        }
        let mut commands = VecDeque::new();
        if !state.congested {
            std::mem::swap(&mut commands, &mut state.outgoing);
        }
        let read_on = std::mem::take(&mut state.read_on);
        drop(state);
        if read_on {
            cx.resume_reading();
        }
        if commands.is_empty() {
            return;
        }
        let done = self.run_each(cx, &mut commands);
        self.record_done(done, commands);
    }

    /// Runs commands until one congests or closes the connection.
    fn run_each(&self, cx: &mut Cx<'_>, commands: &mut VecDeque<AsyncCommand>) -> Done {
        let (mut congested, mut closed, mut bytes) = (false, false, 0);
        while !congested
            && !closed
            && let Some(command) = commands.pop_front()
        {
            bytes += command.cost();
            match command {
                // A congested connection would eventually drop messages, so they wait here instead.
                AsyncCommand::Send(frame) => match cx.send_frame(&frame) {
                    Sent::Accepted => {}
                    Sent::Closed => closed = true,
                    _ => congested = true,
                },
                AsyncCommand::Publish { channel, frame, to_others } => {
                    let receipt = match to_others {
                        true => cx.publish_to_others(&channel, &frame),
                        false => cx.publish(&channel, &frame),
                    };
                    if receipt.is_refused() {
                        // The sender's future continued when the message was queued here.
                        let reason = EndReason::Publication;
                        cx.core().note_fault(self.id, Fault::Ended(reason));
                        cx.close(reason.code().get(), reason.text());
                        closed = true;
                    } else if cx.is_held_back() {
                        // The rest waits until the receiving shard's queue has room.
                        cx.core().await_drain(self.id);
                        congested = true;
                    }
                }
                AsyncCommand::Subscribe(channel, interest) => {
                    cx.subscribe_announced(&channel);
                    drop(interest);
                }
                AsyncCommand::SubscribePattern(pattern, interest) => {
                    // The pattern was checked before.
                    let _ = cx.subscribe_pattern_announced(&pattern);
                    drop(interest);
                }
                AsyncCommand::Unsubscribe(channel) => {
                    cx.unsubscribe(&channel);
                }
                AsyncCommand::Close(code, reason) => {
                    cx.close(code.get(), &reason);
                    closed = true;
                }
            }
        }
        Done { congested, closed, bytes }
    }

    /// Records which commands are done, keeps the others, and wakes futures that wait for room.
    fn record_done(&self, done: Done, mut commands: VecDeque<AsyncCommand>) {
        let Done { congested, closed, bytes } = done;
        let mut wakers = Vec::new();
        let mut state = self.lock();
        state.outgoing_bytes -= bytes;
        state.congested = congested;
        if closed {
            state.closing = true;
            commands.append(&mut state.outgoing);
            state.outgoing_bytes = 0;
        } else if !commands.is_empty() {
            // Unfinished commands go before commands submitted in between.
            commands.append(&mut state.outgoing);
            std::mem::swap(&mut commands, &mut state.outgoing);
        } else if state.outgoing.capacity() == 0 && commands.capacity() <= KEPT {
            std::mem::swap(&mut commands, &mut state.outgoing);
        }
        if closed || state.outgoing_bytes < self.window.send {
            state.writers.take_waiting(&mut wakers);
        }
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Records that the server shuts down.
    pub(super) fn shut_down(&self) {
        let mut wakers = Vec::new();
        let mut state = self.lock();
        state.shutting_down = true;
        state.watchers.take_waiting(&mut wakers);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Returns whether futures still process messages (`by_message`), or whether the session's
    /// future will close the session itself.
    pub(super) fn has_work(&self, by_message: bool) -> bool {
        let state = self.lock();
        match by_message {
            true => state.running > 0 || !state.incoming.is_empty() || !state.outgoing.is_empty(),
            // Until its Close is queued: the shard asks open sessions only.
            false => state.handles_shutdown,
        }
    }

    /// Records the end of the session. With `cancel`, waiting messages are dropped.
    pub(super) fn end(&self, close: Close<'_>, cancel: bool) {
        let mut wakers = Vec::new();
        let mut dropped = VecDeque::new();
        let mut state = self.lock();
        if state.end.is_none() {
            state.end = Some(CloseReason { code: close.code, reason: close.reason.to_owned() });
        }
        let commands = std::mem::take(&mut state.outgoing);
        state.outgoing_bytes = 0;
        if cancel {
            state.unread = true;
            state.incoming_bytes = 0;
            std::mem::swap(&mut dropped, &mut state.incoming);
        }
        wakers.extend(state.reader.take());
        state.writers.take_waiting(&mut wakers);
        state.watchers.take_waiting(&mut wakers);
        drop(state);
        drop((commands, dropped));
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// The side of the futures.
impl SessionShared {
    pub(super) fn id(&self) -> ConnId {
        self.id
    }

    pub(super) fn hub(&self) -> &Hub {
        &self.hub
    }

    /// Receives the next message; `None` after the last of a session that has ended.
    pub(super) fn poll_next(self: &Arc<Self>, cx: &mut Context<'_>) -> Poll<Option<OwnedMessage>> {
        let mut state = self.lock();
        if let Some(message) = state.pop() {
            let notice = state.resume(&self.window);
            drop(state);
            self.notify(notice);
            return Poll::Ready(Some(message));
        }
        if state.end.is_some() {
            return Poll::Ready(None);
        }
        if state.reader.as_ref().is_some_and(|reader| reader.will_wake(cx.waker())) {
            return Poll::Pending;
        }
        let old = state.reader.replace(cx.waker().clone());
        drop(state);
        drop(old);
        Poll::Pending
    }

    /// Returns the next message for a task, which has `finished` one before. With `None` the task
    /// must end.
    pub(super) fn next_for_pump(self: &Arc<Self>, finished: bool) -> Option<OwnedMessage> {
        let mut state = self.lock();
        state.running -= u32::from(finished);
        let message = state.pop();
        match message {
            Some(_) => state.running += 1,
            None => state.pumps -= 1,
        }
        let notice = state.resume(&self.window);
        drop(state);
        self.notify(notice);
        message
    }

    /// Waits for room to send.
    pub(super) fn poll_ready(
        &self,
        cx: &mut Context<'_>,
        slot: &mut Option<usize>,
    ) -> Poll<Result<(), SessionClosed>> {
        let mut state = self.lock();
        if state.closing || state.end.is_some() {
            return Poll::Ready(Err(SessionClosed::ENDED));
        }
        if state.outgoing_bytes < self.window.send {
            return Poll::Ready(Ok(()));
        }
        let old = state.writers.wait(slot, cx.waker());
        drop(state);
        drop(old);
        Poll::Pending
    }

    /// Queues a command for the shard, even if there is no room.
    pub(super) fn submit(self: &Arc<Self>, command: AsyncCommand) -> Result<(), SessionClosed> {
        let mut state = self.lock();
        if state.closing || state.end.is_some() {
            drop(state);
            return Err(SessionClosed::ENDED);
        }
        state.closing = matches!(command, AsyncCommand::Close(..));
        state.outgoing_bytes += command.cost();
        state.outgoing.push_back(command);
        let notice = !state.congested && state.needs_notice();
        let mut wakers = Vec::new();
        if state.closing {
            state.writers.take_waiting(&mut wakers);
        }
        drop(state);
        self.notify(notice);
        wakers.into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// Reports to the shard that a future has panicked, unless the socket that the panic dropped
    /// has already done so.
    pub(super) fn panic(&self) {
        if !std::mem::take(&mut self.lock().panicked) {
            self.post_panic();
        }
    }

    /// Reports to the shard that a panic drops the session's socket.
    pub(super) fn panic_with_socket(&self) {
        self.lock().panicked = true;
        self.post_panic();
    }

    fn post_panic(&self) {
        let notice = PanicNotice::new(&self.reporter, self.id);
        self.hub.remote().post(self.id, Box::new(FuturePanicked(notice)));
    }

    /// Drops all waiting and future messages: no future receives them.
    pub(super) fn discard_messages(&self) {
        let mut state = self.lock();
        state.unread = true;
        state.incoming_bytes = 0;
        let dropped = std::mem::take(&mut state.incoming);
        let reader = state.reader.take();
        drop(state);
        drop((dropped, reader));
    }

    /// Returns how the session ended; `None` while it is open.
    pub(super) fn end_reason(&self) -> Option<CloseReason> {
        self.lock().end.clone()
    }

    /// Waits for the end of the session.
    pub(super) fn poll_end(&self, cx: &mut Context<'_>, slot: &mut Option<usize>) -> Poll<()> {
        let mut state = self.lock();
        if state.end.is_some() {
            return Poll::Ready(());
        }
        let old = state.watchers.wait(slot, cx.waker());
        drop(state);
        drop(old);
        Poll::Pending
    }

    /// Records that a future of the session waits for the shutdown of the server.
    pub(super) fn handle_shutdown(&self) {
        self.lock().handles_shutdown = true;
    }

    /// Waits for the shutdown of the server, or, with an error, for the end of the session.
    pub(super) fn poll_shutdown(
        &self,
        cx: &mut Context<'_>,
        slot: &mut Option<usize>,
    ) -> Poll<Result<(), SessionClosed>> {
        let mut state = self.lock();
        if state.shutting_down {
            return Poll::Ready(Ok(()));
        }
        if state.end.is_some() {
            return Poll::Ready(Err(SessionClosed::ENDED));
        }
        let old = state.watchers.wait(slot, cx.waker());
        drop(state);
        drop(old);
        Poll::Pending
    }

    /// Stops waiting for room.
    pub(super) fn leave_writers(&self, slot: &mut Option<usize>) {
        let old = slot.is_some().then(|| self.lock().writers.leave(slot));
        drop(old);
    }

    /// Stops waiting for the end.
    pub(super) fn leave_watchers(&self, slot: &mut Option<usize>) {
        let old = slot.is_some().then(|| self.lock().watchers.leave(slot));
        drop(old);
    }

    fn notify(self: &Arc<Self>, needed: bool) {
        if needed {
            self.hub.remote().post(self.id, Box::new(RunCommands(Arc::clone(self))));
        }
    }

    fn lock(&self) -> MutexGuard<'_, SharedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The documentation of `on_message_async` states the memory of idle sessions.
    #[test]
    fn an_idle_session_is_small() {
        assert!(
            size_of::<SessionShared>() <= 320,
            "Shared is {} bytes",
            size_of::<SessionShared>()
        );
    }
}
