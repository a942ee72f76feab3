//! The state of the process for systemd, which this system does not have.

use std::time::Duration;

/// A connection to the service manager: none.
pub(crate) struct Service;

impl Service {
    pub(crate) fn ready() -> Self {
        Self
    }

    pub(crate) fn reloading() {}

    pub(crate) fn reloaded() {}

    pub(crate) fn stopping(&self, _length: Duration) {}

    pub(crate) fn report(
        &mut self,
        _turns: impl FnOnce() -> Vec<(u64, bool)>,
        _status: impl FnOnce() -> String,
    ) {
    }
}
