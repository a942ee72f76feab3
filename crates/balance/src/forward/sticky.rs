//! The binding of clients to backends.

use std::net::IpAddr;

use throng_proto::http1::Request;

use crate::cookie::{CookieKey, cookies};
use crate::pick::client_key;
use crate::settings::{SameSite, Sticky};

/// The binding of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// The backend with this [`tag`](crate::CookieKey::tag), named by a cookie of the balancer. It
    /// may be gone, or forged.
    Backend(u64),
    /// The backend that rendezvous hashing gives this number ([`pick_by_key`](crate::pick_by_key)),
    /// the same in every process.
    Hash(u64),
}

/// Returns the binding of a request, if it has one. `client` is its origin:
/// [`client_address`](super::client_address). `key`: hashes depend on it, if it comes from a
/// secret.
///
/// Values are used unchanged, without decoding: a client sends the same text each time. Of several
/// cookies, headers or parameters with the name, the first valid one counts; an empty value is not
/// valid.
#[must_use]
pub fn sticky_key(
    sticky: &Sticky,
    key: &CookieKey,
    request: &Request<'_>,
    client: IpAddr,
) -> Option<Bound> {
    let hashed = |value: &[u8]| Bound::Hash(hash_value(key, value));
    match sticky {
        Sticky::None => None,
        Sticky::Cookie(name) => keys_in_cookies(request, name).next().map(Bound::Backend),
        Sticky::Header(name) => {
            request.lines().all_bytes(name).find(|value| !value.is_empty()).map(hashed)
        }
        Sticky::Query(name) => request
            .query()?
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .find(|(parameter, value)| parameter == name && !value.is_empty())
            .map(|(_, value)| hashed(value.as_bytes())),
        Sticky::Ip => Some(Bound::Hash(client_key(key, client))),
    }
}

/// Returns the client's point in a cookie of a split, which has the form of [`set_cookie`].
pub(crate) fn point_in_cookie(request: &Request<'_>, name: &str) -> Option<u16> {
    keys_in_cookies(request, name).find_map(|key| key.try_into().ok())
}

fn keys_in_cookies(request: &Request<'_>, name: &str) -> impl Iterator<Item = u64> {
    let of_name = cookies(request).filter(move |(cookie, _)| *cookie == name.as_bytes());
    of_name.filter_map(|(_, value)| parse_key(value))
}

/// Returns the value of the Set-Cookie that binds a client to the backend with this
/// [`tag`](crate::CookieKey::tag), until the browser's session ends. `name` must be a token.
/// `is_secure`: the browser sends it by https only, as it does with [`SameSite::None`].
#[must_use]
pub fn set_cookie(name: &str, tag: u64, is_secure: bool, same_site: SameSite) -> String {
    let (same_site, needs_secure) = same_site.attribute();
    let secure = if is_secure || needs_secure { "; Secure" } else { "" };
    format!("{name}={tag:016x}; Path=/; HttpOnly; SameSite={same_site}{secure}")
}

/// Returns whether a trusted proxy reports that its client uses https. Of several values of
/// X-Forwarded-Proto the first counts, which concerns the client itself. Without that field, every
/// element of Forwarded must say https: a proxy appends to what its client may have sent.
#[must_use]
pub fn came_by_https(request: &Request<'_>) -> bool {
    let is_https = |scheme: &[u8]| scheme.eq_ignore_ascii_case(b"https");
    if let Some(first) = request.lines().list_members("X-Forwarded-Proto").next() {
        return is_https(first);
    }
    let mut elements = throng_http::forwarded(request.lines()).peekable();
    elements.peek().is_some() && elements.all(|element| element.proto.is_some_and(is_https))
}

/// Parses a value of [`set_cookie`], in quotes or not: 16 hexadecimal digits in lower case.
fn parse_key(value: &[u8]) -> Option<u64> {
    let digits = match value {
        [b'"', inner @ .., b'"'] => inner,
        bare => bare,
    };
    let is_ours =
        digits.len() == 16 && digits.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    u64::from_str_radix(str::from_utf8(digits).ok().filter(|_| is_ours)?, 16).ok()
}

/// Returns the number of the client with this value, the same in every process with the secret.
pub(crate) fn hash_value(key: &CookieKey, value: &[u8]) -> u64 {
    key.hash(value).unwrap_or_else(|| hash(value))
}

/// Hashes by FNV-1a followed by a mixer (of MurmurHash3, public domain), because FNV leaves the
/// upper bits of short values poor. Without a secret: with one, clients cannot choose values of one
/// backend.
fn hash(value: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    let mut hash = value.iter().fold(0xcbf2_9ce4_8422_2325, step);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}
