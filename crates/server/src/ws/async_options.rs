//! Options of futures that process messages.

use throng_engine::SettingError;

/// The default number of messages of a session at which its connection is not read.
const CREDITS: usize = 64;

/// The default bytes that may wait, each way.
const WINDOW: usize = 256 << 10;

/// Options of futures that process messages: see
/// [`Ws::async_options`](crate::Ws::async_options).
///
/// ```
/// use throng::asynchronous::AsyncOptions;
/// use throng::prelude::*;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let runtime = tokio::runtime::Builder::new_multi_thread().build()?;
/// let echo = Ws::new()
///     .on_message_async(runtime.handle().clone(), |session, message| async move {
///         session.send(message).await
///     })
///     .async_options(AsyncOptions::new().credits(16).concurrency(4));
/// # let _ = App::new().ws("/", echo);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct AsyncOptions {
    pub(crate) credits: usize,
    pub(crate) receive: usize,
    pub(crate) send: usize,
    pub(crate) concurrency: Option<usize>,
    pub(crate) finishes: bool,
}

impl Default for AsyncOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl AsyncOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self { credits: CREDITS, receive: WINDOW, send: WINDOW, concurrency: None, finishes: false }
    }

    /// Sets the number of a session's messages, waiting or being processed, at which its connection
    /// is not read. Default: 64. Messages that the same read of the connection received are kept as
    /// well. With 0, which would let no message in, [`Server::bind`](crate::Server::bind) fails.
    pub fn credits(mut self, messages: usize) -> Self {
        self.credits = messages;
        self
    }

    /// Sets the bytes of a session's waiting messages at which its connection is not read. One
    /// message of any size is accepted. Default: 256 KiB; 0 means one message at a time.
    pub fn receive_window(mut self, bytes: usize) -> Self {
        self.receive = bytes.max(1);
        self
    }

    /// Sets the bytes waiting to be sent at which senders wait, besides those in the connection's
    /// own queue (half of [`Limits::max_backlog`](crate::Limits::max_backlog)). One message of any
    /// size is accepted. Default: 256 KiB; 0 means one message at a time.
    pub fn send_window(mut self, bytes: usize) -> Self {
        self.send = bytes.max(1);
        self
    }

    /// Sets how many messages of one connection are processed at once, with
    /// [`Ws::on_message_async`](crate::Ws::on_message_async). Their futures begin in order, and end
    /// in any order. Default: 1, one after the other. The credits also limit it. With 0, which
    /// would process no message, [`Server::bind`](crate::Server::bind) fails.
    pub fn concurrency(mut self, messages: usize) -> Self {
        self.concurrency = Some(messages);
        self
    }

    /// Processes messages received before the close, instead of dropping them and the running
    /// future, with [`Ws::on_message_async`](crate::Ws::on_message_async). Sends then return
    /// [`Closed`](crate::asynchronous::SessionClosed). Use it for fire-and-forget peers.
    pub fn finish_after_close(mut self) -> Self {
        self.finishes = true;
        self
    }

    /// Checks the options for futures by message, or by session.
    pub(crate) fn check(&self, by_message: bool) -> Result<(), SettingError> {
        let mistake = |name, mistake: &str| Err(SettingError::new(name, mistake.to_owned()));
        if self.credits == 0 {
            return mistake(
                "credits",
                "credits is 0, which would let no message in; give at least 1",
            );
        }
        if self.concurrency == Some(0) {
            let text = "concurrency is 0, which would process no message; give at least 1";
            return mistake("concurrency", text);
        }
        if !by_message && self.concurrency.is_some() {
            let text = "concurrency is for on_message_async, and on_session_async is used, where a \
                        session has one future";
            return mistake("concurrency", text);
        }
        if !by_message && self.finishes {
            let text = "finish_after_close is for on_message_async, and on_session_async is used, \
                        where the end of the session cancels no future";
            return mistake("finish_after_close", text);
        }
        Ok(())
    }
}
