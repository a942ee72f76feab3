//! The request as bytes: encoded once, sent from the same memory on every connection.

use std::borrow::Cow;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use throng_proto::http1::RequestHead;
use throng_proto::http1::encode::{encode_chunk, encode_last_chunk};

use super::HttpPlan;
use crate::client::{check_tokens, fields, template};
use crate::error::Error;
use crate::template::{Template, Tokens, Values};

/// Body bytes of one chunk: several chunks already in a body of a few kilobytes.
const CHUNK: usize = 4096;
/// Maximum bytes of one run of repeated requests, which lets all due requests leave in one send.
const MAX_REPEATED: usize = 256 << 10;

impl HttpPlan {
    /// Refuses an invalid plan.
    ///
    /// # Errors
    /// [`Error::Usage`] naming the flag, the value and the remedy.
    pub fn check(&self) -> Result<(), Error> {
        self.check_values()?;
        Wire::of(self).map(drop)
    }
}

/// One request and a run of its copies for one send; or a request that differs by client.
#[derive(Clone, Debug)]
pub(super) struct Wire {
    /// One request; if requests differ, the first client's request.
    one: Arc<[u8]>,
    /// The request, repeated `repeats` times.
    row: Arc<[u8]>,
    repeats: usize,
    /// Set if requests differ by client, or from one to the next.
    own: Option<Arc<Request>>,
}

impl Wire {
    /// Encodes the plan's request.
    ///
    /// # Errors
    /// [`Error::Usage`] for an invalid method, target or header.
    pub(super) fn of(plan: &HttpPlan) -> Result<Self, Error> {
        let request = Request::of(plan)?;
        let mut one = Vec::new();
        request.encode(0, 0, &mut one)?;
        let repeats = (MAX_REPEATED / one.len()).clamp(1, plan.pipeline);
        let own = request.has_places().then(|| Arc::new(request));
        let row = if own.is_none() { one.repeat(repeats) } else { Vec::new() };
        Ok(Self { row: row.into(), one: one.into(), repeats, own })
    }

    /// Bytes of one request.
    pub(super) fn len(&self) -> usize {
        self.one.len()
    }

    /// Maximum requests from one call of [`Wire::row`].
    pub(super) fn repeats(&self) -> usize {
        self.repeats
    }

    /// Returns this many consecutive copies of the request.
    #[inline]
    pub(super) fn row(&self, requests: usize) -> &[u8] {
        &self.row[..requests * self.one.len()]
    }

    /// Returns one request, shared instead of copied.
    pub(super) fn shared(&self) -> Arc<[u8]> {
        Arc::clone(&self.one)
    }

    /// The request to encode for each client, if they differ.
    #[inline]
    pub(super) fn own(&self) -> Option<&Arc<Request>> {
        self.own.as_ref()
    }
}

/// A request with the places in which clients differ.
#[derive(Debug)]
pub(super) struct Request {
    method: String,
    target: Template,
    host: Template,
    headers: Vec<(String, Template)>,
    body: Body,
    chunked: bool,
    keep_alive: bool,
    tokens: Tokens,
    seed: u64,
}

#[derive(Debug)]
enum Body {
    Fixed(Vec<u8>),
    Places(Template),
}

impl Request {
    fn of(plan: &HttpPlan) -> Result<Self, Error> {
        let (host, headers) = fields(&plan.common)?;
        let body = match plan.body_has_places {
            false => Body::Fixed(plan.body.clone()),
            true => {
                let text = str::from_utf8(&plan.body).map_err(|_| {
                    Error::Usage("--template needs a body that is text (UTF-8)".to_owned())
                })?;
                Body::Places(template("the body", text)?)
            }
        };
        let request = Self {
            method: plan.method.clone(),
            target: template("the URL", plan.common.target.resource("/"))?,
            host,
            headers,
            body,
            chunked: plan.chunked,
            keep_alive: plan.keep_alive,
            tokens: plan.common.tokens.clone(),
            seed: RandomState::new().hash_one(plan.common.connections),
        };
        check_tokens(request.templates().any(Template::needs_token), &request.tokens)?;
        Ok(request)
    }

    fn templates(&self) -> impl Iterator<Item = &Template> {
        let body = match &self.body {
            Body::Fixed(_) => None,
            Body::Places(template) => Some(template),
        };
        let headers = self.headers.iter().map(|(_, value)| value);
        headers.chain([&self.target, &self.host]).chain(body)
    }

    fn has_places(&self) -> bool {
        self.templates().any(|template| template.constant().is_none())
    }

    /// Appends request number `sequence` of a client.
    ///
    /// # Errors
    /// [`Error::Usage`] for an invalid method, target or header.
    pub(super) fn encode(
        &self,
        client: u64,
        sequence: u64,
        out: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let values = Values { client, sequence, seed: self.seed, tokens: &self.tokens };
        let (target, host) = (self.target.rendered(&values), self.host.rendered(&values));
        let head = RequestHead::start(out, &self.method, &target, &host);
        let mut head = head.map_err(|error| {
            Error::Usage(format!(
                "cannot send {} {target:?} with Host {host:?}: {error} (see --method and --header)",
                self.method,
            ))
        })?;
        if !self.keep_alive {
            head = head
                .header("Connection", "close")
                .map_err(|error| Error::Usage(error.to_string()))?;
        }
        for (name, value) in &self.headers {
            head = head
                .header(name, &value.rendered(&values))
                .map_err(|error| Error::Usage(format!("--header {name}: {error}")))?;
        }
        let body = match &self.body {
            Body::Fixed(bytes) => Cow::Borrowed(&bytes[..]),
            Body::Places(template) => match template.rendered(&values) {
                Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
                Cow::Owned(text) => Cow::Owned(text.into_bytes()),
            },
        };
        if self.chunked {
            head.chunked().finish();
            body.chunks(CHUNK).for_each(|chunk| encode_chunk(chunk, out));
            encode_last_chunk(&[], out);
            return Ok(());
        }
        // RFC 9110 section 8.6: a request whose method gives content a meaning has a
        // Content-Length, even for an empty body.
        let means_content = matches!(self.method.as_str(), "POST" | "PUT" | "PATCH");
        if !body.is_empty() || means_content {
            head = head.content_length(body.len() as u64);
        }
        head.finish();
        out.extend_from_slice(&body);
        Ok(())
    }
}

/// The plan's first request.
pub fn encode(plan: &HttpPlan) -> Result<Vec<u8>, Error> {
    let mut out = Vec::new();
    Request::of(plan)?.encode(0, 0, &mut out)?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::Target;

    fn text(change: impl FnOnce(&mut HttpPlan)) -> Result<String, String> {
        let mut plan = HttpPlan::new(Target::parse_http("http://127.0.0.1:9001/a?b").unwrap());
        change(&mut plan);
        encode(&plan)
            .map(|bytes| String::from_utf8(bytes).unwrap())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_request_is_what_was_asked_for() {
        assert_eq!(text(|_| ()).unwrap(), "GET /a?b HTTP/1.1\r\nHost: 127.0.0.1:9001\r\n\r\n");
        let post = text(|plan| {
            plan.method = "POST".to_owned();
            plan.common.headers = vec![
                ("Accept".to_owned(), "*/*".to_owned()),
                ("host".to_owned(), "example.org".to_owned()),
            ];
            plan.body = b"hello".to_vec();
            plan.keep_alive = false;
        });
        assert_eq!(
            post.unwrap(),
            "POST /a?b HTTP/1.1\r\nHost: example.org\r\nConnection: close\r\nAccept: */*\r\n\
             Content-Length: 5\r\n\r\nhello"
        );
        let empty = text(|plan| plan.method = "POST".to_owned()).unwrap();
        assert!(empty.contains("Content-Length: 0"), "{empty}");
    }

    #[test]
    fn chunks_hold_the_body() {
        let chunked = text(|plan| {
            plan.body = vec![b'x'; CHUNK + 1];
            plan.chunked = true;
        });
        let chunked = chunked.unwrap();
        let (head, body) = chunked.split_once("\r\n\r\n").unwrap();
        assert!(head.ends_with("Transfer-Encoding: chunked") && !head.contains("Length"), "{head}");
        assert_eq!(body, format!("1000\r\n{}\r\n1\r\nx\r\n0\r\n\r\n", "x".repeat(CHUNK)));
    }

    #[test]
    fn texts_that_would_break_the_request_are_refused() {
        for (error, words) in [
            (text(|plan| plan.method = "GE T".to_owned()), "--method"),
            (text(|plan| plan.common.headers = vec![("a b".to_owned(), "x".to_owned())]), "name"),
            (
                text(|plan| plan.common.headers = vec![("a".to_owned(), "x\r\ny".to_owned())]),
                "--header",
            ),
            (
                text(|plan| plan.common.headers = vec![("Host".to_owned(), "a b".to_owned())]),
                "Host",
            ),
        ] {
            let error = error.unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn clients_and_their_requests_differ_where_the_plan_has_places() {
        let mut plan = HttpPlan::new(Target::parse_http("http://h/u/{client}").unwrap());
        assert!(Wire::of(&plan).unwrap().own().is_some());
        plan.method = "POST".to_owned();
        plan.common.headers = vec![("Authorization".to_owned(), "Bearer {token}".to_owned())];
        (plan.body, plan.body_has_places) = (b"number {sequence}".to_vec(), true);
        plan.common.tokens = Tokens::parse("tokens", "a\nb").unwrap();
        plan.pipeline = 4;
        let wire = Wire::of(&plan).unwrap();
        let mut out = Vec::new();
        wire.own().unwrap().encode(3, 10, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.starts_with("POST /u/3 HTTP/1.1\r\n"), "{text}");
        assert!(text.contains("Authorization: Bearer b\r\nContent-Length: 9\r\n"), "{text}");
        assert!(text.ends_with("\r\n\r\nnumber 10"), "{text}");
        plan.body_has_places = false;
        assert!(String::from_utf8(encode(&plan).unwrap()).unwrap().ends_with("{sequence}"));
        let plain = HttpPlan::new(Target::parse_http("http://h/").unwrap());
        assert!(Wire::of(&plain).unwrap().own().is_none());
    }

    #[test]
    fn a_row_is_bounded_by_the_pipeline_and_by_memory() {
        let mut plan = HttpPlan::new(Target::parse_http("http://h/").unwrap());
        plan.pipeline = 16;
        let wire = Wire::of(&plan).unwrap();
        assert_eq!((wire.repeats(), wire.row(3).len()), (16, 3 * wire.len()));
        plan.body = vec![0; MAX_REPEATED];
        assert_eq!(Wire::of(&plan).unwrap().repeats(), 1);
    }
}
