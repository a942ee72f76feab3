//! Where a shard and the futures of one session meet.
//!
//! Wakers are called, and what was received or sent is dropped, outside of the lock: both may run code of the user's that
//! comes back here.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use throng_engine::{Close, Cx, Frame, Interest, Sent};
use throng_io::ConnId;

use super::seats::Seats;
use crate::hub::Hub;
use crate::message::OwnedMessage;

/// What a waiting message or order costs besides its payload, generously, so that empty ones are bounded by bytes, too.
const OVERHEAD: usize = 128;

/// Queues that have room for more than this give it back when they are empty.
const KEPT: usize = 16;

/// Nothing can be sent: the session has ended, or is being closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed;

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the session has ended or is being closed")
    }
}

impl std::error::Error for Closed {}

/// How a session ended: what [`Close`](crate::Close) says, owned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloseReason {
    /// The close code: the peer's if it closed, ours if we did, 1005 if a Close frame carried none, 1006 if the connection
    /// ended without a closing handshake.
    pub code: u16,
    /// The reason that came with the code; empty for most.
    pub reason: String,
}

/// What may wait on either side.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    /// Messages that wait or are being dealt with; with so many the connection is not read.
    pub(super) credits: usize,
    /// With so many it is read again.
    pub(super) resume_at: usize,
    /// Bytes of messages that wait; with so many the connection is not read.
    pub(super) receive: usize,
    /// Bytes that wait to be sent; with so many, senders wait.
    pub(super) send: usize,
}

/// What futures ask of the connection, in order.
pub(super) enum Order {
    Send(Frame),
    Publish(Box<str>, Frame),
    /// With what keeps publications coming until it is carried out.
    Subscribe(Box<str>, Interest),
    Unsubscribe(Box<str>),
    Close(u16, Box<str>),
}

impl Order {
    fn cost(&self) -> usize {
        OVERHEAD
            + match self {
                Self::Send(frame) => frame.as_bytes().len(),
                Self::Publish(channel, frame) => channel.len() + frame.as_bytes().len(),
                Self::Subscribe(name, _) | Self::Unsubscribe(name) | Self::Close(_, name) => {
                    name.len()
                }
            }
    }
}

/// See the module's documentation.
pub(super) struct Shared {
    hub: Hub,
    id: ConnId,
    window: Window,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    incoming: VecDeque<OwnedMessage>,
    incoming_bytes: usize,
    /// Messages that were taken and are not done.
    running: usize,
    /// Tasks that take messages.
    pumps: usize,
    outgoing: VecDeque<Order>,
    outgoing_bytes: usize,
    /// Waits for a message.
    reader: Option<Waker>,
    /// Wait for room.
    writers: Seats,
    /// Wait for the end.
    watchers: Seats,
    end: Option<CloseReason>,
    /// The shard has stopped reading.
    stopped: bool,
    /// It is to go on, but does not know yet.
    read_on: bool,
    /// A letter is on its way to the shard: whatever is here will be seen.
    letter: bool,
    /// The shard takes no orders before its next `on_drain`.
    behind: bool,
    /// Nothing can be sent any more.
    closing: bool,
    /// Nobody takes messages any more.
    unread: bool,
    /// A future has panicked; the shard is to hear of it.
    panicked: bool,
}

impl State {
    /// Whether a letter must be sent now.
    #[must_use = "nobody else will send it"]
    fn needs_letter(&mut self) -> bool {
        let needed = !self.letter && self.end.is_none();
        self.letter |= needed;
        needed
    }

    /// A message has left the queue or is done. Whether a letter must be sent.
    #[must_use = "nobody else will send it"]
    fn resume(&mut self, window: &Window) -> bool {
        let has_room = self.incoming.len() + self.running <= window.resume_at
            && self.incoming_bytes <= window.receive / 2;
        if !self.stopped || !has_room {
            return false;
        }
        self.stopped = false;
        self.read_on = true;
        self.needs_letter()
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

/// Says that there is something for the shard to do.
pub(super) struct Letter(Arc<Shared>);

impl Letter {
    pub(super) fn carry_out(&self, cx: &mut Cx<'_>) {
        self.0.carry_out(cx, false);
    }
}

/// What the shard is to do about a message.
pub(super) struct Pushed {
    /// Read no more for now.
    pub(super) stop: bool,
    /// Start a task that takes messages.
    pub(super) start: bool,
}

/// The shard's side.
impl Shared {
    pub(super) fn new(hub: Hub, id: ConnId, window: Window) -> Arc<Self> {
        Arc::new(Self { hub, id, window, state: Mutex::default() })
    }

    /// Takes in a message, where up to `pumps` tasks are started for them.
    pub(super) fn push(&self, message: OwnedMessage, pumps: usize) -> Pushed {
        let mut state = self.lock();
        if state.unread {
            return Pushed { stop: false, start: false };
        }
        state.incoming_bytes += message.as_bytes().len() + OVERHEAD;
        state.incoming.push_back(message);
        let is_full = state.incoming.len() + state.running >= self.window.credits
            || state.incoming_bytes >= self.window.receive;
        state.stopped |= is_full;
        let start = state.pumps < pumps;
        state.pumps += usize::from(start);
        let reader = state.reader.take();
        drop(state);
        if let Some(reader) = reader {
            reader.wake();
        }
        // Even if it was said before: someone else may have gone on.
        Pushed { stop: is_full, start }
    }

    /// Does what futures have asked for: because of a letter, or because what was sent before has left (`drained`).
    pub(super) fn carry_out(&self, cx: &mut Cx<'_>, drained: bool) {
        let mut state = self.lock();
        match drained {
            true => state.behind = false,
            false => state.letter = false,
        }
        let mut orders = VecDeque::new();
        if !state.behind {
            std::mem::swap(&mut orders, &mut state.outgoing);
        }
        let read_on = std::mem::take(&mut state.read_on);
        let panicked = std::mem::take(&mut state.panicked);
        drop(state);
        if panicked && cx.is_open() {
            // The panic hook has told people where it happened. Passed on, it is counted and answered as any handler's.
            std::panic::resume_unwind(Box::new("a future of this session has panicked"));
        }
        if read_on {
            cx.resume_reading();
        }
        if orders.is_empty() {
            return;
        }
        let (mut behind, mut closed, mut done) = (false, false, 0);
        while !behind
            && !closed
            && let Some(order) = orders.pop_front()
        {
            done += order.cost();
            match order {
                // What goes to a connection that is behind would be dropped sooner or later: it waits here instead.
                Order::Send(frame) => match cx.send_frame(&frame) {
                    Sent::Written => {}
                    Sent::Queued | Sent::Dropped => behind = true,
                    Sent::Closed => closed = true,
                },
                Order::Publish(channel, frame) => {
                    cx.publish(&channel, &frame);
                    if cx.is_held_back() {
                        // The rest waits until the shard that is behind has room.
                        cx.core().await_drain(self.id);
                        behind = true;
                    }
                }
                Order::Subscribe(channel, interest) => {
                    cx.subscribe(&channel);
                    drop(interest);
                }
                Order::Unsubscribe(channel) => {
                    cx.unsubscribe(&channel);
                }
                Order::Close(code, reason) => {
                    cx.close(code, &reason);
                    closed = true;
                }
            }
        }
        let mut wakers = Vec::new();
        let mut state = self.lock();
        state.outgoing_bytes -= done;
        state.behind = behind;
        if closed {
            state.closing = true;
            orders.append(&mut state.outgoing);
            state.outgoing_bytes = 0;
        } else if !orders.is_empty() {
            // They were first.
            orders.append(&mut state.outgoing);
            std::mem::swap(&mut orders, &mut state.outgoing);
        } else if state.outgoing.capacity() == 0 && orders.capacity() <= KEPT {
            std::mem::swap(&mut orders, &mut state.outgoing);
        }
        if closed || state.outgoing_bytes < self.window.send {
            state.writers.take_waiting(&mut wakers);
        }
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// The session has ended. With `cancel`, messages that wait are dropped.
    pub(super) fn end(&self, close: Close<'_>, cancel: bool) {
        let mut wakers = Vec::new();
        let mut dropped = VecDeque::new();
        let mut state = self.lock();
        if state.end.is_none() {
            state.end = Some(CloseReason { code: close.code, reason: close.reason.to_owned() });
        }
        let orders = std::mem::take(&mut state.outgoing);
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
        drop((orders, dropped));
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// The futures' side.
impl Shared {
    pub(super) fn id(&self) -> ConnId {
        self.id
    }

    pub(super) fn hub(&self) -> &Hub {
        &self.hub
    }

    /// The next message, or `None` after the last of a session that has ended.
    pub(super) fn poll_next(self: &Arc<Self>, cx: &mut Context<'_>) -> Poll<Option<OwnedMessage>> {
        let mut state = self.lock();
        if let Some(message) = state.pop() {
            let letter = state.resume(&self.window);
            drop(state);
            self.send_letter(letter);
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

    /// The next message for a task, which has `finished` one before. Without one the task has ended.
    pub(super) fn next_for_pump(self: &Arc<Self>, finished: bool) -> Option<OwnedMessage> {
        let mut state = self.lock();
        state.running -= usize::from(finished);
        let message = state.pop();
        match message {
            Some(_) => state.running += 1,
            None => state.pumps -= 1,
        }
        let letter = state.resume(&self.window);
        drop(state);
        self.send_letter(letter);
        message
    }

    /// Whether there is room to send.
    pub(super) fn poll_ready(
        &self,
        cx: &mut Context<'_>,
        seat: &mut Option<usize>,
    ) -> Poll<Result<(), Closed>> {
        let mut state = self.lock();
        if state.closing || state.end.is_some() {
            return Poll::Ready(Err(Closed));
        }
        if state.outgoing_bytes < self.window.send {
            return Poll::Ready(Ok(()));
        }
        let old = state.writers.wait(seat, cx.waker());
        drop(state);
        drop(old);
        Poll::Pending
    }

    /// Hands an order to the shard, whether there is room or not.
    pub(super) fn order(self: &Arc<Self>, order: Order) -> Result<(), Closed> {
        let mut state = self.lock();
        if state.closing || state.end.is_some() {
            drop(state);
            return Err(Closed);
        }
        state.closing = matches!(order, Order::Close(..));
        state.outgoing_bytes += order.cost();
        state.outgoing.push_back(order);
        let letter = !state.behind && state.needs_letter();
        let mut wakers = Vec::new();
        if state.closing {
            state.writers.take_waiting(&mut wakers);
        }
        drop(state);
        self.send_letter(letter);
        wakers.into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// A future has panicked: nothing else matters.
    pub(super) fn panic(self: &Arc<Self>) {
        let mut state = self.lock();
        state.panicked = true;
        let letter = state.needs_letter();
        drop(state);
        self.send_letter(letter);
    }

    /// Nobody takes messages any more.
    pub(super) fn stop_taking(&self) {
        let mut state = self.lock();
        state.unread = true;
        state.incoming_bytes = 0;
        let dropped = std::mem::take(&mut state.incoming);
        let reader = state.reader.take();
        drop(state);
        drop((dropped, reader));
    }

    /// How the session ended, if it has.
    pub(super) fn end_reason(&self) -> Option<CloseReason> {
        self.lock().end.clone()
    }

    /// Waits for the end.
    pub(super) fn poll_end(&self, cx: &mut Context<'_>, seat: &mut Option<usize>) -> Poll<()> {
        let mut state = self.lock();
        if state.end.is_some() {
            return Poll::Ready(());
        }
        let old = state.watchers.wait(seat, cx.waker());
        drop(state);
        drop(old);
        Poll::Pending
    }

    /// Waits for room no more.
    pub(super) fn leave_writers(&self, seat: &mut Option<usize>) {
        let old = seat.is_some().then(|| self.lock().writers.leave(seat));
        drop(old);
    }

    /// Waits for the end no more.
    pub(super) fn leave_watchers(&self, seat: &mut Option<usize>) {
        let old = seat.is_some().then(|| self.lock().watchers.leave(seat));
        drop(old);
    }

    fn send_letter(self: &Arc<Self>, needed: bool) {
        if needed {
            self.hub.remote().post(self.id, Box::new(Letter(Arc::clone(self))));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the documentation of the feature says of idle sessions.
    #[test]
    fn an_idle_session_is_small() {
        assert!(size_of::<Shared>() <= 320, "Shared is {} bytes", size_of::<Shared>());
    }
}
