//! Replies of handlers that run on worker threads.

use throng_engine::{CloseCode, Frame};

/// Collects the replies of a handler on a worker thread. They are run in order on the connection's
/// shard when the handler has returned. See
/// [`Ws::on_message_blocking`](crate::Ws::on_message_blocking).
#[derive(Debug, Default)]
pub struct Replies(pub(crate) Vec<Reply>);

#[derive(Debug)]
pub(crate) enum Reply {
    Send(Frame),
    Publish(String, Frame),
    PublishToOthers(String, Frame),
    Subscribe(String),
    SubscribePattern(String),
    Unsubscribe(String),
    Close(CloseCode, String),
}

impl Replies {
    /// Sends a message, as [`Socket::send`](crate::Socket::send) does. It is encoded here.
    pub fn send(&mut self, message: impl Into<Frame>) {
        self.0.push(Reply::Send(message.into()));
    }

    /// Publishes a message, as [`Socket::publish`](crate::Socket::publish) does.
    pub fn publish(&mut self, channel: impl Into<String>, message: impl Into<Frame>) {
        self.0.push(Reply::Publish(channel.into(), message.into()));
    }

    /// Publishes a message, as
    /// [`Socket::publish_to_others`](crate::Socket::publish_to_others) does.
    pub fn publish_to_others(&mut self, channel: impl Into<String>, message: impl Into<Frame>) {
        self.0.push(Reply::PublishToOthers(channel.into(), message.into()));
    }

    /// Joins a channel, as [`Socket::subscribe`](crate::Socket::subscribe) does.
    pub fn subscribe(&mut self, channel: impl Into<String>) {
        self.0.push(Reply::Subscribe(channel.into()));
    }

    /// Joins all channels that match a pattern, as
    /// [`Socket::subscribe_pattern`](crate::Socket::subscribe_pattern) does; a malformed pattern is
    /// ignored.
    pub fn subscribe_pattern(&mut self, pattern: impl Into<String>) {
        self.0.push(Reply::SubscribePattern(pattern.into()));
    }

    /// Leaves a channel, as [`Socket::unsubscribe`](crate::Socket::unsubscribe) does.
    pub fn unsubscribe(&mut self, channel: impl Into<String>) {
        self.0.push(Reply::Unsubscribe(channel.into()));
    }

    /// Closes the connection, as [`Socket::close`](crate::Socket::close) does.
    pub fn close(&mut self, code: CloseCode, reason: impl Into<String>) {
        self.0.push(Reply::Close(code, reason.into()));
    }
}
