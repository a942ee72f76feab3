//! The event loop of one thread: one driver and its connections. Read [`Shard::turn`] first.
//!
//! A part has private fields, and takes at most two other parts as arguments:
//!
//! * `input` of connections that is not passed on yet.
//! * `life`: who enters, moves to another shard, and how all end.
//! * `time` of sweeps, and `upkeep` of counters and memory.
//!
//! Code that needs more of them is in `roads`. `output` is the only place where the driver sends.

pub(crate) mod audit;
mod input;
pub(crate) mod life;
mod output;
mod roads;
pub(crate) mod time;
pub(crate) mod upkeep;

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use throng_io::{ConnId, Driver};

use crate::context::Core;
use crate::message::Fault;
use crate::service::Service;
use crate::shard::input::Intake;
use crate::shard::life::drain::Life;
use crate::shard::life::entrance::Entrance;
use crate::shard::life::moves::{ShardMoves, Starter};
use crate::shard::time::Clockwork;
use crate::shard::upkeep::Upkeep;
use crate::start::EngineStart;

/// Pause of accepting after descriptors ran out, unless a connection ends earlier.
const ACCEPT_REST: Duration = Duration::from_millis(200);

/// Time that a turn spends on commands of other threads, and on connections from other shards.
const MAX_MAIL_TIME: Duration = Duration::from_millis(1);

/// The event loop.
pub struct Shard<D: Driver, S: Service> {
    driver: D,
    moves: ShardMoves<D::Socket>,
    parts: EngineParts<S>,
}

/// Everything of a shard but its driver, and the sockets that come from other shards. Each part has
/// a state of its own, which only it changes; code that needs several parts is a road.
pub(crate) struct EngineParts<S> {
    core: Core,
    service: S,
    intake: Intake,
    entrance: Entrance,
    life: Life,
    clockwork: Clockwork,
    upkeep: Upkeep,
}

/// Action for when the lent bytes are returned.
pub(crate) enum AfterEvent<T> {
    Nothing,
    Flush(ConnId),
    /// Flush it; part of its input was not decoded.
    Hold(ConnId),
    Place(T, Option<SocketAddr>),
    RestAccept,
    /// The peer's stream has ended. If its TLS session failed, that is reported first.
    Finish(ConnId),
    /// A connection has ended. `Some` if the service wants its byte counts.
    RetryAccept(Option<ConnId>),
}

impl<D: Driver, S: Service> Shard<D, S> {
    pub(crate) fn new(start: EngineStart<D, S>) -> Self {
        let EngineStart { driver, core, service, .. } = start;
        let is_thread = start.buffered.is_some();
        let parts = EngineParts {
            intake: Intake::new(start.capacity, start.buffered),
            entrance: Entrance::new(start.admission, core.shard, is_thread, start.proxy_protocol),
            life: Life::new(start.seed),
            clockwork: Clockwork::new(driver.now()),
            upkeep: Upkeep::new(start.snapshot, is_thread),
            core,
            service,
        };
        Self { driver, moves: ShardMoves::new(start.handovers, start.neighbours), parts }
    }

    /// Starts a thread for each connection from now on.
    pub(crate) fn set_starter(&mut self, starter: Starter<D::Socket>) {
        self.moves.set_starter(starter);
    }

    /// Runs turns until a drain has ended. Returns how many connections missed its deadline and
    /// were reset.
    ///
    /// # Errors
    /// The driver's wait failed; the shard cannot continue.
    pub fn run(&mut self) -> io::Result<usize> {
        loop {
            if let Some(forced) = self.turn()? {
                return Ok(forced);
            }
        }
    }

    /// Runs one turn: waits, handles events, answers and flushes. All output leaves in `flush`.
    /// Returns `Some` when the shard has stopped.
    ///
    /// # Errors
    /// The driver's wait failed.
    // Compiled into the closure of a thread, it keeps less in registers.
    #[inline(never)]
    pub fn turn(&mut self) -> io::Result<Option<usize>> {
        self.driver.wait(self.next_deadline())?;
        self.parts.core.conns.begin_turn(self.driver.now());
        self.parts.core.clocks.begin_turn(self.driver.now());
        if self.parts.core.conns.stats().connections == 0 || self.parts.upkeep.is_thread() {
            // There was no connection whose deadline kept the sweeps going, or the sweeps ran only
            // when something was due: deadlines set from here on count from now, not from the last
            // sweep.
            self.sweep_if_due();
        }
        while let Some(event) = self.driver.next_event() {
            // `event` borrows the driver, so nothing in `on_event` *can* write to a socket.
            match self.parts.on_event(event) {
                AfterEvent::Flush(id) => self.flush(id),
                AfterEvent::Hold(id) => {
                    self.flush(id);
                    self.hold(id);
                }
                AfterEvent::Place(socket, peer) => self.place(socket, peer),
                AfterEvent::RestAccept => {
                    let until = self.parts.core.now().after(ACCEPT_REST);
                    self.parts.entrance.rest(until);
                }
                AfterEvent::Finish(id) => {
                    if let Some(why) = self.session_failure(id) {
                        let peer = self.driver.peer(id);
                        self.parts.report(id, Fault::Tls(why), peer);
                    }
                    self.parts.on_finished(id);
                }
                AfterEvent::RetryAccept(counted) => {
                    if let Some(id) = counted {
                        self.parts.report_traffic(id, self.driver.traffic(id));
                    }
                    self.retry_accept();
                }
                AfterEvent::Nothing => {}
            }
            self.flush_early();
            self.parts.core.clocks.checkpoint();
        }
        self.take_handovers();
        self.parts.core.clocks.checkpoint();
        self.take_commands();
        self.expire();
        self.parts.core.clocks.checkpoint();
        self.resume_publishers();
        self.resume_held();
        self.move_upgrades();
        self.flush_all();
        self.parts.core.clocks.end_turn();
        Ok(self.stopped())
    }

    /// Returns the service.
    pub fn service(&mut self) -> &mut S {
        &mut self.parts.service
    }

    /// Returns the service and the shard's state, for work outside of callbacks. Output leaves in
    /// the next turn's flush at the latest, or with [`Shard::flush_all`].
    pub fn service_and_core(&mut self) -> (&mut S, &mut Core) {
        (&mut self.parts.service, &mut self.parts.core)
    }

    /// Returns the driver, for the simulator's checkers.
    pub fn driver(&mut self) -> &mut D {
        &mut self.driver
    }

    /// Returns the shard's parts.
    pub fn core(&self) -> &Core {
        &self.parts.core
    }
}
