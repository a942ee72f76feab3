//! Written heads are read again by the strict decoder, and compared with the client's.

mod answers;
mod origin;
mod property;
mod requests;
mod smuggling;
mod sticky;

use std::net::IpAddr;

use throng_proto::Input;
use throng_proto::http1::{
    BodyLength, Decoder, Error, Event, Limits, Request, Response, ResponseDecoder, ResponseEvent,
};

use super::{Client, Framing, Hop, Scheme, write_request, write_response};

/// Reads a request's head.
fn with_request<T>(head: &str, see: impl FnOnce(&Request<'_>) -> T) -> Result<T, Error> {
    let mut bytes = head.as_bytes().to_vec();
    let (mut decoder, mut input) = (Decoder::new(), Input::new(&mut bytes));
    match decoder.next_event(&mut input, &Limits::default())? {
        Some(Event::Head(request)) => Ok(see(&request)),
        other => panic!("{other:?} instead of a head: {head:?}"),
    }
}

/// Reads an answer's head.
fn with_response<T>(
    head: &str,
    is_head: bool,
    see: impl FnOnce(&Response<'_>) -> T,
) -> Result<T, Error> {
    let mut bytes = head.as_bytes().to_vec();
    let (mut decoder, mut input) = (ResponseDecoder::new(), Input::new(&mut bytes));
    if is_head {
        decoder.expect_answer_to_head();
    }
    match decoder.next_event(&mut input, &Limits::default())? {
        Some(ResponseEvent::Head(response)) => Ok(see(&response)),
        other => panic!("{other:?} instead of a head: {head:?}"),
    }
}

fn hop(peer: &str, trusted: bool) -> Hop<'static> {
    Hop {
        peer: peer.parse().unwrap(),
        trusted,
        scheme: Scheme::Http,
        certificate: None,
        close: false,
        dropped: &[],
        loop_id: "own",
    }
}

/// The request line and the lines after it, without the lines added to every request at its end.
fn forwarded(head: &str) -> String {
    let text = forwarded_by(head, &hop("192.0.2.1", false));
    let (kept, added) = text.split_once("X-Forwarded-For: 192.0.2.1\r\n").expect("it is added");
    assert!(added.contains("Forwarded: for=192.0.2.1;proto=http"), "{added}");
    kept.to_owned()
}

/// The written head, without the balancer's line of CDN-Loop.
fn forwarded_by(head: &str, hop: &Hop) -> String {
    let text = written(head, hop);
    assert!(text.contains("CDN-Loop: own\r\n"), "{text}");
    text.replacen("CDN-Loop: own\r\n", "", 1)
}

fn written(head: &str, hop: &Hop) -> String {
    with_request(head, |request| {
        let mut out = Vec::new();
        // As for a backend of this name.
        if let Some(at) = write_request(&mut out, request, hop) {
            out.splice(at..at, *b"Host: backend\r\n");
        }
        String::from_utf8(out).unwrap()
    })
    .unwrap_or_else(|error| panic!("{error}: {head:?}"))
}

const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
const HTTP11: Client =
    Client { http11: true, keep_alive: true, is_head: false, hsts: None, date: DATE };

/// The written head, without the date that is added.
fn answered(head: &str, to: &Client, cookie: Option<&str>) -> (String, Framing) {
    let (text, framing) = answer_written(head, to, cookie);
    (text.replacen(&format!("Date: {DATE}\r\n"), "", 1), framing)
}

fn answer_written(head: &str, to: &Client, cookie: Option<&str>) -> (String, Framing) {
    with_response(head, to.is_head, |response| {
        let mut out = Vec::new();
        let framing = write_response(&mut out, response, to, cookie);
        (String::from_utf8(out).unwrap(), framing)
    })
    .unwrap_or_else(|error| panic!("{error}: {head:?}"))
}

/// The lines with this name.
fn lines_of<'a>(head: &'a str, name: &str) -> Vec<&'a str> {
    let is_called = |line: &&str| {
        line.split_once(':').is_some_and(|(other, _)| other.eq_ignore_ascii_case(name))
    };
    head.split("\r\n").filter(is_called).collect()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// The meaning of a request, as far as it decides about bytes.
#[derive(Debug, PartialEq)]
struct Meaning {
    method: String,
    path: String,
    query: Option<String>,
    host: String,
    body: BodyLength,
}

fn meaning(request: &Request<'_>) -> Meaning {
    Meaning {
        method: request.method().to_owned(),
        path: request.path().to_owned(),
        query: request.query().map(str::to_owned),
        // A request without a host is for the backend.
        host: request.host().unwrap_or("backend").to_owned(),
        body: request.body_length(),
    }
}

/// Returns the number of lines that frame a body.
fn framings(head: &str) -> usize {
    lines_of(head, "Content-Length").len() + lines_of(head, "Transfer-Encoding").len()
}
