//! Basic authentication of an app's requests.

use std::fmt;

use throng_engine::SettingError;
use throng_http::{Reject, Request};

use crate::middleware::{Middleware, Next};

/// Middleware that lets only requests with the name and password of a user pass, by Basic
/// authentication ([RFC 7617](https://www.rfc-editor.org/rfc/rfc7617)): HTTP requests and upgrades
/// of WebSockets. Other requests are answered with 401, and a browser then shows a login form.
///
/// Handlers find the user with `request.extension::<BasicUser>()`. Use it for a few users that the
/// program knows, such as the users of an admin page, and only over TLS: without TLS, anyone on the
/// path can read the password. If hashes of passwords are in a database, use [`Request::basic`] in
/// a handler that may block.
///
/// A preflight request has no credentials: add this layer before
/// [`Cors`](crate::http::Cors), so that it is inside.
///
/// ```
/// use throng::http::{BasicAuth, BasicUser};
/// use throng::prelude::*;
///
/// let admin = App::new()
///     .get("/", |request| request.extension::<BasicUser>().map(|user| format!("hello {user}")))
///     .layer(BasicAuth::new("admin").user("alice", "correct horse"));
/// let app = App::new().nest("/admin", admin);
/// ```
#[derive(Clone)]
#[must_use]
pub struct BasicAuth {
    realm: String,
    users: Vec<(String, String)>,
}

/// The user of a request that [`BasicAuth`] has let pass.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BasicUser(Box<str>);

impl BasicAuth {
    /// Creates the middleware, which at first accepts no user. `realm` names the protected area.
    pub fn new(realm: impl Into<String>) -> Self {
        Self { realm: realm.into(), users: Vec::new() }
    }

    /// Adds a user. The name must have no colon ([RFC 7617 section
    /// 2](https://www.rfc-editor.org/rfc/rfc7617#section-2)) and the password must not be empty:
    /// otherwise [`Server::bind`](crate::Server::bind) fails.
    pub fn user(mut self, name: impl Into<String>, password: impl Into<String>) -> Self {
        self.users.push((name.into(), password.into()));
        self
    }

    /// Returns the user of a request. It compares all users, so that the time reveals at most the
    /// lengths of names and passwords, not which users exist.
    fn find(&self, request: &Request<'_>) -> Option<BasicUser> {
        let given = request.basic()?;
        let mut found = false;
        for (name, password) in &self.users {
            found |= given.matches(name, password);
        }
        found.then(|| BasicUser(given.user().into()))
    }
}

impl Middleware for BasicAuth {
    fn call(&self, request: &mut Request<'_>) -> Next {
        match self.find(request) {
            Some(user) => {
                request.insert_extension(user);
                Next::Continue
            }
            None => Next::respond(Reject::unauthorized_basic(&self.realm)),
        }
    }

    fn mistake(&self) -> Option<SettingError> {
        let wrong = |text: String| Some(SettingError::new("layer", text));
        for (name, password) in &self.users {
            if name.contains(':') {
                return wrong(format!(
                    "the user {name:?} of BasicAuth has a colon, where the password begins \
                     (RFC 7617 section 2): choose a name without one"
                ));
            }
            if password.is_empty() {
                return wrong(format!("the user {name:?} of BasicAuth needs a password"));
            }
        }
        None
    }
}

/// Omits the passwords, which must not appear in a log.
impl fmt::Debug for BasicAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BasicAuth").field("realm", &self.realm).finish_non_exhaustive()
    }
}

impl BasicUser {
    /// Returns the user's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for BasicUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
