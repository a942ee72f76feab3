//! The request as bytes: encoded once, sent from the same memory on every connection.

use std::sync::Arc;

use throng_proto::http1::RequestHead;
use throng_proto::http1::encode::{encode_chunk, encode_last_chunk};

use super::Plan;
use crate::Error;

/// Body bytes of one chunk: several chunks already in a body of a few kilobytes.
const CHUNK: usize = 4096;
/// Repetitions of a request are kept side by side up to so many bytes, for one send of all that is due.
const MOST_REPEATED: usize = 256 << 10;

/// One request, and as many of them in a row as one send should carry.
#[derive(Clone, Debug)]
pub(super) struct Wire {
    /// One request.
    one: Arc<[u8]>,
    /// The same, `repeats` times.
    row: Arc<[u8]>,
    repeats: usize,
}

impl Wire {
    /// Encodes the plan's request.
    ///
    /// # Errors
    /// [`Error::Usage`] for a method, target or header that no server would take.
    pub(super) fn of(plan: &Plan) -> Result<Self, Error> {
        let one = encode(plan)?;
        let repeats = (MOST_REPEATED / one.len()).clamp(1, plan.pipeline);
        Ok(Self { row: one.repeat(repeats).into(), one: one.into(), repeats })
    }

    /// Bytes of one request.
    pub(super) fn len(&self) -> usize {
        self.one.len()
    }

    /// Most requests that [`Wire::row`] gives at a time.
    pub(super) fn repeats(&self) -> usize {
        self.repeats
    }

    /// So many requests in a row.
    #[inline]
    pub(super) fn row(&self, requests: usize) -> &[u8] {
        &self.row[..requests * self.one.len()]
    }

    /// One request, to be referred to instead of copied.
    pub(super) fn shared(&self) -> Arc<[u8]> {
        Arc::clone(&self.one)
    }
}

/// One request of the plan.
pub fn encode(plan: &Plan) -> Result<Vec<u8>, Error> {
    let host = plan.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("host"));
    let host = host.map_or_else(|| plan.target.host_header(), |(_, value)| value.clone());
    let mut out = Vec::new();
    let head = RequestHead::start(&mut out, &plan.method, plan.target.resource("/"), &host);
    let mut head = head.map_err(|error| {
        Error::Usage(format!(
            "cannot send {} {:?} with Host {host:?}: {error} (see --method and --header)",
            plan.method,
            plan.target.resource("/")
        ))
    })?;
    if !plan.keep_alive {
        head =
            head.header("Connection", "close").map_err(|error| Error::Usage(error.to_string()))?;
    }
    for (name, value) in &plan.headers {
        if name.eq_ignore_ascii_case("host") {
            continue;
        }
        head = head.header(name, value).map_err(|error| {
            Error::Usage(format!("--header {:?}: {error}", format!("{name}: {value}")))
        })?;
    }
    if plan.chunked {
        head.chunked().finish();
        plan.body.chunks(CHUNK).for_each(|chunk| encode_chunk(chunk, &mut out));
        encode_last_chunk(&[], &mut out);
        return Ok(out);
    }
    // RFC 9110 section 8.6: a method that gives content a meaning says how much there is, even none.
    let means_content = matches!(plan.method.as_str(), "POST" | "PUT" | "PATCH");
    if !plan.body.is_empty() || means_content {
        head = head.content_length(plan.body.len() as u64);
    }
    head.finish();
    out.extend_from_slice(&plan.body);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Target;

    fn text(change: impl FnOnce(&mut Plan)) -> Result<String, String> {
        let mut plan = Plan::new(Target::parse_http("http://127.0.0.1:9001/a?b").unwrap());
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
            plan.headers = vec![
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
    fn what_would_break_the_request_is_refused() {
        for (error, words) in [
            (text(|plan| plan.method = "GE T".to_owned()), "--method"),
            (text(|plan| plan.headers = vec![("a b".to_owned(), "x".to_owned())]), "name"),
            (text(|plan| plan.headers = vec![("a".to_owned(), "x\r\ny".to_owned())]), "--header"),
            (text(|plan| plan.headers = vec![("Host".to_owned(), "a b".to_owned())]), "Host"),
        ] {
            let error = error.unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn a_row_is_bounded_by_the_pipeline_and_by_memory() {
        let mut plan = Plan::new(Target::parse_http("http://h/").unwrap());
        plan.pipeline = 16;
        let wire = Wire::of(&plan).unwrap();
        assert_eq!((wire.repeats(), wire.row(3).len()), (16, 3 * wire.len()));
        plan.body = vec![0; MOST_REPEATED];
        assert_eq!(Wire::of(&plan).unwrap().repeats(), 1);
    }
}
