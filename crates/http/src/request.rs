//! Requests as handlers see them.

use crate::extensions::Extensions;
use crate::params::{MAX_PARAMS, Params};
use crate::percent;
use std::cell::OnceCell;
use std::net::SocketAddr;
use throng_proto::http1;

/// A routed request. Everything in it is borrowed; copy what you need to keep.
///
/// The body is complete when a handler is called, within the server's limit. Where there is no
/// handler, or the request is for an upgrade or a stream of events, input after the head is read
/// within the limits and dropped.
///
/// Parsing is lazy: percent-encoded values are decoded on demand, and others are never copied.
#[derive(Debug)]
pub struct Request<'a> {
    head: http1::Request<'a>,
    params: Params<'a>,
    body: &'a [u8],
    peer: Option<SocketAddr>,
    extensions: Extensions,
    decoded_params: OnceCell<Box<[Option<String>; MAX_PARAMS]>>,
    decoded_query: OnceCell<Box<[(String, String)]>>,
}

impl<'a> Request<'a> {
    /// Creates a request with the `params` of its route.
    #[must_use]
    pub fn new(
        head: http1::Request<'a>,
        params: Params<'a>,
        body: &'a [u8],
        peer: Option<SocketAddr>,
    ) -> Self {
        Self {
            head,
            params,
            body,
            peer,
            extensions: Extensions::default(),
            decoded_params: OnceCell::new(),
            decoded_query: OnceCell::new(),
        }
    }

    /// Returns the request with values that middleware has attached to it.
    #[must_use]
    pub fn with_extensions(mut self, extensions: Extensions) -> Self {
        self.extensions = extensions;
        self
    }

    /// Returns the values that middleware has attached.
    #[must_use]
    pub fn into_extensions(self) -> Extensions {
        self.extensions
    }

    /// Attaches a value for the handler, such as the user that middleware has authenticated. One
    /// of the same type is replaced.
    pub fn insert_extension<T: Send + 'static>(&mut self, value: T) {
        self.extensions.insert(value);
    }

    /// Returns a value that middleware has attached.
    #[must_use]
    pub fn extension<T: 'static>(&self) -> Option<&T> {
        self.extensions.get()
    }

    /// Returns the method as sent; methods are case-sensitive. It can be compared to a
    /// [`Method`](crate::Method), of which there may be none for it on a route for any method.
    #[must_use]
    pub fn method(&self) -> &'a str {
        self.head.method()
    }

    /// Returns the path, still percent-encoded.
    #[must_use]
    pub fn path(&self) -> &'a str {
        self.head.path()
    }

    /// Returns the decoded value of the route's `{name}` or `{*name}`. It may contain any character
    /// but NUL: also `/`, from `%2F`, and `..`.
    #[must_use]
    pub fn param(&self, name: &str) -> Option<&str> {
        let index = self.params.position(name)?;
        let raw = self.params.at(self.path(), index)?;
        if !raw.contains('%') {
            return Some(raw);
        }
        let decoded = self.decoded_params.get_or_init(|| {
            Box::new(std::array::from_fn(|index| {
                let raw = self.params.at(self.path(), index)?;
                percent::decode_path(raw).ok().map(String::from)
            }))
        });
        decoded.get(index)?.as_deref()
    }

    /// Returns the parameters of the route.
    #[must_use]
    pub const fn params(&self) -> Params<'a> {
        self.params
    }

    /// Returns the value of a route's parameter, still percent-encoded: for a value that is split
    /// at its slashes before it is decoded.
    #[must_use]
    pub fn raw_param(&self, name: &str) -> Option<&'a str> {
        self.params.raw(self.path(), name)
    }

    /// Returns the decoded value of the first query parameter called `name`: empty for `?name`.
    #[must_use]
    pub fn query(&self, name: &str) -> Option<&str> {
        let query = self.query_string()?;
        if !query.contains(['%', '+']) {
            return percent::query_pairs(query)
                .find(|(key, _)| *key == name)
                .map(|(_, value)| value);
        }
        let decode = |text| percent::decode_query(text).into_owned();
        let pairs = self.decoded_query.get_or_init(|| {
            percent::query_pairs(query).map(|(key, value)| (decode(key), decode(value))).collect()
        });
        pairs.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Returns the text after the `?`, still encoded.
    #[must_use]
    pub fn query_string(&self) -> Option<&'a str> {
        self.head.query()
    }

    /// Returns the value of the first header called `name`, case-insensitively; also `None` if it
    /// is not UTF-8.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&'a str> {
        self.head.header(name)
    }

    /// Returns the values of all headers called `name` that are UTF-8, in the order received.
    pub fn header_values(&self, name: &str) -> impl Iterator<Item = &'a str> {
        self.head.lines().all(name)
    }

    /// Returns all headers in the order received.
    pub fn headers(&self) -> impl Iterator<Item = http1::Header<'a>> + use<'a> {
        self.head.headers()
    }

    /// Returns the token of `Authorization: Bearer`.
    /// [RFC 6750 section 2.1](https://www.rfc-editor.org/rfc/rfc6750#section-2.1).
    #[must_use]
    pub fn bearer(&self) -> Option<&'a str> {
        let (scheme, token) = self.header("authorization")?.split_once(' ')?;
        let token = token.trim_start_matches(' ');
        (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
    }

    /// Returns the authority that the request is for: that of an absolute target, else the Host
    /// header.
    #[must_use]
    pub fn host(&self) -> Option<&'a str> {
        self.head.host()
    }

    /// Returns the body. It has come whole when a handler is called, but not when middleware is, or
    /// where the handler takes it while it comes: it is empty there.
    #[must_use]
    pub const fn body(&self) -> &'a [u8] {
        self.body
    }

    /// Returns [`Request::body`] as text, if it is UTF-8.
    #[must_use]
    pub fn body_text(&self) -> Option<&'a str> {
        str::from_utf8(self.body).ok()
    }

    /// Returns the address of the other end of the connection, if it has one: that of a proxy, if
    /// there is one.
    #[must_use]
    pub const fn peer(&self) -> Option<SocketAddr> {
        self.peer
    }

    /// Returns whether the version is HTTP/1.1 rather than 1.0.
    #[must_use]
    pub fn is_http11(&self) -> bool {
        self.head.is_http11()
    }

    /// Returns the head from the protocol decoder.
    #[must_use]
    pub const fn head(&self) -> &http1::Request<'a> {
        &self.head
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Match, Method, Origins, Router};
    use throng_proto::Input;
    use throng_proto::http1::{Decoder, Event, Limits};

    /// Decodes and routes a request to `/r/{name}/{*rest}` and passes it to `check`.
    fn with_request(target: &str, lines: &str, check: impl FnOnce(&Request<'_>)) {
        let mut router = Router::new();
        router.add(Method::Get, "/r/{name}/{*rest}", ()).expect("a valid pattern");
        let mut bytes = format!("GET {target} HTTP/1.1\r\nHost: h\r\n{lines}\r\n").into_bytes();
        let mut decoder = Decoder::new();
        let mut input = Input::new(&mut bytes);
        let event = decoder.next_event(&mut input, &Limits::default());
        let Ok(Some(Event::Head(head))) = event else { panic!("{event:?}") };
        let Match::Found { params, .. } = router.find(head.method(), head.path()) else {
            panic!("not routed")
        };
        check(&Request::new(head, params, b"body", None));
    }

    #[test]
    fn params_are_decoded_on_demand() {
        with_request("/r/a%20b%2Fc/x/%C3%A9?q", "", |request| {
            assert_eq!(request.param("name"), Some("a b/c"));
            assert_eq!(request.param("rest"), Some("x/\u{e9}"));
            assert_eq!(request.param("other"), None);
            assert_eq!(request.path(), "/r/a%20b%2Fc/x/%C3%A9");
        });
        with_request("/r/plain/", "", |request| {
            assert_eq!((request.param("name"), request.param("rest")), (Some("plain"), Some("")));
        });
    }

    #[test]
    fn queries_are_decoded_on_demand() {
        with_request("/r/a/?x=1&y=a+b%21&%7A=3&x=2", "", |request| {
            assert_eq!(request.query("x"), Some("1"));
            assert_eq!(request.query("y"), Some("a b!"));
            assert_eq!(request.query("z"), Some("3"));
            assert_eq!(request.query("w"), None);
            assert_eq!(request.query_string(), Some("x=1&y=a+b%21&%7A=3&x=2"));
        });
        with_request("/r/a/?x=1&flag", "", |request| {
            assert_eq!((request.query("x"), request.query("flag")), (Some("1"), Some("")));
        });
        with_request("/r/a/", "", |request| assert_eq!(request.query("x"), None));
    }

    #[test]
    fn rfc6750_2_1_bearer_tokens() {
        for (line, expected) in [
            ("Authorization: Bearer abc\r\n", Some("abc")),
            ("authorization: bEARER  abc\r\n", Some("abc")),
            ("Authorization: Bearer\r\n", None),
            ("Authorization: Bearer \r\n", None),
            ("Authorization: Basic abc\r\n", None),
            ("Authorization: Bearerabc\r\n", None),
            ("", None),
        ] {
            with_request("/r/a/", line, |request| {
                assert_eq!(request.bearer(), expected, "{line:?}")
            });
        }
    }

    #[test]
    fn a_handler_sees_head_body_and_peer() {
        with_request("http://o:8/r/a/", "X: 1\r\nX: 2\r\nOrigin: http://o:8\r\n", |request| {
            assert_eq!((request.method(), request.host()), ("GET", Some("o:8")));
            assert!(request.method() == Method::Get && Method::Post != request.method());
            assert_eq!(request.header_values("x").collect::<Vec<_>>(), ["1", "2"]);
            assert_eq!(request.headers().count(), 4);
            assert_eq!((request.body(), request.body_text()), (&b"body"[..], Some("body")));
            assert!(request.is_http11() && request.peer().is_none());
            let origins = request.head().lines().all_bytes("origin");
            assert!(Origins::SameHost.allow(origins, request.host()));
        });
    }
}
