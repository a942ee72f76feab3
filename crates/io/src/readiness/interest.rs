//! Poll interest: registered with a level-triggered poll, remembered for an edge-triggered one.

use super::ReadinessDriver;
use super::poller::{Interest, Poller};
use super::table::{NONE, flag};
use crate::driver::Closed;
use crate::id::ConnId;

impl<P: Poller> ReadinessDriver<P> {
    /// Updates the registered interest if it has changed.
    pub(super) fn sync(&mut self, id: ConnId) {
        if !P::LEVEL {
            return;
        }
        let Some(entry) = self.table.entry(id) else { return };
        let armed = entry.flags & (flag::ARMED_READ | flag::ARMED_WRITE | flag::MUTED);
        let mut wanted = 0;
        if entry.flags & flag::NOT_READING == 0 {
            wanted |= flag::ARMED_READ;
        } else {
            wanted |= entry.flags & flag::MUTED;
        }
        if entry.outgoing != NONE || entry.flags & flag::CONNECTING != 0 {
            wanted |= flag::ARMED_WRITE;
        }
        if wanted != armed {
            entry.flags = entry.flags & !armed | wanted;
            self.modify(id);
        }
    }

    #[cold]
    pub(super) fn modify(&mut self, id: ConnId) {
        let Some(entry) = self.table.entry(id) else { return };
        if entry.flags & flag::UNREGISTERED != 0 {
            // Its registration is still pending, and will use the interest of that moment.
            return;
        }
        let interest = interest(entry.flags);
        if let Some(socket) = &entry.socket
            && self.poller.modify(socket, id.to_bits(), interest).is_err()
        {
            // Without events the connection would hang forever.
            self.end(id, Closed::Reset);
        }
    }

    /// Adds a connection to the end of the list of connections that may have work, unless it is
    /// there.
    pub(super) fn enqueue(&mut self, id: ConnId) {
        if let Some(entry) = self.table.entry(id)
            && entry.flags & flag::QUEUED == 0
        {
            entry.flags |= flag::QUEUED;
            self.ready_list.push_back(id);
        }
    }
}

pub(super) fn interest(flags: u64) -> Interest {
    Interest {
        read: flags & flag::ARMED_READ != 0,
        write: flags & flag::ARMED_WRITE != 0,
        muted: flags & flag::MUTED != 0,
    }
}
