//! HTTP semantics: routing, statuses and headers.
//!
//! * Duty: RFC 9110 above the wire: routing, requests as handlers see them, responses, dates,
//!   refusals, static files.
//! * Not its duty: framing (in `throng_proto::http1`), sockets, clocks, limits on bytes.
//! * Depends on: throng-proto.
//! * Start reading at: [`Router::find`], which maps a path to a route; [`Response::encode`], which
//!   converts a response to bytes.
#![forbid(unsafe_code)]

mod basic;
pub mod blocking_client;
mod body;
mod client;
mod coding;
mod date;
mod extensions;
#[cfg(feature = "files")]
mod files;
mod hosts;
mod https;
#[cfg(feature = "http")]
mod interop;
mod into_response;
#[cfg(feature = "serde")]
mod json;
mod method;
mod networks;
pub mod openmetrics;
mod origin;
mod params;
pub mod percent;
mod plain;
mod reject;
mod request;
mod request_ids;
mod response;
mod route;
mod router;
mod status;
#[cfg(feature = "stream")]
mod stream_body;
mod summary;

pub use basic::BasicCredentials;
pub use body::{Body, SourcePull, Stream, StreamSource, may_trail};
pub use client::{
    ForwardedElement, client_address, client_on_unix_socket, forwarded, x_forwarded_for,
};
pub use coding::accepts_gzip;
pub use date::{DateCache, LiveDate};
pub use extensions::Extensions;
#[cfg(feature = "files")]
pub use files::Files;
pub use hosts::HostPattern;
pub use https::{HttpsPolicy, MISDIRECTED, strict_transport_security};
#[cfg(feature = "http")]
pub use interop::InvalidResponse;
pub use into_response::IntoResponse;
pub use method::{Allow, Method};
pub use networks::Network;
pub use origin::Origins;
pub use params::{MAX_PARAMS, Params, Ranges};
pub use plain::PlainHttp;
pub use reject::Reject;
pub use request::Request;
pub use request_ids::RequestIdSource;
pub use response::{HeaderError, ReplyTo, Response, STRICT_TRANSPORT_SECURITY, check_header};
pub use route::{RouteError, param_names};
pub use router::{Match, Router};
pub use status::{InvalidStatus, Status};
pub use summary::RequestSummary;
pub use throng_proto::calendar::{self, imf_fixdate};
#[cfg(feature = "serde")]
pub use throng_proto::json::Json;
