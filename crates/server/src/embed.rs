//! Throng inside other servers, and other servers inside Throng.
//!
//! [`Upgrade`] takes over the connection of a WebSocket that another server has accepted. With the
//! feature `tower`, an app has tower services as routes
//! (`App::fallback_service`), such as a router of axum:
//!
#![cfg_attr(feature = "tower", doc = "```no_run")]
#![cfg_attr(not(feature = "tower"), doc = "```ignore")]
//! use axum::{Router, routing::get};
//! use throng::prelude::*;
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let runtime = tokio::runtime::Runtime::new()?;
//!     let pages = Router::new().route("/version", get(|| async { "1.0" }));
//!     let app = App::new()
//!         .ws("/live", Ws::new().on_message(|ws, (), message| ws.send(message)))
//!         .fallback_service(runtime.handle().clone(), pages);
//!     Ok(Server::new(app).bind("127.0.0.1:9001")?.run()?)
//! }
//! ```

pub use crate::adopt::Upgrade;
#[cfg(feature = "tower")]
pub use crate::tower::ServiceBody;
