//! Middleware: code that runs before the handlers of several routes, and may change their
//! responses.

use std::fmt;

use throng_engine::SettingError;
use throng_http::{IntoResponse, Request, Response};

/// Code that runs before the handlers of all routes of an [`App`](crate::App), for requests of
/// every kind: answered at once, later, by a worker, with a stream of events, or with an upgrade to
/// a WebSocket.
///
/// It is called on the connection's shard when the head of a request has come, before its body is
/// read, and must not block. Closures implement it:
///
/// ```
/// use throng::http::{IntoResponse, Next};
/// use throng::prelude::*;
///
/// #[derive(Clone)]
/// struct User(String);
///
/// let app = App::new()
///     .get("/me", |request| request.extension::<User>().map(|user| user.0.clone()))
///     .layer(|request: &mut Request<'_>| match request.bearer() {
///         Some("secret") => {
///             request.insert_extension(User("alice".to_owned()));
///             Next::Continue
///         }
///         _ => Next::respond(Reject::unauthorized()),
///     })
///     .layer(|_: &mut Request<'_>| {
///         Next::then(|response| response.header("X-Frame-Options", "DENY").into_response())
///     });
/// ```
pub trait Middleware: Send + Sync + 'static {
    /// Decides what happens to a request.
    fn call(&self, request: &mut Request<'_>) -> Next;

    /// Returns a mistake in the settings of this middleware, which makes
    /// [`Server::bind`](crate::Server::bind) fail.
    #[doc(hidden)]
    fn mistake(&self) -> Option<SettingError> {
        None
    }
}

impl<F> Middleware for F
where
    F: Fn(&mut Request<'_>) -> Next + Send + Sync + 'static,
{
    fn call(&self, request: &mut Request<'_>) -> Next {
        self(request)
    }
}

/// The decision of a [`Middleware`].
#[non_exhaustive]
pub enum Next {
    /// The request goes on to the next middleware, or to its handler.
    Continue,
    /// The request continues, and its response is passed through this function, on the connection's
    /// shard. The response comes from the handler or from the server, such as 413 to a body that is
    /// too large, 408 to a late body, or 500 when the handler panics. The response of a stream of
    /// events is its head: with a status other than 200 it is sent in place of the stream. The 101
    /// of an accepted upgrade is not passed through; a response that refuses an upgrade is.
    Then(ThenFn),
    /// The request is answered with this response, without its handler.
    Respond(Response),
}

/// A function that changes a response.
pub type ThenFn = Box<dyn FnOnce(Response) -> Response + Send>;

impl Next {
    /// [`Next::Then`] with a closure.
    pub fn then(change: impl FnOnce(Response) -> Response + Send + 'static) -> Self {
        Self::Then(Box::new(change))
    }

    /// [`Next::Respond`] with anything that is a response.
    pub fn respond(response: impl IntoResponse) -> Self {
        Self::Respond(response.into_response())
    }
}

impl fmt::Debug for Next {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Continue => f.write_str("Continue"),
            Self::Then(_) => f.write_str("Then(..)"),
            Self::Respond(response) => f.debug_tuple("Respond").field(&response.status()).finish(),
        }
    }
}

/// The functions that a response must be passed through.
#[derive(Default)]
pub(crate) struct Pending(Vec<ThenFn>);

impl Pending {
    /// Calls each middleware in order; `Some` is the response of the first middleware that answers.
    pub(crate) fn run<'m>(
        &mut self,
        layers: impl IntoIterator<Item = &'m dyn Middleware>,
        request: &mut Request<'_>,
    ) -> Option<Response> {
        for layer in layers {
            match layer.call(request) {
                Next::Continue => {}
                Next::Then(change) => self.0.push(change),
                Next::Respond(response) => return Some(response),
            }
        }
        None
    }

    /// Passes a response through all functions, the innermost middleware's first. If one panics,
    /// the outer functions remain for the answer to the panic.
    pub(crate) fn apply(&mut self, mut response: Response) -> Response {
        while let Some(change) = self.0.pop() {
            response = change(response);
        }
        response
    }
}
