//! The builder's routes: what is served at which path.

use throng_http::{Files, IntoResponse, Method, Reject, Request, Response, Status};
use throng_proto::ws::handshake;

use super::Server;
use crate::handler::Handler;
use crate::http::{BodyReader, Responder};
use crate::routes::{EventsRoute, HttpRoute, Routes, WsRoute};
use crate::service::{StreamHandler, Target};
use crate::workers::{BlockingHandler, Desk};

impl<R: Routes> Server<R> {
    /// Serves WebSockets at `path`, a pattern like `/chat/{room}` or `/files/{*rest}`. A request there that does
    /// not ask for an upgrade goes to the next route that matches, say to [`any`](Self::any) at the same path, and is
    /// answered with 426 where there is none.
    #[must_use]
    pub fn ws<H: Handler>(mut self, path: &str, handler: H) -> Server<(WsRoute<H>, R)> {
        let number = self.count;
        if let Some(name) = handler.subprotocols().iter().find(|name| !handshake::is_token(name)) {
            self.note(format!("subprotocol {name:?} is not a token (RFC 6455 section 4.1)"));
        }
        if let Some(rules) = handler.backpressure() {
            self.classes.add_route(number, path, rules);
        }
        self.route(Some(Method::Get), path, Target::Ws(number));
        self.starts_workers |= handler.uses_workers();
        let desk = Desk { route: path.into(), pool: self.pool.clone() };
        self.add(|routes| (WsRoute { number, handler, desk }, routes))
    }

    /// Streams a channel at `path` as server-sent events (WHATWG HTML section 9.2), the read-only fallback for clients that
    /// cannot have a WebSocket: what is published there comes as `data:` lines, binary messages as events of type
    /// `binary` in base64. `channel` tells which channel a request is for, or refuses it; with
    /// [`wildcards`](Self::wildcards) it may be a pattern. Origins are checked as for WebSockets, and pages of other hosts
    /// that are let in may read the stream (CORS). The rules for slow receivers are the same; a stream that is closed
    /// for being slow just ends, and browsers come back by themselves.
    ///
    /// ```
    /// # use throng::prelude::*;
    /// Server::new().events("/sse/{channel}", |request| {
    ///     Ok(request.param("channel").unwrap_or_default().to_owned())
    /// });
    /// ```
    #[must_use]
    pub fn events<F>(mut self, path: &str, channel: F) -> Server<(EventsRoute<F>, R)>
    where
        F: Fn(&Request<'_>) -> Result<String, Reject> + Send + Sync + 'static,
    {
        let number = self.count;
        self.route(Some(Method::Get), path, Target::Events(number));
        self.add(|routes| (EventsRoute { number, channel }, routes))
    }

    /// Answers GET (and HEAD) at `path` with what `handler` returns: text, bytes, a
    /// [`Response`](crate::Response), or a `Result` of them. A request's body, of any method, is read before
    /// the handler is called, up to [`Limits::http`](crate::Limits::http)'s `max_body`: [`Request::body`].
    #[must_use]
    pub fn get<F, T>(self, path: &str, handler: F) -> Server<(HttpRoute<F>, R)>
    where
        F: Fn(&Request<'_>) -> T + Send + Sync + 'static,
        T: IntoResponse,
    {
        self.http(Some(Method::Get), path, handler)
    }

    /// Answers POST at `path`; see [`Server::get`].
    #[must_use]
    pub fn post<F, T>(self, path: &str, handler: F) -> Server<(HttpRoute<F>, R)>
    where
        F: Fn(&Request<'_>) -> T + Send + Sync + 'static,
        T: IntoResponse,
    {
        self.http(Some(Method::Post), path, handler)
    }

    /// Answers PUT at `path`; see [`Server::get`].
    #[must_use]
    pub fn put<F, T>(self, path: &str, handler: F) -> Server<(HttpRoute<F>, R)>
    where
        F: Fn(&Request<'_>) -> T + Send + Sync + 'static,
        T: IntoResponse,
    {
        self.http(Some(Method::Put), path, handler)
    }

    /// Answers DELETE at `path`; see [`Server::get`].
    #[must_use]
    pub fn delete<F, T>(self, path: &str, handler: F) -> Server<(HttpRoute<F>, R)>
    where
        F: Fn(&Request<'_>) -> T + Send + Sync + 'static,
        T: IntoResponse,
    {
        self.http(Some(Method::Delete), path, handler)
    }

    /// Answers PATCH at `path`; see [`Server::get`].
    #[must_use]
    pub fn patch<F, T>(self, path: &str, handler: F) -> Server<(HttpRoute<F>, R)>
    where
        F: Fn(&Request<'_>) -> T + Send + Sync + 'static,
        T: IntoResponse,
    {
        self.http(Some(Method::Patch), path, handler)
    }

    /// Answers every method at `path` that has no route of its own; see [`Server::get`].
    #[must_use]
    pub fn any<F, T>(self, path: &str, handler: F) -> Server<(HttpRoute<F>, R)>
    where
        F: Fn(&Request<'_>) -> T + Send + Sync + 'static,
        T: IntoResponse,
    {
        self.http(None, path, handler)
    }

    fn http<F, T>(
        mut self,
        method: Option<Method>,
        path: &str,
        handler: F,
    ) -> Server<(HttpRoute<F>, R)>
    where
        F: Fn(&Request<'_>) -> T + Send + Sync + 'static,
        T: IntoResponse,
    {
        let number = self.count;
        self.route(method, path, Target::Http(number));
        self.add(|routes| (HttpRoute { number, handler }, routes))
    }

    /// Answers a request later, from any thread: `handler` gets a [`Responder`] and passes it on. The body is read before it is
    /// called, as for [`Server::get`]. The client's next request on this connection waits until then; everyone else is
    /// served.
    ///
    /// ```
    /// # use throng::prelude::*;
    /// # fn report(name: &str) -> String { name.to_owned() }
    /// Server::new().later(Method::Get, "/reports/{name}", |request, responder| {
    ///     let name = request.param("name").unwrap_or_default().to_owned();
    ///     std::thread::spawn(move || responder.send(report(&name)));
    /// });
    /// ```
    #[must_use]
    pub fn later(
        mut self,
        method: Method,
        path: &str,
        handler: impl Fn(&Request<'_>, Responder) + Send + Sync + 'static,
    ) -> Self {
        self.route(Some(method), path, Target::Later(self.later.len() as u16));
        self.later.push(Box::new(handler));
        self
    }

    /// Answers a request on the server's pool of workers, where `handler` may block. Like [`Server::get`] otherwise: the body is
    /// read before it is called, up to [`Limits::http`](crate::Limits::http)'s `max_body`, and a route for GET answers HEAD, too.
    /// The client's next request on this connection waits; everyone else is served.
    ///
    /// ```
    /// # use throng::prelude::*;
    /// # fn find(id: &str) -> Option<String> { Some(id.to_owned()) }
    /// Server::new().blocking(Method::Get, "/users/{id}", |request| {
    ///     find(request.param("id").unwrap_or_default()).ok_or(Reject::not_found())
    /// });
    /// ```
    #[must_use]
    pub fn blocking<T: IntoResponse>(
        mut self,
        method: Method,
        path: &str,
        handler: impl Fn(&Request<'_>) -> T + Send + Sync + 'static,
    ) -> Self {
        self.route(Some(method), path, Target::Blocking(self.blocking.len() as u16));
        self.starts_workers = true;
        let handler = Box::new(move |request: &Request<'_>| handler(request).into_response());
        self.blocking.push(BlockingHandler { path: path.into(), handler });
        self
    }

    /// Takes a request's body while it comes, up to `max_body` bytes (more are refused with 413), and answers later: both from a
    /// thread that may block. Neither the body nor the answer need fit in memory: see [`BodyReader`] and
    /// [`BodyWriter`](crate::BodyWriter).
    ///
    /// ```
    /// # use throng::prelude::*;
    /// Server::new().stream(Method::Put, "/files/{name}", 1 << 40, |_, mut body, responder| {
    ///     std::thread::spawn(move || match std::io::copy(&mut body, &mut std::io::sink()) {
    ///         Ok(bytes) => responder.send(format!("{bytes} bytes")),
    ///         Err(error) => eprintln!("an upload ended early: {error}"),
    ///     });
    /// });
    /// ```
    #[must_use]
    pub fn stream(
        mut self,
        method: Method,
        path: &str,
        max_body: u64,
        handler: impl Fn(&Request<'_>, BodyReader, Responder) + Send + Sync + 'static,
    ) -> Self {
        self.route(Some(method), path, Target::Stream(self.streams.len() as u16));
        self.streams.push(StreamHandler { max_body, handler: Box::new(handler) });
        self
    }

    /// Serves the files of a directory below `prefix`: `/assets` for `/assets/app.js`, `/` for all paths that have no route
    /// of their own. A path, or [`Files`] with its settings. That the directory is there is checked by [`Server::bind`], which
    /// also keeps a descriptor back from the connections for each file that [may be open](Files::max_open): all
    /// directories together at most a quarter of what the process may have, to which their bounds are lowered.
    ///
    /// ```
    /// # use throng::prelude::*;
    /// Server::new().dir("/", "public").dir("/docs", Files::new("manual").precompressed(true));
    /// ```
    #[must_use]
    pub fn dir(mut self, prefix: &str, files: impl Into<Files>) -> Server<impl Routes> {
        let files = files.into();
        if let Err(error) = files.check() {
            self.note(error.to_string());
        }
        self.files.push(files.clone());
        let prefix = prefix.trim_end_matches('/');
        if !prefix.is_empty() {
            self.route(Some(Method::Get), prefix, Target::Http(self.count));
        }
        // Relative, so that it holds behind a proxy that has a prefix of its own.
        let location = format!("./{}/", prefix.rsplit('/').next().unwrap_or_default());
        self.get(&format!("{prefix}/{{*rest}}"), move |request: &Request<'_>| {
            if request.raw_param("rest").is_some() {
                return Ok(files.respond(request));
            }
            Response::error(Status::new(301), "a directory ends with a slash")
                .header("Location", location.clone())
        })
    }

    /// Serves the server's figures at `path`, in the text format that Prometheus reads.
    #[must_use]
    pub fn metrics(mut self, path: &str) -> Self {
        self.route(Some(Method::Get), path, Target::Metrics);
        self
    }

    /// Serves the server's figures at `path` as JSON, summed over the shards.
    #[must_use]
    pub fn stats(mut self, path: &str) -> Self {
        self.route(Some(Method::Get), path, Target::Stats);
        self
    }

    /// Serves `/livez` (200 while the process answers) and `/readyz` (200 while it takes connections, 503 while it
    /// drains).
    #[must_use]
    pub fn health(mut self) -> Self {
        self.route(Some(Method::Get), "/livez", Target::Live);
        self.route(Some(Method::Get), "/readyz", Target::Ready);
        self
    }

    fn add<N>(self, extend: impl FnOnce(R) -> N) -> Server<N> {
        Server {
            routes: extend(self.routes),
            count: self.count + 1,
            router: self.router,
            limits: self.limits,
            classes: self.classes,
            wildcards: self.wildcards,
            compression: self.compression,
            origins: self.origins,
            later: self.later,
            streams: self.streams,
            files: self.files,
            blocking: self.blocking,
            pool: self.pool,
            workers: self.workers,
            starts_workers: self.starts_workers,
            shards: self.shards,
            io: self.io,
            thread_stack: self.thread_stack,
            backlog: self.backlog,
            share_port: self.share_port,
            stalls: self.stalls,
            pin: self.pin,
            more_addresses: self.more_addresses,
            mistake: self.mistake,
        }
    }

    fn route(&mut self, method: Option<Method>, path: &str, target: Target) {
        self.stalls.name(target.code(), path);
        let added = match (method, target) {
            // A handshake is a GET, and there is no answer of which a HEAD could have the head.
            (_, Target::Ws(_)) => self.router.add_get_only(path, target),
            (Some(method), _) => self.router.add(method, path, target),
            (None, _) => self.router.add_any(path, target),
        };
        if let Err(error) = added {
            self.note(format!("route {path:?}: {error}"));
        }
    }
}
