//! Responses and their encoding.

use crate::body::{Body, Stream, StreamSource};
use crate::method::Allow;
use crate::status::Status;
#[cfg(feature = "stream")]
use crate::stream_body::StreamBody;
use std::borrow::Cow;
use std::fmt;
use throng_proto::http1::{self, HeaderName, HeaderValue, InvalidHeader, ResponseHead};
#[cfg(feature = "stream")]
use throng_proto::sse::ToEvent;

/// A response: status, headers, body. The encoder adds Content-Length, Date and Connection.
///
/// ```
/// # mod throng { pub use throng_http::*; pub use throng_http as http; }
/// use throng::Response;
/// use throng::http::Status;
///
/// let response = Response::new(Status::OK)
///     .header("Cache-Control", "no-store")?
///     .with_body("application/json", r#"{"ok":true}"#);
/// # Ok::<(), throng_http::HeaderError>(())
/// ```
#[derive(Debug)]
#[must_use]
pub struct Response {
    status: Status,
    headers: Vec<(Cow<'static, str>, Cow<'static, str>)>,
    content_type: Option<Cow<'static, str>>,
    body: Body,
    close: bool,
    /// Whether the body is the page of [`Response::error`].
    is_error_page: bool,
}

/// The reason why a header was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeaderError {
    /// The name or the value would change the structure of the message.
    Invalid(InvalidHeader),
    /// Content-Length, Transfer-Encoding, Connection and Date are written by the server itself.
    Reserved,
    /// The value is not UTF-8.
    NotUtf8,
    /// A file extension is empty or contains a dot or a slash, or a media type is not of the form
    /// `type/subtype`.
    MediaType,
}

impl fmt::Display for HeaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(invalid) => invalid.fmt(f),
            Self::Reserved => f.write_str(
                "Content-Length, Transfer-Encoding, Connection and Date are set by the server",
            ),
            Self::NotUtf8 => f.write_str("a header value that is not UTF-8"),
            Self::MediaType => f.write_str(
                "an extension has no dot and no slash, and a media type is like text/plain",
            ),
        }
    }
}

impl std::error::Error for HeaderError {}

impl From<InvalidHeader> for HeaderError {
    fn from(invalid: InvalidHeader) -> Self {
        Self::Invalid(invalid)
    }
}

/// Validates a header of a handler.
pub fn check_header(name: &str, value: &str) -> Result<(), HeaderError> {
    HeaderName::new(name)?;
    HeaderValue::new(value)?;
    let reserved = ["content-length", "transfer-encoding", "connection", "date"];
    if reserved.iter().any(|reserved| name.eq_ignore_ascii_case(reserved)) {
        return Err(HeaderError::Reserved);
    }
    Ok(())
}

/// The name of the header by which browsers use TLS only
/// ([RFC 6797](https://www.rfc-editor.org/rfc/rfc6797)).
pub const STRICT_TRANSPORT_SECURITY: &str = "Strict-Transport-Security";
const CONTENT_TYPE: HeaderName<'static> = HeaderName::literal("Content-Type");
const CONNECTION: HeaderName<'static> = HeaderName::literal("Connection");
const CLOSE: HeaderValue<'static> = HeaderValue::literal("close");
const KEEP_ALIVE: HeaderValue<'static> = HeaderValue::literal("keep-alive");
const DATE: HeaderName<'static> = HeaderName::literal("Date");
const HSTS: HeaderName<'static> = HeaderName::literal(STRICT_TRANSPORT_SECURITY);
pub(crate) const TEXT: &str = "text/plain; charset=utf-8";

/// The properties of the request and the connection that affect a response.
#[derive(Clone, Copy, Debug)]
pub struct ReplyTo<'d> {
    /// Whether the request was HEAD: the head is the same as for GET, and no body follows.
    pub is_head: bool,
    /// Whether the request was HTTP/1.1 rather than 1.0.
    pub is_http11: bool,
    /// Whether the connection stays open after this response.
    pub keep_alive: bool,
    /// The date, from a [`DateCache`](crate::DateCache).
    pub date: &'d str,
    /// The value of Strict-Transport-Security, unless the response has one of its own.
    pub hsts: Option<&'d str>,
}

impl<'d> ReplyTo<'d> {
    /// Creates the properties from `request`. Set `keep_alive` to false afterwards to end the
    /// connection.
    #[must_use]
    pub fn request(request: &http1::Request<'_>, date: &'d str) -> Self {
        Self {
            is_head: request.method() == "HEAD",
            is_http11: request.is_http11(),
            keep_alive: request.keep_alive(),
            date,
            hsts: None,
        }
    }

    /// Creates the properties for an invalid request: the connection is closed after the response.
    #[must_use]
    pub const fn error(date: &'d str) -> Self {
        Self { is_head: false, is_http11: true, keep_alive: false, date, hsts: None }
    }
}

impl Response {
    /// Creates a response without headers or body.
    pub const fn new(status: Status) -> Self {
        Self {
            status,
            headers: Vec::new(),
            content_type: None,
            body: Body::Whole(Cow::Borrowed(&[])),
            close: false,
            is_error_page: false,
        }
    }

    /// Creates a 200 with plain text.
    pub fn text(body: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Status::OK).with_text(body)
    }

    /// Creates a 200 with an HTML page.
    pub fn html(body: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Status::OK).with_bytes("text/html; charset=utf-8", into_bytes(body.into()))
    }

    /// Creates a 200 with the caller's JSON text.
    pub fn json(body: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Status::OK).with_bytes("application/json", into_bytes(body.into()))
    }

    /// Creates a 200 with a value as JSON.
    ///
    /// # Errors
    /// The value cannot be written as JSON, for example a map whose keys are not text. Returned by
    /// a handler, the error becomes a 500.
    #[cfg(feature = "serde")]
    pub fn json_of<T: serde::Serialize + ?Sized>(value: &T) -> Result<Self, crate::Reject> {
        let failed = |_| crate::Reject::status(Status::INTERNAL_SERVER_ERROR);
        let text = serde_json::to_vec(value).map_err(failed)?;
        Ok(Self::new(Status::OK).with_bytes("application/json", text))
    }

    /// Creates a page that names the error: `404 Not Found: no route matches`. Short plain text,
    /// for engineers and programs.
    pub fn error(status: Status, reason: &str) -> Self {
        let separator = if reason.is_empty() { "" } else { ": " };
        let page = Self::new(status).with_text(format!("{status}{separator}{reason}\n"));
        Self { is_error_page: true, ..page }
    }

    /// Returns the reason shown by an error page of [`Response::error`], unless its body was
    /// replaced.
    #[must_use]
    #[doc(hidden)]
    pub fn refused_because(&self) -> Option<&str> {
        if !self.is_error_page || !self.status.is_error() {
            return None;
        }
        let page = str::from_utf8(self.body()).ok()?;
        Some(page.split_once(": ").map_or("", |(_, reason)| reason.trim_end()))
    }

    /// Replaces the body by the body of `form`, and adds its headers.
    #[doc(hidden)]
    pub fn in_form(mut self, form: Self) -> Self {
        if let Body::Whole(_) = form.body {
            self.body = form.body;
            self.content_type = form.content_type;
            self.headers.extend(form.headers);
        }
        self
    }

    /// Creates a 405, or a 204 to OPTIONS, with the methods of a path.
    #[doc(hidden)]
    pub fn allowing(status: Status, allow: Allow) -> Self {
        let response = if status.allows_body() {
            Self::error(status, "this path does not answer this method")
        } else {
            Self::new(status)
        };
        response.push_checked("Allow", allow.to_string())
    }

    /// Creates a 503 with Retry-After in seconds.
    pub fn unavailable(retry_after_seconds: u64, reason: &str) -> Self {
        Self::error(Status::SERVICE_UNAVAILABLE, reason)
            .push_checked("Retry-After", retry_after_seconds.to_string())
    }

    /// Adds a header whose parts are known to be valid.
    pub(crate) fn push_checked(
        mut self,
        name: impl Into<Cow<'static, str>>,
        value: impl Into<Cow<'static, str>>,
    ) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Appends a header. `Content-Type` replaces the type of the body.
    ///
    /// # Errors
    ///
    /// [`HeaderError`] if the name or value is invalid, or if the server writes this header itself.
    /// Returned from a handler, the error becomes a 500.
    pub fn header(
        mut self,
        name: impl Into<Cow<'static, str>>,
        value: impl Into<Cow<'static, str>>,
    ) -> Result<Self, HeaderError> {
        let (name, value) = (name.into(), value.into());
        check_header(&name, &value)?;
        if name.eq_ignore_ascii_case(CONTENT_TYPE.as_str()) {
            self.content_type = Some(value);
            return Ok(self);
        }
        Ok(self.push_checked(name, value))
    }

    /// Sets the status.
    pub const fn with_status(mut self, status: Status) -> Self {
        self.status = status;
        self
    }

    /// Sets a body of plain text in UTF-8.
    pub fn with_text(self, body: impl Into<Cow<'static, str>>) -> Self {
        self.with_bytes(TEXT, into_bytes(body.into()))
    }

    /// Sets a body of `content_type`, which is a literal.
    ///
    /// # Panics
    /// `content_type` is not valid as the value of a header.
    pub fn with_body(self, content_type: &'static str, body: impl Into<Cow<'static, str>>) -> Self {
        self.with_bytes(content_type, into_bytes(body.into()))
    }

    /// Sets a body of bytes; otherwise like [`with_body`](Self::with_body).
    ///
    /// # Panics
    /// `content_type` is not valid as the value of a header.
    pub fn with_bytes(
        mut self,
        content_type: &'static str,
        body: impl Into<Cow<'static, [u8]>>,
    ) -> Self {
        let is_valid = HeaderValue::new(content_type).is_ok();
        assert!(is_valid, "content type {content_type:?} is not valid as the value of a header");
        self.content_type = Some(Cow::Borrowed(content_type));
        self.body = Body::Whole(body.into());
        self.is_error_page = false;
        self
    }

    /// Returns the body of either kind.
    pub(crate) const fn body_ref(&self) -> &Body {
        &self.body
    }

    /// Replaces the body and keeps its type.
    #[doc(hidden)]
    pub fn replacing_body(mut self, body: Body) -> Self {
        self.body = body;
        self
    }

    /// Takes the body out of the response, which keeps its type.
    #[must_use]
    #[doc(hidden)]
    pub fn take_body(&mut self) -> Body {
        std::mem::replace(&mut self.body, Body::Whole(Cow::Borrowed(&[])))
    }

    /// Replaces the values of headers by valid ones, or removes them.
    pub(crate) fn edit_headers(
        &mut self,
        edit: impl Fn(&str, Cow<'static, str>) -> Option<Cow<'static, str>>,
    ) {
        let headers = std::mem::take(&mut self.headers).into_iter();
        let edited = headers.filter_map(|(name, value)| Some((edit(&name, value)?, name)));
        self.headers = edited.map(|(value, name)| (name, value)).collect();
    }

    /// Sets a body whose type is among the headers.
    #[cfg(any(feature = "files", feature = "http"))]
    pub(crate) fn with_bytes_only(mut self, body: Vec<u8>) -> Self {
        self.body = Body::Whole(body.into());
        self
    }

    /// Sets a streamed body of `length` bytes.
    ///
    /// A known length becomes the Content-Length, and a source that produces another number of
    /// bytes ends the connection. Without a length, the body is sent in chunks ([RFC 9112 section
    /// 7.1](https://www.rfc-editor.org/rfc/rfc9112#section-7.1)). Set the type with
    /// [`header`](Self::header)'s `Content-Type`.
    ///
    /// ```
    /// # mod throng { pub use throng_http::*; pub use throng_http as http; }
    /// use throng::Response;
    /// use throng::http::{SourcePull, Status};
    ///
    /// let mut lines = 1..=1_000_000;
    /// let numbers = Response::new(Status::OK).with_stream(None, move |room, out: &mut Vec<u8>| {
    ///     while out.len() < room {
    ///         let Some(line) = lines.next() else { return Ok(SourcePull::End) };
    ///         out.extend_from_slice(format!("{line}\n").as_bytes());
    ///     }
    ///     Ok(SourcePull::More)
    /// });
    /// ```
    pub fn with_stream(mut self, length: Option<u64>, source: impl StreamSource + 'static) -> Self {
        self.body = Body::Stream(Stream { source: Box::new(source), length });
        self.is_error_page = false;
        self
    }

    /// Sets a body that a stream produces, of `length` bytes if that is known; otherwise like
    /// [`with_stream`](Self::with_stream).
    ///
    /// The connection's thread polls the stream, so a poll must not block. It polls when the client
    /// has taken the earlier bytes, and takes at most 64 KiB plus one item. It drops the stream
    /// when the client closes the connection or its side of it. An error of the stream closes the
    /// connection before the end of the body, so that the client can notice it.
    ///
    /// ```
    /// # mod throng { pub use throng_http::*; pub use throng_http as http; }
    /// # use std::{convert::Infallible, pin::Pin, task::{Context, Poll}};
    /// # struct Pages;
    /// # impl futures_core::Stream for Pages {
    /// #     type Item = Result<Vec<u8>, Infallible>;
    /// #     fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
    /// #         Poll::Ready(None)
    /// #     }
    /// # }
    /// # fn pages() -> Pages { Pages }
    /// use throng::Response;
    /// use throng::http::Status;
    ///
    /// // A stream of `Result<Vec<u8>, _>`, of any bytes and errors.
    /// let export = Response::new(Status::OK).with_body_stream(None, pages());
    /// ```
    #[cfg(feature = "stream")]
    pub fn with_body_stream<S, B, E>(self, length: Option<u64>, stream: S) -> Self
    where
        S: futures_core::Stream<Item = Result<B, E>> + Send + 'static,
        B: AsRef<[u8]>,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let append = |item: Result<B, E>, out: &mut Vec<u8>| {
            out.extend_from_slice(item.map_err(std::io::Error::other)?.as_ref());
            Ok(())
        };
        self.with_stream(length, StreamBody::new(stream, append))
    }

    /// Creates a 200 whose body is a stream of server-sent events ([WHATWG HTML section
    /// 9.2](https://html.spec.whatwg.org/multipage/server-sent-events.html)): texts, or frames with
    /// an id and a name. The body ends when `events` ends.
    ///
    /// Suitable for one request, such as the tokens of one answer. For a channel use `App::sse`,
    /// which also checks origins and sends comments to keep a silent stream open. A silent `events`
    /// sends nothing: if proxies close silent connections, add an event now and then. `events` is
    /// polled and dropped like the stream of [`with_body_stream`](Self::with_body_stream).
    #[cfg(feature = "stream")]
    pub fn events<S>(events: S) -> Self
    where
        S: futures_core::Stream<Item: ToEvent> + Send + 'static,
    {
        let append = |event: S::Item, out: &mut Vec<u8>| {
            event.encode_event(out);
            Ok(())
        };
        Self::events_head().with_stream(None, StreamBody::new(events, append))
    }

    /// Creates the head of a stream of events, with headers that prevent browsers and proxies from
    /// caching it, and proxies from waiting for its end.
    #[doc(hidden)]
    pub fn events_head() -> Self {
        Self::new(Status::OK)
            .with_bytes("text/event-stream", Vec::new())
            .push_checked("Cache-Control", "no-store")
            .push_checked("X-Accel-Buffering", "no")
    }

    /// Closes the connection after this response.
    pub const fn closing(mut self) -> Self {
        self.close = true;
        self
    }

    /// Returns the status.
    #[must_use]
    pub const fn status(&self) -> Status {
        self.status
    }

    /// Returns the body; empty if it is streamed.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        match &self.body {
            Body::Whole(bytes) => bytes,
            Body::Stream(_) => &[],
        }
    }

    /// Takes the body, for a caller that sends it after [`encode_head`](Self::encode_head).
    #[must_use]
    #[doc(hidden)]
    pub fn into_body(self) -> Body {
        self.body
    }

    /// Returns whether the body is streamed.
    #[must_use]
    pub const fn is_streamed(&self) -> bool {
        matches!(self.body, Body::Stream(_))
    }

    /// Returns whether the body is sent in chunks.
    #[must_use]
    #[doc(hidden)]
    pub fn is_chunked(&self, to: &ReplyTo<'_>) -> bool {
        to.is_http11 && self.status.allows_body() && self.has_unknown_length()
    }

    fn has_unknown_length(&self) -> bool {
        matches!(self.body, Body::Stream(Stream { length: None, .. }))
    }

    /// Returns all headers that were set, without those added when it is encoded.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &str)> {
        let content_type = self.content_type.as_deref().map(|value| (CONTENT_TYPE.as_str(), value));
        content_type.into_iter().chain(self.headers.iter().map(|(name, value)| (&**name, &**value)))
    }

    fn has_header(&self, wanted: &str) -> bool {
        self.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case(wanted))
    }

    /// Returns whether the connection stays open after this response.
    #[must_use]
    #[doc(hidden)]
    pub fn keeps_alive(&self, to: &ReplyTo<'_>) -> bool {
        // A body with neither a length nor chunks ends with the connection (RFC 9112 section 6.3).
        to.keep_alive && !self.close && (to.is_http11 || !self.has_unknown_length())
    }

    /// Appends the head, and the body if it is complete.
    #[doc(hidden)]
    pub fn encode(&self, to: &ReplyTo<'_>, out: &mut Vec<u8>) {
        self.encode_head(to, out);
        if self.has_body_bytes(to) {
            out.extend_from_slice(self.body());
        }
    }

    /// Returns whether body bytes follow the head: not to a HEAD, and not with 204 or 304.
    #[must_use]
    #[doc(hidden)]
    pub const fn has_body_bytes(&self, to: &ReplyTo<'_>) -> bool {
        !to.is_head && self.status.allows_body()
    }

    /// Appends the head alone.
    #[doc(hidden)]
    pub fn encode_head(&self, to: &ReplyTo<'_>, out: &mut Vec<u8>) {
        let mut head = self.start_head(to, out);
        if self.status.allows_body() {
            let length = match &self.body {
                Body::Whole(bytes) => Some(bytes.len() as u64),
                Body::Stream(Stream { length, .. }) => *length,
            };
            match length {
                Some(length) => head = head.content_length(length),
                None if to.is_http11 => head = head.chunked(),
                None => {}
            }
        }
        head.finish();
    }

    /// Appends the head of a response that continues until the connection ends
    /// ([RFC 9112 section 6.3](https://www.rfc-editor.org/rfc/rfc9112#section-6.3)): without a
    /// length, and with `Connection: close`.
    #[doc(hidden)]
    pub fn encode_endless_head(&self, to: &ReplyTo<'_>, out: &mut Vec<u8>) {
        self.start_head(&ReplyTo { keep_alive: false, ..*to }, out).finish();
    }

    fn start_head<'o>(&self, to: &ReplyTo<'_>, out: &'o mut Vec<u8>) -> ResponseHead<'o> {
        let mut head = ResponseHead::start(out, self.status.code(), self.status.reason());
        // Values were validated when they were set; they are validated again rather than trusted,
        // since it costs little.
        if let Some(Ok(value)) = self.content_type.as_deref().map(HeaderValue::new) {
            head = head.field(CONTENT_TYPE, value);
        }
        for (name, value) in &self.headers {
            if let (Ok(name), Ok(value)) = (HeaderName::new(name), HeaderValue::new(value)) {
                head = head.field(name, value);
            }
        }
        if let Ok(date) = HeaderValue::new(to.date) {
            head = head.field(DATE, date);
        }
        if let Some(Ok(value)) = to.hsts.map(HeaderValue::new)
            && !self.has_header(STRICT_TRANSPORT_SECURITY)
        {
            head = head.field(HSTS, value);
        }
        match (self.keeps_alive(to), to.is_http11) {
            (true, true) => {}
            (true, false) => head = head.field(CONNECTION, KEEP_ALIVE),
            (false, _) => head = head.field(CONNECTION, CLOSE),
        }
        head
    }
}

fn into_bytes(text: Cow<'static, str>) -> Cow<'static, [u8]> {
    match text {
        Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
        Cow::Owned(text) => Cow::Owned(text.into_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::into_response::IntoResponse;

    const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const TO: ReplyTo<'static> =
        ReplyTo { is_head: false, is_http11: true, keep_alive: true, date: DATE, hsts: None };

    fn text(response: impl IntoResponse, to: &ReplyTo<'_>) -> String {
        let mut out = Vec::new();
        response.into_response().encode(to, &mut out);
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn a_response_has_length_date_and_type() {
        assert_eq!(
            text("OK", &TO),
            format!(
                "HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nDate: {DATE}\r\n\
                 Content-Length: 2\r\n\r\nOK"
            )
        );
    }

    #[test]
    fn rfc9112_9_3_connection_overrides_the_default() {
        for (is_http11, keep_alive, expected) in [
            (true, true, None),
            (true, false, Some("close")),
            (false, true, Some("keep-alive")),
            (false, false, Some("close")),
        ] {
            let to = ReplyTo { is_http11, keep_alive, ..TO };
            let text = text((), &to);
            let found = text.lines().find_map(|line| line.strip_prefix("Connection: "));
            assert_eq!(found, expected);
        }
        let closing = text(Response::text("x").closing(), &TO);
        assert!(closing.contains("\r\nConnection: close\r\n"));
        assert!(!Response::text("x").closing().keeps_alive(&TO));
    }

    #[test]
    fn rfc9110_9_3_2_head_is_answered_with_the_length_of_get() {
        let head = text("hello", &ReplyTo { is_head: true, ..TO });
        assert!(head.ends_with("Content-Length: 5\r\n\r\n"), "{head}");
    }

    #[test]
    fn rfc9110_8_6_no_length_and_no_body_with_204_and_304() {
        for status in [Status::NO_CONTENT, Status::NOT_MODIFIED] {
            let text = text(Response::text("lost").with_status(status), &TO);
            assert!(!text.contains("Content-Length") && text.ends_with("\r\n\r\n"), "{text}");
        }
        assert!(text(Status::OK, &TO).contains("Content-Length: 0\r\n"));
    }

    #[test]
    fn rfc9112_6_3_a_stream_has_a_length_or_chunks_or_the_connections_end() {
        let endless = || {
            Response::new(Status::OK)
                .with_stream(None, |_, _: &mut Vec<u8>| Ok(crate::SourcePull::End))
        };
        let known = Response::new(Status::OK)
            .with_stream(Some(7), |_, _: &mut Vec<u8>| Ok(crate::SourcePull::End));
        assert!(known.keeps_alive(&TO) && !known.is_chunked(&TO));
        assert!(text(known, &TO).ends_with("Content-Length: 7\r\n\r\n"));
        assert!(endless().keeps_alive(&TO) && endless().is_chunked(&TO));
        assert!(text(endless(), &TO).ends_with("Transfer-Encoding: chunked\r\n\r\n"));
        let old = ReplyTo { is_http11: false, ..TO };
        assert!(!endless().keeps_alive(&old) && !endless().is_chunked(&old));
        let head = text(endless(), &old);
        assert!(head.contains("Connection: close\r\n"), "{head}");
        assert!(!head.contains("Content-Length") && !head.contains("Transfer-Encoding"), "{head}");
    }

    #[test]
    fn headers_cannot_split_a_response_or_change_its_framing() {
        let new = || Response::text("x");
        for (name, value) in
            [("X", "a\r\nY: b"), ("X", "\0"), ("X\r\nY", "a"), ("", "a"), ("X Y", "a")]
        {
            let error = new().header(name, value).err();
            assert!(matches!(error, Some(HeaderError::Invalid(_))), "{name:?} {value:?}");
        }
        for name in ["Content-Length", "transfer-encoding", "CONNECTION", "Date"] {
            assert_eq!(new().header(name, "1").err(), Some(HeaderError::Reserved), "{name}");
        }
        let failed: Result<Response, HeaderError> = new().header("X", "\n");
        assert!(text(failed, &TO).starts_with("HTTP/1.1 500 "));
    }

    #[test]
    fn content_type_occurs_once() {
        let response = Response::text("{}").header("content-type", "application/json").unwrap();
        let text = text(response, &TO);
        assert_eq!(text.to_lowercase().matches("content-type").count(), 1);
        assert!(text.contains("Content-Type: application/json\r\n"));
    }

    #[test]
    fn errors_are_responses() {
        let page = text(http1::Error::MissingHost, &ReplyTo::error(DATE));
        assert!(page.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{page}");
        assert!(page.contains("Connection: close\r\n"));
        assert!(page.ends_with("400 Bad Request: an HTTP/1.1 request needs a Host header\n"));

        let busy = text(Response::unavailable(7, "full"), &TO);
        assert!(
            busy.contains("Retry-After: 7\r\n")
                && busy.ends_with("503 Service Unavailable: full\n")
        );

        let allow = Allow::NONE.with(crate::Method::Get);
        let wrong = text(Response::allowing(Status::METHOD_NOT_ALLOWED, allow), &TO);
        assert!(wrong.contains("Allow: GET, HEAD, OPTIONS\r\n"), "{wrong}");
        let options = text(Response::allowing(Status::NO_CONTENT, allow), &TO);
        assert!(options.starts_with("HTTP/1.1 204 ") && options.ends_with("\r\n\r\n"));
    }
}
