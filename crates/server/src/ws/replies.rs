//! Replies of handlers that ran on worker threads.

use super::Socket;
use crate::workers::{Replies, Reply};

impl<D> Socket<'_, D> {
    /// Carries out the replies of a handler on a worker thread, in order.
    pub(super) fn run_replies(&mut self, replies: Replies) {
        for reply in replies.0 {
            match reply {
                Reply::Send(frame) => {
                    self.send(&frame);
                }
                Reply::Publish(channel, frame) => {
                    self.publish(&channel, frame);
                }
                Reply::PublishToOthers(channel, frame) => {
                    self.publish_to_others(&channel, frame);
                }
                Reply::Subscribe(channel) => {
                    self.subscribe(&channel);
                }
                Reply::SubscribePattern(pattern) => {
                    let _ = self.subscribe_pattern(&pattern);
                }
                Reply::Unsubscribe(channel) => {
                    self.unsubscribe(&channel);
                }
                Reply::Close(code, reason) => self.close(code, &reason),
            }
        }
    }
}
