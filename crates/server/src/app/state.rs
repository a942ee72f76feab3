//! Routes whose handlers share a state.

use std::fmt;
use std::sync::Arc;

use super::{App, Route};
use crate::middleware::Middleware;
use crate::ws::IntoWs;

/// An [`App`] whose handlers get a reference to a shared state. Created by [`App::with_state`].
///
/// All shards share the state, so changing it needs a lock or an atomic. An app with state converts
/// into an [`App`]: [`Server::new`](crate::Server::new), [`App::nest`] and [`App::merge`] take it
/// as it is.
///
/// ```
/// # use std::collections::BTreeMap;
/// # use std::sync::Mutex;
/// # use throng::prelude::*;
/// type Scores = Mutex<BTreeMap<String, u64>>;
///
/// fn scores() -> StateApp<Scores> {
///     App::with_state(Scores::default())
///         .get("/{name}", |request, scores| {
///             let scores = scores.lock().unwrap();
///             let score = scores.get(request.param("name").unwrap_or(""));
///             score.map(u64::to_string).ok_or(Reject::not_found())
///         })
///         .post("/{name}", |request, scores| {
///             let name = request.param("name").unwrap_or("").to_owned();
///             *scores.lock().unwrap().entry(name).or_default() += 1;
///             Status::NO_CONTENT
///         })
/// }
/// # Server::new(App::new().nest("/scores", scores())).check().unwrap();
/// ```
#[must_use]
pub struct StateApp<S> {
    app: App,
    state: Arc<S>,
}

impl App {
    /// Creates an app without routes, whose handlers share `state`.
    pub fn with_state<S: Send + Sync + 'static>(state: S) -> StateApp<S> {
        StateApp { app: Self::new(), state: Arc::new(state) }
    }
}

impl<S: Send + Sync + 'static> StateApp<S> {
    /// Adds the handlers that `make` returns at `path`, as [`App::route`] does. `make` gets the
    /// state, which its closures can keep.
    pub fn route(self, path: &str, make: impl FnOnce(Arc<S>) -> Route) -> Self {
        let route = make(Arc::clone(&self.state));
        Self { app: self.app.route(path, route), ..self }
    }

    /// Serves the WebSockets that `make` returns at `path`, as [`App::ws`] does. `make` gets the
    /// state, which its closures can keep.
    pub fn ws<W: IntoWs>(self, path: &str, make: impl FnOnce(Arc<S>) -> W) -> Self {
        let ws = make(Arc::clone(&self.state));
        Self { app: self.app.ws(path, ws), ..self }
    }

    /// Adds the routes of another app, as [`App::merge`] does.
    pub fn merge(self, other: impl Into<App>) -> Self {
        Self { app: self.app.merge(other), ..self }
    }

    /// Adds the routes of another app below `prefix`, as [`App::nest`] does.
    pub fn nest(self, prefix: &str, other: impl Into<App>) -> Self {
        Self { app: self.app.nest(prefix, other), ..self }
    }

    /// Runs `middleware` before the handlers of all routes added so far, as [`App::layer`] does.
    pub fn layer(self, middleware: impl Middleware) -> Self {
        Self { app: self.app.layer(middleware), ..self }
    }
}

/// Its routes, which keep the state.
impl<S> From<StateApp<S>> for App {
    fn from(app: StateApp<S>) -> Self {
        app.app
    }
}

impl<S> fmt::Debug for StateApp<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StateApp").field(&self.app).finish()
    }
}
