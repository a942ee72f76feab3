//! The start of a request, once its head was read: an answer of the balancer's own, or the exchange
//! with the text for a backend.

use throng_http::{MISDIRECTED, Response};
use throng_io::Instant;
use throng_proto::http1::Request;

use crate::access::Subject;
use crate::forward;
use crate::shard::records::{Exchange, Fact, Origin, RequestFacts};
use crate::shard::request_log::RequestLog;
use crate::shard::rules::BalanceRules;

const LOOPED: &str = "this request has come through this balancer before: a backend of it, or \
                      of one behind it, leads back to it";

/// Returns the answer to a request that no backend sees, and the reason for it.
pub(super) fn own_answer(
    rules: &BalanceRules,
    request: &Request<'_>,
    origin: &Origin,
) -> Option<(Response, &'static str)> {
    let configuration = rules.configuration();
    let (response, reason) = match configuration.answer_challenge(request) {
        Some(response) => (response, "a challenge of the authority"),
        None if !origin.is_due_tls() => return None,
        None => {
            let (https, name) = (&configuration.https, origin.server_name());
            let is_trusted = || rules.trusts(origin.address().ip());
            let response = https.refusal(request, origin.is_secure(), name, is_trusted)?;
            (response, if origin.is_secure() { MISDIRECTED } else { "the client uses no TLS" })
        }
    };
    Some((response.closing(), reason))
}

/// Builds the exchange of a request: its relevant properties and the text for its backend.
pub(super) fn begin_exchange(
    rules: &BalanceRules,
    log: &RequestLog,
    now: Instant,
    request: &Request<'_>,
    origin: &Origin,
) -> Result<Exchange, (u16, &'static str)> {
    let settings = rules.settings();
    let loop_id = &rules.configuration().loop_id;
    let asked =
        forward::validate(request).map_err(|refusal| (refusal.status(), refusal.reason()))?;
    if forward::has_looped(request, loop_id) {
        return Err((508, LOOPED));
    }
    let ip = origin.address().ip();
    let is_trusted = rules.trusts(ip);
    let client = forward::client_address(request, origin.address(), &settings.trusted_proxies);
    let is_secure = match is_trusted {
        true => forward::came_by_https(request),
        false => origin.is_secure(),
    };
    let bound = forward::sticky_key(&settings.sticky, &settings.cookie_key, request, client);
    let facts = RequestFacts::new(request, asked.key().cloned(), client, bound, is_secure);
    let hop = forward::Hop {
        peer: ip,
        trusted: is_trusted,
        certificate: origin.certificate(),
        scheme: if origin.is_secure() { forward::Scheme::Https } else { forward::Scheme::Http },
        close: facts.is(Fact::OddBody),
        dropped: &settings.drop_headers,
        loop_id,
    };
    let mut head = Vec::with_capacity(request.raw().len() + 256);
    let host_at = forward::write_request(&mut head, request, &hop);
    let is_without = request.values("x-request-id").all(str::is_empty);
    let id = (settings.request_ids && is_without).then(|| log.create_id());
    if let Some(id) = &id {
        head.truncate(head.len() - b"\r\n".len());
        head.extend_from_slice(format!("X-Request-ID: {id}\r\n\r\n").as_bytes());
    }
    let subject = Subject { client: Some(client), ..origin.subject() };
    let entry = log.begin(request, subject, id, now);
    Ok(Exchange::new(facts, head, host_at, entry, now))
}
