//! Refusals of an upgrade or of another request.

use crate::into_response::IntoResponse;
use crate::response::{HeaderError, Response, check_header};
use crate::status::Status;
use std::borrow::Cow;
use std::{error, fmt};
use throng_proto::ws::handshake::Refusal;

/// A refusal of a connection or request: a status, a sentence for the client, and headers.
///
/// ```
/// # use throng_http as throng;
/// use throng::Reject;
///
/// fn room(name: Option<&str>) -> Result<&str, Reject> {
///     name.ok_or(Reject::not_found().with_reason("no such room"))
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Reject {
    status: Status,
    reason: Cow<'static, str>,
    headers: Vec<(Cow<'static, str>, Cow<'static, str>)>,
}

impl Reject {
    /// Creates a refusal with any status. For a WebSocket every status is a refusal; an HTTP client
    /// treats a 2xx as success.
    pub const fn status(status: Status) -> Self {
        Self { status, reason: Cow::Borrowed(""), headers: Vec::new() }
    }

    /// Creates a 400 with a reason.
    pub fn bad_request(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::status(Status::BAD_REQUEST).with_reason(reason)
    }

    /// Creates a 401 with the `WWW-Authenticate` that
    /// [RFC 9110 section 15.5.2](https://www.rfc-editor.org/rfc/rfc9110#section-15.5.2) requires.
    pub fn unauthorized() -> Self {
        Self::status(Status::UNAUTHORIZED).push("WWW-Authenticate", "Bearer")
    }

    /// Creates a 401 that asks for `Authorization: Basic` in UTF-8 ([RFC 7617 section
    /// 2](https://www.rfc-editor.org/rfc/rfc7617#section-2)): a browser then shows a form for user
    /// and password, with `realm` as their purpose. Control characters in `realm` are omitted.
    pub fn unauthorized_basic(realm: &str) -> Self {
        let mut challenge = String::from("Basic realm=\"");
        for character in realm.chars().filter(|character| !character.is_control()) {
            if matches!(character, '"' | '\\') {
                challenge.push('\\');
            }
            challenge.push(character);
        }
        challenge.push_str("\", charset=\"UTF-8\"");
        Self::status(Status::UNAUTHORIZED).push("WWW-Authenticate", challenge)
    }

    /// Creates a 403.
    pub fn forbidden() -> Self {
        Self::status(Status::FORBIDDEN)
    }

    /// Creates a 404.
    pub fn not_found() -> Self {
        Self::status(Status::NOT_FOUND)
    }

    /// Creates a 429 with Retry-After in seconds.
    pub fn too_many_requests(retry_after_seconds: u64) -> Self {
        Self::status(Status::TOO_MANY_REQUESTS).push("Retry-After", retry_after_seconds.to_string())
    }

    /// Creates a 503 with Retry-After in seconds.
    pub fn unavailable(retry_after_seconds: u64) -> Self {
        Self::status(Status::SERVICE_UNAVAILABLE)
            .push("Retry-After", retry_after_seconds.to_string())
    }

    /// Sets the sentence of the body. The client reads it, so it should help and not disclose
    /// secrets.
    pub fn with_reason(mut self, reason: impl Into<Cow<'static, str>>) -> Self {
        self.reason = reason.into();
        self
    }

    /// Adds a header, such as `Location`.
    ///
    /// # Errors
    ///
    /// [`HeaderError`]: the name or value is invalid, or the header is written by the server.
    pub fn header(
        self,
        name: impl Into<Cow<'static, str>>,
        value: impl Into<Cow<'static, str>>,
    ) -> Result<Self, HeaderError> {
        let (name, value) = (name.into(), value.into());
        check_header(&name, &value)?;
        Ok(self.push(name, value))
    }

    fn push(
        mut self,
        name: impl Into<Cow<'static, str>>,
        value: impl Into<Cow<'static, str>>,
    ) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Returns the headers, as names and values.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &str)> {
        self.headers.iter().map(|(name, value)| (&**name, &**value))
    }

    /// Returns the sentence of the body; empty if it was not set.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Returns the status.
    #[must_use]
    pub const fn code(&self) -> u16 {
        self.status.code()
    }
}

/// The status and the reason: `404 Not Found: no such room`.
impl fmt::Display for Reject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let separator = if self.reason.is_empty() { "" } else { ": " };
        write!(f, "{}{separator}{}", self.status, self.reason)
    }
}

impl error::Error for Reject {}

impl IntoResponse for Reject {
    fn into_response(self) -> Response {
        let page = Response::error(self.status, &self.reason);
        self.headers.into_iter().fold(page, |page, (name, value)| page.push_checked(name, value))
    }
}

/// Refuses with a status alone.
impl From<Status> for Reject {
    fn from(status: Status) -> Self {
        Self::status(status)
    }
}

/// Refuses with 500: a handler's header is invalid.
impl From<HeaderError> for Reject {
    fn from(_: HeaderError) -> Self {
        Self::status(Status::INTERNAL_SERVER_ERROR)
    }
}

/// Refuses an invalid WebSocket handshake.
impl From<Refusal> for Reject {
    fn from(refusal: Refusal) -> Self {
        let reject = Self::status(Status::new(refusal.status())).with_reason(refusal.to_string());
        refusal.headers().iter().fold(reject, |reject, (name, value)| reject.push(*name, *value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(reject: Reject) -> (u16, String, Vec<(String, String)>) {
        let response = reject.into_response();
        let headers = response.headers().filter(|(name, _)| *name != "Content-Type");
        let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let body = String::from_utf8_lossy(response.body()).into_owned();
        (response.status().code(), body, headers)
    }

    fn header(name: &str, value: &str) -> Vec<(String, String)> {
        vec![(name.to_owned(), value.to_owned())]
    }

    #[test]
    fn refusals_state_a_reason() {
        let cases = [
            (Reject::not_found(), 404, "404 Not Found\n", vec![]),
            (Reject::status(Status::OK), 200, "200 OK\n", vec![]),
            (
                Reject::forbidden().with_reason("not yours"),
                403,
                "403 Forbidden: not yours\n",
                vec![],
            ),
            (Reject::bad_request("no room"), 400, "400 Bad Request: no room\n", vec![]),
            (
                Reject::unauthorized(),
                401,
                "401 Unauthorized\n",
                header("WWW-Authenticate", "Bearer"),
            ),
            (
                Reject::unauthorized_basic("the \"inner\" \\ circle\r\nX: y"),
                401,
                "401 Unauthorized\n",
                header(
                    "WWW-Authenticate",
                    "Basic realm=\"the \\\"inner\\\" \\\\ circleX: y\", charset=\"UTF-8\"",
                ),
            ),
            (
                Reject::too_many_requests(3),
                429,
                "429 Too Many Requests\n",
                header("Retry-After", "3"),
            ),
            (Reject::unavailable(9), 503, "503 Service Unavailable\n", header("Retry-After", "9")),
        ];
        for (reject, status, body, headers) in cases {
            assert_eq!(format!("{reject}\n"), body);
            assert_eq!(parts(reject), (status, body.to_owned(), headers));
        }
        let moved = Reject::status(Status::PERMANENT_REDIRECT).header("Location", "/new").unwrap();
        assert_eq!(parts(moved).2, header("Location", "/new"));
        assert!(
            Reject::status(Status::PERMANENT_REDIRECT).header("Location", "/\r\nX: y").is_err()
        );
        assert_eq!(
            Reject::status(Status::PERMANENT_REDIRECT).header("Connection", "close"),
            Err(HeaderError::Reserved)
        );
    }

    #[test]
    fn rfc6455_4_4_a_refused_handshake_names_the_supported_version() {
        let (status, _, headers) = parts(Refusal::Version.into());
        assert_eq!(status, 426);
        assert!(headers.contains(&("Sec-WebSocket-Version".into(), "13".into())), "{headers:?}");
    }
}
