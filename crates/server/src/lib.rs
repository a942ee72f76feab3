//! A WebSocket and HTTP server for many connections.
//!
//! An echo server:
//!
//! ```no_run
//! use throng::prelude::*;
//!
//! fn main() -> throng::Result<()> {
//!     let app = App::new().ws("/", Ws::new().on_message(|ws, message| ws.send(message)));
//!     Server::new(app).bind("127.0.0.1:9001")?.run()
//! }
//! ```
//!
//! A chat with rooms: each connection has its user as data, and a message is encoded once and sent to all:
//!
//! ```no_run
//! use throng::prelude::*;
//!
//! struct User {
//!     name: String,
//!     room: String,
//! }
//!
//! fn chat() -> Ws<User> {
//!     Ws::on_upgrade(|request| {
//!         let name = request.query("name").unwrap_or("anonymous").to_owned();
//!         let room = request.param("room").ok_or(Reject::not_found())?.to_owned();
//!         Ok(User { name, room })
//!     })
//!     .on_open(|ws| {
//!         let (user, mut session) = ws.split();
//!         session.subscribe(&user.room);
//!     })
//!     .on_message(|ws, message| {
//!         let (user, mut session) = ws.split();
//!         let Message::Text(text) = message else { return session.close(1003, "text only") };
//!         let line = Frame::format(format_args!("{}: {text}", user.name));
//!         session.publish(&user.room, &line); // everyone else in the room
//!         let _ = session.send(&line); // and the sender
//!     })
//! }
//!
//! fn main() -> throng::Result<()> {
//!     let chat = WsRoute::new(chat()).max_message_size(16 << 10);
//!     Server::new(App::new().ws("/chat/{room}", chat)).bind("127.0.0.1:9001")?.run()
//! }
//! ```
//!
//! An [`App`] is data: routes can be added under conditions, merged and nested, and [`Middleware`] runs before their
//! handlers. A [`Server`] is an app and its configuration.
//!
//! # Channels and slow receivers
//!
//! What is published to a channel reaches its members on all shards; a [`Filter`] picks the receivers of a broadcast. A
//! [`Receipt`] counts what became of each one. Messages for receivers that read too slowly follow rules, by channel, by
//! route or for all: [`SlowPolicy`] and [`Backpressure`].
//!
//! ```no_run
//! use std::time::Duration;
//! use throng::prelude::*;
//!
//! # fn main() -> throng::Result<()> {
//! let feed = Ws::on_upgrade(|request| Ok(format!("prices.{}", request.param("symbol").unwrap_or("EUR"))))
//!     .on_open(|ws| {
//!         let (channel, mut session) = ws.split();
//!         session.subscribe(channel);
//!     });
//! let app = App::new()
//!     .ws("/prices/{symbol}", feed)
//!     // The same without a WebSocket; with wildcards, /sse/prices.* is all of them.
//!     .sse("/sse/{channel}", |request| Ok(request.param("channel").unwrap_or_default().to_owned()));
//! let running = Server::new(app)
//!     .wildcards(true)
//!     // A slow receiver gets the newest price, and none that waited here for more than five seconds.
//!     .channel_backpressure("prices.*", Backpressure::new(SlowPolicy::Latest).max_age(Duration::from_secs(5)))
//!     .bind("127.0.0.1:9001")?
//!     .spawn()?;
//! let hub = running.hub();
//! let receipt = hub.publish("prices.EUR", "1.17").expect("no shard is that far behind");
//! if let Some(delivery) = receipt.wait(Duration::from_secs(1)) {
//!     println!("{} of {} keep up", delivery.delivered, delivery.receivers());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # HTTP
//!
//! Routes answer with anything that is [`IntoResponse`], from the memory their request was received in. What takes long is answered by a
//! [`Responder`] from another thread ([`App::deferred`]); bodies larger than memory are read and written while they come
//! and go ([`App::streaming`], [`Response::with_stream`]); directories are served by [`App::dir`]. Pipelined requests are answered in
//! order, whoever answers them.
//!
//! ```no_run
//! use throng::prelude::*;
//!
//! # fn report(name: &str) -> String { name.to_owned() }
//! # fn main() -> throng::Result<()> {
//! let app = App::new()
//!     .get("/hello/{name}", |request| format!("hello {}", request.param("name").unwrap_or("you")))
//!     .post("/length", |request| request.body().len().to_string())
//!     .deferred(Method::Get, "/reports/{name}", |request, responder| {
//!         let name = request.param("name").unwrap_or_default().to_owned();
//!         std::thread::spawn(move || responder.send(report(&name)));
//!     })
//!     .dir("/", "public");
//! Server::new(app).bind("127.0.0.1:9001")?.run()
//! # }
//! ```
//!
//! # How it works
//!
//! One event loop (a *shard*) runs on each CPU; a connection stays on one for life, so its callbacks come in order
//! and need no locks. A message is lent to the callback from the memory the kernel wrote it to; answers leave in
//! one system call when the callback returns. An idle connection costs about a hundred bytes and owns no buffer.
//!
//! Callbacks must not block: they would hold up every connection of their shard. What takes long belongs on the server's
//! pool of workers, whose queue is bounded and which keeps the order of each connection: [`Socket::offload`] for one
//! piece of work, [`Ws::on_message_blocking`] for a route's messages, [`App::blocking`] for requests. Threads of your own answer
//! through a [`Hub`] and the connection's [`Handle`], or a [`Responder`].
//!
//! ```no_run
//! use throng::prelude::*;
//! # fn ask_database(query: &str) -> String { query.to_owned() }
//!
//! # fn main() -> throng::Result<()> {
//! let ask = Ws::new().on_message_blocking(|(), message, replies| {
//!     let Message::Text(query) = message else { return replies.close(1003, "text only") };
//!     replies.send(ask_database(query));
//! });
//! let app = App::new().ws("/ask", ask).blocking(Method::Get, "/ask/{query}", |request| {
//!     ask_database(request.param("query").unwrap_or_default())
//! });
//! Server::new(app).bind("127.0.0.1:9001")?.run()
//! # }
//! ```
//!
//! With the feature `tokio` a handler can be a future on a runtime of yours: one for each message (`Ws::on_message_async`), or
//! one for each session with an `AsyncSocket` (`Ws::on_session_async`).
//!
//! # Errors and blame
//!
//! What a peer does wrong closes that peer's connection, with the code RFC 6455 section 7.4.1 or the status RFC
//! 9110 names for it, and is counted in `/metrics`. What the program does wrong is an [`Error`] from
//! [`Server::bind`]. A panic in a callback closes its connection with 1011.
//!
//! * Duty: the public API: routes, handlers, sockets, the life of a server.
//! * Not its duty: everything underneath; see the crates `throng-engine`, `throng-proto`, `throng-http`, `throng-io`.
//! * Depends on: those four.
//! * Start reading at: [`App`], [`Server`] and [`Handler`]; then `service/mod.rs`, what the engine calls.
#![forbid(unsafe_code)]

mod app;
#[cfg(feature = "tokio")]
mod asynchronous;
mod compression;
mod ending;
mod error;
mod filter;
mod http;
mod hub;
mod message;
mod observe;
mod pin;
pub mod process;
mod running;
mod server;
mod service;
mod stalls;
#[cfg(unix)]
mod threads;
mod workers;
mod ws;

pub use app::{App, Middleware, Next, ThenFn};
#[cfg(feature = "tokio")]
pub use asynchronous::{
    AsyncOutcome, AsyncSession, AsyncSocket, AsyncWs, CloseReason, Closed, Ended, PerMessage,
    PerSession,
};
pub use compression::Compression;
pub use error::{Error, Result};
pub use filter::Filter;
pub use http::{BodyReader, BodyWriter, Responder};
pub use hub::{Handle, Hub};
pub use message::OwnedMessage;
pub use pin::{Pin, Place, Placement};
pub use running::{Bound, Drained, Running, ShardLoad, StuckShard};
pub use server::{Io, Server};
pub use stalls::Stall;
pub use throng_engine::workers::{
    Busy, MAX_POOL_SIZE, Overload, RunningJob, WorkerMetrics, WorkerSettings, suggested_size,
    usable_cpus,
};
pub use throng_engine::{
    Backpressure, Chunk, Close, Delivery, DrainPlan, Frame, LimitError, Limits, MailboxFull,
    Message, Receipt, Sent, SlowPolicy, Stats,
};
pub use throng_http::{
    Files, IntoResponse, Method, Origins, Pull, Reject, Request, Response, Source, Status,
};
pub use throng_proto::ws::deflate::{Mode as DeflateMode, Settings as Deflate};
pub use workers::Replies;
pub use ws::{
    Handler, Incompressible, IntoWsRoute, NoData, Outcome, Sendable, Session, Socket, Ws, WsRoute,
};

/// What most programs need: `use throng::prelude::*;`
pub mod prelude {
    pub use crate::{
        App, Backpressure, Compression, Delivery, DrainPlan, Files, Filter, Frame, Handle, Handler,
        Hub, Limits, Message, Middleware, Next, Origins, OwnedMessage, Reject, Request, Responder,
        Response, Sent, Server, Session, SlowPolicy, Socket, Ws, WsRoute,
    };
    #[cfg(feature = "tokio")]
    pub use crate::{AsyncSession, AsyncSocket};
    pub use crate::{Close, Method, Status};
}

/// The examples of the manual's pages are tests.
#[cfg(doctest)]
mod manual {
    #[doc = include_str!("../../../docs/back-pressure.md")]
    mod back_pressure {}
    #[doc = include_str!("../../../docs/http.md")]
    mod http {}
}
