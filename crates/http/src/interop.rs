//! Conversions to and from the types of the `http` crate.

use crate::into_response::IntoResponse;
use crate::method::Method;
use crate::request::Request;
use crate::response::{HeaderError, Response};
use crate::status::{InvalidStatus, Status};
use std::{error, fmt};

impl From<Method> for http::Method {
    fn from(method: Method) -> Self {
        match method {
            Method::Get => Self::GET,
            Method::Head => Self::HEAD,
            Method::Post => Self::POST,
            Method::Put => Self::PUT,
            Method::Delete => Self::DELETE,
            Method::Patch => Self::PATCH,
            Method::Options => Self::OPTIONS,
            Method::Trace => Self::TRACE,
        }
    }
}

/// Fails, with the method, for a method that routes do not support: CONNECT and extensions.
impl TryFrom<http::Method> for Method {
    type Error = http::Method;

    fn try_from(method: http::Method) -> Result<Self, http::Method> {
        Self::parse(method.as_str()).ok_or(method)
    }
}

/// Fails for an informational code, which is not a response's final status, and for codes above
/// 599.
impl TryFrom<http::StatusCode> for Status {
    type Error = InvalidStatus;

    fn try_from(status: http::StatusCode) -> Result<Self, InvalidStatus> {
        Self::try_from(status.as_u16())
    }
}

impl From<Status> for http::StatusCode {
    fn from(status: Status) -> Self {
        // Every `Status` is a code of three digits.
        Self::from_u16(status.code()).unwrap_or(Self::INTERNAL_SERVER_ERROR)
    }
}

/// Copies head, body and attached values, including the peer's address.
impl TryFrom<&Request<'_>> for http::Request<Vec<u8>> {
    type Error = http::Error;

    fn try_from(request: &Request<'_>) -> Result<Self, http::Error> {
        let target = match request.query_string() {
            Some(query) => format!("{}?{query}", request.path()),
            None => request.path().to_owned(),
        };
        let version = match request.is_http11() {
            true => http::Version::HTTP_11,
            false => http::Version::HTTP_10,
        };
        let mut builder =
            http::Request::builder().method(request.method()).uri(target.as_str()).version(version);
        for header in request.headers() {
            builder = builder.header(header.name, header.value);
        }
        if let Some(peer) = request.peer() {
            builder = builder.extension(peer);
        }
        let mut converted = builder.body(request.body().to_owned())?;
        request.extensions().copy_to(converted.extensions_mut());
        Ok(converted)
    }
}

/// Error of a response of the `http` crate that cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidResponse {
    /// The status is not valid for a response.
    Status(InvalidStatus),
    /// A header cannot be sent.
    Header(HeaderError),
}

impl fmt::Display for InvalidResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(invalid) => invalid.fmt(f),
            Self::Header(invalid) => invalid.fmt(f),
        }
    }
}

impl error::Error for InvalidResponse {}

impl From<InvalidStatus> for InvalidResponse {
    fn from(invalid: InvalidStatus) -> Self {
        Self::Status(invalid)
    }
}

impl From<HeaderError> for InvalidResponse {
    fn from(invalid: HeaderError) -> Self {
        Self::Header(invalid)
    }
}

/// Status 500.
impl IntoResponse for InvalidResponse {
    fn into_response(self) -> Response {
        match self {
            Self::Status(invalid) => invalid.into_response(),
            Self::Header(invalid) => invalid.into_response(),
        }
    }
}

/// Fails for a status that is not valid for a response, for a header whose value is not UTF-8, and
/// for headers that the server writes itself. Drops Content-Length instead of failing.
impl<B: Into<Vec<u8>>> TryFrom<http::Response<B>> for Response {
    type Error = InvalidResponse;

    fn try_from(response: http::Response<B>) -> Result<Self, InvalidResponse> {
        let (head, body) = response.into_parts();
        let mut converted = Self::new(head.status.try_into()?).with_bytes_only(body.into());
        for (name, value) in &head.headers {
            if name == http::header::CONTENT_LENGTH {
                continue;
            }
            let value = str::from_utf8(value.as_bytes()).map_err(|_| HeaderError::NotUtf8)?;
            converted = converted.header(name.as_str().to_owned(), value.to_owned())?;
        }
        Ok(converted)
    }
}

/// Answers with 500 if it cannot be converted.
impl<B: Into<Vec<u8>>> IntoResponse for http::Response<B> {
    fn into_response(self) -> Response {
        Response::try_from(self).into_response()
    }
}

/// Copies head and body; a streamed body is missing.
impl From<&Response> for http::Response<Vec<u8>> {
    fn from(response: &Response) -> Self {
        let mut converted = Self::new(response.body().to_owned());
        *converted.status_mut() = response.status().into();
        for (name, value) in response.headers() {
            // Both were checked when they were set.
            if let (Ok(name), Ok(value)) = (name.parse::<http::HeaderName>(), value.parse()) {
                converted.headers_mut().append(name, value);
            }
        }
        converted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::Params;
    use throng_proto::Input;
    use throng_proto::http1::{Decoder, Event, Limits};

    #[test]
    fn a_request_keeps_its_head_and_body() {
        let mut bytes = b"POST /a%20b?c=d HTTP/1.1\r\nHost: h\r\nX: 1\r\nX: 2\r\n\r\n".to_vec();
        let mut decoder = Decoder::new();
        let mut input = Input::new(&mut bytes);
        let event = decoder.next_event(&mut input, &Limits::default());
        let Ok(Some(Event::Head(head))) = event else { panic!("{event:?}") };
        let peer = "127.0.0.1:5".parse().unwrap();
        let request = Request::new(head, Params::default(), b"body", Some(peer));
        let converted = http::Request::try_from(&request).unwrap();
        assert_eq!(converted.method(), http::Method::POST);
        assert_eq!(converted.uri(), "/a%20b?c=d");
        assert_eq!(converted.version(), http::Version::HTTP_11);
        assert_eq!(converted.headers().get_all("x").iter().count(), 2);
        assert_eq!(converted.extensions().get(), Some(&peer));
        assert_eq!(converted.body(), b"body");
    }

    #[test]
    fn a_response_is_converted_both_ways_or_answered_with_500() {
        let response = http::Response::builder()
            .status(201)
            .header("content-type", "text/x")
            .header("content-length", "4")
            .header("x-a", "b");
        let converted = Response::try_from(response.body("body").unwrap()).unwrap();
        let headers: Vec<_> = converted.headers().collect();
        assert_eq!(headers, [("Content-Type", "text/x"), ("x-a", "b")]);
        assert_eq!((converted.status(), converted.body()), (Status::CREATED, &b"body"[..]));
        let back = http::Response::from(&converted);
        assert_eq!((back.status().as_u16(), back.headers()["x-a"].as_bytes()), (201, &b"b"[..]));
        for (name, value) in [("connection", &b"close"[..]), ("x", b"\xff")] {
            let wrong = http::Response::builder().header(name, value).body("").unwrap();
            assert_eq!(wrong.into_response().status(), Status::INTERNAL_SERVER_ERROR, "{name}");
        }
    }

    #[test]
    fn methods_and_statuses_have_the_same_names() {
        assert_eq!(http::Method::from(Method::Patch).as_str(), Method::Patch.as_str());
        assert_eq!(Method::try_from(http::Method::PATCH), Ok(Method::Patch));
        assert_eq!(Method::try_from(http::Method::CONNECT), Err(http::Method::CONNECT));
        assert_eq!(Status::try_from(http::StatusCode::NOT_FOUND), Ok(Status::NOT_FOUND));
        assert_eq!(http::StatusCode::from(Status::NOT_FOUND), 404);
        let interim = http::Response::builder().status(103).body("").unwrap();
        let error = Response::try_from(interim.clone()).unwrap_err().to_string();
        assert_eq!(error, "status 103 is not one of a response, which is 200 to 599");
        assert_eq!(interim.into_response().status(), Status::INTERNAL_SERVER_ERROR);
    }
}
