//! Handlers that are futures on a tokio runtime of the user's (feature `tokio`).
//!
//! A login that awaits a database at the upgrade, with a cookie in the 101 response:
//!
//! ```
//! use throng::prelude::*;
//!
//! # #[derive(Clone)]
//! # struct Database;
//! # struct User { name: String, session: String }
//! # impl Database {
//! #     async fn user(&self, token: &str) -> Option<User> {
//! #         Some(User { name: token.to_owned(), session: "1".to_owned() })
//! #     }
//! # }
//! fn app(runtime: tokio::runtime::Handle, database: Database) -> App {
//!     let greeter = Ws::from_request_async(runtime, move |request| {
//!         let database = database.clone();
//!         async move {
//!             let token = request.bearer().ok_or(Reject::unauthorized())?;
//!             database.user(token).await.ok_or(Reject::unauthorized())
//!         }
//!     })
//!     .on_accept(|user, headers| {
//!         headers.add("Set-Cookie", format!("session={}", user.session))
//!     })
//!     .on_open(|ws, user| ws.send(format!("hello {}", user.name)));
//!     App::new().ws("/", greeter)
//! }
//! # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
//! # Server::new(app(runtime.handle().clone(), Database)).check().unwrap();
//! ```
//!
//! [`Ws::on_message_async`](crate::Ws::on_message_async) starts a future for each message,
//! [`Ws::on_session_async`](crate::Ws::on_session_async) for each session.
//!
//! A shard and the futures of a session share a `SessionShared`, which queues messages
//! for the futures, and commands for the shard. A side that waits is woken by the other: futures by
//! their wakers, the shard by an event. Start reading there; then `run.rs`.

mod handler;
mod outcome;
mod run;
mod session;
mod shared;
mod socket;
mod wakers;

pub use outcome::AsyncOutcome;
pub use session::{AsyncSender, UntilClosed, UntilShutdown};
pub use shared::{CloseReason, SessionClosed};
pub use socket::AsyncSocket;

pub use crate::exchanges::OwnedRequest;
pub use crate::ws::async_options::AsyncOptions;

use std::any::Any;

use throng_engine::Cx;

/// Runs the commands of futures for this connection, or handles their panic, if the event is for
/// that.
pub(crate) fn on_delivery(cx: &mut Cx<'_>, event: Box<dyn Any + Send>) {
    match event.downcast::<shared::RunCommands>() {
        Ok(commands) => commands.run_commands(cx),
        Err(event) => {
            if let Ok(panicked) = event.downcast::<shared::FuturePanicked>() {
                panicked.panic_again(cx);
            }
        }
    }
}
