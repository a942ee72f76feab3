//! Sessions whose messages are not wanted for a while, as when a queue of workers is full, and the peers that ask for it.

use std::time::Duration;

use throng_engine::{Core, Cx, UserEvent};
use throng_io::{ConnId, Instant};

use crate::conforming::{command, message};
use crate::peer::{Do, Pace};
use crate::plan::{Expect, Part, Plan, SECOND, ScriptContext};
use crate::record::SharedRecord;
use crate::rng::Rng;

const MILLI: u64 = SECOND / 1000;

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

/// Adds some who are stopped to half of all plans.
pub(crate) fn gather(plan: &mut Plan, rng: &mut Rng) {
    if rng.one_in(2) {
        return;
    }
    let first = plan.parts.len() as u32;
    let all = first + 1 + rng.below(3) as u32;
    let busy = plan.parts.iter().map(|part| part.at).max().unwrap_or(0) + SECOND;
    for number in first..all {
        let mut part = Part::new(number, rng);
        part.at = rng.between(0, busy);
        let context = ScriptContext { limits: &plan.limits, number, peers: all, key: part.key };
        write(&mut part, &context, rng);
        plan.parts.push(part);
    }
}

/// Messages, of which some stop those behind them: all are handled in the end, and all are answered.
fn write(part: &mut Part, context: &ScriptContext<'_>, rng: &mut Rng) {
    part.name = "stopped";
    part.script = vec![Do::Write(context.request())];
    if rng.one_in(2) {
        part.script.push(Do::UntilOpen);
    }
    if rng.one_in(4) {
        part.script
            .push(Do::Read(Pace::Slow(1 + rng.below(2000), rng.between(MILLI, 200 * MILLI))));
    }
    for _ in 0..2 + rng.below(12) {
        part.script.push(match rng.below(6) {
            0 => Do::Pause(rng.between(0, 300 * MILLI)),
            1..3 => {
                let millis = rng.pick(&[0, 0, 1, 30, 700, 4000, 20_000]);
                command(&format!("!stop {millis} {}", rng.pick(&["mail", "time"])))
            }
            _ => message(context, rng),
        });
    }
    part.script.push(Do::Read(Pace::Prompt));
    if rng.one_in(2) {
        part.script.push(Do::Pause(rng.between(0, 2 * SECOND)));
    }
    part.script.push(Do::Close(rng.pick(&[1000, 3000, 4999])));
    part.expect = Expect::Clean;
    part.echo_only = true;
}
