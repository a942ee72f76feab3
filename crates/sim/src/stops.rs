//! Sessions whose messages are not wanted for a while, as when a queue of workers is full.

use std::time::Duration;

use throng_engine::{Core, Cx, UserEvent};
use throng_io::{ConnId, Instant};

use crate::record::SharedRecord;

/// What the service knows of those it has stopped.
pub(crate) struct Stops {
    record: SharedRecord,
    stops: Vec<Stop>,
}

struct Stop {
    until: Instant,
    id: ConnId,
    peer: u32,
    /// The word to read on comes through the mailbox, as from a worker.
    by_mail: bool,
}

/// There is room again for this peer's messages.
struct Room(u32);

impl Stops {
    pub(crate) fn new(record: SharedRecord) -> Self {
        Self { record, stops: Vec::new() }
    }

    /// Stops this session for so many milliseconds; for none, it is read on before the callback returns.
    pub(crate) fn stop(&mut self, cx: &mut Cx<'_>, millis: u64, by_mail: bool) {
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
        self.stops.push(Stop { until, id, peer, by_mail });
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.stops.iter().map(|stop| stop.until).min()
    }

    pub(crate) fn on_deadline(&mut self, core: &mut Core, now: Instant) {
        let due: Vec<Stop> = self.stops.extract_if(.., |stop| stop.until <= now).collect();
        for Stop { id, peer, by_mail, .. } in due {
            match by_mail {
                true => core.remote().post(id, Box::new(Room(peer))),
                false => {
                    self.note_room(peer);
                    core.resume_reading(id);
                }
            }
        }
    }

    /// Gives back what is for somebody else.
    pub(crate) fn on_delivery(&self, cx: &mut Cx<'_>, parcel: UserEvent) -> Option<UserEvent> {
        match parcel.0.downcast::<Room>() {
            Ok(room) => {
                self.note_room(room.0);
                cx.resume_reading();
                None
            }
            Err(other) => Some(UserEvent(other)),
        }
    }

    /// From now on it may be called back.
    fn note_room(&self, peer: u32) {
        if let Some(session) = self.record.borrow_mut().sessions.get_mut(&peer) {
            session.stopped = false;
        }
    }
}
