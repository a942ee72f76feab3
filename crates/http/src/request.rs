//! A request as a handler sees it.

use crate::params::{MAX_PARAMS, Params};
use crate::percent;
use std::cell::OnceCell;
use std::net::SocketAddr;
use throng_proto::http1;

/// A routed request with its whole body. Everything in it is borrowed; keep what you need by copying it.
///
/// Nothing is parsed before it is asked for. What is percent-encoded is decoded the first time; what is not
/// is never copied.
#[derive(Debug)]
pub struct Request<'a> {
    head: http1::Request<'a>,
    params: Params<'a>,
    body: &'a [u8],
    peer: Option<SocketAddr>,
    decoded_params: OnceCell<Box<[Option<String>; MAX_PARAMS]>>,
    decoded_query: OnceCell<Box<[(String, String)]>>,
}

impl<'a> Request<'a> {
    /// A request of which the router knows the `params`.
    #[must_use]
    pub const fn new(
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
            decoded_params: OnceCell::new(),
            decoded_query: OnceCell::new(),
        }
    }

    /// The method as sent; methods are case-sensitive.
    #[must_use]
    pub fn method(&self) -> &'a str {
        self.head.method()
    }

    /// The path, still percent-encoded.
    #[must_use]
    pub fn path(&self) -> &'a str {
        self.head.path()
    }

    /// The value of the route's `{name}` or `{*name}`, decoded. A decoded value may hold any
    /// character but NUL: also `/`, from `%2F`, and `..`.
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

    /// The value of the first query parameter called `name`, decoded: empty for `?name`.
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

    /// What follows the `?`, still encoded.
    #[must_use]
    pub fn query_string(&self) -> Option<&'a str> {
        self.head.query()
    }

    /// The value of the first header called `name`, without regard to case; `None` also if it is not
    /// UTF-8.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&'a str> {
        self.head.header(name)
    }

    /// The values of all headers called `name` that are UTF-8, in the order they came.
    pub fn header_values(&self, name: &str) -> impl Iterator<Item = &'a str> {
        self.head.lines().all(name)
    }

    /// All headers in the order they came.
    pub fn headers(&self) -> impl Iterator<Item = http1::Header<'a>> + use<'a> {
        self.head.headers()
    }

    /// The token of `Authorization: Bearer`. RFC 6750 section 2.1.
    #[must_use]
    pub fn bearer(&self) -> Option<&'a str> {
        let (scheme, token) = self.header("authorization")?.split_once(' ')?;
        let token = token.trim_start_matches(' ');
        (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
    }

    /// The authority the request is for: of an absolute target, else the Host header.
    #[must_use]
    pub fn host(&self) -> Option<&'a str> {
        self.head.host()
    }

    /// The whole body; empty if there is none.
    #[must_use]
    pub const fn body(&self) -> &'a [u8] {
        self.body
    }

    /// The body as text, if it is UTF-8.
    #[must_use]
    pub fn body_text(&self) -> Option<&'a str> {
        str::from_utf8(self.body).ok()
    }

    /// The address of the other end of the connection, if it has one: a proxy's, when one stands between.
    #[must_use]
    pub const fn peer(&self) -> Option<SocketAddr> {
        self.peer
    }

    /// HTTP/1.1, and not 1.0.
    #[must_use]
    pub fn is_http11(&self) -> bool {
        self.head.is_http11()
    }

    /// The head as the protocol decoder gave it.
    #[must_use]
    pub const fn head(&self) -> &http1::Request<'a> {
        &self.head
    }
}
