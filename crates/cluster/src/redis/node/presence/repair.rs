//! Joins and leaves that this node's clients have missed.

use std::sync::Arc;

use redis::RedisError;

use super::calls::{self, PresenceListing, Scripts};
use super::{AGAIN, MAX_LISTED, PresenceInput, PresenceState, QUESTIONS};
use crate::announcement::Announcement;
use crate::redis::Listed;
use crate::redis::link::Link;
use crate::redis::node::{self, Node};
use crate::view::Missed;

impl PresenceState {
    /// Returns whether the node may ask the server for the members that clients should know. The
    /// server must already have the members of this node; otherwise other nodes would see them
    /// leave and join.
    pub(super) fn may_view(&self) -> bool {
        self.is_synced && self.is_rewritten && !self.is_viewing && self.view.has_wanted()
    }

    fn refuse_view(&mut self, channel: &Arc<str>, again: u64) {
        self.view.refuse(channel);
        self.view_from = self.view_from.max(again);
    }
}

impl Node {
    pub(super) fn send_view_questions(&mut self, link: &Link, scripts: &Scripts) {
        let (now, taken) = (self.clock.now(), self.follows.taken);
        let state = &mut self.presence;
        if now < state.view_from {
            return;
        }
        let wanted = std::iter::from_fn(|| state.view.next_wanted(taken));
        let channels: Vec<_> = wanted.take(QUESTIONS).collect();
        if channels.is_empty() {
            return;
        }
        state.is_viewing = true;
        let (mut connection, names) = (link.commands.clone(), self.target.names.clone());
        let (scripts, generation) = (scripts.clone(), self.link.generation);
        self.start(async move {
            let asked: Vec<_> =
                channels.iter().map(|channel| (Arc::clone(channel), MAX_LISTED)).collect();
            let done = calls::list(&mut connection, &scripts, &names, None, &asked).await;
            node::NodeEvent::Presence(PresenceInput::Viewed(generation, channels, done))
        });
    }

    /// Sends clients the joins and leaves that they have missed.
    pub(super) fn viewed(
        &mut self,
        channels: &[Arc<str>],
        done: Result<Vec<Result<PresenceListing, RedisError>>, RedisError>,
    ) {
        self.presence.is_viewing = false;
        let answers = match done {
            Ok(answers) => answers,
            Err(error) => return self.broken_by(&error),
        };
        let again = self.clock.now() + AGAIN;
        for (channel, answer) in channels.iter().zip(answers) {
            match answer {
                Ok(PresenceListing { epoch, listed }) if epoch == self.presence.epoch => {
                    self.repair(channel, listed);
                }
                // The server has lost data, and some members are not yet written again.
                Ok(_) => self.presence.refuse_view(channel, again),
                Err(error) => {
                    self.presence.refuse_view(channel, again);
                    self.failed(&error);
                }
            }
        }
    }

    fn repair(&mut self, channel: &Arc<str>, Listed { total, members }: Listed) {
        let is_complete = total == members.len() as u64;
        let members = members.into_iter().map(|member| (member.node, member.client, member.info));
        let members = is_complete.then(|| members.collect());
        for missed in self.presence.view.listed(channel, members) {
            let Missed { is_join, node, client, info } = &missed;
            let (is_join, node, client) = (*is_join, *node, *client);
            self.members
                .borrow_mut()
                .presence(channel, Announcement { is_join, node, client, info });
        }
    }
}
