//! The variables of a request in texts: their names, and their values.

use std::net::IpAddr;
use std::sync::Arc;

use throng_http::percent;
use throng_proto::http1::Request;
use throng_tls::Certificate;

use super::RuleNames;
use crate::cookie::cookie_value;
use crate::forward::BACKEND;
use crate::unix_peer::known;

/// The variables, as errors list them.
const VARIABLES: &str = "${client}, ${peer}, ${host}, ${server_name}, ${scheme}, ${method}, \
                         ${path}, ${query}, ${uri}, ${site}, ${route}, ${pool}, ${backend}, \
                         ${request_id}, ${client_cert.subject}, ${header.NAME}, ${cookie.NAME}, \
                         ${query.NAME} or ${param.NAME}";

/// A variable of the request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Variable {
    /// The client's address, past trusted proxies.
    Client,
    /// The other end of the connection, or the address in its PROXY header.
    Peer,
    /// The host without its port.
    Host,
    /// The host of the TLS handshake.
    ServerName,
    /// `http` or `https`, as the client uses it.
    Scheme,
    Method,
    Path,
    Query,
    /// Path and query.
    Uri,
    Site,
    Route,
    Pool,
    Backend,
    RequestId,
    CertificateSubject,
    Header(Box<str>),
    Cookie(Box<str>),
    Parameter(Box<str>),
    /// A part of the path, by its name in the route's pattern.
    PathPart(Box<str>),
    /// A part of the path, by its places in the route's patterns.
    FoundPart(Arc<[PartOfPath]>),
}

/// The place of a part of the path in a pattern.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct PartOfPath {
    /// The segments; `None` is any one.
    segments: Box<[Option<Box<str>>]>,
    has_rest: bool,
    /// The index of the part, which is the rest if it is behind all segments.
    at: usize,
}

/// The values of variables.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Variables<'r> {
    pub(crate) request: &'r Request<'r>,
    pub(crate) is_secure: bool,
    /// The client, past trusted proxies.
    pub(crate) client: IpAddr,
    pub(crate) peer: IpAddr,
    /// The host that the client has asked for in its TLS handshake.
    pub(crate) server_name: Option<&'r str>,
    /// The certificate that it has shown, in DER.
    pub(crate) certificate: Option<&'r [u8]>,
    /// The names of the route, with the pool if a split has chosen.
    pub(crate) names: Option<&'r RuleNames>,
    pub(crate) request_id: Option<&'r str>,
}

/// The form of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// As they are.
    Text,
    /// For a header: a value with a control byte counts as missing.
    Header,
    /// For a URL: of values from outside the request's target, all but unreserved
    /// characters are encoded.
    Url,
}

impl Variable {
    /// The error is the remedy.
    pub(super) fn parse(name: &str) -> Result<Self, String> {
        let of = |rest: &str| (!rest.is_empty()).then(|| Box::from(rest));
        let dotted = name.split_once('.').and_then(|(kind, rest)| match kind {
            "header" => of(rest).map(Self::Header),
            "cookie" => of(rest).map(Self::Cookie),
            "query" => of(rest).map(Self::Parameter),
            "param" => of(rest).map(Self::PathPart),
            _ => None,
        });
        Ok(match name {
            "client" => Self::Client,
            "peer" => Self::Peer,
            "host" => Self::Host,
            "server_name" => Self::ServerName,
            "scheme" => Self::Scheme,
            "method" => Self::Method,
            "path" => Self::Path,
            "query" => Self::Query,
            "uri" => Self::Uri,
            "site" => Self::Site,
            "route" => Self::Route,
            "pool" => Self::Pool,
            "backend" => Self::Backend,
            "request_id" => Self::RequestId,
            "client_cert.subject" => Self::CertificateSubject,
            _ => {
                let unknown = || format!("${{{name}}} is not a variable: write {VARIABLES}");
                dotted.ok_or_else(unknown)?
            }
        })
    }

    /// Returns the remedy of a variable without its end.
    pub(super) fn unended() -> String {
        format!("a variable ends with }}: write {VARIABLES}")
    }

    /// Appends its value, in a form; nothing if it is missing.
    pub(super) fn write(&self, of: &Variables<'_>, form: Form, out: &mut Vec<u8>) {
        let request = of.request;
        match self {
            Self::Client => push_address(of.client, out),
            Self::Peer => push_address(of.peer, out),
            Self::Host => push_target(request.host().map(name_of).unwrap_or_default(), form, out),
            Self::ServerName => push(of.server_name.unwrap_or_default(), form, out),
            Self::Scheme => push(if of.is_secure { "https" } else { "http" }, form, out),
            Self::Method => push(request.method(), form, out),
            Self::Path => push_target(request.path(), form, out),
            Self::Query => push_target(request.query().unwrap_or_default(), form, out),
            Self::Uri => {
                push_target(request.path(), form, out);
                if let Some(query) = request.query() {
                    out.push(b'?');
                    push_target(query, form, out);
                }
            }
            // The names of most routes were written when they were compiled.
            Self::Site => push(of.names.map_or("", |names| &names.site), form, out),
            Self::Route => push(of.names.map_or("", |names| &names.route), form, out),
            Self::Pool => push(of.names.map_or("default", |names| &names.pool), form, out),
            Self::Backend => out.push(BACKEND),
            Self::RequestId => push(of.request_id.unwrap_or_default(), form, out),
            Self::CertificateSubject => {
                let certificate = of.certificate.and_then(Certificate::parse);
                push(&certificate.map(|it| it.subject).unwrap_or_default(), form, out);
            }
            Self::Header(name) => {
                push_bytes(request.lines().all_bytes(name).next().unwrap_or_default(), form, out);
            }
            Self::Cookie(name) => {
                push_bytes(cookie_value(request, name).unwrap_or_default(), form, out);
            }
            Self::Parameter(name) => {
                let value = request.query().and_then(|query| percent::query_value(query, name));
                push(&value.unwrap_or_default(), form, out);
            }
            Self::PathPart(_) => {}
            Self::FoundPart(places) => {
                let found = places.iter().find_map(|place| place.find(request.path()));
                push_target(found.unwrap_or_default(), form, out);
            }
        }
    }
}

impl PartOfPath {
    /// Returns the places of a part in the patterns of a route, the most specific first; `None` if
    /// one does not have it.
    pub(super) fn in_patterns(patterns: &[String], name: &str) -> Option<Arc<[Self]>> {
        let places: Option<Vec<_>> = patterns.iter().map(|it| Self::new(it, name)).collect();
        let mut places = places.filter(|places| !places.is_empty())?;
        let key =
            |place: &Self| -> Vec<bool> { place.segments.iter().map(Option::is_none).collect() };
        places.sort_by_cached_key(|place| (place.has_rest, key(place)));
        Some(places.into())
    }

    fn new(pattern: &str, name: &str) -> Option<Self> {
        let (mut segments, mut has_rest, mut found) = (Vec::new(), false, None);
        for (at, segment) in pattern.split('/').skip(1).enumerate() {
            let inner = segment.strip_prefix('{').and_then(|it| it.strip_suffix('}'));
            let own = inner.map(|it| it.strip_prefix('*').unwrap_or(it));
            if own == Some(name) {
                found = Some(at);
            }
            match inner {
                Some(inner) if inner.starts_with('*') => has_rest = true,
                Some(_) => segments.push(None),
                None => segments.push(Some(segment.into())),
            }
        }
        Some(Self { segments: segments.into(), has_rest, at: found? })
    }

    /// Returns the part of a path, as it was sent, if the pattern has the path.
    fn find<'p>(&self, path: &'p str) -> Option<&'p str> {
        let (mut rest, mut found) = (Some(path.strip_prefix('/')?), None);
        for (at, wanted) in self.segments.iter().enumerate() {
            let (segment, after) = match rest?.split_once('/') {
                Some((segment, after)) => (segment, Some(after)),
                None => (rest?, None),
            };
            let is_it = wanted.as_deref().is_none_or(|wanted| {
                wanted == segment || wanted.bytes().eq(percent::decoded_bytes(segment))
            });
            if !is_it {
                return None;
            }
            if at == self.at {
                found = Some(segment);
            }
            rest = after;
        }
        match self.has_rest {
            true => found.or(rest),
            false if rest.is_none() => found,
            false => None,
        }
    }
}

fn push(value: &str, form: Form, out: &mut Vec<u8>) {
    push_bytes(value.as_bytes(), form, out);
}

/// Appends a value that clients may have chosen.
fn push_bytes(value: &[u8], form: Form, out: &mut Vec<u8>) {
    match form {
        Form::Text => out.extend_from_slice(value),
        Form::Header => push_header(value, out),
        Form::Url => {
            for &byte in value {
                if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
                    out.push(byte);
                } else {
                    let digit = |it: u8| char::from_digit(it.into(), 16).unwrap_or('0');
                    let pair = [digit(byte >> 4), digit(byte & 15)];
                    out.push(b'%');
                    out.extend(pair.map(|it| it.to_ascii_uppercase() as u8));
                }
            }
        }
    }
}

/// Appends a part of the request's target, which has the form of one, or its host.
fn push_target(value: &str, form: Form, out: &mut Vec<u8>) {
    match form {
        Form::Header => push_header(value.as_bytes(), out),
        Form::Text | Form::Url => out.extend_from_slice(value.as_bytes()),
    }
}

fn push_header(value: &[u8], out: &mut Vec<u8>) {
    let is_control = |byte: &u8| *byte < b' ' && *byte != b'\t' || *byte == 0x7f;
    if !value.iter().any(is_control) {
        out.extend_from_slice(value);
    }
}

fn push_address(address: IpAddr, out: &mut Vec<u8>) {
    use std::io::Write;
    // Writing to a vector cannot fail.
    drop(match known(address) {
        Some(address) => write!(out, "{}", address.to_canonical()),
        None => write!(out, "unix:"),
    });
}

/// Returns a host without its port.
fn name_of(host: &str) -> &str {
    let port = host.rfind(':').filter(|colon| !host[*colon..].contains(']'));
    port.map_or(host, |colon| &host[..colon])
}
