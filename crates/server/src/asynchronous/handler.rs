//! Handlers whose messages are processed by futures.

use std::sync::Arc;

use throng_engine::{Close, Message, SettingError};
use throng_proto::ws::OwnedMessage;
use tokio::runtime;

use super::outcome::AsyncOutcome;
use super::run::{self, Task};
use super::session::AsyncSender;
use super::shared::{SessionShared, Window};
use super::socket::AsyncSocket;
use crate::ws::closures::Ws;
use crate::ws::sessions::OnMessage;
use crate::ws::{AsyncOptions, EventKind, Socket};

impl<D: Clone + Send + 'static> Ws<D> {
    /// Processes each message in a future on a tokio runtime, in place of [`Ws::on_message`]. The
    /// callbacks for events are called on the shard as before, where they must not block.
    ///
    /// The futures of one connection run one after the other, in the order of its messages, unless
    /// [`AsyncOptions::concurrency`] allows more. While [`AsyncOptions::credits`] messages wait or
    /// are being processed, the connection is not read: TCP stops a peer that sends more. An error
    /// of your own closes the connection with its code
    /// ([`SessionClosed`](crate::asynchronous::SessionClosed)), a panic with 1011, and panics are
    /// counted. When the session ends, its future is dropped at its next `await`, together with
    /// waiting messages; see [`AsyncOptions::finish_after_close`]. A peer's end is noticed within
    /// about a second, even while its connection is not read.
    ///
    /// An idle session costs about 300 bytes more than a plain one, some 650 once it has had a
    /// message, and no task.
    ///
    /// ```no_run
    /// use throng::prelude::*;
    ///
    /// # async fn look_up(query: &[u8]) -> String { String::from_utf8_lossy(query).into_owned() }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    /// let user = |request: &Request<'_>| Ok(request.query("user").unwrap_or("guest").to_owned());
    /// let search = Ws::from_request(user)
    ///     .max_message_size(4096)
    ///     .on_message_async(runtime.handle().clone(), |session, message| async move {
    ///         let answer = look_up(message.as_bytes()).await;
    ///         session.send(format!("{}: {answer}", session.data())).await
    ///     });
    /// Server::new(App::new().ws("/search", search)).bind("127.0.0.1:9001")?.run()?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn on_message_async<F, Fut>(self, runtime: runtime::Handle, on_message: F) -> Self
    where
        F: Fn(AsyncSender<D>, OwnedMessage) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: AsyncOutcome> + Send + 'static,
    {
        let handler = Arc::new(on_message);
        let start = move |runtime: &runtime::Handle, session: AsyncSender<D>, cancels| {
            let (task, handler) = (Task::new(&session.shared), Arc::clone(&handler));
            drop(runtime.spawn(run::pump(task, session, handler, cancels)));
        };
        self.with_futures(Futures::new(runtime, Kind::ByMessage, Box::new(start)))
    }

    /// Runs a future for each session on a tokio runtime, with an [`AsyncSocket`] to receive from
    /// and to send to, in place of [`Ws::on_message`]. The callbacks for events are called on the
    /// shard as before, where they must not block.
    ///
    /// When the future has ended and drops the socket, the session is closed with 1000, after the
    /// messages already sent. The socket may also be moved to another task. An error of your own
    /// closes the session with its code ([`SessionClosed`](crate::asynchronous::SessionClosed)), a
    /// panic with 1011, and panics are counted. The end of the session does not cancel the future:
    /// its stream ends, sends return [`SessionClosed`](crate::asynchronous::SessionClosed), and
    /// [`AsyncSocket::closed`] can be awaited beside others.
    ///
    /// A session costs a task on the runtime: with a small future an idle one is about 1.4 KB more
    /// than a plain one.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use throng::prelude::*;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    /// let echo = Ws::new().on_session_async(runtime.handle().clone(), |mut socket| async move {
    ///     let mut clock = tokio::time::interval(Duration::from_secs(1));
    ///     loop {
    ///         tokio::select! {
    ///             message = socket.next() => match message {
    ///                 Some(message) => socket.send(message).await?,
    ///                 None => return Ok(()),
    ///             },
    ///             _ = clock.tick() => socket.send("tick").await?,
    ///         }
    ///     }
    /// });
    /// Server::new(App::new().ws("/", echo)).bind("127.0.0.1:9001")?.run()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The socket is a [`Stream`](futures_core::Stream) and a [`Sink`](futures_sink::Sink), for
    /// example for the `futures-util` crate:
    ///
    /// ```
    /// use futures_util::{SinkExt, StreamExt};
    /// use throng::asynchronous::{AsyncSocket, SessionClosed};
    /// use throng::prelude::*;
    ///
    /// async fn echo(socket: AsyncSocket) -> Result<(), SessionClosed> {
    ///     let (mut sink, mut stream) = socket.split();
    ///     while let Some(message) = stream.next().await {
    ///         sink.send(message).await?;
    ///     }
    ///     Ok(())
    /// }
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runtime = tokio::runtime::Builder::new_multi_thread().build()?;
    /// let app = App::new().ws("/", Ws::new().on_session_async(runtime.handle().clone(), echo));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn on_session_async<F, Fut>(self, runtime: runtime::Handle, on_session: F) -> Self
    where
        F: Fn(AsyncSocket<D>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: AsyncOutcome> + Send + 'static,
    {
        let handler = Arc::new(on_session);
        let start = move |runtime: &runtime::Handle, session: AsyncSender<D>, _| {
            let (task, handler) = (Task::new(&session.shared), Arc::clone(&handler));
            drop(runtime.spawn(run::stream(task, session, handler)));
        };
        self.with_futures(Futures::new(runtime, Kind::BySession, Box::new(start)))
    }
}

/// Starts a future on a runtime; the flag is true if the end of the session cancels it.
type StartFn<D> = dyn Fn(&runtime::Handle, AsyncSender<D>, bool) + Send + Sync;

/// Messages that are processed by futures.
struct Futures<D> {
    runtime: runtime::Handle,
    start: Box<StartFn<D>>,
    kind: Kind,
    options: AsyncOptions,
}

/// The scope of a future.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    ByMessage,
    BySession,
}

impl<D> Futures<D> {
    fn new(runtime: runtime::Handle, kind: Kind, start: Box<StartFn<D>>) -> Self {
        Self { runtime, start, kind, options: AsyncOptions::new() }
    }

    /// Returns the number of a session's futures that process messages at the same time; 0 if the
    /// whole session has one future.
    fn pumps(&self) -> usize {
        match self.kind {
            Kind::ByMessage => self.options.concurrency.unwrap_or(1),
            Kind::BySession => 0,
        }
    }

    /// Returns whether the end of the session drops waiting messages and cancels futures.
    fn cancels(&self) -> bool {
        self.kind == Kind::ByMessage && !self.options.finishes
    }

    fn window(&self) -> Window {
        let AsyncOptions { credits, receive, send, .. } = self.options;
        // Resume when half of the messages are processed: one event resumes many messages, and no
        // future runs out of work.
        let resume_at = credits - (credits.saturating_sub(self.pumps()) / 2).max(1);
        Window { credits, resume_at, receive, send }
    }
}

/// The shard's reference to the state it shares with the futures of a session.
struct Link {
    shared: Arc<SessionShared>,
    cancels: bool,
}

impl Link {
    fn end(&self, close: Close<'_>) {
        self.shared.end(close, self.cancels);
    }
}

/// Ends the session for its futures even if its shard fails and no end is reported. After another
/// end this changes nothing.
impl Drop for Link {
    fn drop(&mut self) {
        self.end(Close::ABNORMAL);
    }
}

impl<D: Clone + Send + 'static> OnMessage<D> for Futures<D> {
    type Kept = Option<Link>;

    fn on_message(
        &self,
        ws: &mut Socket<'_, D>,
        data: &mut D,
        link: &mut Option<Link>,
        message: Message<'_>,
    ) {
        let Some(link) = link else { return };
        let pushed = link.shared.push(message.into(), self.pumps());
        if pushed.start {
            let session = AsyncSender { shared: Arc::clone(&link.shared), data: data.clone() };
            (self.start)(&self.runtime, session, link.cancels);
        }
        if pushed.stop {
            match link.cancels {
                true => ws.cx_mut().stop_reading_until_gone(),
                // Messages sent before the end are still processed.
                false => ws.cx_mut().stop_reading(),
            }
        }
    }

    fn after_event(
        &self,
        ws: &mut Socket<'_, D>,
        data: &D,
        link: &mut Option<Link>,
        kind: EventKind,
    ) {
        match (kind, link) {
            (EventKind::Open, link) => {
                let (id, reporter) = (ws.handle().id(), &ws.context().reporter);
                let shared = SessionShared::new(ws.hub(), id, self.window(), reporter);
                let cancels = self.cancels();
                *link = Some(Link { shared: Arc::clone(&shared), cancels });
                if self.kind == Kind::BySession {
                    let session = AsyncSender { shared, data: data.clone() };
                    (self.start)(&self.runtime, session, cancels);
                }
            }
            (EventKind::Drained, Some(link)) => link.shared.run_commands(ws.cx_mut(), true),
            (EventKind::Shutdown, Some(link)) => link.shared.shut_down(),
            _ => {}
        }
    }

    fn end(&self, link: &mut Option<Link>, close: Close<'_>) {
        if let Some(link) = link {
            link.end(close);
        }
    }

    fn has_work(&self, link: &Option<Link>) -> bool {
        let by_message = self.kind == Kind::ByMessage;
        link.as_ref().is_some_and(|link| link.shared.has_work(by_message))
    }

    fn set_options(&mut self, options: &AsyncOptions) -> Result<(), SettingError> {
        options.check(self.kind == Kind::ByMessage)?;
        self.options = options.clone();
        Ok(())
    }
}
