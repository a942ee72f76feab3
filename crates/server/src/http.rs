//! HTTP: what handlers return, what runs before them, and bodies of any size.
//!
//! Routes are added to an [`App`](crate::App), one method at a time or as a [`Route`]; a handler
//! borrows a [`Request`](crate::Request) and returns anything that is [`IntoResponse`].

#[cfg(feature = "files")]
pub use throng_http::Files;
#[cfg(feature = "http")]
pub use throng_http::InvalidResponse;
#[cfg(feature = "serde")]
pub use throng_http::Json;
pub use throng_http::{
    BasicCredentials, HeaderError, IntoResponse, InvalidStatus, Method, Origins, SourcePull,
    Status, StreamSource,
};
pub use throng_proto::http1::{Header, InvalidHeader};

pub use crate::app::{
    BasicAuth, BasicUser, Cors, RequestId, RequestIds, Route, StateApp, any, delete, get, patch,
    post, put,
};
pub use crate::exchanges::{BodyReader, BodyWriter, Responder};
#[cfg(feature = "gzip")]
pub use crate::gzip::Gzip;
pub use crate::middleware::{Middleware, Next, ThenFn};
pub use crate::topic::{EventStream, Topic};
