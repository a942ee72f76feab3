//! Sessions that do not want messages for a while, for example because a queue of workers is full.

use std::time::Duration;

use throng_engine::{Core, Cx, UserEvent};
use throng_io::{ConnId, Instant};

use crate::record::SharedRecord;

/// The sessions of one shard that the service has stopped.
pub(crate) struct Stops {
    record: SharedRecord,
    stops: Vec<Stop>,
}

struct Stop {
    until: Instant,
    id: ConnId,
    peer: u32,
    /// Whether the command to continue reading arrives through the mailbox, as from a worker.
    by_mailbox: bool,
}

/// There is room again for this peer's messages.
struct Room(u32);

impl Stops {
    pub(crate) fn new(record: SharedRecord) -> Self {
        Self { record, stops: Vec::new() }
    }

    /// Stops this session for this many milliseconds; with 0, it continues before the callback
    /// returns.
    pub(crate) fn stop(&mut self, cx: &mut Cx<'_>, millis: u64, by_mailbox: bool) {
        let (peer, id) = (cx.data(), cx.id());
        if let Some(session) = self.record.borrow_mut().session(peer, id, "stop") {
            session.stopped = true;
        }
        cx.stop_reading();
        if millis == 0 {
            self.note_room(peer);
            return cx.resume_reading();
        }
        let until = cx.core_ref().now().after(Duration::from_millis(millis));
        self.stops.push(Stop { until, id, peer, by_mailbox });
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.stops.iter().map(|stop| stop.until).min()
    }

    pub(crate) fn on_deadline(&mut self, core: &mut Core, now: Instant) {
        let due: Vec<Stop> = self.stops.extract_if(.., |stop| stop.until <= now).collect();
        for Stop { id, peer, by_mailbox, .. } in due {
            match by_mailbox {
                true => core.remote().post(id, Box::new(Room(peer))),
                false => {
                    self.note_room(peer);
                    core.resume_reading(id);
                }
            }
        }
    }

    /// Handles the end of a stop; returns any other event.
    pub(crate) fn on_user_event(&self, cx: &mut Cx<'_>, event: UserEvent) -> Option<UserEvent> {
        match event.0.downcast::<Room>() {
            Ok(room) => {
                self.note_room(room.0);
                cx.resume_reading();
                None
            }
            Err(other) => Some(UserEvent(other)),
        }
    }

    /// Records that the session may get callbacks again from now on.
    fn note_room(&self, peer: u32) {
        if let Some(session) = self.record.borrow_mut().sessions.get_mut(&peer) {
            session.stopped = false;
        }
    }
}
