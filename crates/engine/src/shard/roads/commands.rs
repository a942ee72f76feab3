//! Commands of other threads, which a turn takes from the shard's queue.

use std::sync::Arc;

use throng_io::{ConnId, Driver};

use crate::context::Cx;
use crate::drain::DrainPlan;
use crate::drop_guarded::drop_guarded;
use crate::message::UserEvent;
use crate::outbox::sent::Sent;
use crate::pubsub::delivery::Delivery;
use crate::pubsub::publishing::Publishing;
use crate::remote::Command;
use crate::service::Service;
use crate::shard::{MAX_MAIL_TIME, Shard};

/// Commands and receivers between two readings of the clock.
const COMMANDS: u64 = 8;

impl<D: Driver, S: Service> Shard<D, S> {
    pub(crate) fn take_commands(&mut self) {
        if self.parts.core.mail.has_any() {
            self.carry_out_commands();
        }
    }

    /// Carries out commands of other threads for a bounded time; the remaining commands wait for
    /// the next turn.
    #[inline(never)]
    fn carry_out_commands(&mut self) {
        let mut drain = None;
        if let Some(losses) = self.parts.core.mail.take() {
            self.parts.core.pubsub.recent().queue_taken();
            // Losses are handled first: they happened before the commands that follow were queued.
            for lost in losses {
                self.parts.core.make_good(&lost);
            }
        }
        let until = self.parts.core.clocks.read().after(MAX_MAIL_TIME);
        let mut work = 0;
        while let Some(command) = self.parts.core.mail.next() {
            self.flush_early();
            work += self.carry_out(command, &mut drain);
            self.parts.core.clocks.checkpoint();
            if work >= COMMANDS {
                work = 0;
                if self.parts.core.clocks.read() >= until {
                    break;
                }
            }
        }
        if let Some(plan) = drain
            && self.parts.life.is_running()
        {
            self.announce_drain(plan);
        }
    }

    /// Carries out one command; a drain is put into `drain` instead. Returns the work that it took:
    /// one for the command and one for each receiver.
    #[inline]
    fn carry_out(&mut self, command: Command, drain: &mut Option<DrainPlan>) -> u64 {
        let (mut work, parts) = (1, &mut self.parts);
        match command {
            Command::Publish { channel, frame, except, ack } => {
                parts.core.clocks.watch().deliver();
                let began = ack.began();
                let publishing = Publishing { began, ..Publishing::new(&channel, &frame, except) };
                let new = parts.core.too_new(&channel);
                let delivery = parts.core.deliver_here(&publishing, &new);
                work += delivery.receivers();
                ack.count(delivery);
            }
            Command::PublishAll { channel, frames, mut next, mut so_far, ack } => {
                parts.core.clocks.watch().deliver();
                while let Some(frame) = frames.get(next)
                    && work < COMMANDS
                {
                    let new = parts.core.too_new(&channel);
                    let publishing = Publishing::new(&channel, frame, None);
                    let delivery = parts.core.deliver_here(&publishing, &new);
                    work += 1 + delivery.receivers();
                    so_far.add(delivery);
                    next += 1;
                }
                match next < frames.len() {
                    true => {
                        let rest = Command::PublishAll { channel, frames, next, so_far, ack };
                        parts.core.mail.put_back(rest);
                    }
                    false => ack.count(so_far),
                }
            }
            Command::Recorded { recorded, except, ack } => {
                parts.core.clocks.watch().deliver();
                let delivery = parts.core.deliver_recorded(&recorded, except, ack.began());
                work += delivery.receivers();
                ack.count(delivery);
            }
            Command::Admit { channel, members } => {
                let mut members =
                    members.unwrap_or_else(|| parts.core.pubsub.recent().waiting(&channel));
                let rest = members.len().saturating_sub(COMMANDS as usize);
                let next = members.split_off(rest);
                work += next.len() as u64;
                self.admit(&channel, next);
                if !members.is_empty() {
                    let members = Some(members);
                    self.parts.core.mail.put_back(Command::Admit { channel, members });
                }
            }
            Command::Behind { of } => work += parts.core.conns.release_behind(of),
            Command::Joined { id, name, is_pattern } => {
                parts.core.pubsub.reach(id, &name, is_pattern);
            }
            Command::Broadcast { filter, frame, ack } => {
                if let Some(began) = ack.began() {
                    parts.core.clocks.samples().record_publication(began);
                }
                parts.core.clocks.watch().deliver();
                let delivery = parts.core.broadcast_here(&filter, &frame);
                work += delivery.receivers();
                ack.count(delivery);
            }
            Command::Send { to, frame, ack } => {
                let mut delivery = Delivery::default();
                if parts.core.conns.conn(to).is_some() {
                    // The command's position in the queue already orders it among publications.
                    delivery.count(parts.core.conns.send_from_others(to, &frame));
                }
                ack.count(delivery);
                parts.core.note_sent(to, frame);
            }
            Command::Post { to, event } if parts.core.conns.conn(to).is_some() => {
                parts.guarded(to, |parts| {
                    parts.service.on_user_event(&mut Cx::new(&mut parts.core, to), event);
                    parts.open_accepted(to);
                });
            }
            Command::Post { event, .. } => {
                let panicked = drop_guarded(event);
                parts.core.conns.count(|stats| stats.handler_panics += u64::from(panicked));
            }
            Command::Call(event) => parts.service.on_call(&mut parts.core, event),
            Command::Close { to, code, reason } => parts.core.close_from_others(to, code, &reason),
            Command::CloseAll { filter, code, reason, ack } => {
                ack.count(parts.core.close_here(&filter, code, &reason));
            }
            Command::Notify { filter, notice, ack } => {
                let mut delivery = Delivery::default();
                for id in parts.core.selected(&filter) {
                    work += 1;
                    delivery.count(Sent::Accepted);
                    parts.guarded(id, |parts| {
                        parts.service.on_notice(&mut Cx::new(&mut parts.core, id), &notice);
                    });
                }
                ack.count(delivery);
            }
            Command::Configure { configuration, ack } => {
                parts.core.conns.configure(&configuration);
                ack.count(Delivery::default());
            }
            Command::Adopt(adoption) => self.take_over(*adoption),
            Command::Drain(plan) => *drain = Some(plan),
        }
        work
    }

    /// Lets members join that wait for a channel's position.
    fn admit(&mut self, channel: &Arc<str>, members: Vec<ConnId>) {
        let parts = &mut self.parts;
        for id in members {
            let Some(joined) = parts.core.admit(id, channel) else { continue };
            let event = UserEvent(Box::new(joined));
            parts.guarded(id, |parts| {
                parts.service.on_user_event(&mut Cx::new(&mut parts.core, id), event);
            });
            if parts.core.remote.has_presence() {
                parts.core.tell_if_unannounced(id, channel);
            }
        }
    }
}
