//! Reloads requested by the admin API.

use std::sync::mpsc::{self, Receiver, Sender, SyncSender};

use crate::changes::{CERTIFICATES, Changes, in_words};

/// The outcome of a reload.
#[derive(Clone, Debug)]
pub(super) struct Reloaded {
    pub(super) changes: Changes,
    /// Whether files of certificates had changed.
    pub(super) certificates: bool,
}

impl Reloaded {
    /// Returns the changes on one line.
    pub(super) fn in_words(&self) -> String {
        let parts = self.certificates.then(|| CERTIFICATES.to_owned());
        let Changes { changed, needs_restart } = &self.changes;
        in_words(parts.into_iter().collect(), changed, needs_restart)
    }
}

/// The outcome of a reload, or the mistake that it met.
type ReloadOutcome = Result<Reloaded, String>;

/// Sends requests for reloads to the thread that handles signals, which executes them one after the
/// other.
#[derive(Clone)]
pub(super) struct ReloadRequests(Sender<SyncSender<ReloadOutcome>>);

/// Requested reloads.
pub(super) struct PendingReloads(Receiver<SyncSender<ReloadOutcome>>);

/// Connects the two.
pub(super) fn reload_requests() -> (ReloadRequests, PendingReloads) {
    let (requests, pending) = mpsc::channel();
    (ReloadRequests(requests), PendingReloads(pending))
}

impl ReloadRequests {
    /// Requests a reload, and waits for its outcome: `None` if the server is about to end.
    pub(super) fn ask(&self) -> Option<ReloadOutcome> {
        let (reply, outcome) = mpsc::sync_channel(1);
        self.0.send(reply).ok()?;
        outcome.recv().ok()
    }
}

impl PendingReloads {
    /// Answers all waiting requests with one reload, which begins after all of them; returns
    /// whether there was one. With a reload for each, workers would wait for one after the other.
    pub(super) fn carry_out(&self, reload: impl FnOnce() -> ReloadOutcome) -> bool {
        let replies: Vec<_> = self.0.try_iter().collect();
        if replies.is_empty() {
            return false;
        }
        let outcome = reload();
        for reply in replies {
            // The client may have left.
            let _ = reply.send(outcome.clone());
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_wait_are_answered_by_one_reload() {
        let (requests, pending) = reload_requests();
        let reload = || Err("a mistake".to_owned());
        assert!(!pending.carry_out(|| panic!("no request waits")));
        let waiting = [(); 3].map(|()| {
            let (reply, outcome) = mpsc::sync_channel(1);
            requests.0.send(reply).unwrap();
            outcome
        });
        assert!(pending.carry_out(reload));
        for outcome in waiting {
            assert_eq!(outcome.try_recv().unwrap().unwrap_err(), "a mistake");
        }
        assert!(!pending.carry_out(|| panic!("all are answered")));
    }
}
