//! A WebSocket handler made of closures.

use std::fmt;
use std::hash::Hash;
use std::sync::Arc;

use throng_engine::{Chunk, Close, Message, Recovery};
use throng_http::{HeaderError, Reject, Request};

#[cfg(feature = "tokio")]
use super::async_options::AsyncOptions;
use super::callbacks::Callbacks;
use super::decision::Decide;
#[cfg(feature = "tokio")]
use super::decision::UpgradeFuture;
use super::event::{EventKind, SessionEvent, Unpublished};
use super::messages::{Attach, Blocking, Chunks, Ignore, Whole};
use super::outcome::Outcome;
use super::route::{WsOptions, WsRoute};
#[cfg(feature = "tokio")]
use super::sessions::OnMessage;
use super::socket::Socket;
use crate::accept::AcceptHeaders;
use crate::shard::hash_of;
use crate::workers::Replies;

/// A WebSocket handler made of closures, with the options of its route. `D` is the data of a
/// connection.
///
/// The arguments of each closure are the socket, the data, and the event; write `()` for no data.
/// The message callback is inlined into the loop over the messages of a read; the others are called
/// by pointer. If a callback is set twice, the later one replaces the earlier one.
///
/// ```
/// use throng::prelude::*;
///
/// let echo: Ws = Ws::new().on_message(|ws, (), message| ws.send(message));
///
/// let counted: Ws<u64> = Ws::from_request(|_| Ok(0)).on_message(|ws, count, message| {
///     *count += 1;
///     ws.send(message)
/// });
/// # let _ = App::new().ws("/", echo).ws("/counted", counted);
/// ```
///
/// The compiler infers the types of a closure that is written in place. A closure in a
/// variable does not compile ("type annotations needed"): make it a function.
pub struct Ws<D = ()> {
    callbacks: Callbacks<D>,
    pub(super) messages: Box<dyn Attach<D>>,
    pub(super) options: WsOptions,
    #[cfg(feature = "tokio")]
    async_options: Option<AsyncOptions>,
}

impl Ws<()> {
    /// A handler that accepts every upgrade, without data.
    #[must_use]
    pub fn new() -> Self {
        Self::from_request(|_| Ok(()))
    }
}

impl Default for Ws<()> {
    fn default() -> Self {
        Self::new()
    }
}

impl<D: Send + 'static> Ws<D> {
    /// A handler whose connections have the data that `decide` returns, or are refused with its
    /// [`Reject`].
    #[must_use]
    pub fn from_request<F>(decide: F) -> Self
    where
        F: Fn(&Request<'_>) -> Result<D, Reject> + Send + Sync + 'static,
    {
        Self::deciding(Decide::Now(Box::new(decide)))
    }

    /// A handler as [`Ws::from_request`] makes it, whose `decide` runs on the server's pool of
    /// workers, where it may block: for a login that asks a database.
    ///
    /// The client gets 503 if it takes longer than
    /// [`Limits::handshake_timeout`](crate::Limits::handshake_timeout), and if the pool is full. A
    /// panic is answered with 500.
    ///
    /// ```
    /// use throng::prelude::*;
    /// # fn find_user(token: &str) -> Option<String> { Some(token.to_owned()) }
    ///
    /// let greeting = Ws::from_request_blocking(|request| {
    ///     let token = request.bearer().ok_or(Reject::unauthorized())?;
    ///     find_user(token).ok_or(Reject::unauthorized())
    /// })
    /// .on_open(|ws, user| ws.send(format!("hello {user}")));
    /// # let _ = App::new().ws("/", greeting);
    /// ```
    #[must_use]
    pub fn from_request_blocking<F>(decide: F) -> Self
    where
        F: Fn(&Request<'_>) -> Result<D, Reject> + Send + Sync + 'static,
    {
        Self::deciding(Decide::Blocking(Arc::new(decide)))
    }

    /// A handler as [`Ws::from_request`] makes it, whose `decide` is a future on a tokio runtime:
    /// for a login that asks another server.
    ///
    /// The client gets 503 if it takes longer than
    /// [`Limits::handshake_timeout`](crate::Limits::handshake_timeout). When the client disconnects
    /// or the time is up, the future is dropped. A panic is answered with 500.
    ///
    /// ```no_run
    /// use throng::prelude::*;
    /// # async fn find_user(token: &str) -> Option<String> { Some(token.to_owned()) }
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    /// let greeting = Ws::from_request_async(runtime.handle().clone(), |request| async move {
    ///     let request = request.as_request();
    ///     let token = request.bearer().ok_or(Reject::unauthorized())?.to_owned();
    ///     drop(request);
    ///     find_user(&token).await.ok_or(Reject::unauthorized())
    /// });
    /// # let _: App = App::new().ws("/", greeting);
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "tokio")]
    #[must_use]
    pub fn from_request_async<F, Fut>(runtime: tokio::runtime::Handle, decide: F) -> Self
    where
        F: Fn(crate::exchanges::OwnedRequest) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<D, Reject>> + Send + 'static,
    {
        let decide = move |request| -> UpgradeFuture<D> { Box::pin(decide(request)) };
        Self::deciding(Decide::Async(runtime, Arc::new(decide)))
    }

    pub(super) fn deciding(decide: Decide<D>) -> Self {
        Self {
            callbacks: Callbacks::new(decide),
            messages: Box::new(Ignore),
            options: WsOptions::default(),
            #[cfg(feature = "tokio")]
            async_options: None,
        }
    }

    /// Adds headers to the 101 response of each accepted upgrade, such as cookies, from the
    /// connection's data. It is called where the decision is made: by
    /// [`from_request_blocking`](Self::from_request_blocking) on a worker, by `from_request_async`
    /// on the runtime, otherwise on the shard that has accepted the connection. An error is
    /// answered with 500.
    ///
    /// ```
    /// use throng::prelude::*;
    ///
    /// let seen = Ws::from_request(|request| Ok(request.query("name").unwrap_or("you").to_owned()))
    ///     .on_accept(|name, headers| headers.add("Set-Cookie", format!("name={name}; HttpOnly")));
    /// # let _ = App::new().ws("/", seen);
    /// ```
    #[must_use]
    pub fn on_accept<F>(mut self, on_accept: F) -> Self
    where
        F: Fn(&mut D, &mut AcceptHeaders) -> Result<(), HeaderError> + Send + Sync + 'static,
    {
        self.callbacks.on_upgrade.on_accept = Some(Arc::new(on_accept));
        self
    }

    /// Places sessions on event loops by a part of their data, such as the name of a room: all with
    /// the same key come to the same event loop, whose [state](Socket::shard_state) they share
    /// without a lock.
    ///
    /// When the upgrade is accepted, a connection that another event loop has accepted is moved,
    /// before its 101 response; that costs two system calls and a wake-up. If it cannot be moved,
    /// because that event loop's queue is full or the client has not taken earlier responses, it
    /// gets 503. Keys are spread by their hash: a few keys with very many sessions load few event
    /// loops.
    ///
    /// [`Server::bind`](crate::Server::bind) refuses it with
    /// [`IoBackend::Threads`](crate::server::IoBackend::Threads), where each connection has its own
    /// thread.
    ///
    /// ```
    /// # use std::collections::HashMap;
    /// # use throng::prelude::*;
    /// struct Login {
    ///     room: String,
    /// }
    ///
    /// /// Messages of the rooms of one event loop.
    /// #[derive(Default)]
    /// struct Counts(HashMap<String, u64>);
    ///
    /// let counted = Ws::from_request(|request| {
    ///     Ok(Login { room: request.param("room").unwrap_or_default().to_owned() })
    /// })
    /// .place_by(|login| &login.room)
    /// .on_message(|ws, login, _| {
    ///     let count = ws.shard_state::<Counts>().0.entry(login.room.clone()).or_default();
    ///     *count += 1;
    ///     let text = count.to_string();
    ///     ws.send(text);
    /// });
    /// # Server::new(App::new().ws("/{room}", counted)).check().unwrap();
    /// ```
    #[must_use]
    pub fn place_by<K, F>(mut self, key: F) -> Self
    where
        K: Hash + ?Sized + 'static,
        F: for<'d> Fn(&'d D) -> &'d K + Send + Sync + 'static,
    {
        self.callbacks.key = Some(Box::new(move |data| hash_of(key(data))));
        self
    }

    /// Sets the callback for messages. See [`Handler::on_message`](crate::Handler::on_message).
    #[must_use]
    pub fn on_message<F, T>(mut self, on_message: F) -> Self
    where
        F: Fn(&mut Socket<'_, D>, &mut D, Message<'_>) -> T + Send + Sync + 'static,
        T: Outcome + 'static,
    {
        self.messages = Box::new(Whole::new(on_message));
        self
    }

    /// Sets a callback for messages that runs on the server's pool of workers, where it may block.
    /// It gets [`Replies`], which run when it has returned, and a clone of the connection's data.
    /// The messages of one connection are processed one at a time, in order; messages of different
    /// connections are processed in parallel. See [`Server::workers`](crate::Server::workers) for
    /// the number of threads and the overflow policy. While eight messages of a connection, or 256
    /// KiB, are waiting, it is not read.
    ///
    /// ```
    /// # use throng::prelude::*;
    /// # fn slow_lookup(user: u64, query: &str) -> String { format!("{user} {query}") }
    /// let search = Ws::from_request(|_| Ok(7)).on_message_blocking(|replies, user, message| {
    ///     let Message::Text(query) = message else {
    ///         return replies.close(CloseCode::UNSUPPORTED_DATA, "text only");
    ///     };
    ///     replies.send(slow_lookup(*user, query));
    /// });
    /// # let _ = App::new().ws("/", search);
    /// ```
    #[must_use]
    pub fn on_message_blocking<F>(mut self, on_message: F) -> Self
    where
        D: Clone,
        F: Fn(&mut Replies, &D, Message<'_>) + Send + Sync + 'static,
    {
        self.messages = Box::new(Blocking(Arc::new(on_message)));
        self
    }

    /// Sets the callback for parts of messages as they come, instead of a callback for whole
    /// messages, and makes the route [streaming](Self::streaming).
    ///
    /// ```
    /// # use throng::prelude::*;
    /// // Counts the bytes of uploads of up to 1 GiB, and keeps none of them.
    /// let upload = Ws::from_request(|_| Ok(0)).max_message_size(1 << 30).on_chunk(
    ///     |ws, bytes, chunk| {
    ///         *bytes += chunk.bytes.len();
    ///         if chunk.last {
    ///             ws.send(std::mem::take(bytes).to_string());
    ///         }
    ///     },
    /// );
    /// # let _ = App::new().ws("/upload", upload);
    /// ```
    #[must_use]
    pub fn on_chunk<F, T>(mut self, on_chunk: F) -> Self
    where
        F: Fn(&mut Socket<'_, D>, &mut D, Chunk<'_>) -> T + Send + Sync + 'static,
        T: Outcome + 'static,
    {
        self.messages = Box::new(Chunks::new(on_chunk));
        self
    }

    /// Sets the callback for all events without a callback of their own. See [`SessionEvent`].
    #[must_use]
    pub fn on_event<F, T>(mut self, on_event: F) -> Self
    where
        F: Fn(&mut Socket<'_, D>, &mut D, SessionEvent<'_>) -> T + Send + Sync + 'static,
        T: Outcome,
    {
        self.callbacks.on_event = Some(Box::new(move |ws, data, event| {
            on_event(ws, data, event);
        }));
        self
    }

    /// Sets the callback for an open session. See [`SessionEvent::Open`].
    #[must_use]
    pub fn on_open<F, T>(mut self, on_open: F) -> Self
    where
        F: Fn(&mut Socket<'_, D>, &mut D) -> T + Send + Sync + 'static,
        T: Outcome,
    {
        self.callbacks.set(EventKind::Open, move |ws, data, event| {
            if let SessionEvent::Open = event {
                on_open(ws, data);
            }
        });
        self
    }

    /// Sets the callback for a place in a channel that was pending, with the channel's name. See
    /// [`SessionEvent::Recovered`].
    #[must_use]
    pub fn on_recovered<F, T>(mut self, on_recovered: F) -> Self
    where
        F: Fn(&mut Socket<'_, D>, &mut D, &str, Recovery) -> T + Send + Sync + 'static,
        T: Outcome,
    {
        self.callbacks.set(EventKind::Recovered, move |ws, data, event| {
            if let SessionEvent::Recovered { channel, recovery } = event {
                on_recovered(ws, data, channel, recovery);
            }
        });
        self
    }

    /// Sets the callback for messages of a channel without history that may be lost, with the
    /// channel's name. See [`SessionEvent::Missed`].
    #[must_use]
    pub fn on_missed<F, T>(mut self, on_missed: F) -> Self
    where
        F: Fn(&mut Socket<'_, D>, &mut D, &str) -> T + Send + Sync + 'static,
        T: Outcome,
    {
        self.callbacks.set(EventKind::Missed, move |ws, data, event| {
            if let SessionEvent::Missed { channel } = event {
                on_missed(ws, data, channel);
            }
        });
        self
    }

    /// Sets the callback for the data of a [`Hub::refresh`](crate::Hub::refresh). See
    /// [`SessionEvent::Refresh`].
    #[must_use]
    pub fn on_refresh<F, T>(mut self, on_refresh: F) -> Self
    where
        F: Fn(&mut Socket<'_, D>, &mut D, &[u8]) -> T + Send + Sync + 'static,
        T: Outcome,
    {
        self.callbacks.set(EventKind::Refresh, move |ws, data, event| {
            if let SessionEvent::Refresh(bytes) = event {
                on_refresh(ws, data, bytes);
            }
        });
        self
    }

    /// Sets the callback for a backlog that has drained. See [`SessionEvent::Drained`].
    #[must_use]
    pub fn on_drained<F, T>(mut self, on_drained: F) -> Self
    where
        F: Fn(&mut Socket<'_, D>, &mut D) -> T + Send + Sync + 'static,
        T: Outcome,
    {
        self.callbacks.set(EventKind::Drained, move |ws, data, event| {
            if let SessionEvent::Drained = event {
                on_drained(ws, data);
            }
        });
        self
    }

    /// Sets the callback for the shutdown of the server. See [`SessionEvent::Shutdown`].
    #[must_use]
    pub fn on_shutdown<F, T>(mut self, on_shutdown: F) -> Self
    where
        F: Fn(&mut Socket<'_, D>, &mut D) -> T + Send + Sync + 'static,
        T: Outcome,
    {
        self.callbacks.set(EventKind::Shutdown, move |ws, data, event| {
            if let SessionEvent::Shutdown = event {
                on_shutdown(ws, data);
            }
        });
        self
    }

    /// Sets the callback for the end of the session. See [`SessionEvent::Closed`].
    #[must_use]
    pub fn on_close<F, T>(mut self, on_close: F) -> Self
    where
        F: Fn(&mut Socket<'_, D>, &mut D, Close<'_>) -> T + Send + Sync + 'static,
        T: Outcome,
    {
        self.callbacks.set(EventKind::Closed, move |ws, data, event| {
            if let SessionEvent::Closed(close) = event {
                on_close(ws, data, close);
            }
        });
        self
    }

    /// Sets the callback for accepted messages that are lost, or may be, in place of closing the
    /// session with 1013. See [`Handler::on_unpublished`](crate::Handler::on_unpublished).
    #[must_use]
    pub fn on_unpublished<F, T>(mut self, on_unpublished: F) -> Self
    where
        F: Fn(&mut Socket<'_, D>, &mut D, Unpublished) -> T + Send + Sync + 'static,
        T: Outcome,
    {
        self.callbacks.on_unpublished = Some(Box::new(move |ws, data, lost| {
            on_unpublished(ws, data, lost);
        }));
        self
    }

    /// Sets the options of futures that process messages. [`Server::bind`](crate::Server::bind)
    /// fails if an option does not apply, such as a concurrency for futures by session, or if there
    /// are no futures.
    #[cfg(feature = "tokio")]
    #[must_use]
    pub fn async_options(mut self, options: AsyncOptions) -> Self {
        self.async_options = Some(options);
        self
    }

    /// Processes messages with futures.
    #[cfg(feature = "tokio")]
    pub(crate) fn with_futures(mut self, futures: impl OnMessage<D>) -> Self {
        self.messages = Box::new(futures);
        self
    }

    pub(crate) fn into_route(self) -> WsRoute {
        let Self { callbacks, mut options, .. } = self;
        #[cfg_attr(not(feature = "tokio"), expect(unused_mut, reason = "futures have options"))]
        let mut messages = self.messages;
        #[cfg(feature = "tokio")]
        if let Some(async_options) = &self.async_options {
            options.mistake = messages.set_options(async_options).err();
        }
        options.limits.streams = options.streaming.unwrap_or(messages.streams());
        options.uses_workers = messages.blocks() || callbacks.on_upgrade.blocks();
        options.is_placed = callbacks.key.is_some();
        WsRoute { endpoint: messages.attach(callbacks), options }
    }
}

impl<D> fmt::Debug for Ws<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ws").field("options", &self.options).finish_non_exhaustive()
    }
}
