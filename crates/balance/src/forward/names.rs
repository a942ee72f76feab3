//! Header names with a meaning for a balancer.

use throng_proto::http1::HeaderLines;

/// The meaning of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Forwarded as it is, unless Connection names it.
    Other,
    /// End-to-end, and others rely on it: forwarded even if Connection names it. See [`is_named`].
    EndToEnd,
    /// Hop-by-hop, or without a valid use: never forwarded.
    Hop,
    Host,
    ContentLength,
    Expect,
    Te,
    Trailer,
    Upgrade,
    /// X-Forwarded-For.
    For,
    /// Forwarded.
    Forwarded,
    /// X-Forwarded-Proto.
    Proto,
    /// X-Forwarded-Host.
    ForwardedHost,
    /// Other claims about the client: the other X-Forwarded-*, X-Real-IP.
    Origin,
    /// CDN-Loop, which no setting and no client removes (RFC 8586 section 2).
    Loop,
}

/// Returns the kind of `name`, where `_` counts as `-`.
///
/// A backend of the CGI kind (WSGI, Rack and PHP among them) reads both as one variable, so
/// `X_Forwarded_For` would contradict the header that the balancer guarantees.
#[inline]
pub(super) fn kind(name: &[u8]) -> Kind {
    // The first letter and the length distinguish most names before a byte is compared.
    let (whole, prefix) = beginning_with(name.first().map_or(0, u8::to_ascii_lowercase));
    let known = whole.iter().find(|(known, _)| known.len() == name.len() && is_alike(name, known));
    match (known, prefix) {
        (Some((_, kind)), _) => *kind,
        (None, Some((prefix, kind))) if name.len() > prefix.len() && is_alike(name, prefix) => kind,
        _ => Kind::Other,
    }
}

/// Returns whether `name`, which is not shorter, begins with `lower`.
#[inline]
fn is_alike(name: &[u8], lower: &str) -> bool {
    let fold = |byte: &u8| if *byte == b'_' { b'-' } else { byte.to_ascii_lowercase() };
    name.iter().zip(lower.as_bytes()).all(|(byte, lower)| fold(byte) == *lower)
}

/// Returns whether `name` is one of `list`, without regard to case, and `_` counts as `-`.
pub(super) fn is_one_of(name: &[u8], list: &[String]) -> bool {
    let fold = |byte: u8| if byte == b'_' { b'-' } else { byte.to_ascii_lowercase() };
    let is_it = |other: &String| {
        other.len() == name.len() && other.bytes().map(fold).eq(name.iter().copied().map(fold))
    };
    list.iter().any(is_it)
}

type Known = (&'static str, Kind);

/// Names that share their first letter with others.
const C: &[Known] = &[
    ("client-cert", Kind::Origin),       // RFC 9440 section 4.2
    ("client-cert-chain", Kind::Origin), // RFC 9440 section 4.2
    ("cookie", Kind::EndToEnd),
    ("connection", Kind::Hop), // RFC 9110 section 7.6.1
    ("content-length", Kind::ContentLength),
    ("cache-control", Kind::EndToEnd),
    ("cdn-loop", Kind::Loop),
];
const P: &[Known] = &[
    ("proxy-connection", Kind::Hop),
    // RFC 9110 section 11.7: between a client and the next proxy; the balancer requests no
    // credentials.
    ("proxy-authenticate", Kind::Hop),
    ("proxy-authorization", Kind::Hop),
    ("proxy-authentication-info", Kind::Hop),
    // It is in no standard, and a CGI program takes its HTTP_PROXY for the proxy to use
    // (CVE-2016-5385).
    ("proxy", Kind::Hop),
];
const T: &[Known] = &[
    ("te", Kind::Te),
    ("trailer", Kind::Trailer),
    ("transfer-encoding", Kind::Hop), // RFC 9112 section 6.1
];
const X: &[Known] = &[
    ("x-forwarded-for", Kind::For),
    ("x-forwarded-host", Kind::ForwardedHost),
    ("x-forwarded-proto", Kind::Proto),
    ("x-frame-options", Kind::EndToEnd),
    ("x-real-ip", Kind::Origin),
];

/// Returns the known names with this first letter, and the common prefix of a group of names.
const fn beginning_with(letter: u8) -> (&'static [Known], Option<Known>) {
    match letter {
        b'a' => (&[("authorization", Kind::EndToEnd)], Some(("access-control-", Kind::EndToEnd))),
        b'c' => (C, Some(("content-", Kind::EndToEnd))),
        b'd' => (&[("date", Kind::EndToEnd)], None),
        b'e' => (&[("etag", Kind::EndToEnd), ("expect", Kind::Expect)], None),
        b'f' => (&[("forwarded", Kind::Forwarded)], None),
        b'h' => (&[("host", Kind::Host)], None),
        b'k' => (&[("keep-alive", Kind::Hop)], None),
        b'l' => (&[("location", Kind::EndToEnd)], None),
        b'o' => (&[("origin", Kind::EndToEnd)], None),
        b'p' => (P, None),
        b'r' => (&[("range", Kind::EndToEnd), ("referer", Kind::EndToEnd)], None),
        b's' => (
            &[("set-cookie", Kind::EndToEnd), ("strict-transport-security", Kind::EndToEnd)],
            Some(("sec-", Kind::EndToEnd)),
        ),
        b't' => (T, None),
        b'u' => (&[("upgrade", Kind::Upgrade)], None),
        b'v' => (&[("vary", Kind::EndToEnd), ("via", Kind::EndToEnd)], None),
        b'w' => (&[("www-authenticate", Kind::EndToEnd)], None),
        b'x' => (X, Some(("x-forwarded-", Kind::Origin))),
        _ => (&[], None),
    }
}

/// Returns whether an option of Connection is unknown to other proxies: it
/// names a field.
pub(super) fn is_field_option(option: &[u8]) -> bool {
    !["close", "keep-alive", "upgrade", "te"]
        .iter()
        .any(|known| option.eq_ignore_ascii_case(known.as_bytes()))
}

/// Returns the options of Connection that name fields. Mostly there are none.
pub(super) fn field_options(lines: HeaderLines<'_>) -> impl Iterator<Item = &[u8]> {
    lines.list_members("Connection").filter(|option| is_field_option(option))
}

/// Returns whether Connection names this field, which is then not forwarded. RFC 9110 section
/// 7.6.1.
///
/// Called only for [`Kind::Other`]. The RFC also forbids an option that names a field meant for all
/// recipients. A client that sends one wants the balancer to strip fields that the backend relies
/// on ("hop-by-hop header abuse": Nathan Davison, 2019; also in Go's reverse proxy,
/// CVE-2021-33197), so the other kinds are exempt, and the balancer's own fields are added after.
pub(super) fn is_named(lines: HeaderLines<'_>, name: &[u8]) -> bool {
    field_options(lines).any(|option| option.eq_ignore_ascii_case(name))
}
