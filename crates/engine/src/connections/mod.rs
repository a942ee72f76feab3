//! The shard's connections, with every operation that callbacks can request.
//!
//! Records, timers, reading and output are parts with fields of their own; what concerns several of
//! them is here. While bytes are lent the driver is borrowed, so nothing here touches a socket:
//! output goes to the connection's queue, and the connection to the list that
//! [`Shard::flush_all`](crate::Shard::flush_all) empties.

mod behind;
mod close;
pub(crate) mod dialect;
pub(crate) mod memory;
mod output;
pub(crate) mod publishers;
pub(crate) mod records;
pub(crate) mod send;
pub(crate) mod wanted;

use throng_io::{ConnId, Instant};
use throng_proto::ws::{self, Opcode, deflate};

use crate::configuration::Configuration;
use crate::conn::reading::Reading;
use crate::conn::record::ServiceFields;
use crate::conn::route_limits::RouteLimits;
use crate::conn::stage::{AfterFlush, Stage, flag};
use crate::conn::table::Table;
use crate::conn::timers::Timers;
use crate::connections::memory::ShardMemory;
use crate::connections::publishers::Publishers;
use crate::connections::wanted::Wanted;
use crate::limits::Checked;
use crate::message::Fault;
use crate::outbox::{Millis, Outbox, OutboxLimits};
use crate::stats::Stats;

/// The shard's connections.
#[derive(Debug)]
pub(crate) struct Connections {
    table: Table,
    timers: Timers,
    reading: Reading,
    outbox: Outbox,
    publishers: Publishers,
    wanted: Wanted,
    limits: Checked,
    stats: Stats,
    memory: ShardMemory,
    /// The time of this turn.
    now: Instant,
    /// Faults to report as soon as the driver can return their addresses, at the latest before the
    /// socket is closed.
    faults: Vec<(ConnId, Fault)>,
}

impl Connections {
    pub(crate) fn new(
        configuration: &Configuration,
        capacity: usize,
        seed: u64,
        now: Instant,
        memory: ShardMemory,
    ) -> Self {
        let Configuration { limits, rules } = configuration.clone();
        let output = OutboxLimits::new(&limits);
        Self {
            table: Table::new(capacity),
            timers: Timers::new(capacity, limits.each_route(), limits.heartbeat_always),
            reading: Reading::new(limits.limit_rates()),
            outbox: Outbox::new(output, rules, seed),
            publishers: Publishers::default(),
            wanted: Wanted::default(),
            limits,
            stats: Stats::default(),
            memory,
            now,
            faults: Vec::new(),
        }
    }

    /// Applies other limits and rules. Work in progress keeps its deadline; a session's next
    /// heartbeat follows the new interval, unless a ping is unanswered.
    pub(crate) fn configure(&mut self, configuration: &Configuration) {
        let Configuration { limits, rules } = configuration.clone();
        self.timers.configure(limits.each_route(), limits.heartbeat_always);
        self.reading.configure(limits.limit_rates());
        self.outbox.configure(OutboxLimits::new(&limits), rules);
        self.limits = limits;
        for slot in 0..self.table.slots() {
            let Some(id) = self.table.in_slot(slot as u32) else { continue };
            let Some(conn) = self.table.conn_mut(id) else { continue };
            conn.service.inline_limit = 0;
            let is_silent = conn.is(Stage::Open) && !conn.has(flag::PINGED | flag::PAUSED);
            if is_silent || conn.is(Stage::Events) {
                let interval = self.limits.of_route(conn.service.route).heartbeat_interval;
                self.timers.await_heartbeat(id, interval);
            }
        }
    }

    /// Returns the time of this turn as the per-message queues keep it.
    pub(crate) fn millis(&self) -> Millis {
        Millis::of(self.now)
    }

    /// Enters a connection that the driver has just reported.
    pub(crate) fn enter(&mut self, id: ConnId, stage: Stage) {
        self.timers.enter(id.slot());
        self.reading.enter(id.slot());
        self.table.enter(id, stage);
        self.stats.connections += 1;
    }

    /// Frees the slot of a connection after its last event.
    pub(crate) fn leave(&mut self, id: ConnId) {
        let Some(conn) = self.table.conn_mut(id) else { return };
        self.stats.connections -= 1;
        self.stats.backlogged -= u64::from(conn.has(flag::IN_FLIGHT));
        self.outbox.leave(conn);
        self.timers.leave(id.slot());
        self.table.leave(id);
        let filter = self.wanted.leave(id);
        self.drop_wanted(filter);
    }

    /// Records that permessage-deflate was agreed on. Returns false if that is impossible.
    pub(crate) fn set_deflate(
        &mut self,
        id: ConnId,
        policy: deflate::Policy,
        agreed: deflate::Agreed,
    ) -> bool {
        let conn = self.table.conn_mut(id);
        conn.is_some_and(|conn| self.outbox.set_deflate(conn, policy, agreed))
    }

    /// Registers input of an open session: the peer is alive, and the connection is flushed after
    /// its input. This is the one access to the record that receiving a message needs.
    #[inline]
    pub(crate) fn receiving(&mut self, id: ConnId) -> Option<ServiceFields> {
        let conn = self.table.conn_mut(id)?;
        if !conn.is(Stage::Open) {
            return None;
        }
        let was_pinged = conn.has(flag::PINGED);
        conn.mark_received();
        let service = conn.service;
        if self.timers.are_plain() {
            self.timers.record_input(id.slot());
        } else {
            self.record_input(id, service.route, was_pinged);
        }
        Some(service)
    }

    /// Registers input where pings depend on more than silence.
    #[cold]
    fn record_input(&mut self, id: ConnId, route: u16, was_pinged: bool) {
        if was_pinged || !self.limits.heartbeat_always {
            let interval = self.limits.of_route(route).heartbeat_interval;
            self.timers.await_heartbeat(id, interval);
        }
    }

    /// Returns the seconds for which an open session has been silent; `None` if it was pinged, is
    /// not read, or has no heartbeats that follow its input.
    #[cold]
    pub(crate) fn silence(&self, id: ConnId) -> Option<u16> {
        let conn = self.table.conn(id)?;
        let is_quiet = conn.is(Stage::Open) && !conn.has(flag::PINGED | flag::PAUSED);
        if !is_quiet || self.limits.heartbeat_always {
            return None;
        }
        let interval = self.limits.of_route(conn.service.route).heartbeat_interval;
        self.timers.silence(id, interval)
    }

    /// Registers input after our Close, while only the peer's Close is awaited; `None` if input no
    /// longer matters.
    #[cold]
    pub(crate) fn receiving_late(&mut self, id: ConnId) -> Option<ServiceFields> {
        self.outbox.compression().end_relay();
        let conn = self.table.conn_mut(id)?;
        if !conn.is(Stage::Closing) || conn.is_finishing() {
            return None;
        }
        conn.set(flag::DIRTY, true);
        Some(ServiceFields { inline_limit: 0, ..conn.service })
    }

    /// Returns the limits of a connection's route.
    pub(crate) fn route_limits_of(&self, id: ConnId) -> &RouteLimits {
        let route = self.table.conn(id).map(|conn| conn.service.route);
        route.map_or(&self.limits.route, |route| self.limits.of_route(route))
    }

    /// Records up to which length messages need no check of the limits.
    pub(crate) fn record_limits(&mut self, id: ConnId, limits: &ws::Limits) {
        if let Some(conn) = self.table.conn_mut(id) {
            conn.service.inline_limit =
                limits.max_whole_message().min(usize::from(u16::MAX)) as u16;
        }
    }

    /// Counts all bytes received since the last incomplete input as held. The excess costs only an
    /// early measurement; recording the length of each read would cost time in every read.
    pub(crate) fn count_incomplete(&mut self) {
        let came = self.reading.count_incomplete(self.stats.bytes_in);
        self.memory.add(came);
    }

    /// Returns whether part of a request has arrived, and its answer is still due.
    pub(crate) fn is_in_request(&self, id: ConnId) -> bool {
        self.table.has(id, flag::REQUEST)
    }

    /// Ends a request that has arrived completely: the next one has no deadline yet.
    pub(crate) fn end_request(&mut self, id: ConnId) {
        self.timers.due_in(id, self.limits.keep_alive);
        self.table.set(id, flag::REQUEST, false);
    }

    /// Reads no further request or body until the service answers or has room.
    pub(crate) fn await_answer(&mut self, id: ConnId) {
        if let Some(conn) = self.table.conn_mut(id)
            && conn.is(Stage::Http)
        {
            conn.advance(Stage::Serving);
        }
    }

    /// Reads nothing further until the service has decided on an upgrade, which takes no longer
    /// than any handshake.
    pub(crate) fn await_upgrade(&mut self, id: ConnId) {
        if let Some(conn) = self.table.conn_mut(id)
            && conn.is(Stage::Http)
            && !conn.is_finishing()
        {
            conn.advance(Stage::Serving);
            conn.set(flag::UPGRADE_LATER, true);
            self.timers.due_in(id, self.limits.handshake);
        }
    }

    /// Completes a deferred answer; see [`Core::finish_answer`](crate::Core::finish_answer).
    pub(crate) fn finish_answer(&mut self, id: ConnId, keep_alive: bool) {
        let Some(conn) = self.table.conn_mut(id) else { return };
        match conn.stage() {
            Stage::Serving => conn.advance(Stage::Http),
            // Its body is still coming, and no callback would read it to its end.
            Stage::Http => {
                conn.set(flag::UPGRADE_LATER, false);
                return self.finish(id, AfterFlush::Linger);
            }
            _ => return,
        }
        conn.set(flag::UPGRADE_LATER, false);
        if keep_alive {
            conn.set(flag::REQUEST, false);
            self.timers.due_in(id, self.limits.keep_alive);
            self.reading.mark_resumed(conn);
        } else {
            self.finish(id, AfterFlush::Linger);
        }
    }

    /// Accepts an upgrade; see [`Core::accept_upgrade`](crate::Core::accept_upgrade).
    pub(crate) fn accept_upgrade(&mut self, id: ConnId) -> bool {
        let Some(conn) = self.table.conn_mut(id) else { return false };
        let is_awaited = conn.is(Stage::Serving)
            && conn.has(flag::UPGRADE_LATER)
            && !conn.has(flag::FINISHED)
            && !conn.is_finishing();
        if is_awaited {
            conn.advance(Stage::Http);
            // Continues with messages that came during the write.
            self.reading.mark_resumed(conn);
        }
        is_awaited
    }

    /// Stops reading; see [`Core::stop_reading`](crate::Core::stop_reading).
    pub(crate) fn stop_reading(&mut self, id: ConnId) {
        if let Some(conn) = self.table.conn_mut(id)
            && conn.is(Stage::Open)
        {
            conn.set(flag::STOPPED, true);
            // The flush pauses the driver's reading.
            self.outbox.mark_dirty(conn);
        }
    }

    /// Stops reading until the peer has gone; see
    /// [`Core::stop_reading_until_gone`](crate::Core::stop_reading_until_gone).
    pub(crate) fn stop_reading_until_gone(&mut self, id: ConnId) {
        self.stop_reading(id);
        if self.table.stage(id) == Stage::Open {
            self.watch(id);
        }
    }

    /// Resumes reading; see [`Core::resume_reading`](crate::Core::resume_reading).
    pub(crate) fn resume_reading(&mut self, id: ConnId) {
        let Some(conn) = self.table.conn_mut(id) else { return };
        match conn.stage() {
            Stage::Serving => {
                conn.advance(Stage::Http);
                // The server caused the delay: the body's deadline restarts.
                self.timers.due_in(id, self.limits.handshake);
            }
            Stage::Open if conn.has(flag::STOPPED) => {
                conn.set(flag::STOPPED, false);
                // Reading may have been stopped again by the time the connection is resumed, or its
                // output be congested: the code that resumes held input checks both.
                if conn.has(flag::PAUSED) {
                    self.outbox.mark_drained(conn);
                }
                return;
            }
            _ => return,
        }
        self.reading.mark_resumed(conn);
    }

    /// Requests `on_drain`; see [`Core::await_drain`](crate::Core::await_drain).
    pub(crate) fn await_drain(&mut self, id: ConnId) {
        if let Some(conn) = self.table.conn_mut(id) {
            conn.set(flag::NOTIFY_ON_DRAIN, true);
            self.outbox.mark_dirty(conn);
        }
    }

    /// Queues raw bytes: HTTP, before there is a session.
    pub(crate) fn write(&mut self, id: ConnId, write: impl FnOnce(&mut Vec<u8>)) {
        if let Some(conn) = self.table.conn_mut(id)
            && conn.stage() < Stage::Open
        {
            self.outbox.append(conn, write);
        }
    }

    /// Queues a heartbeat ping.
    pub(crate) fn ping(&mut self, id: ConnId) {
        if let Some(conn) = self.table.conn_mut(id)
            && conn.is(Stage::Open)
        {
            self.stats.pings += 1;
            self.outbox.control(conn, Opcode::Ping, &[]);
        }
    }

    /// Queues a comment that keeps a stream of events alive.
    pub(crate) fn comment(&mut self, id: ConnId) {
        if let Some(conn) = self.table.conn_mut(id) {
            self.stats.pings += 1;
            self.outbox.put_comment(conn);
        }
    }

    /// Answers a ping of an open session.
    pub(crate) fn pong(&mut self, id: ConnId, payload: &[u8]) {
        if let Some(conn) = self.table.conn_mut(id)
            && conn.is(Stage::Open)
        {
            self.outbox.put_pong(conn, payload);
        }
    }

    /// Returns the bytes queued for a connection: here, in the per-message queue, and in the
    /// driver.
    #[inline]
    pub(crate) fn backlog(&self, id: ConnId) -> usize {
        self.table.conn(id).map_or(0, |conn| self.outbox.backlog(conn))
    }

    /// Returns the bytes queued except messages that may still be dropped.
    #[inline]
    pub(crate) fn kept_backlog(&self, id: ConnId) -> usize {
        self.table.conn(id).map_or(0, |conn| self.outbox.kept_backlog(conn))
    }

    /// Marks a connection as flushed anyway, right after its input is handled.
    #[inline]
    pub(crate) fn promise_flush(&mut self, id: ConnId) {
        self.table.set(id, flag::DIRTY, true);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::backpressure::{Backpressure, Classes, Rules, SlowPolicy};
    use crate::connections::memory::MemoryAccount;
    use crate::limits::{Limit, Limits};
    use crate::route_options::RouteOptions;

    fn configuration(limits: &Limits, classes: &Classes, before: Option<&Rules>) -> Configuration {
        let mut configuration = Configuration::new(limits, classes, &[], 2).expect("valid limits");
        if let Some(before) = before {
            let rules = configuration.rules.replacing(before).expect("few classes");
            configuration.rules = Arc::new(rules);
        }
        configuration
    }

    fn connections(configuration: &Configuration) -> Connections {
        let memory = ShardMemory::new(Arc::new(MemoryAccount::new(Limit::AtMost(1))), false, 1);
        Connections::new(configuration, 16, 1, Instant(0), memory)
    }

    /// Every limit with a value that is not its default.
    fn others() -> Vec<Limits> {
        let (usual, time) = (Limits::default, Duration::from_secs(7));
        vec![
            usual().max_message_size(5),
            usual().max_frame_size(5),
            usual().max_header_bytes(5),
            usual().max_headers(5),
            usual().max_body(5),
            usual().fragment_threshold(5),
            usual().fragment_size(5),
            usual().handshake_timeout(time),
            usual().min_body_rate(5),
            usual().max_body_memory(50),
            usual().min_response_rate(5),
            usual().keep_alive_timeout(time),
            usual().reassembly_timeout(time),
            usual().write_timeout(time),
            usual().close_timeout(time),
            usual().heartbeat_interval(time),
            usual().heartbeat_interval(None),
            usual().heartbeat_timeout(time),
            usual().heartbeat_always(true),
            usual().max_backlog(500),
            usual().max_messages_per_second(5),
            usual().max_bytes_per_second(5),
            usual().max_lifetime(time),
        ]
    }

    #[test]
    fn a_shard_that_was_configured_is_like_one_that_was_built_so() {
        let classes = Classes::default();
        let usual = configuration(&Limits::default(), &classes, None);
        let all = others();
        let before = format!("{:?}", connections(&usual));
        for limits in &all {
            let other = configuration(limits, &classes, None);
            let mut changed = connections(&usual);
            changed.configure(&other);
            let built = connections(&other);
            assert_eq!(format!("{changed:?}"), format!("{built:?}"), "{limits:?}");
            assert_ne!(before, format!("{built:?}"), "{limits:?}");
            changed.configure(&usual);
            assert_eq!(format!("{changed:?}"), before, "back from {limits:?}");
        }
    }

    #[test]
    fn heartbeats_of_a_route_come_at_its_own_interval() {
        let every = |secs| Some(Some(Duration::from_secs(secs)));
        let routes: Arc<[_]> = [every(3600), None, every(4), Some(None)]
            .map(|heartbeat_interval| RouteOptions { heartbeat_interval, ..Default::default() })
            .into();
        let limits = Limits::default();
        let configuration = Configuration::new(&limits, &Classes::default(), &routes, 1).unwrap();
        let mut connections = connections(&configuration);
        for (route, due) in [(0, Some(3600)), (1, Some(25)), (2, Some(4)), (3, None)] {
            let id = ConnId::new(0, 0, 1);
            connections.enter(id, Stage::Http);
            connections.table.conn_mut(id).unwrap().advance(Stage::Open);
            connections.table.conn_mut(id).unwrap().service.route = route;
            assert!(connections.receiving(id).is_some());
            assert_eq!(connections.timers.earliest(), due, "route {route}");
            connections.leave(id);
        }
    }

    #[test]
    fn rules_that_replace_others_leave_the_numbers_of_classes_as_they_are() {
        let limits = Limits::default();
        let classes = |default: SlowPolicy, channels: &[(&str, SlowPolicy, usize)]| {
            let mut classes = Classes::default();
            classes.set_default(default.into());
            for (pattern, policy, most) in channels {
                classes
                    .add_channels(pattern, Backpressure::new(*policy).max_backlog(*most))
                    .expect("a pattern");
            }
            classes
        };
        let (close, latest, oldest) =
            (SlowPolicy::Close, SlowPolicy::Latest, SlowPolicy::DropOldest);
        let first = classes(close, &[("a", latest, 100), ("b", oldest, 100)]);
        let first = configuration(&limits, &first, None);
        let second = classes(oldest, &[("b", oldest, 200), ("a", oldest, 100), ("c", close, 1)]);
        let second = configuration(&limits, &second, Some(&first.rules));
        let rules = &second.rules;
        let of = |name: &str| rules.of_channel(name).map(|number| (number, rules.class(number)));
        assert_eq!(of("b").map(|(number, class)| (number, class.max_backlog)), Some((2, 200)));
        assert_eq!(of("a").map(|(number, class)| (number, class.policy)), Some((4, oldest)));
        assert_eq!(of("c").map(|(number, _)| number), Some(5));
        assert_eq!((rules.of_route(0), rules.class(3).policy), (3, oldest), "the default");
        assert_eq!(rules.class(1).policy, latest, "for what waits");
        // The first rules again have their first numbers.
        let again = classes(close, &[("a", latest, 100), ("b", oldest, 100)]);
        let again = configuration(&limits, &again, Some(rules));
        assert_eq!((again.rules.of_channel("a"), again.rules.of_route(0)), (Some(1), 0));
        assert_eq!(again.rules.names().count(), rules.names().count());
    }
}
