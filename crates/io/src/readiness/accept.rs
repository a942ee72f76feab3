//! The listeners of a driver.

use std::io::{self, ErrorKind};

use super::poller::Poller;
use super::turn::TurnStep;
use crate::driver::ListenerId;
use crate::id::ConnId;
use crate::listener::Listener;
use crate::options::Options;
use crate::options::{MAX_CONNECTIONS, MAX_LISTENERS};

/// Accepts until no connection is waiting or the turn's budget is spent. Stops, and reports it
/// once, when descriptors or memory run out.
pub(crate) struct Listeners<P: Poller> {
    listeners: Vec<Listening<P::Listener>>,
    /// Number of listeners that may have connections waiting, plus one for a pending report.
    ready: usize,
    budget: usize,
    /// Number of this turn.
    turn: u64,
    stopped: bool,
    /// A stop that has not been reported yet.
    stop_report: Option<ErrorKind>,
}

struct Listening<L> {
    listener: L,
    token: u64,
    ready: bool,
    /// Turn of its last event.
    turn: u64,
    /// Connections to accept for this event, and how many of them remain.
    batch: usize,
    left: usize,
}

impl<P: Poller> Listeners<P> {
    pub(crate) fn new() -> Self {
        Self {
            listeners: Vec::new(),
            ready: 0,
            budget: 0,
            turn: 0,
            stopped: false,
            stop_report: None,
        }
    }

    pub(crate) fn add(
        &mut self,
        poller: &P,
        listener: Listener,
        options: &Options,
    ) -> io::Result<ListenerId> {
        if self.listeners.len() == MAX_LISTENERS {
            return Err(io::Error::new(ErrorKind::QuotaExceeded, "too many listeners"));
        }
        let number = self.listeners.len();
        let slot = MAX_CONNECTIONS + number;
        let token = ConnId::new(options.shard, slot as u32, 0).to_bits();
        let mut listener = P::listener(listener, options)?;
        if !self.stopped {
            poller.register_listener(&mut listener, token)?;
        }
        self.listeners.push(Listening {
            listener,
            token,
            ready: false,
            turn: 0,
            batch: 1,
            left: 0,
        });
        Ok(ListenerId(number as u16))
    }

    /// Records an event whose slot is not a connection's.
    #[cold]
    pub(crate) fn on_ready(&mut self, id: ConnId) {
        // The slots of the waker and of a listener closed in this turn are beyond the end.
        if let Some(listening) = self.listeners.get_mut(id.slot() - MAX_CONNECTIONS)
            && !listening.ready
            && !self.stopped
        {
            // Connections that come one by one cost one accept each, and no accept that finds none.
            // A burst shows as events in consecutive turns, and is accepted in doubling batches.
            let burst = listening.turn + 1 == self.turn;
            listening.batch = if burst { listening.batch.saturating_mul(2) } else { 1 };
            listening.left = if P::LEVEL { listening.batch } else { usize::MAX };
            listening.turn = self.turn;
            listening.ready = true;
            self.ready += 1;
        }
    }

    /// Starts a turn with a new budget. A level-triggered poll reports the rest again.
    pub(crate) fn begin_turn(&mut self, level: bool, budget: usize) {
        self.budget = budget;
        self.turn += 1;
        if level && self.ready > 0 {
            self.clear_ready();
        }
    }

    #[inline]
    pub(crate) fn are_ready(&self) -> bool {
        self.ready > 0
    }

    /// Returns whether a stop must be reported without any event.
    pub(crate) fn has_stop_report(&self) -> bool {
        self.stop_report.is_some()
    }

    /// Returns the next connection, or reports that accepting has stopped.
    #[cold]
    pub(crate) fn next(&mut self, poller: &P, options: &Options) -> Option<TurnStep<P::Socket>> {
        if let Some(kind) = self.stop_report.take() {
            self.ready -= 1;
            return Some(TurnStep::AcceptStopped(kind));
        }
        for (number, listening) in self.listeners.iter_mut().enumerate() {
            while listening.ready && self.budget > 0 {
                if listening.left == 0 {
                    listening.ready = false;
                    self.ready -= 1;
                    break;
                }
                listening.left -= 1;
                self.budget -= 1;
                match P::accept(&listening.listener, options) {
                    Ok((socket, peer)) => {
                        return Some(TurnStep::Incoming(socket, peer, ListenerId(number as u16)));
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        listening.ready = false;
                        self.ready -= 1;
                    }
                    Err(error) if concerns_one_connection(&error) => {}
                    Err(error) => {
                        self.stop(poller);
                        return Some(TurnStep::AcceptStopped(kind(&error)));
                    }
                }
            }
        }
        None
    }

    pub(crate) fn resume(&mut self, poller: &P) {
        if !self.stopped {
            return;
        }
        self.stopped = false;
        let mut failed = None;
        for Listening { listener, token, .. } in &mut self.listeners {
            failed = failed.or(poller.register_listener(listener, *token).err());
        }
        if let Some(error) = failed {
            // No memory for registering either: still stopped.
            self.stop(poller);
            self.stop_report = Some(kind(&error));
            self.ready += 1;
        }
    }

    pub(crate) fn clear(&mut self, poller: &P) {
        self.stop_report = None;
        self.stop(poller);
        self.stopped = false;
        self.listeners.clear();
    }

    fn stop(&mut self, poller: &P) {
        for listening in &mut self.listeners {
            let _ = poller.deregister_listener(&mut listening.listener);
        }
        self.clear_ready();
        self.stopped = true;
    }

    fn clear_ready(&mut self) {
        self.listeners.iter_mut().for_each(|listening| listening.ready = false);
        self.ready = usize::from(self.stop_report.is_some());
    }
}

/// Returns whether the failure concerns only the connection that was about to be accepted, or the
/// network it came over, so that the next accept may succeed. The list is from accept(2).
fn concerns_one_connection(error: &io::Error) -> bool {
    let kind = error.kind();
    if matches!(
        kind,
        ErrorKind::Interrupted
            | ErrorKind::ConnectionAborted
            | ErrorKind::ConnectionReset
            | ErrorKind::PermissionDenied
            | ErrorKind::NetworkDown
            | ErrorKind::NetworkUnreachable
            | ErrorKind::HostUnreachable
            | ErrorKind::TimedOut
    ) {
        return true;
    }
    #[cfg(target_os = "linux")]
    if let Some(code) = error.raw_os_error() {
        return matches!(
            code,
            libc::EPROTO | libc::ENOPROTOOPT | libc::EHOSTDOWN | libc::ENONET | libc::EOPNOTSUPP
        );
    }
    false
}

/// Maps "too many open files", for which std has no kind of its own.
fn kind(error: &io::Error) -> ErrorKind {
    #[cfg(unix)]
    match rustix::io::Errno::from_io_error(error) {
        Some(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE) => {
            return ErrorKind::QuotaExceeded;
        }
        Some(rustix::io::Errno::NOBUFS | rustix::io::Errno::NOMEM) => {
            return ErrorKind::OutOfMemory;
        }
        _ => {}
    }
    error.kind()
}
