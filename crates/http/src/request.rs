//! Requests as handlers see them.

use crate::basic::BasicCredentials;
use crate::client::{client_address, client_on_unix_socket};
use crate::extensions::Extensions;
use crate::networks::Network;
use crate::params::{MAX_PARAMS, Params};
use crate::percent;
#[cfg(feature = "serde")]
use crate::reject::Reject;
#[cfg(feature = "serde")]
use crate::status::Status;
use std::cell::OnceCell;
use std::net::{IpAddr, SocketAddr};
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
    trusted_proxies: &'a [Network],
    extensions: Extensions,
    decoded_params: OnceCell<Box<[Option<String>; MAX_PARAMS]>>,
    decoded_query: OnceCell<Pairs>,
    decoded_form: OnceCell<Pairs>,
}

/// Decoded names and values.
type Pairs = Box<[(String, String)]>;

/// Finds a name in a query, which is decoded once if that is needed.
fn find_pair<'p>(text: &'p str, decoded: &'p OnceCell<Pairs>, name: &str) -> Option<&'p str> {
    if !text.contains(['%', '+']) {
        return percent::query_pairs(text).find(|(key, _)| *key == name).map(|(_, value)| value);
    }
    let decode = |text| percent::decode_query(text).into_owned();
    let pairs = decoded.get_or_init(|| {
        percent::query_pairs(text).map(|(key, value)| (decode(key), decode(value))).collect()
    });
    pairs.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
}

impl<'a> Request<'a> {
    /// Creates a request with the `params` of its route.
    #[must_use]
    #[doc(hidden)]
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
            trusted_proxies: &[],
            extensions: Extensions::default(),
            decoded_params: OnceCell::new(),
            decoded_query: OnceCell::new(),
            decoded_form: OnceCell::new(),
        }
    }

    /// Sets the networks of proxies whose headers are trusted.
    #[must_use]
    #[doc(hidden)]
    pub fn with_trusted_proxies(mut self, networks: &'a [Network]) -> Self {
        self.trusted_proxies = networks;
        self
    }

    /// Returns the request with values that middleware has attached to it.
    #[must_use]
    #[doc(hidden)]
    pub fn with_extensions(mut self, extensions: Extensions) -> Self {
        self.extensions = extensions;
        self
    }

    /// Returns the values that middleware has attached.
    #[must_use]
    #[doc(hidden)]
    pub fn into_extensions(self) -> Extensions {
        self.extensions
    }

    /// Attaches a value for the handler, such as the user that middleware has authenticated. The
    /// value replaces an earlier value of the same type. A service of tower finds it among the
    /// extensions of its request; a value that is not `Clone` is attached in an
    /// [`Arc`](std::sync::Arc).
    pub fn insert_extension<T: Clone + Send + Sync + 'static>(&mut self, value: T) {
        self.extensions.insert(value);
    }

    /// Returns all values that middleware has attached.
    #[cfg(feature = "http")]
    pub(crate) fn extensions(&self) -> &Extensions {
        &self.extensions
    }

    /// Returns a value that middleware has attached.
    #[must_use]
    pub fn extension<T: 'static>(&self) -> Option<&T> {
        self.extensions.get()
    }

    /// Returns the method as sent; methods are case-sensitive. It can be compared with a
    /// [`Method`](crate::Method). On a route for any method it may be a method without a variant
    /// there.
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
        find_pair(self.query_string()?, &self.decoded_query, name)
    }

    /// Returns the decoded value of the first field called `name` of a form: a body of the type
    /// `application/x-www-form-urlencoded`.
    #[must_use]
    pub fn form(&self, name: &str) -> Option<&str> {
        if !self.media_type()?.eq_ignore_ascii_case("application/x-www-form-urlencoded") {
            return None;
        }
        find_pair(self.body_text()?, &self.decoded_form, name)
    }

    /// Returns the type in Content-Type, without parameters.
    fn media_type(&self) -> Option<&'a str> {
        self.header("content-type")?.split(';').next().map(str::trim)
    }

    /// Parses the body as JSON. Its type must be `application/json` or end with `+json`.
    ///
    /// # Errors
    /// Refuses another type with 415, which also keeps pages of other origins from posting without
    /// a preflight request; a body that is not JSON with 400; and JSON that does not fit `T` with
    /// 422, the path of the field and the reason.
    #[cfg(feature = "serde")]
    pub fn json<T: serde::de::DeserializeOwned>(&self) -> Result<T, Reject> {
        let is_json = |of: &str| {
            let of = of.to_ascii_lowercase();
            of == "application/json" || of.ends_with("+json")
        };
        if !self.media_type().is_some_and(is_json) {
            let refused = Reject::status(Status::UNSUPPORTED_MEDIA_TYPE);
            return Err(refused.with_reason("send the body as application/json"));
        }
        let mut json = serde_json::Deserializer::from_slice(self.body);
        let invalid =
            |error: &serde_json::Error| Reject::bad_request(format!("invalid JSON: {error}"));
        let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
            let (path, error) = (error.path().to_string(), error.into_inner());
            if !error.is_data() {
                return invalid(&error);
            }
            let refused = Reject::status(Status::UNPROCESSABLE_CONTENT);
            match path.as_str() {
                "." => refused.with_reason(error.to_string()),
                path => refused.with_reason(format!("{path}: {error}")),
            }
        })?;
        json.end().map_err(|error| invalid(&error))?;
        Ok(value)
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

    /// Returns the credentials of `Authorization: Basic` ([RFC 7617 section
    /// 2](https://www.rfc-editor.org/rfc/rfc7617#section-2)); `None` if they are missing or
    /// malformed. Without TLS, everyone on the network path can read them.
    ///
    /// ```
    /// # use throng_http::{Reject, Request};
    /// fn admin(request: &Request<'_>) -> Result<&'static str, Reject> {
    ///     match request.basic() {
    ///         Some(given) if given.matches("admin", "secret") => Ok("welcome"),
    ///         _ => Err(Reject::unauthorized_basic("admin")),
    ///     }
    /// }
    /// ```
    #[must_use]
    pub fn basic(&self) -> Option<BasicCredentials> {
        BasicCredentials::parse(self.header("authorization")?)
    }

    /// Returns the authority that the request is for: from an absolute target, otherwise from the
    /// Host header.
    #[must_use]
    pub fn host(&self) -> Option<&'a str> {
        self.head.host()
    }

    /// Returns the body. It is complete when a handler is called, and empty in middleware and in
    /// handlers that read the body as it arrives.
    #[must_use]
    pub const fn body(&self) -> &'a [u8] {
        self.body
    }

    /// Returns [`Request::body`] as text, if it is UTF-8.
    #[must_use]
    pub fn body_text(&self) -> Option<&'a str> {
        str::from_utf8(self.body).ok()
    }

    /// Returns the address of the other end of the connection; behind a proxy, this is the proxy's
    /// address. `None` on a Unix socket.
    #[must_use]
    pub const fn peer(&self) -> Option<SocketAddr> {
        self.peer
    }

    /// Returns the address of the client: [`Request::peer`], or if that is a trusted proxy, the
    /// rightmost address in X-Forwarded-For or Forwarded ([RFC 7239 section
    /// 4](https://www.rfc-editor.org/rfc/rfc7239#section-4)) that does not belong to a trusted
    /// proxy. If both headers are present and disagree, neither is trusted. On a Unix socket
    /// `None`, unless `unix:` is among the trusted proxies and the headers name a client.
    #[must_use]
    pub fn client(&self) -> Option<IpAddr> {
        let Some(peer) = self.peer else {
            return client_on_unix_socket(&self.head, self.trusted_proxies);
        };
        match self.trusted_proxies {
            [] => Some(peer.ip().to_canonical()),
            trusted => Some(client_address(&self.head, peer, trusted)),
        }
    }

    /// Returns the id of the last server-sent event that the client received, if it reconnects
    /// after its stream ended ([WHATWG HTML section
    /// 9.2](https://html.spec.whatwg.org/multipage/server-sent-events.html)).
    #[must_use]
    pub fn last_event_id(&self) -> Option<&'a str> {
        self.header("last-event-id")
    }

    /// Returns the value of a cookie, as it was sent ([RFC 6265
    /// section 4.2](https://www.rfc-editor.org/rfc/rfc6265#section-4.2)), without quotes around it.
    /// The first one of this name counts.
    #[must_use]
    pub fn cookie(&self, name: &str) -> Option<&'a str> {
        let pairs = self.header_values("cookie").flat_map(|value| value.split(';'));
        let mut named = pairs.filter_map(|pair| pair.trim().split_once('='));
        let (_, value) = named.find(|(its, _)| *its == name)?;
        Some(value.strip_prefix('"').and_then(|inner| inner.strip_suffix('"')).unwrap_or(value))
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
    use crate::method::Method;
    use crate::origin::Origins;
    use crate::router::{Match, Router};
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

    #[test]
    fn rfc6265_4_2_a_cookie_is_found_by_its_whole_name() {
        let lines = "Cookie: ab=1; b=two=2; quoted=\"x y\"\r\nCookie: later=3;b=4; empty=\r\n";
        with_request("/r/a/", lines, |request| {
            assert_eq!(request.cookie("b"), Some("two=2"), "the first one");
            assert_eq!(request.cookie("quoted"), Some("x y"));
            assert_eq!((request.cookie("later"), request.cookie("empty")), (Some("3"), Some("")));
            assert_eq!((request.cookie("a"), request.cookie("B")), (None, None));
        });
        with_request("/r/a/", "", |request| assert_eq!(request.cookie("b"), None));
    }

    #[test]
    fn a_form_is_a_body_of_its_type() {
        let with_body = |lines: &str, body: &'static [u8], check: &dyn Fn(&Request<'_>)| {
            with_request("/r/a/?name=query", lines, |request| {
                check(&Request::new(*request.head(), Params::NONE, body, None));
            });
        };
        let form = "Content-Type: application/x-www-form-urlencoded; charset=utf-8\r\n";
        with_body(form, b"name=a+b%21&empty=&name=c", &|request| {
            assert_eq!((request.form("name"), request.form("empty")), (Some("a b!"), Some("")));
            assert_eq!((request.form("nothing"), request.query("name")), (None, Some("query")));
        });
        with_body("Content-Type: text/plain\r\n", b"name=a", &|request| {
            assert_eq!(request.form("name"), None);
        });
        with_body(form, b"name=\xff", &|request| assert_eq!(request.form("name"), None));
    }

    #[cfg(feature = "serde")]
    #[test]
    fn json_is_parsed_if_it_says_that_it_is_json() {
        let parse = |lines: &str, body: &'static [u8]| {
            let mut parsed = None;
            with_request("/r/a/", lines, |request| {
                let request = Request::new(*request.head(), Params::NONE, body, None);
                parsed = Some(request.json::<Vec<u8>>().map_err(|reject| reject.to_string()));
            });
            parsed.unwrap()
        };
        for of in ["application/json", "Application/JSON; charset=utf-8", "application/x+json"] {
            assert_eq!(parse(&format!("Content-Type: {of}\r\n"), b"[1, 2]"), Ok(vec![1, 2]));
        }
        for lines in ["", "Content-Type: text/plain\r\n"] {
            let error = parse(lines, b"[1, 2]").unwrap_err();
            assert!(error.starts_with("415 "), "{error}");
        }
        let json = |body| parse("Content-Type: application/json\r\n", body).unwrap_err();
        // JSON of another type than requested: the error shows the field and the expected type.
        let error = json(b"[1, 256]");
        assert!(error.starts_with("422 ") && error.contains("[1]: invalid value"), "{error}");
        let error = json(b"{}");
        assert!(error.starts_with("422 ") && error.contains("invalid type: map"), "{error}");
        for body in [&b"[1, 2"[..], b"[1] 2", b""] {
            let error = json(body);
            assert!(error.starts_with("400 ") && error.contains("invalid JSON"), "{error}");
        }
    }
}
