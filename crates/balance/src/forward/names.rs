//! Which header names mean something to a balancer.

use throng_proto::http1::HeaderLines;

use super::members;

/// What a name is to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Passed on as it is, unless Connection names it.
    Other,
    /// Of the whole way, and others rely on it: passed on even if Connection names it. See [`is_named`].
    EndToEnd,
    /// Of one hop only, or of nobody: never passed on.
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
    /// What else tells of the client: the other X-Forwarded-*, X-Real-IP.
    Origin,
}

/// The longest name that is known whole.
const LONGEST: usize = 19;

/// What `name` is, where `_` counts as `-`; and whether it has a `_`.
///
/// A backend of the CGI kind (WSGI, Rack and PHP among them) reads both as one variable, so `X_Forwarded_For` would
/// be a second word on what we vouch for.
pub(super) fn kind(name: &str) -> (Kind, bool) {
    let mut known = [0; LONGEST];
    let mut underscored = false;
    for (index, byte) in name.bytes().enumerate() {
        underscored |= byte == b'_';
        if let Some(place) = known.get_mut(index) {
            *place = if byte == b'_' { b'-' } else { byte.to_ascii_lowercase() };
        }
    }
    let kind = match &known[..name.len().min(LONGEST)] {
        b"host" => Kind::Host,
        b"content-length" => Kind::ContentLength,
        b"expect" => Kind::Expect,
        b"te" => Kind::Te,
        b"trailer" => Kind::Trailer,
        b"upgrade" => Kind::Upgrade,
        // RFC 9110 section 7.6.1; RFC 9112 section 6.1.
        b"connection" | b"keep-alive" | b"proxy-connection" | b"transfer-encoding" => Kind::Hop,
        // RFC 9110 section 11.7: between a client and the next proxy; we ask nobody for credentials.
        b"proxy-authenticate" => Kind::Hop,
        b"proxy-authorization" if name.len() == LONGEST => Kind::Hop,
        b"proxy-authenticatio" if name.len() == 25 => Kind::Hop, // Proxy-Authentication-Info
        // No standard has it, and a CGI program takes its HTTP_PROXY for the proxy to use (CVE-2016-5385).
        b"proxy" => Kind::Hop,
        b"x-forwarded-for" => Kind::For,
        b"forwarded" => Kind::Forwarded,
        b"x-forwarded-proto" => Kind::Proto,
        b"x-forwarded-host" => Kind::ForwardedHost,
        b"x-real-ip" => Kind::Origin,
        [b'x', b'-', b'f', b'o', b'r', b'w', b'a', b'r', b'd', b'e', b'd', b'-', ..] => {
            Kind::Origin
        }
        [b's', b'e', b'c', b'-', ..]
        | [b'c', b'o', b'n', b't', b'e', b'n', b't', b'-', ..]
        | b"authorization"
        | b"cache-control"
        | b"cookie"
        | b"date"
        | b"etag"
        | b"location"
        | b"origin"
        | b"range"
        | b"referer"
        | b"set-cookie"
        | b"vary"
        | b"via"
        | b"www-authenticate" => Kind::EndToEnd,
        // Strict-Transport-Security, Access-Control-*, X-Frame-Options: what browsers are told to guard.
        b"strict-transport-se" | b"x-frame-options" => Kind::EndToEnd,
        known if known.starts_with(b"access-control-") => Kind::EndToEnd,
        _ => Kind::Other,
    };
    (kind, underscored)
}

/// An option of Connection that is none of those that every proxy knows: it names a field.
pub(super) fn is_field_option(option: &[u8]) -> bool {
    !["close", "keep-alive", "upgrade", "te"]
        .iter()
        .any(|known| option.eq_ignore_ascii_case(known.as_bytes()))
}

/// The options of Connection that name fields. Mostly there are none.
pub(super) fn field_options(lines: HeaderLines<'_>) -> impl Iterator<Item = &[u8]> {
    members(lines.all_bytes("Connection")).filter(|option| is_field_option(option))
}

/// Whether Connection names this field, which then goes no further than here. RFC 9110 section 7.6.1.
///
/// Asked only of [`Kind::Other`]. The RFC also says that an option must not name a field that is meant for all recipients;
/// who does it wants us to strip what the backend relies on ("hop-by-hop header abuse": Nathan Davison, 2019; the same
/// in Go's reverse proxy, CVE-2021-33197), so the other kinds are beyond its reach, and what we add comes after.
pub(super) fn is_named(lines: HeaderLines<'_>, name: &str) -> bool {
    field_options(lines).any(|option| option.eq_ignore_ascii_case(name.as_bytes()))
}
