//! Conversion of handlers' return values to responses.

use crate::response::{HeaderError, Response};
use crate::status::{InvalidStatus, Status};
use std::borrow::Cow;
use std::convert::Infallible;
use throng_proto::http1;

/// A type that a handler may return.
#[diagnostic::on_unimplemented(
    message = "a handler cannot answer with `{Self}`",
    label = "it answers with text, bytes, a status, a `Response`, or a `Result` of them",
    note = "for JSON use `Json(value)` or `Response::json(text)`; an `async` handler is added \
            with `get_async`, one that answers later with `Route::deferred`, and a blocking one \
            with `get(..).blocking()`"
)]
pub trait IntoResponse {
    /// Converts to a response.
    fn into_response(self) -> Response;
}

impl IntoResponse for Response {
    fn into_response(self) -> Response {
        self
    }
}

/// Status 200 with plain text.
impl IntoResponse for &'static str {
    fn into_response(self) -> Response {
        Response::text(self)
    }
}

/// Status 200 with plain text.
impl IntoResponse for String {
    fn into_response(self) -> Response {
        Response::text(self)
    }
}

/// Status 200 with plain text.
impl IntoResponse for Cow<'static, str> {
    fn into_response(self) -> Response {
        Response::text(self)
    }
}

/// Status 200 with bytes.
impl IntoResponse for &'static [u8] {
    fn into_response(self) -> Response {
        Response::new(Status::OK).with_bytes("application/octet-stream", self)
    }
}

/// Status 200 with bytes.
impl IntoResponse for Vec<u8> {
    fn into_response(self) -> Response {
        Response::new(Status::OK).with_bytes("application/octet-stream", self)
    }
}

/// Status 204.
impl IntoResponse for () {
    fn into_response(self) -> Response {
        Response::new(Status::NO_CONTENT)
    }
}

/// The status alone; the page of an error names it.
impl IntoResponse for Status {
    fn into_response(self) -> Response {
        if self.is_error() { Response::error(self, "") } else { Response::new(self) }
    }
}

/// Overrides the status of the inner response.
impl<T: IntoResponse> IntoResponse for (Status, T) {
    fn into_response(self) -> Response {
        self.1.into_response().with_status(self.0)
    }
}

/// Overrides the status of the inner response; for a code that is not a valid [`Status`], the
/// response of [`InvalidStatus`] is sent.
impl<T: IntoResponse> IntoResponse for (u16, T) {
    fn into_response(self) -> Response {
        Status::try_from(self.0).map(|status| (status, self.1)).into_response()
    }
}

/// Status 404 for `None`.
impl<T: IntoResponse> IntoResponse for Option<T> {
    fn into_response(self) -> Response {
        self.map_or_else(|| Status::NOT_FOUND.into_response(), T::into_response)
    }
}

impl<T: IntoResponse, E: IntoResponse> IntoResponse for Result<T, E> {
    fn into_response(self) -> Response {
        self.map_or_else(E::into_response, T::into_response)
    }
}

impl IntoResponse for Infallible {
    fn into_response(self) -> Response {
        match self {}
    }
}

/// Status 500: the handler's error, without details.
impl IntoResponse for HeaderError {
    fn into_response(self) -> Response {
        Response::error(Status::INTERNAL_SERVER_ERROR, "the handler set an invalid header")
    }
}

/// Status 500, with the code that the handler gave.
impl IntoResponse for InvalidStatus {
    fn into_response(self) -> Response {
        Response::error(Status::INTERNAL_SERVER_ERROR, &format!("the handler's {self}"))
    }
}

/// The page for a request that violated a rule; the connection is closed after it.
impl IntoResponse for http1::Error {
    fn into_response(self) -> Response {
        Response::error(Status::new(self.status()), self.reason()).closing()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handlers_may_return_many_types() {
        let first = |response: Response| {
            let body = String::from_utf8_lossy(response.body()).into_owned();
            format!("{} {body}", response.status().code())
        };
        assert_eq!(first("a".into_response()), "200 a");
        assert_eq!(first(String::from("a").into_response()), "200 a");
        assert_eq!(first(Cow::Borrowed("a").into_response()), "200 a");
        assert_eq!(first(vec![b'a'].into_response()), "200 a");
        assert_eq!(first((&b"a"[..]).into_response()), "200 a");
        assert_eq!(first(().into_response()), "204 ");
        assert_eq!(first(Status::OK.into_response()), "200 ");
        assert_eq!(first(Status::FORBIDDEN.into_response()), "403 403 Forbidden\n");
        assert_eq!(first((Status::CREATED, "a").into_response()), "201 a");
        assert_eq!(first((418, "a").into_response()), "418 a");
        let invalid = "500 500 Internal Server Error: the handler's status 100 is not one of a \
                       response, which is 200 to 599\n";
        assert_eq!(first((100, "a").into_response()), invalid);
        assert_eq!(first(Some("a").into_response()), "200 a");
        assert_eq!(first(None::<&str>.into_response()), "404 404 Not Found\n");
        assert_eq!(first(Ok::<_, Status>("a").into_response()), "200 a");
        assert_eq!(first(Err::<(), _>((400, "no")).into_response()), "400 no");
    }
}
