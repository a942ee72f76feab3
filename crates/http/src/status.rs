//! Status codes and their reason phrases.
//! [RFC 9110 section 15](https://www.rfc-editor.org/rfc/rfc9110#section-15).

use std::{error, fmt};

/// The status code of a response: 200 to 599.
///
/// Codes 1xx are not final responses but precede one ([RFC 9110 section
/// 15.2](https://www.rfc-editor.org/rfc/rfc9110#section-15.2)): the server writes 100 when it wants
/// a body that the client holds back until then, and the WebSocket handshake writes 101. Codes
/// above 599 have no class, and clients would treat them as a 5xx ([RFC 9110 section
/// 15](https://www.rfc-editor.org/rfc/rfc9110#section-15)).
///
/// ```
/// # mod throng { pub use throng_http::*; pub use throng_http as http; }
/// use throng::http::Status;
///
/// const TEAPOT: Status = Status::new(418);
/// assert_eq!(TEAPOT.code(), 418);
/// // A code that comes from elsewhere, such as another server.
/// assert!(Status::try_from(999).is_err());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Status(u16);

impl Status {
    /// 200 OK.
    pub const OK: Self = Self(200);
    /// 201 Created.
    pub const CREATED: Self = Self(201);
    /// 202 Accepted.
    pub const ACCEPTED: Self = Self(202);
    /// 204 No Content.
    pub const NO_CONTENT: Self = Self(204);
    /// 302 Found: a redirection that may become a GET.
    pub const FOUND: Self = Self(302);
    /// 303 See Other: a redirection to a GET, as after a form was sent.
    pub const SEE_OTHER: Self = Self(303);
    /// 304 Not Modified.
    pub const NOT_MODIFIED: Self = Self(304);
    /// 400 Bad Request.
    pub const BAD_REQUEST: Self = Self(400);
    /// 401 Unauthorized.
    pub const UNAUTHORIZED: Self = Self(401);
    /// 308 Permanent Redirect.
    pub const PERMANENT_REDIRECT: Self = Self(308);
    /// 403 Forbidden.
    pub const FORBIDDEN: Self = Self(403);
    /// 404 Not Found.
    pub const NOT_FOUND: Self = Self(404);
    /// 405 Method Not Allowed.
    pub const METHOD_NOT_ALLOWED: Self = Self(405);
    /// 408 Request Timeout.
    pub const REQUEST_TIMEOUT: Self = Self(408);
    /// 413 Content Too Large.
    pub const CONTENT_TOO_LARGE: Self = Self(413);
    /// 414 URI Too Long.
    pub const URI_TOO_LONG: Self = Self(414);
    /// 415 Unsupported Media Type.
    pub const UNSUPPORTED_MEDIA_TYPE: Self = Self(415);
    /// 421 Misdirected Request.
    pub const MISDIRECTED_REQUEST: Self = Self(421);
    /// 422 Unprocessable Content.
    pub const UNPROCESSABLE_CONTENT: Self = Self(422);
    /// 426 Upgrade Required.
    pub const UPGRADE_REQUIRED: Self = Self(426);
    /// 429 Too Many Requests.
    pub const TOO_MANY_REQUESTS: Self = Self(429);
    /// 431 Request Header Fields Too Large.
    pub const HEADER_FIELDS_TOO_LARGE: Self = Self(431);
    /// 500 Internal Server Error.
    pub const INTERNAL_SERVER_ERROR: Self = Self(500);
    /// 501 Not Implemented.
    pub const NOT_IMPLEMENTED: Self = Self(501);
    /// 503 Service Unavailable.
    pub const SERVICE_UNAVAILABLE: Self = Self(503);
    /// 505 HTTP Version Not Supported.
    pub const HTTP_VERSION_NOT_SUPPORTED: Self = Self(505);

    /// Creates a status from a code that is known to be valid, such as a literal. For a computed
    /// code, or a code from elsewhere, use `Status::try_from`.
    ///
    /// # Panics
    /// The code is not in 200 to 599; in a `const`, this is an error of the compiler.
    #[must_use]
    #[track_caller]
    pub const fn new(code: u16) -> Self {
        if !is_valid(code) {
            refuse(code);
        }
        Self(code)
    }

    /// Returns the code.
    #[must_use]
    pub const fn code(self) -> u16 {
        self.0
    }

    /// Returns whether the status never has a body: 204 and 304.
    /// [RFC 9110 section 6.4.1](https://www.rfc-editor.org/rfc/rfc9110#section-6.4.1).
    #[must_use]
    pub const fn allows_body(self) -> bool {
        !matches!(self.0, 204 | 304)
    }

    /// Returns whether the code is 400 to 599.
    #[must_use]
    pub const fn is_error(self) -> bool {
        matches!(self.0, 400..=599)
    }

    /// Returns the registered reason phrase, or the name of the class.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self.0 {
            200 => "OK",
            201 => "Created",
            202 => "Accepted",
            203 => "Non-Authoritative Information",
            204 => "No Content",
            205 => "Reset Content",
            206 => "Partial Content",
            300 => "Multiple Choices",
            301 => "Moved Permanently",
            302 => "Found",
            303 => "See Other",
            304 => "Not Modified",
            307 => "Temporary Redirect",
            308 => "Permanent Redirect",
            400 => "Bad Request",
            401 => "Unauthorized",
            402 => "Payment Required",
            403 => "Forbidden",
            404 => "Not Found",
            405 => "Method Not Allowed",
            406 => "Not Acceptable",
            407 => "Proxy Authentication Required",
            408 => "Request Timeout",
            409 => "Conflict",
            410 => "Gone",
            411 => "Length Required",
            412 => "Precondition Failed",
            413 => "Content Too Large",
            414 => "URI Too Long",
            415 => "Unsupported Media Type",
            416 => "Range Not Satisfiable",
            417 => "Expectation Failed",
            421 => "Misdirected Request",
            422 => "Unprocessable Content",
            425 => "Too Early",
            426 => "Upgrade Required",
            428 => "Precondition Required",
            429 => "Too Many Requests",
            431 => "Request Header Fields Too Large",
            451 => "Unavailable For Legal Reasons",
            500 => "Internal Server Error",
            501 => "Not Implemented",
            502 => "Bad Gateway",
            503 => "Service Unavailable",
            504 => "Gateway Timeout",
            508 => "Loop Detected",
            505 => "HTTP Version Not Supported",
            511 => "Network Authentication Required",
            code => match code / 100 {
                2 => "Success",
                3 => "Redirection",
                4 => "Client Error",
                _ => "Server Error",
            },
        }
    }
}

/// Whether a response may have the code.
const fn is_valid(code: u16) -> bool {
    matches!(code, 200..=599)
}

/// Panics with the code in its message, which a constant function cannot format.
#[cold]
#[track_caller]
const fn refuse(code: u16) -> ! {
    const DIGITS: usize = 7;
    let mut text =
        *b"status 00000 is not one of a response, which is 200 to 599; see Status::try_from";
    let (mut rest, mut at) = (code, DIGITS + 5);
    while at > DIGITS {
        at -= 1;
        text[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    match str::from_utf8(&text) {
        Ok(text) => panic!("{}", text),
        Err(_) => panic!("the status is not one of a response"),
    }
}

/// The error of a status code that is not valid for a response: it is not in 200 to 599.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidStatus(u16);

impl fmt::Display for InvalidStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "status {} is not one of a response, which is 200 to 599", self.0)
    }
}

impl error::Error for InvalidStatus {}

impl TryFrom<u16> for Status {
    type Error = InvalidStatus;

    fn try_from(code: u16) -> Result<Self, InvalidStatus> {
        if is_valid(code) { Ok(Self(code)) } else { Err(InvalidStatus(code)) }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.0, self.reason())
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Status({})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_status_code_is_an_error_that_names_it() {
        for code in [0, 99, 600, 999, 1000, u16::MAX] {
            let error = Status::try_from(code).unwrap_err().to_string();
            assert!(error.starts_with(&format!("status {code} is not one")), "{error}");
        }
        for code in [200, 599] {
            assert_eq!(Status::try_from(code), Ok(Status::new(code)));
            assert_eq!(Status::new(code).code(), code);
        }
        assert_eq!(Status::new(404).to_string(), "404 Not Found");
        assert_eq!(Status::new(499).reason(), "Client Error");
    }

    #[test]
    #[should_panic(expected = "status 01000 is not one of a response, which is 200 to 599; see")]
    fn a_literal_that_is_no_status_panics() {
        let _ = Status::new(1000);
    }

    #[test]
    fn rfc9110_15_2_an_interim_status_is_not_a_response() {
        for code in [100, 101, 102, 103, 199] {
            assert!(Status::try_from(code).is_err(), "{code}");
        }
    }

    #[test]
    fn rfc9110_6_4_1_some_statuses_have_no_body() {
        for code in [204, 304] {
            assert!(!Status::new(code).allows_body(), "{code}");
        }
        for code in [200, 205, 206, 303, 404, 500] {
            assert!(Status::new(code).allows_body(), "{code}");
        }
    }
}
