//! The state of the process for the service manager of Windows. In a process that the manager has
//! not started, reports go nowhere.

mod command;
mod states;

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

pub(crate) use command::{Args, run};
use states::{States, Status};

/// The states of this process, for the manager; `None`: the manager has not started it.
static STATES: Mutex<Option<States<ServiceReport>>> = Mutex::new(None);

type ServiceReport = Box<dyn FnMut(Status) + Send>;

/// A connection to the service manager, if there is one.
pub(crate) struct Service;

impl Service {
    /// Notifies the manager that the process is ready.
    pub(crate) fn ready() -> Self {
        with_states(States::serve);
        Self
    }

    /// Does nothing: for the manager a service that reloads is running.
    pub(crate) fn reloading() {}

    /// Does nothing, as [`reloading`](Self::reloading).
    pub(crate) fn reloaded() {}

    /// Notifies the manager that the process shuts down, which takes at most `length`.
    pub(crate) fn stopping(&self, length: Duration) {
        with_states(|states| states.drain(length));
    }

    /// Does nothing: the manager has neither a watchdog nor a status line.
    pub(crate) fn report(
        &mut self,
        _turns: impl FnOnce() -> Vec<(u64, bool)>,
        _status: impl FnOnce() -> String,
    ) {
    }
}

/// Begins the reports about this process.
fn begin(report: ServiceReport) {
    *STATES.lock().unwrap_or_else(PoisonError::into_inner) = Some(States::start(report));
}

/// Changes the state, in a process that the manager has started.
fn with_states<T>(change: impl FnOnce(&mut States<ServiceReport>) -> T) -> Option<T> {
    STATES.lock().unwrap_or_else(PoisonError::into_inner).as_mut().map(change)
}
