//! What a handler on a worker wants done on its connection's shard.

use throng_engine::Frame;

use crate::ws::Socket;

/// What a handler on a worker answers: collected while it runs, and carried out on the connection's shard when it has returned, in
/// order. See [`Ws::blocking`](crate::Ws::on_message_blocking).
#[derive(Debug, Default)]
pub struct Replies(Vec<Reply>);

#[derive(Debug)]
enum Reply {
    Send(Frame),
    Publish(String, Frame),
    Subscribe(String),
    Unsubscribe(String),
    Close(u16, String),
}

impl Replies {
    /// See [`Socket::send`](crate::Socket::send). It is encoded here.
    pub fn send(&mut self, message: impl Into<Frame>) {
        self.0.push(Reply::Send(message.into()));
    }

    /// See [`Socket::publish`](crate::Socket::publish).
    pub fn publish(&mut self, channel: impl Into<String>, message: impl Into<Frame>) {
        self.0.push(Reply::Publish(channel.into(), message.into()));
    }

    /// See [`Socket::subscribe`](crate::Socket::subscribe).
    pub fn subscribe(&mut self, channel: impl Into<String>) {
        self.0.push(Reply::Subscribe(channel.into()));
    }

    /// See [`Socket::unsubscribe`](crate::Socket::unsubscribe).
    pub fn unsubscribe(&mut self, channel: impl Into<String>) {
        self.0.push(Reply::Unsubscribe(channel.into()));
    }

    /// See [`Socket::close`](crate::Socket::close).
    pub fn close(&mut self, code: u16, reason: impl Into<String>) {
        self.0.push(Reply::Close(code, reason.into()));
    }

    pub(crate) fn carry_out<D>(self, ws: &mut Socket<'_, D>) {
        for reply in self.0 {
            match reply {
                Reply::Send(frame) => {
                    let _ = ws.send(&frame);
                }
                Reply::Publish(channel, frame) => {
                    let _ = ws.publish(&channel, frame);
                }
                Reply::Subscribe(channel) => {
                    let _ = ws.subscribe(&channel);
                }
                Reply::Unsubscribe(channel) => {
                    let _ = ws.unsubscribe(&channel);
                }
                Reply::Close(code, reason) => ws.close(code, &reason),
            }
        }
    }
}
