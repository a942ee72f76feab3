//! Handlers of HTTP requests at one path.

use std::fmt;

use throng_engine::SettingError;
use throng_http::{IntoResponse, Method, Request};

use super::route::RouteAction;
use crate::exchanges::{BodyReader, Responder};

/// Handlers by method, for one path: the argument of [`App::route`](crate::App::route).
///
/// It begins with a function such as [`get`], with [`Route::on`] for any method, or with
/// [`Route::deferred`] or [`Route::streaming`] for answers that come later; the methods of the same
/// names add handlers. [`blocking`](Self::blocking) and [`max_body`](Self::max_body) apply to all
/// of them.
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
    /// By method; `None` for every method that has no handler of its own.
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

    /// Answers `method` with the return value of `handler`. For methods without a function here.
    pub fn on<F, T>(method: Method, handler: F) -> Self
    where
        F: Fn(&Request<'_>) -> T + Send + Sync + 'static,
        T: IntoResponse,
    {
        Self::default().http(Some(method), handler)
    }

    /// Answers a request later, from any thread: `handler` gets a [`Responder`] and passes it on.
    /// The body is read before it is called. The client's next request on this connection waits
    /// until then; other connections are served.
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

    /// Takes a request's body while it comes, up to [`max_body`](Self::max_body), and answers
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
    /// Handlers that answer later choose their own thread: if the route has one,
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

    /// Limits the bodies of requests, in bytes; a larger one is refused with 413. Default: the
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
    ($($name:ident $method:expr, $what:literal;)+) => {
        $(
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
    get Some(Method::Get), "GET and HEAD";
    post Some(Method::Post), "POST";
    put Some(Method::Put), "PUT";
    delete Some(Method::Delete), "DELETE";
    patch Some(Method::Patch), "PATCH";
    any None, "every method that has no handler of its own";
}
