//! permessage-deflate, RFC 7692: negotiation, and compression with one codec per shard.
//!
//! A connection costs only its [`Agreed`], and a [`History`] per direction where a context is kept.
//! Negotiation: [`Settings`], [`Policy`]. The path of a received message:
//! [`Decoder::next_event_with`] returns a [`Deflated`], an [`Inflater`] converts it to an event.
//! The path of a sent message: a [`Deflater`], then [`encode_deflated`](super::encode_deflated).
//!
//! [`Decoder::next_event_with`]: super::Decoder::next_event_with
//! [`Deflated`]: super::Deflated

#[cfg(not(feature = "deflate"))]
mod absent;
#[cfg(feature = "deflate")]
mod deflater;
mod history;
#[cfg(feature = "deflate")]
mod inflater;
mod negotiate;
mod parameters;
mod settings;

#[cfg(all(test, feature = "deflate"))]
mod tests;

#[cfg(not(feature = "deflate"))]
use absent::Codec;
#[cfg(not(feature = "deflate"))]
pub use absent::{Deflater, Inflated, Inflater};
#[cfg(feature = "deflate")]
use deflater::Codec;
#[cfg(feature = "deflate")]
pub use deflater::Deflater;
pub use history::History;
#[cfg(feature = "deflate")]
pub use inflater::{Inflated, Inflater};
pub use negotiate::{Accepted, Agreed, BadAnswer, MalformedOffer};
pub use parameters::Parameters;
pub use settings::{InvalidSetting, Mode, Policy, Rejected, Settings};
