//! A WebSocket and HTTP server for many connections.
//!
//! An echo server:
//!
//! ```no_run
//! use throng::prelude::*;
//!
//! fn main() -> throng::Result<()> {
//!     let app = App::new().ws("/", Ws::new().on_message(|ws, (), message| ws.send(message)));
//!     Server::new(app).bind("127.0.0.1:9001")?.run()
//! }
//! ```
//!
//! A chat with rooms, where each connection has its user as data, and a message is encoded once and
//! sent to all:
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
//!     Ws::from_request(|request| {
//!         let name = request.query("name").unwrap_or("anonymous").to_owned();
//!         let room = request.param("room").ok_or(Reject::not_found())?.to_owned();
//!         Ok(User { name, room })
//!     })
//!     .max_message_size(16 << 10)
//!     .on_open(|ws, user| ws.subscribe(&user.room))
//!     .on_message(|ws, user, message| {
//!         let Message::Text(text) = message else {
//!             return ws.close(CloseCode::UNSUPPORTED_DATA, "text only");
//!         };
//!         let line = Frame::format(format_args!("{}: {text}", user.name));
//!         // Everyone in the room, the sender included, in the same order for all.
//!         ws.publish(&user.room, line);
//!     })
//! }
//!
//! fn main() -> throng::Result<()> {
//!     Server::new(App::new().ws("/chat/{room}", chat())).bind("127.0.0.1:9001")?.run()
//! }
//! ```
//!
//! An [`App`] is data: routes can be added under conditions, merged and nested, and
//! [`Middleware`](http::Middleware) runs before their handlers. A [`Server`] is an app and its
//! configuration.
//!
//! # Channels and slow receivers
//!
//! A message published to a channel reaches the channel's members on all shards; a
//! [`Filter`](channel::Filter) selects the receivers of a broadcast. A
//! [`Receipt`](channel::Receipt) counts the outcomes by receiver. Messages for receivers that read
//! too slowly follow rules that are set by channel, by route or for the server:
//! [`Backpressure`](channel::Backpressure). [`App::sse`] streams a channel as server-sent events.
//!
//! ```no_run
//! use std::time::Duration;
//! use throng::prelude::*;
//!
//! fn main() -> throng::Result<()> {
//!     let feed = Ws::from_request(|request| {
//!         Ok(format!("prices.{}", request.param("symbol").unwrap_or("EUR")))
//!     })
//!     .on_open(|ws, channel| ws.subscribe(channel));
//!     // A slow receiver gets the newest price of each symbol, none older than five seconds.
//!     let newest = Backpressure::new(SlowPolicy::Latest).max_age(Duration::from_secs(5));
//!     let mut price = 100;
//!     Server::new(App::new().ws("/prices/{symbol}", feed))
//!         .channels(Channels::new().backpressure("prices.*", newest))
//!         .every(Duration::from_millis(100), move |hub| {
//!             price += 1;
//!             // Where a queue is full, the next price is as good.
//!             let _ = hub.publish("prices.EUR", Frame::from(price.to_string()).keyed("EUR"));
//!         })
//!         .bind("127.0.0.1:9001")?
//!         .run()
//! }
//! ```
//!
//! # HTTP
//!
//! Handlers return anything that is [`IntoResponse`](http::IntoResponse), and borrow the request
//! from the memory it was received in. A handler that takes long passes a
//! [`Responder`](http::Responder) to another thread
//! ([`Route::deferred`](http::Route::deferred)). Bodies larger than memory are streamed in both
//! directions ([`Route::streaming`](http::Route::streaming), [`Response::with_stream`]).
//! [`App::dir`] serves directories. Handlers share a state by [`App::with_state`]. Pipelined
//! requests are always answered in order.
//!
//! ```no_run
//! use throng::prelude::*;
//!
//! # fn report(name: &str) -> String { name.to_owned() }
//! # fn main() -> throng::Result<()> {
//! let reports = Route::deferred(Method::Get, |request, responder| {
//!     let name = request.param("name").unwrap_or_default().to_owned();
//!     std::thread::spawn(move || responder.send(report(&name)));
//! });
//! let app = App::new()
//!     .get("/hello/{name}", |request| format!("hello {}", request.param("name").unwrap_or("you")))
//!     .post("/length", |request| request.body().len().to_string())
//!     .route("/reports/{name}", reports)
//!     .dir("/", "public");
//! Server::new(app).bind("127.0.0.1:9001")?.run()
//! # }
//! ```
//!
//! # How it works
//!
//! One event loop (a *shard*) runs on each CPU. A connection stays on one shard for life, so its
//! callbacks run in order and need no locks. Sessions can be placed by key ([`Ws::place_by`]): the
//! sessions of a room then share a state without a lock ([`Socket::shard_state`]). A callback
//! borrows the message from the memory the kernel wrote it to; messages that it sends leave in one
//! system call afterwards. An idle connection costs about a hundred bytes and owns no buffer.
//!
//! Callbacks must not block: they would delay every connection of their shard. Blocking work
//! belongs on the server's worker pool, whose queue is bounded and which keeps the order of each
//! connection: [`Socket::offload`] for a single job, [`Ws::on_message_blocking`] for a route's
//! messages, [`Route::blocking`](http::Route::blocking) for requests. Threads of your own answer
//! through a [`Hub`] and the connection's [`Handle`], or a [`Responder`](http::Responder).
//!
//! ```no_run
//! use throng::http::get;
//! use throng::prelude::*;
//! # fn ask_database(query: &str) -> String { query.to_owned() }
//!
//! # fn main() -> throng::Result<()> {
//! let ask = Ws::new().on_message_blocking(|replies, (), message| {
//!     let Message::Text(query) = message else {
//!         return replies.close(CloseCode::UNSUPPORTED_DATA, "text only");
//!     };
//!     replies.send(ask_database(query));
//! });
//! let answer = get(|request| ask_database(request.param("query").unwrap_or_default()));
//! let app = App::new().ws("/ask", ask).route("/ask/{query}", answer.blocking());
//! Server::new(app).bind("127.0.0.1:9001")?.run()
//! # }
//! ```
//!
//! With the feature `tokio` a handler can be a future on a tokio runtime of yours: one for each
//! message (`Ws::on_message_async`), one for each session with an `asynchronous::AsyncSocket`
//! (`Ws::on_session_async`), or one for each request (`http::get_async`), whose response may be a
//! stream (`Response::events`).
//!
//! # Features
//!
//! | feature | default | adds | dependencies |
//! |---|---|---|---|
//! | `deflate` | yes | compression of messages: `Server::compression` | zlib-rs |
//! | `gzip` | no | compression of HTTP responses: `App::gzip` | zlib-rs |
//! | `files` | yes | static files: `App::dir` | |
//! | `metrics` | yes | `App::metrics` and the module `metrics` | serde_json |
//! | `client` | no | WebSocket clients: `client::Client` | base64, getrandom |
//! | `test` | no | tests of servers, also without a network: `test::TestServer` | as `client` |
//! | `tls` | no | `https` and `wss`: `Server::tls` | rustls, aws-lc-rs (a C compiler) |
//! | `acme` | no | certificates of an authority: `Tls::acme` | `tls`, instant-acme, tokio |
//! | `tokio` | no | handlers that are futures | tokio (`rt`) |
//! | `http` | no | conversions to and from the types of the `http` crate, `Upgrade` | http |
//! | `serde` | no | JSON: `Request::json`, `Message::json`, `http::Json` | serde, serde_json |
//! | `settings` | no | settings from the environment: `Server::settings_from_env` | toml |
//! | `signals` | yes | `Bound::run_until_signal` | signal-hook |
//! | `redis` | no | channels that span processes: `Server::cluster` | redis, tokio |
//! | `tower` | no | tower services: `App::fallback_service` | tower-service, http-body |
//! | `tracing` | no | events are logged with `tracing` | tracing |
//!
//! # Errors
//!
//! A peer's fault closes that peer's connection, with the close code of RFC 6455 section 7.4.1 or
//! the status of RFC 9110, and is counted in the metrics. A mistake in the program's routes or
//! settings is an [`Error`] of [`Server::bind`]. A panic in a callback closes its connection with
//! 1011.
//!
//! * Duty: the public API: routes, handlers, sockets, the life of a server.
//! * Not its duty: the layers below, which are in the crates `throng-engine`, `throng-proto`,
//!   `throng-http` and `throng-io`.
//! * Depends on: those four.
//! * Start reading at: [`App`], [`Server`] and [`Handler`]; then `service/mod.rs`, which the engine
//!   calls.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]
#![warn(unnameable_types)]

mod accept;
mod access;
mod adopt;
mod affinity;
mod app;
mod builder;
#[cfg(feature = "deflate")]
mod compression;
mod error;
mod events;
mod exchanges;
mod filter;
#[cfg(feature = "gzip")]
mod gzip;
mod handle;
mod health;
mod hub;
mod io_backend;
mod live;
mod middleware;
#[cfg(feature = "metrics")]
mod observe;
mod panic_notice;
mod panics;
#[cfg(feature = "metrics")]
mod process;
mod readiness;
mod running;
mod service;
mod shard;
mod shutdown;
mod stalls;
#[cfg(feature = "metrics")]
mod system;
mod threads;
mod ticks;
mod topic;
#[cfg(feature = "tower")]
mod tower;

#[cfg(feature = "tokio")]
pub mod asynchronous;
#[cfg(feature = "centrifuge")]
pub mod centrifuge;
pub mod channel;
#[cfg(feature = "client")]
pub mod client;
#[cfg(feature = "redis")]
pub mod cluster;
#[cfg(not(feature = "redis"))]
#[path = "cluster/none.rs"]
mod cluster;
#[cfg(feature = "http")]
pub mod embed;
pub mod http;
#[cfg(feature = "metrics")]
pub mod metrics;
pub mod server;
#[cfg(feature = "test")]
pub mod test;
#[cfg(feature = "tls")]
pub mod tls;
#[cfg(not(feature = "tls"))]
#[path = "tls/none.rs"]
mod tls;
pub mod workers;
pub mod ws;

pub use app::App;
pub use builder::Server;
pub use error::{Error, Result};
pub use handle::Handle;
pub use hub::Hub;
pub use throng_engine::{Close, CloseCode, Frame, Limits, Message, Sent};
pub use throng_http::{Reject, Request, Response};
pub use throng_proto::ws::OwnedMessage;
pub use ws::closures::Ws;
pub use ws::event::SessionEvent;
pub use ws::handler::Handler;
pub use ws::socket::Socket;

/// The items that most programs need: `use throng::prelude::*;`
///
/// It has the items of the crate's root, except `Error` and `Result`, which would shadow the
/// standard library's, and a few of [`channel`], [`http`] and [`server`].
pub mod prelude {
    pub use crate::channel::{Backpressure, Channels, Filter, History, Presence, SlowPolicy};
    #[cfg(feature = "serde")]
    pub use crate::http::Json;
    pub use crate::http::{Method, Route, StateApp, Status};
    pub use crate::server::{Bound, DrainPlan, Running};
    pub use crate::{
        App, Close, CloseCode, Frame, Handle, Handler, Hub, Limits, Message, OwnedMessage, Reject,
        Request, Response, Sent, Server, SessionEvent, Socket, Ws,
    };
}

/// Runs the examples of the manual's pages as tests.
#[cfg(doctest)]
mod manual {
    #[doc = include_str!("../../../docs/back-pressure.md")]
    mod back_pressure {}
    #[cfg(feature = "centrifuge")]
    #[doc = include_str!("../../../docs/centrifuge.md")]
    mod centrifuge {}
    #[doc = include_str!("../../../docs/cookbook.md")]
    mod cookbook {}
    #[doc = include_str!("../../../docs/history.md")]
    mod history {}
    #[doc = include_str!("../../../docs/http.md")]
    mod http {}
    #[doc = include_str!("../../../docs/presence.md")]
    mod presence {}
    #[doc = include_str!("../../../docs/scaling.md")]
    mod scaling {}
}
