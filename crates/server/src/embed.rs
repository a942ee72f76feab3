//! Throng inside other servers, and other servers inside Throng.
//!
//! [`Upgrade`] takes over the connection of a WebSocket that another server has accepted. With the
//! feature `tower`, an app has tower services as routes.

pub use crate::adopt::Upgrade;
#[cfg(feature = "tower")]
pub use crate::tower::ServiceBody;
