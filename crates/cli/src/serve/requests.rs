//! Reloads that the admin API asks for.

use std::sync::mpsc::{self, Receiver, Sender, SyncSender};

use crate::changes::{CERTIFICATES, Changes, in_words};

/// The outcome of a reload.
#[derive(Debug)]
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
type Outcome = Result<Reloaded, String>;

/// The way to the thread that handles signals, and therefore reloads: they follow one another.
#[derive(Clone)]
pub(super) struct ReloadRequests(Sender<SyncSender<Outcome>>);

/// Reloads that were asked for.
pub(super) struct PendingReloads(Receiver<SyncSender<Outcome>>);

/// Connects the two.
pub(super) fn reload_requests() -> (ReloadRequests, PendingReloads) {
    let (requests, pending) = mpsc::channel();
    (ReloadRequests(requests), PendingReloads(pending))
}

impl ReloadRequests {
    /// Asks for a reload, and waits for its outcome: `None` if the server is about to end.
    pub(super) fn ask(&self) -> Option<Outcome> {
        let (reply, outcome) = mpsc::sync_channel(1);
        self.0.send(reply).ok()?;
        outcome.recv().ok()
    }
}

impl PendingReloads {
    /// Does the next reload that was asked for; returns whether there was one.
    pub(super) fn carry_out_next(&self, reload: impl FnOnce() -> Outcome) -> bool {
        let Ok(reply) = self.0.try_recv() else { return false };
        // The client may have gone.
        let _ = reply.send(reload());
        true
    }
}
