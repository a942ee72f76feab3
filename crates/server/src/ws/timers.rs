//! Timers of sessions.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use throng_engine::ConnMap;
use throng_io::{ConnId, Instant};

use super::SessionMail;
use super::offload::{Continuation, ContinuationFn};
use super::socket::Socket;

/// The name of a timer of a session: see [`Socket::after`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Timer(u64);

impl Timer {
    pub(crate) fn new() -> Self {
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// The number of the next timer of any server.
static NEXT: AtomicU64 = AtomicU64::new(0);

impl<D: 'static> Socket<'_, D> {
    /// Calls `then` on the shard after `duration`, like any callback. It is not called if the
    /// session has ended, or is being closed. A timer can set another one, for a periodic task.
    ///
    /// A timer takes about 200 bytes plus the captures of `then`, until it is due, cancelled, or
    /// the session has ended.
    ///
    /// ```
    /// use std::time::Duration;
    /// use throng::prelude::*;
    ///
    /// // A client that has not logged in after ten seconds is sent away.
    /// let handler = Ws::from_request(|_| Ok(None::<String>))
    ///     .on_open(|ws, _| {
    ///         ws.after(Duration::from_secs(10), |ws, name| {
    ///             if name.is_none() {
    ///                 ws.close(CloseCode::new(4001), "no login");
    ///             }
    ///         });
    ///     })
    ///     .on_message(|_, name, message| {
    ///         let Message::Text(text) = message else { return };
    ///         *name = Some(text.to_owned());
    ///     });
    /// # let _ = App::new().ws("/", handler);
    /// ```
    pub fn after<F>(&mut self, duration: Duration, then: F) -> Timer
    where
        F: FnOnce(&mut Socket<'_, D>, &mut D) + Send + 'static,
    {
        let timer = Timer::new();
        let at = self.cx().core_ref().read_clock().after(duration);
        let then: ContinuationFn<D> = Box::new(then);
        self.post(SessionMail::SetTimer(at, timer, Box::new(Continuation(then))));
        timer
    }

    /// Cancels a timer of this session. Nothing happens if it was called already, or belongs to
    /// another session.
    pub fn cancel_timer(&mut self, timer: Timer) {
        self.post(SessionMail::CancelTimer(timer));
    }

    /// Sends an event to this session: only its shard has the timers.
    fn post(&self, event: SessionMail) {
        let cx = self.cx();
        // An ended session would not see the event, and nothing would drop it before it is due.
        if cx.is_open() {
            cx.core_ref().remote().post(cx.id(), Box::new(event));
        }
    }
}

/// A callback whose type only its route knows.
type AnyContinuation = Box<dyn Any + Send>;

/// The timers of the sessions of one shard.
#[derive(Default)]
pub(crate) struct Timers {
    by_time: BTreeMap<(Instant, u64), (ConnId, AnyContinuation)>,
    /// The timers of each session that has any.
    by_session: ConnMap<Vec<(Instant, u64)>>,
}

impl Timers {
    pub(crate) fn set(&mut self, id: ConnId, at: Instant, timer: Timer, then: AnyContinuation) {
        let key = (at, timer.0);
        self.by_time.insert(key, (id, then));
        self.by_session.entry(id).or_default().push(key);
    }

    pub(crate) fn cancel(&mut self, id: ConnId, timer: Timer) {
        let keys = self.by_session.get(&id);
        let key = keys.and_then(|keys| keys.iter().find(|(_, number)| *number == timer.0));
        if let Some(key) = key.copied() {
            self.by_time.remove(&key);
            self.forget(id, key);
        }
    }

    /// Drops the timers of a session that has ended.
    pub(crate) fn end_session(&mut self, id: ConnId) {
        if !self.by_session.is_empty() {
            for key in self.by_session.remove(&id).unwrap_or_default() {
                self.by_time.remove(&key);
            }
        }
    }

    /// Returns when the next timer is due.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.by_time.first_key_value().map(|((at, _), _)| *at)
    }

    /// Takes the next timer that is due at `now`.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<(ConnId, AnyContinuation)> {
        let first = self.by_time.first_entry().filter(|entry| entry.key().0 <= now)?;
        let (key, (id, then)) = first.remove_entry();
        self.forget(id, key);
        Some((id, then))
    }

    fn forget(&mut self, id: ConnId, key: (Instant, u64)) {
        let Some(keys) = self.by_session.get_mut(&id) else { return };
        keys.retain(|other| *other != key);
        if keys.is_empty() {
            self.by_session.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_come_in_order_and_leave_nothing_behind() {
        let (one, two) = (ConnId::new(0, 1, 0), ConnId::new(0, 2, 0));
        let mut timers = Timers::default();
        for (id, at, number) in [(one, 30, 0), (two, 10, 1), (one, 20, 2), (one, 20, 3)] {
            timers.set(id, Instant(at), Timer(number), Box::new(number));
        }
        assert_eq!(timers.next(), Some(Instant(10)));
        assert!(timers.pop(Instant(9)).is_none());
        timers.cancel(two, Timer(0));
        timers.cancel(one, Timer(3));
        let mut due = Vec::new();
        while let Some((id, then)) = timers.pop(Instant(20)) {
            due.push((id, *then.downcast::<u64>().unwrap()));
        }
        assert_eq!(due, [(two, 1), (one, 2)]);
        timers.end_session(one);
        timers.end_session(two);
        assert_eq!(timers.next(), None);
        assert!(timers.by_session.is_empty());
    }
}
