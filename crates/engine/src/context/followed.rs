//! Members that join a channel whose position the broker knows.

use std::sync::Arc;

use throng_io::ConnId;

use crate::context::recent::Waiting;
use crate::context::{Core, PubSub};
use crate::message::{EndReason, Fault};
use crate::pubsub::history::{Joined as Place, Recovery, Since};
use crate::pubsub::relay::Joined;

impl Core {
    /// Closes a connection that wants to join a channel whose broker has never been connected: the
    /// client would get nothing, and would not notice. Returns whether it was closed.
    pub(super) fn turn_away(&mut self, id: ConnId, channel: &str) -> bool {
        let is_linked = self.remote.was_linked(channel);
        if !is_linked {
            let reason = EndReason::Cluster;
            self.conns.note_fault(id, Fault::Ended(reason));
            self.close(id, reason.code().get(), reason.text());
        }
        !is_linked
    }

    /// Adds a connection to a channel that a broker carries. If this process does not follow its
    /// sequence yet, or the client is ahead of it, the outcome is pending.
    pub(super) fn join_followed(
        &mut self,
        id: ConnId,
        (channel, rule): (&str, u16),
        since: Since,
    ) -> Recovery {
        let Self { pubsub: PubSub { channels, .. }, remote, .. } = &mut *self;
        let join = || channels.subscribe(id.slot() as u32, channel);
        match remote.join_followed(channel, since, false, join) {
            Ok(Some(place)) => self.begin_at(id, (channel, rule), &place, since),
            Ok(None) => Recovery::default(),
            Err(question) => {
                let channel: Arc<str> = channel.into();
                self.pubsub.recent.wait((id, self.conns.now()), &channel, since);
                if let Some(question) = question
                    && let Some(relay) = self.remote.relay_of(&channel)
                {
                    relay.ask(&channel, question);
                }
                Recovery { joined: true, pending: true, ..Recovery::default() }
            }
        }
    }

    /// Records that publications up to the place may be among the commands that wait, and returns
    /// the member's part of the history.
    fn begin_at(
        &mut self,
        id: ConnId,
        (channel, rule): (&str, u16),
        place: &Place,
        since: Since,
    ) -> Recovery {
        if self.has_commands() {
            self.pubsub.recent.add(id, channel.into(), place.position);
        }
        self.finish_join(id, rule, place, since)
    }

    /// Closes members for which the broker has not answered in time: a later answer would come
    /// after publications that they have missed.
    pub(crate) fn end_waits(&mut self) {
        if self.pubsub.recent.are_waiting() {
            for id in self.pubsub.recent.expire(self.conns.now()) {
                let reason = EndReason::Cluster;
                self.conns.note_fault(id, Fault::Ended(reason));
                self.close(id, reason.code().get(), reason.text());
            }
        }
    }

    /// Returns the outcome for a waiting member after an answer of the broker; `None` if the member
    /// no longer waits, or waits for one more answer.
    pub(crate) fn admit(&mut self, id: ConnId, channel: &Arc<str>) -> Option<Joined> {
        let Waiting { since, is_asked, .. } = self.pubsub.recent.waits(id, channel)?;
        let slot = id.slot() as u32;
        let is_member = self.conns.conn(id).is_some()
            && self.pubsub.channels.subscriptions(slot).any(|name| name == channel);
        if !is_member {
            self.pubsub.recent.stop_waiting(id, channel);
            return None;
        }
        let place = match self.remote.join_followed(channel, since, is_asked, || true) {
            Ok(place) => place,
            // It begins again.
            Err(None) => return None,
            Err(Some(question)) => {
                // The answer may be to a question that was asked before the client came.
                self.pubsub.recent.ask_again(id, channel);
                if let Some(relay) = self.remote.relay_of(channel) {
                    relay.ask(channel, question);
                }
                return None;
            }
        };
        self.pubsub.recent.stop_waiting(id, channel);
        let rule = self.remote.history_rule(channel)?;
        let recovery = self.begin_at(id, (channel, rule), &place?, since);
        Some(Joined {
            channel: Arc::clone(channel),
            is_return: since.position().is_some(),
            recovery,
        })
    }
}
