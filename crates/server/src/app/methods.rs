//! Handlers of HTTP requests at one path.

use std::fmt;
#[cfg(feature = "tokio")]
use std::sync::Arc;

use throng_engine::SettingError;
use throng_http::{IntoResponse, Method, Request};
#[cfg(feature = "tokio")]
use tokio::runtime::Handle;

use super::route::RouteAction;
#[cfg(feature = "tokio")]
use crate::exchanges::OwnedRequest;
#[cfg(feature = "tokio")]
use crate::exchanges::futures::answer;
use crate::exchanges::{BodyReader, Responder};

/// Handlers by method, for one path: the argument of [`App::route`](crate::App::route).
///
/// It begins with a function such as [`get`], with [`Route::on`] for any method, or with
/// [`Route::deferred`] or [`Route::streaming`] for answers that come later; with the feature
/// `tokio` also with one such as `get_async`, for handlers that are futures. The methods of the
/// same names add handlers. [`blocking`](Self::blocking) and [`max_body`](Self::max_body) apply to
/// all of them.
///
/// ```
/// # use throng::prelude::*;
/// use throng::http::get;
///
/// # fn find(id: &str) -> Option<String> { Some(id.to_owned()) }
/// # fn change(id: &str, to: &[u8]) -> Status { Status::NO_CONTENT }
/// // Both may block, as where they ask a database.
/// let user = get(|request| find(request.param("id").unwrap_or("")).ok_or(Reject::not_found()))
///     .put(|request| change(request.param("id").unwrap_or(""), request.body()))
///     .blocking();
/// let app = App::new().route("/users/{id}", user);
/// # Server::new(app).check().unwrap();
/// ```
#[derive(Default)]
#[must_use]
pub struct Route {
    /// Handlers by method; `None` is for every method without its own handler.
    pub(super) handlers: Vec<(Option<Method>, RouteAction)>,
    pub(super) max_body: Option<u64>,
    pub(super) mistake: Option<SettingError>,
}

impl Route {
    /// One handler.
    pub(crate) fn of(method: Option<Method>, action: RouteAction) -> Self {
        Self::default().and(method, action)
    }

    fn and(mut self, method: Option<Method>, action: RouteAction) -> Self {
        self.handlers.push((method, action));
        self
    }

    fn http<F, T>(self, method: Option<Method>, handler: F) -> Self
    where
        F: Fn(&Request<'_>) -> T + Send + Sync + 'static,
        T: IntoResponse,
    {
        let handler = move |request: &Request<'_>| handler(request).into_response();
        self.and(method, RouteAction::Http(Box::new(handler)))
    }

    /// Answers `method` with the return value of `handler`: for methods without a function here.
    pub fn on<F, T>(method: Method, handler: F) -> Self
    where
        F: Fn(&Request<'_>) -> T + Send + Sync + 'static,
        T: IntoResponse,
    {
        Self::default().http(Some(method), handler)
    }

    /// Answers a request later, from any thread: `handler` gets a [`Responder`] and passes it on.
    /// The body is read before the handler is called. The client's next request on this connection
    /// waits for the response; other connections are served.
    ///
    /// ```
    /// # use throng::prelude::*;
    /// # fn report(name: &str) -> String { name.to_owned() }
    /// let report = Route::deferred(Method::Get, |request, responder| {
    ///     let name = request.param("name").unwrap_or_default().to_owned();
    ///     std::thread::spawn(move || responder.send(report(&name)));
    /// });
    /// let app = App::new().route("/reports/{name}", report);
    /// ```
    pub fn deferred<F>(method: Method, handler: F) -> Self
    where
        F: Fn(&Request<'_>, Responder) + Send + Sync + 'static,
    {
        Self::of(Some(method), RouteAction::Deferred(Box::new(handler)))
    }

    /// Answers `method` with the output of a future on a tokio runtime: for methods without their
    /// own function, such as [`get_async`](crate::http::get_async).
    ///
    /// The request's body is read before `handler` is called, up to [`max_body`](Self::max_body):
    /// [`OwnedRequest::body`]. The client's next request on this connection waits for the response;
    /// other connections are served. A panic is answered with 500 and counted.
    ///
    /// When the client closes the connection, or its side of it, the future is dropped at its next
    /// `await`; where the client's next request waits already, within about a second, and on Linux
    /// only. A response may be a stream ([`Response::events`](crate::Response::events),
    /// [`Response::with_body_stream`](crate::Response::with_body_stream)): it is polled on the
    /// connection's shard, where it can use the timers and sockets of `runtime`.
    ///
    /// ```no_run
    /// use futures_util::{StreamExt, stream};
    /// use throng::http::get_async;
    /// use throng::prelude::*;
    ///
    /// # async fn find(id: &str) -> Option<String> { Some(id.to_owned()) }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    /// let user = get_async(runtime.handle().clone(), |request| async move {
    ///     let id = request.param("id").ok_or(Reject::not_found())?;
    ///     find(&id).await.ok_or(Reject::not_found())
    /// });
    /// // Server-sent events for one request.
    /// let answer = get_async(runtime.handle().clone(), |_| async {
    ///     Response::events(stream::iter(["The", "answer", "is", "42"]).map(Frame::text))
    /// });
    /// let app = App::new().route("/users/{id}", user).route("/answer", answer);
    /// Server::new(app).bind("127.0.0.1:9001")?.run()?;
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "tokio")]
    pub fn on_async<F, Fut>(runtime: Handle, method: Method, handler: F) -> Self
    where
        F: Fn(OwnedRequest) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: IntoResponse> + Send + 'static,
    {
        Self::default().http_async(runtime, Some(method), handler)
    }

    #[cfg(feature = "tokio")]
    fn http_async<F, Fut>(self, runtime: Handle, method: Option<Method>, handler: F) -> Self
    where
        F: Fn(OwnedRequest) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: IntoResponse> + Send + 'static,
    {
        let handler = Arc::new(handler);
        let start = move |request, responder| {
            let handler = Arc::clone(&handler);
            drop(runtime.spawn(answer(move || handler(request), responder)));
        };
        self.and(method, RouteAction::Async(Box::new(start)))
    }

    /// Takes a request's body while it is received, up to [`max_body`](Self::max_body), and answers
    /// later: both from a thread that may block. Neither the body nor the response needs to fit in
    /// memory: see [`BodyReader`] and [`BodyWriter`](crate::http::BodyWriter).
    ///
    /// ```
    /// # use throng::prelude::*;
    /// let upload = Route::streaming(Method::Put, |_, mut body, responder| {
    ///     std::thread::spawn(move || match std::io::copy(&mut body, &mut std::io::sink()) {
    ///         Ok(bytes) => responder.send(format!("{bytes} bytes")),
    ///         Err(error) => eprintln!("an upload ended early: {error}"),
    ///     });
    /// });
    /// let app = App::new().route("/files/{name}", upload.max_body(1 << 40));
    /// ```
    pub fn streaming<F>(method: Method, handler: F) -> Self
    where
        F: Fn(&Request<'_>, BodyReader, Responder) + Send + Sync + 'static,
    {
        Self::of(Some(method), RouteAction::Streaming(Box::new(handler)))
    }

    /// Calls the handlers on the server's pool of workers, where they may block. The client's next
    /// request on this connection waits; other connections are served.
    ///
    /// Handlers that answer later choose their own thread: if the route has such a handler,
    /// [`Server::bind`](crate::Server::bind) fails.
    pub fn blocking(mut self) -> Self {
        for (_, action) in &mut self.handlers {
            match std::mem::replace(action, RouteAction::Live) {
                RouteAction::Http(handler) => *action = RouteAction::Blocking(handler),
                other => {
                    if !matches!(other, RouteAction::Blocking(_)) {
                        let text = "Route::blocking is for handlers that return their response; \
                                    move the work of the others to a thread";
                        self.mistake.get_or_insert(SettingError::new("blocking", text));
                    }
                    *action = other;
                }
            }
        }
        self
    }

    /// Limits the bodies of requests, in bytes; a larger body is refused with 413. Default: the
    /// limit of [`App::max_body`](crate::App::max_body), else the server's
    /// [`Limits::max_body`](crate::Limits::max_body).
    pub fn max_body(mut self, bytes: u64) -> Self {
        self.max_body = Some(bytes);
        self
    }
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let methods: Vec<_> = self.handlers.iter().map(|(method, _)| method).collect();
        f.debug_struct("Route").field("methods", &methods).finish_non_exhaustive()
    }
}

macro_rules! methods {
    ($($name:ident $name_async:ident $method:expr, $what:literal;)+) => {
        $(
            #[doc = concat!("A [`Route`] that answers ", $what, " with the output of a future on \
                a tokio runtime, which [`IntoResponse`] converts.")]
            ///
            /// See [`Route::on_async`], which is the same function for any method.
            #[cfg(feature = "tokio")]
            pub fn $name_async<F, Fut>(runtime: Handle, handler: F) -> Route
            where
                F: Fn(OwnedRequest) -> Fut + Send + Sync + 'static,
                Fut: Future<Output: IntoResponse> + Send + 'static,
            {
                Route::default().http_async(runtime, $method, handler)
            }

            #[doc = concat!("A [`Route`] that answers ", $what, " with the return value \
                of `handler`: text, bytes, a status, a [`Response`](crate::Response), or a \
                `Result` of them.")]
            ///
            /// The request's body, of any method, is read before the handler is called, up to
            /// [`Route::max_body`]: [`Request::body`](crate::Request::body).
            pub fn $name<F, T>(handler: F) -> Route
            where
                F: Fn(&Request<'_>) -> T + Send + Sync + 'static,
                T: IntoResponse,
            {
                Route::default().http($method, handler)
            }
        )+

        impl Route {
            $(
                #[doc = concat!("Also answers ", $what, ": see [`", stringify!($name), "`].")]
                pub fn $name<F, T>(self, handler: F) -> Self
                where
                    F: Fn(&Request<'_>) -> T + Send + Sync + 'static,
                    T: IntoResponse,
                {
                    self.http($method, handler)
                }

                #[doc = concat!("Also answers ", $what, ": see [`", stringify!($name_async), "`].")]
                #[cfg(feature = "tokio")]
                pub fn $name_async<F, Fut>(self, runtime: Handle, handler: F) -> Self
                where
                    F: Fn(OwnedRequest) -> Fut + Send + Sync + 'static,
                    Fut: Future<Output: IntoResponse> + Send + 'static,
                {
                    self.http_async(runtime, $method, handler)
                }
            )+
        }

        impl super::App {
            $(
                #[doc = concat!("Answers ", $what, " at `path` with the return value of `handler`: \
                    text, bytes, a status, a [`Response`](crate::Response), or a `Result` of them. \
                    See [`", stringify!($name), "`](crate", "::http::", stringify!($name), ").")]
                pub fn $name<F, T>(self, path: &str, handler: F) -> Self
                where
                    F: Fn(&Request<'_>) -> T + Send + Sync + 'static,
                    T: IntoResponse,
                {
                    self.route(path, $name(handler))
                }
            )+
        }

        impl<S: Send + Sync + 'static> super::StateApp<S> {
            $(
                #[doc = concat!("Answers ", $what, " at `path`, as [`App::", stringify!($name),
                    "`](crate::App::", stringify!($name), ") does, with the state.")]
                pub fn $name<F, T>(self, path: &str, handler: F) -> Self
                where
                    F: Fn(&Request<'_>, &S) -> T + Send + Sync + 'static,
                    T: IntoResponse,
                {
                    self.route(path, |state| {
                        $name(move |request: &Request<'_>| handler(request, &state))
                    })
                }
            )+
        }
    };
}

methods! {
    get get_async Some(Method::Get), "GET and HEAD";
    post post_async Some(Method::Post), "POST";
    put put_async Some(Method::Put), "PUT";
    delete delete_async Some(Method::Delete), "DELETE";
    patch patch_async Some(Method::Patch), "PATCH";
    any any_async None, "every method that has no handler of its own";
}
