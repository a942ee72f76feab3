//! Panics of futures and jobs whose connection may be gone when they are reported.

use std::sync::Arc;

use throng_io::ConnId;

use crate::events::{Events, ServerEvent, Subject};
use crate::handle::Handle;
use crate::panics::Callback;

/// Reports a panic of a route's future or job from any thread.
#[derive(Debug)]
pub(crate) struct Reporter {
    pub(crate) path: Arc<str>,
    pub(crate) events: Events,
}

/// A panic of a future or a job, to be delivered to its connection. If the connection or the server
/// is gone, dropping this reports it.
#[derive(Debug)]
pub(crate) struct PanicNotice {
    reporter: Arc<Reporter>,
    id: ConnId,
    is_answered: bool,
}

impl PanicNotice {
    pub(crate) fn new(reporter: &Arc<Reporter>, id: ConnId) -> Self {
        Self { reporter: Arc::clone(reporter), id, is_answered: false }
    }

    /// Ends the notice without a report: the caller reports the panic.
    pub(crate) fn answer(mut self) {
        self.is_answered = true;
    }
}

impl Drop for PanicNotice {
    fn drop(&mut self) {
        if !self.is_answered {
            let Reporter { path, events } = &*self.reporter;
            events.panics().count(Callback::Late);
            let subject = Subject { handle: Some(Handle::of(self.id)), ..Subject::default() };
            events.report(ServerEvent::Panicked { subject, route: Some(path) });
        }
    }
}
