//! Cross-origin requests.

use std::time::Duration;

use throng_http::{IntoResponse, Method, Request, Response, Status};

use crate::middleware::{Middleware, Next};

/// Middleware that lets pages of other origins use an app's HTTP routes
/// ([CORS](https://fetch.spec.whatwg.org/#http-cors-protocol)): it answers preflight requests, and
/// adds the headers that browsers require to all responses, including errors.
///
/// A preflight request passes through the layers of the route that it asks about, so each nested or
/// merged app can have its own. Add this layer to the whole app if pages must also read errors
/// without a route. A layer that refuses requests without credentials belongs inside this layer,
/// that is, before it: preflight requests have no credentials.
///
/// WebSockets are not subject to CORS: [`Server::origins`](crate::Server::origins) decides on
/// those.
///
/// ```
/// use throng::http::Cors;
/// use throng::prelude::*;
///
/// let app = App::new()
///     .get("/api/price", |_| "1.17")
///     .layer(Cors::new(["https://app.example", "http://localhost:5173"]).credentials(true));
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Cors {
    /// `None`: any origin.
    origins: Option<Vec<String>>,
    methods: String,
    /// The allowed headers; `None` allows the headers that the page asks for.
    headers: Option<String>,
    exposed: String,
    credentials: bool,
    max_age: Duration,
}

impl Cors {
    /// Allows pages of these origins, written as browsers do: `https://app.example`, with a port if
    /// it is not the scheme's.
    pub fn new<O: Into<String>>(origins: impl IntoIterator<Item = O>) -> Self {
        Self::of(Some(origins.into_iter().map(Into::into).collect()))
    }

    /// Allows pages of any origin, without cookies.
    pub fn any() -> Self {
        Self::of(None)
    }

    fn of(origins: Option<Vec<String>>) -> Self {
        Self {
            origins,
            methods: "GET, HEAD, POST, PUT, PATCH, DELETE".to_owned(),
            headers: None,
            exposed: String::new(),
            credentials: false,
            max_age: Duration::from_secs(600),
        }
    }

    /// Sets the methods that pages may use. Default: GET, HEAD, POST, PUT, PATCH and DELETE.
    pub fn methods(mut self, methods: impl IntoIterator<Item = Method>) -> Self {
        let names: Vec<&str> = methods.into_iter().map(Method::as_str).collect();
        self.methods = names.join(", ");
        self
    }

    /// Sets the request headers that pages may set. Default: all that they ask for.
    pub fn headers<'h>(mut self, names: impl IntoIterator<Item = &'h str>) -> Self {
        self.headers = Some(names.into_iter().collect::<Vec<_>>().join(", "));
        self
    }

    /// Sets the response headers that pages may read, besides the usual ones. Default: none.
    pub fn expose<'h>(mut self, names: impl IntoIterator<Item = &'h str>) -> Self {
        self.exposed = names.into_iter().collect::<Vec<_>>().join(", ");
        self
    }

    /// Sets whether requests may carry cookies. Default: false. It has no effect with
    /// [`Cors::any`]: browsers refuse it there.
    pub fn credentials(mut self, allowed: bool) -> Self {
        self.credentials = allowed;
        self
    }

    /// Sets how long browsers may keep the answer to a preflight request. Default: ten minutes.
    pub fn max_age(mut self, age: Duration) -> Self {
        self.max_age = age;
        self
    }

    /// Returns the value of `Access-Control-Allow-Origin` for a page.
    fn allowed(&self, origin: &str) -> Option<String> {
        match &self.origins {
            None => Some("*".to_owned()),
            Some(origins) => origins.iter().find(|known| *known == origin).cloned(),
        }
    }

    fn has_credentials(&self) -> bool {
        self.credentials && self.origins.is_some()
    }

    fn preflight(&self, request: &Request<'_>, origin: Option<String>) -> Response {
        let vary = "Origin, Access-Control-Request-Method, Access-Control-Request-Headers";
        let mut fields = vec![("Vary", vary.to_owned())];
        if let Some(origin) = origin {
            fields.push(("Access-Control-Allow-Origin", origin));
            fields.push(("Access-Control-Allow-Methods", self.methods.clone()));
            let asked = request.header("access-control-request-headers").map(str::to_owned);
            if let Some(headers) = self.headers.clone().or(asked) {
                fields.push(("Access-Control-Allow-Headers", headers));
            }
            if self.has_credentials() {
                fields.push(("Access-Control-Allow-Credentials", "true".to_owned()));
            }
            fields.push(("Access-Control-Max-Age", self.max_age.as_secs().to_string()));
        }
        with_fields(Response::new(Status::NO_CONTENT), fields)
    }
}

/// Appends fields; an invalid field makes the response a 500.
fn with_fields(response: Response, fields: Vec<(&'static str, String)>) -> Response {
    let appended = fields
        .into_iter()
        .try_fold(response, |response, (name, value)| response.header(name, value));
    appended.into_response()
}

impl Middleware for Cors {
    fn call(&self, request: &mut Request<'_>) -> Next {
        let origin = request.header("origin").and_then(|origin| self.allowed(origin));
        let is_preflight = request.method() == Method::Options
            && request.header("access-control-request-method").is_some();
        if is_preflight {
            return Next::respond(self.preflight(request, origin));
        }
        let mut fields = Vec::new();
        if self.origins.is_some() {
            // Caches must not give one page the answer to another.
            fields.push(("Vary", "Origin".to_owned()));
        }
        if let Some(origin) = origin {
            fields.push(("Access-Control-Allow-Origin", origin));
            if self.has_credentials() {
                fields.push(("Access-Control-Allow-Credentials", "true".to_owned()));
            }
            if !self.exposed.is_empty() {
                fields.push(("Access-Control-Expose-Headers", self.exposed.clone()));
            }
        }
        if fields.is_empty() {
            return Next::Continue;
        }
        Next::then(move |response| with_fields(response, fields))
    }
}
