//! A WebSocket and HTTP server for many connections.
//!
//! An echo server:
//!
//! ```no_run
//! use throng::prelude::*;
//!
//! fn main() -> throng::Result<()> {
//!     Server::new().ws("/", Ws::on_message(|ws, msg| ws.send(msg))).bind("127.0.0.1:9001")?.run()
//! }
//! ```
//!
//! A chat with rooms: each connection remembers its user, a message is encoded once and sent to all:
//!
//! ```no_run
//! use throng::prelude::*;
//!
//! struct User {
//!     name: String,
//!     room: String,
//! }
//!
//! fn main() -> throng::Result<()> {
//!     let chat = Ws::upgrade(|req| {
//!         let name = req.query("name").unwrap_or("anonymous").to_owned();
//!         let room = req.param("room").ok_or(Reject::not_found())?.to_owned();
//!         Ok(User { name, room })
//!     })
//!     .open(|ws| {
//!         let room = ws.data().room.clone();
//!         ws.subscribe(&room);
//!     })
//!     .message(|ws, msg| {
//!         let Message::Text(text) = msg else { return ws.close(1003, "text only") };
//!         let room = ws.data().room.clone();
//!         let frame = Frame::text(format!("{}: {text}", ws.data().name));
//!         ws.publish(&room, &frame); // everyone else in the room
//!         let _ = ws.send(&frame); // and me
//!     })
//!     .max_message_size(16 << 10);
//!     Server::new().ws("/chat/{room}", chat).bind("127.0.0.1:9001")?.run()
//! }
//! ```
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
//! let feed = Ws::upgrade(|req| Ok(req.param("symbol").unwrap_or_default().to_owned())).open(|ws| {
//!     let channel = format!("prices.{}", ws.data());
//!     ws.subscribe(&channel);
//! });
//! let running = Server::new()
//!     .ws("/prices/{symbol}", feed)
//!     // The same without a WebSocket; with wildcards, /sse/prices.* is all of them.
//!     .events("/sse/{channel}", |req| Ok(req.param("channel").unwrap_or_default().to_owned()))
//!     .wildcards(true)
//!     // Who reads slowly gets the newest price, and none that is older than five seconds.
//!     .channels("prices.*", Backpressure::new(SlowPolicy::Latest).max_age(Duration::from_secs(5)))
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
//! [`Responder`] from another thread ([`Server::later`]); bodies larger than memory are read and written while they come
//! and go ([`Server::stream`], [`Response::with_stream`]); directories are served by [`Server::dir`]. Pipelined requests are answered in
//! order, whoever answers them.
//!
//! ```no_run
//! use throng::prelude::*;
//!
//! # fn report(name: &str) -> String { name.to_owned() }
//! # fn main() -> throng::Result<()> {
//! Server::new()
//!     .get("/hello/{name}", |req| format!("hello {}", req.param("name").unwrap_or("you")))
//!     .post("/length", |req| req.body().len().to_string())
//!     .later(Method::Get, "/reports/{name}", |req, responder| {
//!         let name = req.param("name").unwrap_or_default().to_owned();
//!         std::thread::spawn(move || responder.send(report(&name)));
//!     })
//!     .dir("/", "public")
//!     .bind("127.0.0.1:9001")?
//!     .run()
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
//! piece of work, [`Ws::blocking`] for a route's messages, [`Server::blocking`] for requests. Threads of your own answer
//! through a [`Hub`] and the connection's [`Handle`], or a [`Responder`].
//!
//! ```no_run
//! use throng::prelude::*;
//! # fn ask_database(query: &str) -> String { query.to_owned() }
//!
//! # fn main() -> throng::Result<()> {
//! let ask = Ws::upgrade(|_| Ok(())).blocking(|(), message, replies| {
//!     let Message::Text(query) = message else { return replies.close(1003, "text only") };
//!     replies.send(ask_database(query));
//! });
//! Server::new()
//!     .ws("/ask", ask)
//!     .blocking(Method::Get, "/ask/{query}", |request| {
//!         ask_database(request.param("query").unwrap_or_default())
//!     })
//!     .bind("127.0.0.1:9001")?
//!     .run()
//! # }
//! ```
//!
//! With the feature `tokio` a handler can be a future on a runtime of yours: one for each message (`Ws::message_async`), or
//! one for each session with an `AsyncSocket` (`Ws::stream`).
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
//! * Start reading at: [`Server`] and [`Handler`]; then `service.rs`, what the engine calls.
#![forbid(unsafe_code)]

#[cfg(feature = "tokio")]
mod asynchronous;
mod compression;
mod ending;
mod error;
mod filter;
mod handler;
mod http;
mod hub;
mod message;
mod observe;
mod pin;
pub mod process;
mod routes;
mod running;
mod server;
mod service;
mod socket;
mod stalls;
#[cfg(unix)]
mod threads;
mod workers;

#[cfg(feature = "tokio")]
pub use asynchronous::{
    AsyncOutcome, AsyncSession, AsyncSocket, AsyncWs, CloseReason, Closed, Ended, Messages, Streams,
};
pub use compression::Compression;
pub use error::{Error, Result};
pub use filter::Filter;
pub use handler::{CloseFn, Handler, MessageFn, Outcome, SocketFn, UpgradeFn, Ws};
pub use http::{BodyReader, BodyWriter, Responder};
pub use hub::{Handle, Hub};
pub use message::OwnedMessage;
pub use pin::{Pin, Place, Placement};
pub use routes::{EventsRoute, HttpRoute, Routes, WsRoute};
pub use running::{Bound, Drained, Running, ShardLoad, StuckShard};
pub use server::{Io, Server};
pub use socket::{Incompressible, Sendable, Socket};
pub use stalls::Stall;
pub use throng_engine::workers::{
    Busy, MAX_POOL_SIZE, Overload, RunningJob, WorkerFigures, WorkerSettings, suggested_size,
    usable_cpus,
};
pub use throng_engine::{
    Backpressure, Close, Delivery, DrainPlan, Frame, LimitError, Limits, MailboxFull, Message,
    Piece, Receipt, Sent, SlowPolicy, Stats,
};
pub use throng_http::{
    Files, IntoResponse, Method, Origins, Pull, Reject, Request, Response, Source, Status,
};
pub use throng_proto::ws::deflate::{Mode as DeflateMode, Settings as Deflate};
pub use workers::Replies;

/// What most programs need: `use throng::prelude::*;`
pub mod prelude {
    #[cfg(feature = "tokio")]
    pub use crate::{AsyncSession, AsyncSocket};
    pub use crate::{
        Backpressure, Close, Compression, Delivery, DrainPlan, Files, Filter, Frame, Handle,
        Handler, Hub, Io, Limits, Message, Method, Origins, OwnedMessage, Pin, Reject, Request,
        Responder, Response, Sent, Server, SlowPolicy, Socket, Status, Ws,
    };
}

/// The examples of the manual's pages are tests.
#[cfg(doctest)]
mod manual {
    #[doc = include_str!("../../../docs/back-pressure.md")]
    mod back_pressure {}
    #[doc = include_str!("../../../docs/http.md")]
    mod http {}
}
