//! Commands of other threads, which a turn takes from the shard's queue.

use std::time::Duration;

use throng_io::{ConnId, Driver};

use super::{MAX_MAIL_TIME, Shard};
use crate::connections::send::Published;
use crate::context::Cx;
use crate::drain::DrainPlan;
use crate::outbox::sent::Sent;
use crate::pubsub::delivery::Delivery;
use crate::pubsub::publishing::Publishing;
use crate::remote::Command;
use crate::remote::registry::ThreadRegistry;
use crate::service::Service;
use crate::shard::shutdown::{Drain, Phase};
use crate::shard::state::drop_guarded;

/// Commands and receivers between two readings of the clock.
const COMMANDS: u64 = 8;

impl<D: Driver, S: Service> Shard<D, S> {
    pub(super) fn take_commands(&mut self) {
        if !self.state.core.commands.is_empty() || self.state.inbox.has_any() {
            self.carry_out_commands();
        }
    }

    /// Carries out commands of other threads for a bounded time; the rest waits for the next turn.
    #[inline(never)]
    fn carry_out_commands(&mut self) {
        let mut drain = None;
        if self.state.core.commands.is_empty() {
            self.state.core.recent.queue_taken();
            self.state.core.commands.extend(self.state.inbox.commands.drain());
            // Losses are handled first: they happened before the commands that follow were queued.
            for lost in self.state.inbox.losses.take() {
                self.state.core.make_good(&lost);
            }
        }
        let until = self.state.core.clock.read().after(MAX_MAIL_TIME);
        let mut work = 0;
        while let Some(command) = self.state.core.commands.pop_front() {
            self.flush_early();
            work += self.carry_out(command, &mut drain);
            self.checkpoint();
            if work >= COMMANDS {
                work = 0;
                if self.state.core.clock.read() >= until {
                    break;
                }
            }
        }
        if let Some(plan) = drain
            && matches!(self.state.phase, Phase::Running)
        {
            self.announce_drain(plan);
        }
    }

    /// Begins a drain, or the delay before it.
    fn announce_drain(&mut self, plan: DrainPlan) {
        if !plan.is_delayed() {
            return self.begin_drain(plan);
        }
        let state = &mut self.state;
        state.admission.announce_drain(&plan);
        let at = state.core.now().after(plan.delay);
        state.phase = Phase::Announced { plan: plan.delay(Duration::ZERO), at };
    }

    pub(super) fn begin_drain(&mut self, plan: DrainPlan) {
        let state = &mut self.state;
        state.admission.begin_drain(plan.hand_over);
        let mut ids: Vec<ConnId> = state.core.connections.table.ids().collect();
        if self.starter.is_some() {
            // Connections on their own threads are spread over the same window.
            let taken = state.core.remote.registry().map(ThreadRegistry::taken);
            ids.extend(taken.unwrap_or_default());
        }
        state.phase = Phase::Draining(Drain::new(plan, ids, state.core.now(), state.seed));
    }

    /// Carries out one command; a drain is put into `drain` instead. Returns the work that it took:
    /// one for the command and one for each receiver.
    #[inline]
    fn carry_out(&mut self, command: Command, drain: &mut Option<DrainPlan>) -> u64 {
        let (mut work, state) = (1, &mut self.state);
        match command {
            Command::Publish { channel, frame, except, ack } => {
                state.core.watch.deliver();
                let began = ack.began();
                let publishing = Publishing { began, ..Publishing::new(&channel, &frame, except) };
                let new = state.core.too_new(&channel);
                let delivery = state.core.deliver_here(&publishing, &new);
                work += delivery.receivers();
                ack.count(delivery);
            }
            Command::PublishAll { channel, frames, mut next, mut so_far, ack } => {
                state.core.watch.deliver();
                while let Some(frame) = frames.get(next)
                    && work < COMMANDS
                {
                    let new = state.core.too_new(&channel);
                    let publishing = Publishing::new(&channel, frame, None);
                    let delivery = state.core.deliver_here(&publishing, &new);
                    work += 1 + delivery.receivers();
                    so_far.add(delivery);
                    next += 1;
                }
                match next < frames.len() {
                    true => {
                        let rest = Command::PublishAll { channel, frames, next, so_far, ack };
                        state.core.commands.push_front(rest);
                    }
                    false => ack.count(so_far),
                }
            }
            Command::Recorded { recorded, except, ack } => {
                state.core.watch.deliver();
                let delivery = state.core.deliver_recorded(&recorded, except, ack.began());
                work += delivery.receivers();
                ack.count(delivery);
            }
            Command::Admit { channel, members } => {
                let mut members = members.unwrap_or_else(|| state.core.recent.waiting(&channel));
                let rest = members.len().saturating_sub(COMMANDS as usize);
                let next = members.split_off(rest);
                work += next.len() as u64;
                state.admit(&channel, next);
                if !members.is_empty() {
                    let members = Some(members);
                    state.core.commands.push_front(Command::Admit { channel, members });
                }
            }
            Command::Behind { of } => work += state.core.connections.release_behind(of),
            Command::Joined { id, name, is_pattern } => {
                state.core.joining.reach(id, &name, is_pattern);
            }
            Command::Broadcast { filter, frame, ack } => {
                if let Some(began) = ack.began() {
                    state.core.samples.record_publication(began);
                }
                state.core.watch.deliver();
                let delivery = state.core.broadcast_here(&filter, &frame);
                work += delivery.receivers();
                ack.count(delivery);
            }
            Command::Send { to, frame, ack } => {
                let mut delivery = Delivery::default();
                if state.core.connections.table.conn(to).is_some() {
                    // It has its place in the queue, before or behind publications.
                    let of = Published::default();
                    delivery.count(state.core.connections.send_frame(to, &frame, of));
                }
                ack.count(delivery);
            }
            Command::Post { to, event } if state.core.connections.table.conn(to).is_some() => {
                state.guarded(to, |state| {
                    state.service.on_user_event(&mut Cx::new(&mut state.core, to), event);
                    state.open_accepted(to);
                });
            }
            Command::Post { event, .. } => {
                let panicked = drop_guarded(event);
                state.core.connections.stats.handler_panics += u64::from(panicked);
            }
            Command::Close { to, code, reason } => state.core.close(to, code, &reason),
            Command::CloseAll { filter, code, reason, ack } => {
                ack.count(state.core.close_here(&filter, code, &reason));
            }
            Command::Notify { filter, notice, ack } => {
                let mut delivery = Delivery::default();
                for id in state.core.selected(&filter) {
                    work += 1;
                    delivery.count(Sent::Accepted);
                    state.guarded(id, |state| {
                        state.service.on_notice(&mut Cx::new(&mut state.core, id), &notice);
                    });
                }
                ack.count(delivery);
            }
            Command::Configure { configuration, ack } => {
                state.core.connections.configure(&configuration);
                ack.count(Delivery::default());
            }
            Command::Adopt(adoption) => self.take_over(*adoption),
            Command::Drain(plan) => *drain = Some(plan),
        }
        work
    }
}
