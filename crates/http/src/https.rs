//! The rules of HTTP at an address with TLS.

use std::sync::Arc;
use std::time::Duration;

use throng_proto::http1;

use crate::plain::PlainHttp;
use crate::response::Response;
use crate::status::Status;

/// The rules of HTTP at an address with TLS.
#[derive(Clone, Debug, Default)]
pub struct HttpsPolicy {
    /// The answer to requests without TLS.
    pub plain: PlainHttp,
    /// The value of Strict-Transport-Security for responses over TLS that lack this header.
    pub hsts: Option<Arc<str>>,
    /// Whether a request must be for the host that its client named in the handshake (SNI). Set if
    /// the server asks clients for certificates.
    pub is_host_bound: bool,
}

impl HttpsPolicy {
    /// Returns the answer to a request that is refused because its connection has no TLS, or was
    /// made to another host, `server_name`. `is_trusted` returns whether its peer is a trusted
    /// proxy, which repeats the host that its own client has named.
    #[must_use]
    pub fn refusal(
        &self,
        request: &http1::Request<'_>,
        has_tls: bool,
        server_name: Option<&str>,
        is_trusted: impl FnOnce() -> bool,
    ) -> Option<Response> {
        if !has_tls {
            return self.plain.response(request);
        }
        self.misdirected(server_name, request).filter(|_| !is_trusted())
    }

    /// Returns the answer to a request that is for another host than its connection, which was
    /// made to `server_name` (421, RFC 9110 section 15.5.20); `None` if it is served.
    fn misdirected(
        &self,
        server_name: Option<&str>,
        request: &http1::Request<'_>,
    ) -> Option<Response> {
        if !self.is_host_bound {
            return None;
        }
        let (name, host) = (server_name?, request.host()?);
        let is_same = own_name(host).eq_ignore_ascii_case(without_dot(name));
        (!is_same).then(|| Response::error(Status::MISDIRECTED_REQUEST, MISDIRECTED))
    }
}

/// The reason of a 421.
pub const MISDIRECTED: &str = "this connection was made to another host: open one to this host; a \
                               proxy that passes on requests for several hosts has to be among \
                               trusted_proxies";

/// Returns the value of Strict-Transport-Security
/// ([RFC 6797 section 6.1](https://www.rfc-editor.org/rfc/rfc6797#section-6.1)).
#[must_use]
pub fn strict_transport_security(max_age: Duration, includes_subdomains: bool) -> Arc<str> {
    let directive = if includes_subdomains { "; includeSubDomains" } else { "" };
    format!("max-age={}{directive}", max_age.as_secs()).into()
}

/// Returns `host` without its port.
fn own_name(host: &str) -> &str {
    match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        None => without_dot(host.rsplit_once(':').map_or(host, |(name, _)| name)),
    }
}

/// Returns a name without the dot of the root, which a handshake does not have.
fn without_dot(name: &str) -> &str {
    name.strip_suffix('.').unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use throng_proto::Input;
    use throng_proto::http1::{Decoder, Event, Limits};

    use super::*;

    fn status(policy: &HttpsPolicy, server_name: Option<&str>, request: &str) -> Option<u16> {
        let (mut bytes, mut decoder) = (request.as_bytes().to_vec(), Decoder::new());
        let mut input = Input::new(&mut bytes);
        let event = decoder.next_event(&mut input, &Limits::default());
        let Ok(Some(Event::Head(request))) = event else { panic!("a head") };
        policy.misdirected(server_name, &request).map(|answer| answer.status().code())
    }

    #[test]
    fn rfc9110_15_5_20_a_request_for_another_host_is_misdirected() {
        let policy = HttpsPolicy { is_host_bound: true, ..HttpsPolicy::default() };
        let of_host = |host: &str| format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
        for (name, host, is_served) in [
            (Some("a.example"), "a.example", true),
            (Some("a.example"), "A.Example:8443", true),
            (Some("a.example"), "a.example.:443", true),
            (Some("a.example"), "b.example", false),
            (Some("a.example"), "x.a.example", false),
            (Some("a.example"), "a.example.b", false),
            (Some("a.example"), "192.0.2.1", false),
            (Some("a.example"), "[2001:db8::1]:443", false),
            (Some("a.example"), "", false),
            // A client that connects to an address asks for no name.
            (None, "192.0.2.1", true),
            (None, "b.example", true),
        ] {
            let found = status(&policy, name, &of_host(host));
            assert_eq!(found, (!is_served).then_some(421), "{name:?} {host:?}");
        }
        let absolute = "GET https://b.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n";
        assert_eq!(status(&policy, Some("a.example"), absolute), Some(421));
        assert_eq!(status(&policy, Some("a.example"), "GET / HTTP/1.0\r\n\r\n"), None);
        let open = HttpsPolicy::default();
        assert_eq!(status(&open, Some("a.example"), &of_host("b.example")), None);
    }

    #[test]
    fn rfc6797_6_1_the_directives_of_strict_transport_security() {
        let year = Duration::from_secs(365 * 24 * 3600);
        assert_eq!(&*strict_transport_security(year, false), "max-age=31536000");
        assert_eq!(&*strict_transport_security(year, true), "max-age=31536000; includeSubDomains");
        // The end of a policy.
        assert_eq!(&*strict_transport_security(Duration::ZERO, false), "max-age=0");
    }
}
