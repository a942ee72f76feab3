//! HTTP: return values of handlers, code that runs before them, and bodies of any size.
//!
//! Routes are added to an [`App`](crate::App), one method at a time or as a [`Route`]; a handler
//! borrows a [`Request`](crate::Request) and returns anything that is [`IntoResponse`].
//!
//! A JSON API with a state that its handlers share (feature `serde`):
//!
#![cfg_attr(feature = "serde", doc = "```no_run")]
#![cfg_attr(not(feature = "serde"), doc = "```ignore")]
//! use std::collections::BTreeMap;
//! use std::sync::Mutex;
//! use throng::prelude::*;
//!
//! type Notes = Mutex<BTreeMap<String, String>>;
//!
//! fn notes() -> StateApp<Notes> {
//!     App::with_state(Notes::default())
//!         .get("/", |_, notes| Json(notes.lock().unwrap().clone()))
//!         .get("/{id}", |request, notes| {
//!             let notes = notes.lock().unwrap();
//!             let note = notes.get(request.param("id").unwrap_or("")).cloned();
//!             note.map(Json).ok_or(Reject::not_found())
//!         })
//!         .put("/{id}", |request, notes| {
//!             let (id, note) = (request.param("id").unwrap_or(""), request.json()?);
//!             let old = notes.lock().unwrap().insert(id.to_owned(), note);
//!             Ok::<_, Reject>(if old.is_some() { Status::OK } else { Status::CREATED })
//!         })
//! }
//!
//! fn main() -> throng::Result<()> {
//!     let app = App::new().nest("/notes", notes()).max_body(64 << 10);
//!     Server::new(app).bind("127.0.0.1:9001")?.run()
//! }
//! ```

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
#[cfg(feature = "tokio")]
pub use crate::app::{any_async, delete_async, get_async, patch_async, post_async, put_async};
#[cfg(feature = "tokio")]
pub use crate::exchanges::OwnedRequest;
pub use crate::exchanges::{BodyReader, BodyWriter, Responder};
#[cfg(feature = "gzip")]
pub use crate::gzip::Gzip;
pub use crate::middleware::{Middleware, Next, ThenFn};
pub use crate::topic::{EventStream, Topic};
