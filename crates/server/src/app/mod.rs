//! Routes of a server as data, which can be merged, nested and added under conditions.
//!
//! Start reading at [`App`]; a single route is in `route.rs`, handlers by method are in
//! `methods.rs`, and middleware is in `middleware.rs`.

mod basic_auth;
mod cors;
mod methods;
mod request_id;
mod route;
mod state;

use std::fmt;
use std::sync::Arc;

use throng_engine::SettingError;
#[cfg(feature = "files")]
use throng_http::{Files, Status};
use throng_http::{IntoResponse, Method, Reject, Request, Response, RouteError, Router};
use throng_proto::ws::handshake;

pub use basic_auth::{BasicAuth, BasicUser};
pub use cors::Cors;
pub use methods::{Route, any, delete, get, patch, post, put};
#[cfg(feature = "tokio")]
pub use methods::{any_async, delete_async, get_async, patch_async, post_async, put_async};
pub use request_id::{RequestId, RequestIds};
#[cfg(feature = "metrics")]
pub(crate) use route::MetricsFn;
pub(crate) use route::{AppRoute, ChannelFn, RouteAction, StreamingFn};
pub use state::StateApp;

use crate::middleware::Middleware;
use crate::topic::EventStream;
use crate::ws::IntoWs;

/// Makes the bodies of refusals.
pub(crate) type RefusalForm = dyn Fn(&Reject) -> Response + Send + Sync;

/// The routes of a server.
///
/// Routes are data: they can be added in a loop or under a condition, returned by functions,
/// [merged](App::merge) and [nested](App::nest). Their order does not matter: where several
/// patterns match a path, a literal segment wins over `{name}`, and `{name}` over `{*rest}`.
///
/// ```
/// use throng::prelude::*;
///
/// fn admin() -> App {
///     App::new().get("/version", |_| "1.0").health()
/// }
///
/// # fn main() -> throng::Result<()> {
/// let mut app = App::new().ws("/echo", Ws::new().on_message(|ws, (), message| ws.send(message)));
/// for name in ["alice", "bob"] {
///     app = app.get(&format!("/hello/{name}"), move |_| format!("hello {name}"));
/// }
/// if std::env::var_os("WITH_ADMIN").is_some() {
///     app = app.nest("/admin", admin());
/// }
/// Server::new(app).check()
/// # }
/// ```
///
/// Mistakes, such as two routes at the same path, are reported by
/// [`Server::check`](crate::Server::check) and [`Server::bind`](crate::Server::bind).
#[derive(Default)]
#[must_use]
pub struct App {
    pub(crate) routes: Vec<AppRoute>,
    /// Handler of requests that no route answers.
    pub(crate) layers: Vec<Arc<dyn Middleware>>,
    pub(crate) refusals: Option<Box<RefusalForm>>,
    /// Directories of each [`dir`](Self::dir): their open files count against the connections.
    #[cfg(feature = "files")]
    pub(crate) files: Vec<Files>,
    pub(crate) mistake: Option<SettingError>,
}

impl App {
    /// An app without routes: every request is answered with 404.
    pub fn new() -> Self {
        Self::default()
    }

    /// Serves WebSockets at `path`, a pattern like `/chat/{room}` or `/files/{*rest}`: a
    /// [`Ws`](crate::Ws) or a [`Handler`](crate::Handler). A request there that does not ask for an
    /// upgrade goes to the HTTP route that matches, which may be at the same path, and is answered
    /// with 426 where there is none.
    pub fn ws(mut self, path: &str, handler: impl IntoWs) -> Self {
        let route = handler.into_ws().into_route();
        let names = &route.options.subprotocols;
        if let Some(name) = names.iter().find(|name| !handshake::is_token(name)) {
            let message = format!("subprotocol {name:?} is not a token (RFC 6455 section 4.1)");
            self.note(SettingError::new("subprotocols", message));
        }
        if let Err(error) = route.options.limits.check() {
            self.note(SettingError::new(error.setting().to_owned(), format!("{path}: {error}")));
        }
        if let Some(mistake) = &route.options.mistake {
            self.note(mistake.clone());
        }
        self.add(Some(Method::Get), path, RouteAction::Ws(Box::new(route)))
    }

    /// Streams a channel at `path` as server-sent events ([WHATWG HTML section
    /// 9.2](https://html.spec.whatwg.org/multipage/server-sent-events.html)), the read-only
    /// fallback for clients that cannot use a WebSocket. Publications come as `data:` lines, binary
    /// messages as events of type `binary` in base64; [`Frame::event_id`](crate::Frame::event_id)
    /// and [`Frame::event_name`](crate::Frame::event_name) give events an id and a type. `channel`
    /// returns the channel for a request, or refuses it; it returns a [`Topic`](crate::http::Topic)
    /// for a pattern, and an [`EventStream`] for a stream that begins with its own messages.
    /// Origins are checked as for WebSockets, and allowed pages of other hosts may read the stream
    /// (CORS). The rules for slow receivers apply; a stream that is closed because it is slow ends
    /// without an event, and browsers reconnect by themselves.
    ///
    /// ```
    /// # use throng::prelude::*;
    /// App::new().sse("/sse/{channel}", |request| {
    ///     Ok(request.param("channel").unwrap_or_default().to_owned())
    /// });
    /// ```
    pub fn sse<F, T>(self, path: &str, channel: F) -> Self
    where
        F: Fn(&Request<'_>) -> Result<T, Reject> + Send + Sync + 'static,
        T: Into<EventStream>,
    {
        let stream = move |request: &Request<'_>| channel(request).map(Into::into);
        self.add(Some(Method::Get), path, RouteAction::Sse(Box::new(stream)))
    }

    /// Adds the handlers of a [`Route`] at `path`, each for its method. Handlers for other methods
    /// may be added at the same path later.
    ///
    /// ```
    /// # use throng::prelude::*;
    /// use throng::http::get;
    ///
    /// # fn list() -> String { String::new() }
    /// # fn add(user: &[u8]) -> Status { Status::CREATED }
    /// let users = get(|_| list()).post(|request| add(request.body())).max_body(4096);
    /// let app = App::new().route("/users", users);
    /// # Server::new(app).check().unwrap();
    /// ```
    pub fn route(mut self, path: &str, route: Route) -> Self {
        if let Some(mistake) = route.mistake {
            let text = format!("{path}: {mistake}");
            self.note(SettingError::new(mistake.setting().to_owned(), text));
        }
        for (method, action) in route.handlers {
            self = self.add(method, path, action);
            if let Some(added) = self.routes.last_mut() {
                added.max_body = route.max_body;
            }
        }
        self
    }

    /// Serves the files of a directory below `prefix`: `/assets` for `/assets/app.js`, `/` for all
    /// paths without a route. `files` is a path, or [`Files`] with its settings.
    /// [`Server::bind`](crate::Server::bind) checks that the directory exists, and reserves a
    /// descriptor for each file that [may be open](Files::max_open). All directories together
    /// reserve at most a quarter of the process's descriptors; their bounds are lowered to fit.
    ///
    /// ```
    /// # use throng::http::Files;
    /// # use throng::prelude::*;
    /// App::new().dir("/", "public").dir("/docs", Files::new("manual").precompressed(true));
    /// ```
    #[cfg(feature = "files")]
    pub fn dir(mut self, prefix: &str, files: impl Into<Files>) -> Self {
        let files = files.into();
        if let Err(error) = files.check() {
            let problem = SettingError::new("dir", error.to_string());
            self.note(problem.passing_if(throng_io::may_pass(&error)));
        }
        self.files.push(files.clone());
        let prefix = prefix.trim_end_matches('/');
        // The location is relative, so that it also works behind a proxy that adds a prefix.
        let location = format!("./{}/", prefix.rsplit('/').next().unwrap_or_default());
        let path = format!("{prefix}/{{*rest}}");
        let served = self.add(Some(Method::Get), &path, RouteAction::Files(Box::new(files)));
        if prefix.is_empty() {
            return served;
        }
        served.get(prefix, move |_| {
            Response::error(Status::new(301), "a directory ends with a slash")
                .header("Location", location.clone())
        })
    }

    /// Serves the server's metrics at `path`, in the text format that Prometheus reads.
    /// [`metrics::route`](crate::metrics::route) adds metrics of the program, and
    /// [`metrics::stats`](crate::metrics::stats) serves the server's metrics as JSON.
    #[cfg(feature = "metrics")]
    pub fn metrics(self, path: &str) -> Self {
        self.add(Some(Method::Get), path, RouteAction::Metrics(Box::new(|_| {})))
    }

    /// Serves `/livez` (200 while the process answers) and `/readyz` (200 while it accepts
    /// connections, 503 while it drains).
    pub fn health(self) -> Self {
        self.livez().add(Some(Method::Get), "/readyz", RouteAction::Ready)
    }

    /// Serves `/livez` alone: 200 while the process answers, even if the server is at its limit of
    /// connections. For an app with its own `/readyz`, such as an app for operators.
    pub fn livez(self) -> Self {
        self.add(Some(Method::Get), "/livez", RouteAction::Live)
    }

    /// Adds the routes of another app.
    pub fn merge(mut self, other: impl Into<App>) -> Self {
        let other = other.into();
        self.routes.extend(other.routes);
        #[cfg(feature = "files")]
        self.files.extend(other.files);
        if let Some(mistake) = other.mistake {
            self.note(mistake);
        }
        if other.refusals.is_some() {
            let message = "the form of refusals is that of the app which is given to Server::new: \
                           call App::refusals there";
            self.note(SettingError::new("refusals", message));
        }
        self
    }

    /// Adds the routes of another app below `prefix`: its `/users` is at `/api/users` where the
    /// prefix is `/api`, and its `/` at `/api`. A prefix may have parameters, such as `/{tenant}`.
    pub fn nest(mut self, prefix: &str, other: impl Into<App>) -> Self {
        let mut other = other.into();
        let prefix = prefix.trim_end_matches('/');
        if !prefix.is_empty() && !prefix.starts_with('/') {
            let message = format!("prefix {prefix:?} does not start with a slash");
            self.note(SettingError::new("nest", message));
        }
        for route in &mut other.routes {
            route.path = match route.path.as_str() {
                "/" if !prefix.is_empty() => prefix.to_owned(),
                path => format!("{prefix}{path}"),
            };
        }
        self.merge(other)
    }

    /// Runs `middleware` before the handlers of all routes added so far, and around the middleware
    /// they have. In the app given to [`Server::new`](crate::Server::new), it also sees requests
    /// that no route answers. A CORS preflight request passes through the middleware of the route
    /// that it asks about.
    pub fn layer(mut self, middleware: impl Middleware) -> Self {
        if let Some(mistake) = middleware.mistake() {
            self.note(mistake);
        }
        let middleware: Arc<dyn Middleware> = Arc::new(middleware);
        for route in &mut self.routes {
            route.layers.insert(0, Arc::clone(&middleware));
        }
        self.layers.insert(0, middleware);
        self
    }

    /// Sets the form of all refusals, in one place: `form` gets the status and the reason of each
    /// error that is answered with a page of text, and returns another body. The status and the
    /// headers of the refusal, such as `Allow` and `Retry-After`, stay; headers of the new response
    /// are added. Default: text, such as `404 Not Found: no such room`.
    ///
    /// These are the server's own errors, such as 400 to bytes that are not a request, 404, 405,
    /// 408, 413, 503, and 500 when a handler panics, and those that handlers and middleware return
    /// as a [`Reject`], a [`Status`](crate::http::Status), a `None` or by
    /// [`Response::error`](crate::Response::error). Error responses with a body of their own stay
    /// as they are. Middleware sees the new response. `form` is called on the connection's shard;
    /// if it panics, the client gets the text of a 500.
    ///
    /// It belongs to the app that is given to [`Server::new`](crate::Server::new). A form of an app
    /// that is merged or nested is a mistake, which [`Server::bind`](crate::Server::bind) reports.
    ///
    /// ```
    /// use throng::prelude::*;
    ///
    /// let app = App::new()
    ///     .get("/", |_| "hello")
    ///     .refusals(|refused| Response::json(format!(r#"{{"status":{}}}"#, refused.code())));
    /// # Server::new(app).check().unwrap();
    /// ```
    pub fn refusals<F, T>(mut self, form: F) -> Self
    where
        F: Fn(&Reject) -> T + Send + Sync + 'static,
        T: IntoResponse,
    {
        self.refusals = Some(Box::new(move |refused| form(refused).into_response()));
        self
    }

    /// Limits the bodies of requests to all routes added so far that have no limit of their own, in
    /// bytes; a larger one is refused with 413. Default: the server's `max_body`, see
    /// [`Limits::http`](crate::Limits::http).
    pub fn max_body(mut self, bytes: u64) -> Self {
        for route in &mut self.routes {
            route.max_body.get_or_insert(bytes);
        }
        self
    }

    /// Compresses the responses of all routes added so far that have no settings of their own, for
    /// clients that accept gzip.
    #[cfg(feature = "gzip")]
    pub fn gzip(mut self, gzip: crate::gzip::Gzip) -> Self {
        if !(1..=9).contains(&gzip.level) {
            let message = format!("level of gzip is {}; give 1 to 9", gzip.level);
            self.note(SettingError::new("gzip", message));
        }
        for route in &mut self.routes {
            route.gzip.get_or_insert_with(|| gzip.clone());
        }
        self
    }

    pub(crate) fn add(mut self, method: Option<Method>, path: &str, action: RouteAction) -> Self {
        self.routes.push(AppRoute::new(method, path, action));
        self
    }

    /// Keeps the first mistake, so that building reads as one chain.
    fn note(&mut self, mistake: SettingError) {
        self.mistake.get_or_insert(mistake);
    }

    /// The routes by path; a route's value is its index in [`App::routes`].
    ///
    /// # Errors
    /// The first mistake, naming the route.
    pub(crate) fn router(&self) -> Result<Router<u16>, SettingError> {
        if let Some(mistake) = &self.mistake {
            return Err(mistake.clone());
        }
        let wrong = |message: String| SettingError::new("route", message);
        let mut router = Router::new();
        for (index, route) in self.routes.iter().enumerate() {
            let index = u16::try_from(index)
                .map_err(|_| wrong(format!("an app has at most {} routes", u16::MAX)))?;
            insert(&mut router, route, index).map_err(|error| wrong(error.to_string()))?;
        }
        Ok(router)
    }

    /// Whether a route always uses workers.
    pub(crate) fn uses_workers(&self) -> bool {
        self.routes.iter().any(|route| match &route.action {
            RouteAction::Blocking(_) => true,
            RouteAction::Ws(ws) => ws.options.uses_workers,
            _ => false,
        })
    }
}

fn insert(router: &mut Router<u16>, route: &AppRoute, index: u16) -> Result<(), RouteError> {
    match route.method {
        // A handshake is a GET; the server has no matching answer to a HEAD.
        _ if route.is_ws() => router.add_get_only(&route.path, index),
        Some(method) => router.add(method, &route.path, index),
        None => router.add_any(&route.path, index),
    }
}

impl fmt::Debug for App {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let routes: Vec<_> = self.routes.iter().map(|route| &route.path).collect();
        f.debug_struct("App").field("routes", &routes).finish_non_exhaustive()
    }
}
