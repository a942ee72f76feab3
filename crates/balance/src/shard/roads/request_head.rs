//! The start of a request, once its head was read: an answer of the balancer's own, or the exchange
//! with the text for a backend.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use throng_engine::random::Random;
use throng_http::{MISDIRECTED, ReplyTo, Response, Status};
use throng_io::Instant;
use throng_proto::http1::{self, BodyLength, Request};
use throng_proto::ws::handshake::{self, Key};
use throng_proto::ws::{CloseCode, encode_close};

use crate::blocks::BLOCKED;
use crate::configuration::Configuration;
use crate::cookie::CookieKey;
use crate::forward;
use crate::limit::{BeyondLimit, Counted, RateLimits, Refusal, TunnelPlaces};
use crate::shard::records::{Exchange, Fact, LogEntry, Origin, RequestFacts};
use crate::shard::request_log::{Beginning, RequestLog};
use crate::shard::rules::BalanceRules;
use crate::site::{
    Chosen, CountedRequest, Denied, HostTable, Policy, RequestIds, RuleNames, SiteRule, Sites,
    Splitting, Treatment, Unrouted, Variables, ask_for_key,
};
use crate::unix_peer::{client_address, is_among};

const LOOPED: &str = "this request has come through this balancer before: a backend of it, or \
                      of one behind it, leads back to it";

/// An answer of the balancer's own.
pub(super) struct OwnAnswer {
    response: Response,
    /// For the log.
    reason: Cow<'static, str>,
    /// The request's entry, if the log wants it.
    entry: Option<Box<LogEntry>>,
    /// In place of the response: a handshake that is accepted, and a Close frame.
    closing: Option<Vec<u8>>,
    /// The name of the limit that refuses the request, for the log.
    limit: Option<Box<str>>,
    /// The entry was asked for: without one, the log does not want the request.
    was_begun: bool,
    /// A rule or limit refuses the request, or it has no route.
    is_refusal: bool,
    /// The treatment of its headers, with lines that depend on the request.
    headers: Option<Treatment>,
}

impl OwnAnswer {
    fn refusal(response: Response, reason: &'static str) -> Self {
        Self { is_refusal: true, ..Self::new(response, reason) }
    }

    fn new(response: Response, reason: &'static str) -> Self {
        Self {
            response,
            reason: reason.into(),
            entry: None,
            closing: None,
            limit: None,
            was_begun: false,
            is_refusal: false,
            headers: None,
        }
    }

    /// Replaces the text of an error by the page of a route.
    fn take_page(&mut self, policy: &Policy) {
        if self.response.refused_because().is_some()
            && let Some(page) = policy.error_page(self.response.status().code())
        {
            let empty = Response::new(self.response.status());
            self.response = page.body_of(std::mem::replace(&mut self.response, empty));
        }
    }

    pub(super) fn response(&self) -> &Response {
        &self.response
    }

    /// Appends it. Returns whether the connection goes on.
    pub(super) fn encode(&self, to: &ReplyTo<'_>, out: &mut Vec<u8>) -> bool {
        if let Some(text) = &self.closing {
            out.extend_from_slice(text);
            return false;
        }
        let from = out.len();
        self.response.encode(to, out);
        if let Some((policy, lines)) = &self.headers {
            policy.answer_edits(lines.as_deref(), None).apply(out, from);
        }
        self.response.keeps_alive(to)
    }

    /// Returns the policy of its route.
    pub(super) fn policy(&self) -> Option<&Policy> {
        self.headers.as_ref().map(|(policy, _)| &**policy)
    }

    /// Returns the reason for the log.
    pub(super) fn reason(&self) -> &str {
        &self.reason
    }

    /// Returns the request's entry for the log, if the log wants it.
    pub(super) fn entry(&self) -> Option<&LogEntry> {
        self.entry.as_deref()
    }

    /// Returns whether the log was asked for an entry.
    pub(super) fn was_begun(&self) -> bool {
        self.was_begun
    }
}

/// The reason why a request has no exchange.
pub(super) enum Unserved {
    /// The balancer refuses it, and ends the connection.
    Refused(u16, &'static str),
    /// The balancer answers it.
    Answered(Box<OwnAnswer>),
}

/// Returns the answer to a request that no backend sees, before its route is known.
pub(super) fn own_answer(
    rules: &BalanceRules,
    request: &Request<'_>,
    origin: &Origin,
) -> Option<OwnAnswer> {
    let configuration = rules.configuration();
    let (response, reason) = match configuration.answer_challenge(request) {
        Some(response) => (response, "a challenge of the authority"),
        None => {
            let (https, name) = (&configuration.https, origin.server_name());
            let listener = origin.listener();
            let is_trusted = || rules.trusts(origin.address().ip(), listener);
            let plain = rules.plain(listener);
            let refusal = || match origin.is_secure() {
                false => plain.response(request),
                true => https.refusal(request, true, name, is_trusted),
            };
            match origin.is_due_tls().then(refusal).flatten() {
                Some(response) if !origin.is_secure() => (response, "the client uses no TLS"),
                Some(response) => (response, MISDIRECTED),
                None => (misdirected(rules, request, origin)?, MISDIRECTED),
            }
        }
    };
    let response = response.closing();
    Some(OwnAnswer::new(response, reason))
}

/// Returns the answer to a request for a site with other rules of TLS than its connection has
/// followed. A trusted proxy repeats the host that its own client has named.
fn misdirected(rules: &BalanceRules, request: &Request<'_>, origin: &Origin) -> Option<Response> {
    let Configuration { policies, sites, .. } = &**rules.configuration();
    let (policies, listener) = (policies.as_ref()?, origin.listener());
    let site = sites.as_ref()?.index(request.host(), rules.host_table(listener));
    let is_refused =
        policies.refuses(site, origin.policy()) && !rules.trusts(origin.address().ip(), listener);
    is_refused.then(|| Response::error(Status::MISDIRECTED_REQUEST, MISDIRECTED))
}

/// Builds the exchange of a request: its relevant properties and the text for its backend.
pub(super) fn begin_exchange(
    rules: &BalanceRules,
    log: &RequestLog,
    now: Instant,
    request: &Request<'_>,
    (origin, scratch, random): (&Origin, &mut Vec<u8>, &mut Random),
) -> Result<Exchange, Unserved> {
    let settings = rules.settings();
    let loop_id = &rules.configuration().loop_id;
    let asked = forward::validate(request)
        .map_err(|refusal| Unserved::Refused(refusal.status(), refusal.reason()))?;
    if forward::has_looped(request, loop_id) {
        return Err(Unserved::Refused(508, LOOPED));
    }
    let ip = origin.address().ip();
    let proxies = rules.proxies(origin.listener());
    let is_trusted = is_among(ip, proxies);
    let client = client_address(request, origin.address(), proxies);
    let is_secure = match is_trusted {
        true => forward::came_by_https(request),
        false => origin.is_secure(),
    };
    let mut begins = Beginning::new(request, client, origin);
    let (mut split_cookie, mut class) = (None, 0);
    let mut places = TunnelPlaces::default();
    let mut policy = &rules.configuration().policy;
    let mut of = Variables {
        request,
        is_secure,
        client,
        peer: ip,
        server_name: origin.asked_name(),
        certificate: origin.certificate(),
        names: None,
        request_id: None,
    };
    let Configuration { sites, limits, counters, blocks, .. } = &**rules.configuration();
    if blocks.has(client) {
        let mut answer = blocked();
        answer.entry = log.begin(&begins, None, now);
        answer.was_begun = true;
        return Err(Unserved::Answered(Box::new(answer)));
    }
    if let Some(sites) = sites {
        let draw = |policy: &Policy| RequestId::new(policy, (request, is_trusted), rules, log);
        let (key, cookie_key) = (asked.key(), &settings.cookie_key);
        let switched = &rules.configuration().maintenance;
        let table = rules.host_table(origin.listener());
        let asking = Asking { of, table, key, cookie_key, switched, draw: &draw, now };
        let chosen = route((sites, limits), asking, &mut places, (scratch, random)).map_err(
            |unforwarded| {
                let Unforwarded { names, policy: of_route, id, mut answer } = unforwarded;
                let policy = of_route.unwrap_or(policy);
                let id = id.unwrap_or_else(|| draw(policy));
                let names_of = names.map(|names| &**names);
                let of = Variables { names: names_of, request_id: id.text(), ..of };
                answer.headers = Some((Arc::clone(policy), policy.answer_lines(&of)));
                answer.entry = log.begin(&begins.with_route(names, None), id.drawn, now);
                let status = answer.response.status().code();
                let counts = names.and_then(|names| counters.at(names.counts));
                counts.inspect(|counts| counts.note_own(status, answer.is_refusal));
                answer.was_begun = true;
                answer.take_page(policy);
                if let (Some(entry), Some(limit)) = (&mut answer.entry, &answer.limit) {
                    entry.set_limit(limit);
                }
                Unserved::Answered(answer)
            },
        )?;
        let (chosen, rule) = chosen;
        if asked.key().is_some() {
            class = rules.configuration().classes.named(rule.class.as_deref());
        }
        begins = begins.with_route(Some(chosen.names), chosen.point);
        (of.names, policy) = (Some(&**chosen.names), &rule.policy);
        split_cookie = chosen.cookie.map(|(name, point)| {
            let same_site = settings.cookie_same_site;
            forward::set_cookie(name, point.into(), is_secure, same_site).into()
        });
    }
    let max_body = policy.times.max_body.unwrap_or(settings.max_body);
    if matches!(request.body_length(), BodyLength::Known(length) if length > max_body) {
        let error = http1::Error::BodyTooLarge;
        return Err(Unserved::Refused(error.status(), error.reason()));
    }
    let pools = &rules.configuration().pools;
    let pool = match begins.names() {
        None => pools.first(),
        // Never another pool than the route's.
        Some(names) => {
            let pool = pools.named_at(names.pool_at, &names.pool);
            pool.ok_or(Unserved::Refused(503, "the route has no pool"))?
        }
    };
    let pool = Arc::clone(pool);
    let sticky = &pool.settings.sticky;
    let bound = forward::sticky_key(sticky, &settings.cookie_key, request, client);
    let key = asked.key().cloned();
    let facts = RequestFacts::new(request, key, client, (pool, bound), is_secure);
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
    let id = RequestId::new(policy, (request, is_trusted), rules, log);
    of.request_id = id.text();
    let lines = |out: &mut Vec<u8>| policy.request.write(&of, out);
    let target = |out: &mut Vec<u8>| policy.write_target(&of, out);
    let edits = policy.request_edits(&of, (&target, &lines));
    let host_at = forward::write_request_with(&mut head, request, &hop, edits.as_ref());
    if let Some(id) = &id.drawn
        && policy.request_ids == RequestIds::Pass
    {
        head.truncate(head.len() - b"\r\n".len());
        head.extend_from_slice(format!("X-Request-ID: {id}\r\n\r\n").as_bytes());
    }
    let treatment = (Arc::clone(policy), policy.answer_lines(&of));
    let entry = log.begin(&begins, id.drawn, now);
    let counts = begins.names().and_then(|names| counters.at(names.counts)).map(Arc::clone);
    let counted = counts.map(|counts| CountedRequest::new(counts, now));
    let exchange = Exchange::new(facts, treatment, (head, host_at), entry, now);
    let exchange = exchange.with_split_cookie(split_cookie).with_counts(counted);
    Ok(exchange.with_class(class).with_places(places))
}

/// The id of a request.
struct RequestId<'r> {
    /// As it was sent.
    sent: Option<&'r str>,
    /// In its place.
    drawn: Option<String>,
}

impl<'r> RequestId<'r> {
    fn new(
        policy: &Policy,
        (request, is_trusted): (&Request<'r>, bool),
        rules: &BalanceRules,
        log: &RequestLog,
    ) -> Self {
        let sent = request.values("x-request-id").find(|id| !id.is_empty());
        let is_due = match policy.request_ids {
            RequestIds::Pass => rules.settings().request_ids && sent.is_none(),
            RequestIds::Add => !is_trusted || sent.is_none(),
            RequestIds::Replace => true,
        };
        Self { sent, drawn: is_due.then(|| log.create_id()) }
    }

    fn text(&self) -> Option<&str> {
        self.drawn.as_deref().or(self.sent)
    }
}

/// Returns the answer to a client that an operator has blocked.
#[cold]
fn blocked() -> OwnAnswer {
    let response = Response::error(Status::FORBIDDEN, "this client may not use this").closing();
    OwnAnswer::refusal(response, BLOCKED)
}

/// A request whose route is looked up.
struct Asking<'r> {
    of: Variables<'r>,
    /// The hosts of its listener.
    table: HostTable,
    /// The key of a handshake.
    key: Option<&'r Key>,
    /// The points of splits depend on it.
    cookie_key: &'r CookieKey,
    /// The sites whose maintenance operators have switched.
    switched: &'r BTreeMap<Arc<str>, bool>,
    /// Returns the id of the request.
    draw: &'r dyn Fn(&Policy) -> RequestId<'r>,
    now: Instant,
}

/// A request that the balancer answers.
struct Unforwarded<'s, 'r> {
    /// The names for the log.
    names: Option<&'s Arc<RuleNames>>,
    /// The treatment of the answer, if it has a route.
    policy: Option<&'s Arc<Policy>>,
    /// Its id, if that is drawn already.
    id: Option<RequestId<'r>>,
    answer: Box<OwnAnswer>,
}

/// Returns the route's choice for a request that a pool answers, and its treatment.
fn route<'s, 'r>(
    (sites, limits): (&'s Sites, &RateLimits),
    asking: Asking<'r>,
    places: &mut TunnelPlaces,
    (scratch, random): (&mut Vec<u8>, &mut Random),
) -> Result<(Chosen<'s>, &'s SiteRule), Unforwarded<'s, 'r>> {
    let of = asking.of;
    let asked = (of.request, asking.table);
    if let Some((response, names)) = sites.maintenance(asked, of.client, asking.switched) {
        let answer = OwnAnswer::new(response, "the site is under maintenance");
        let (names, answer) = (Some(names), Box::new(answer));
        return Err(Unforwarded { names, policy: None, id: None, answer });
    }
    let rule = match sites.find(asked, of.client, scratch) {
        Ok(rule) => rule,
        Err(Unrouted { status, reason, names }) => {
            let answer = Box::new(OwnAnswer::refusal(Response::error(status, reason), reason));
            return Err(Unforwarded { names, policy: None, id: None, answer });
        }
    };
    let answered = |answer| {
        let (names, policy) = (Some(&rule.names), Some(&rule.policy));
        Unforwarded { names, policy, id: None, answer: Box::new(answer) }
    };
    if let Some(denied) = rule.refusal(of.request, of.client) {
        return Err(answered(deny(denied, limits, rule, &asking)));
    }
    for limit in rule.limits.iter().filter_map(|at| limits.at(*at)) {
        let Variables { client, certificate, .. } = of;
        let now = asking.now;
        let (site, route) = (&*rule.names.site, &*rule.names.route);
        let counted = Counted { request: of.request, client, site, route, certificate, now };
        if let Err(refused) = limit.check(counted, places) {
            return Err(answered(refuse(&refused, &asking)));
        }
    }
    if rule.has_pool() {
        let Variables { request, client, .. } = of;
        let key = asking.cookie_key;
        return Ok((rule.choose(Splitting { request, client, key }, random), rule));
    }
    let id = (asking.draw)(&rule.policy);
    let (response, reason) = rule.answer(Variables { request_id: id.text(), ..of });
    Err(Unforwarded { id: Some(id), ..answered(OwnAnswer::new(response, reason)) })
}

/// Returns the answer to a client that may not use a route.
#[cold]
fn deny(denied: Denied, limits: &RateLimits, rule: &SiteRule, asking: &Asking<'_>) -> OwnAnswer {
    let Variables { request, client, certificate, .. } = asking.of;
    let (site, route) = (&*rule.names.site, &*rule.names.route);
    let counted = Counted { request, client, site, route, certificate, now: asking.now };
    let response = match denied.needs_key {
        false => Response::error(denied.status(), "this client or page may not use this"),
        // A client that sends none asks which are wanted.
        true if request.header_bytes("Authorization").is_none() => ask_for_key(),
        true => match limits.count_wrong_key(counted) {
            Ok(()) => ask_for_key(),
            Err(beyond) => return refuse(&beyond, asking),
        },
    };
    OwnAnswer::refusal(response, denied.reason)
}

/// Returns the answer to a request that is beyond a limit.
#[cold]
fn refuse(refused: &BeyondLimit<'_>, asking: &Asking<'_>) -> OwnAnswer {
    let limit = refused.limit;
    let seconds = refused.retry_after.as_secs_f64().ceil().max(1.0) as u64;
    let closing = match asking.key {
        Some(key) if limit.refuse == Refusal::Close => {
            let mut text = Vec::new();
            // A browser fails a handshake that chooses none of the subprotocols it has offered.
            let offered = asking.of.request.values("sec-websocket-protocol");
            let first = handshake::list(offered).next();
            let accepted = handshake::encode_response(&key.accept(), first, &mut text).is_ok();
            let why = format!("retry in {seconds} s");
            encode_close(CloseCode::TRY_AGAIN_LATER.into(), &why, None, &mut text);
            accepted.then_some(text)
        }
        _ => None,
    };
    let reason = format!("beyond {}", limit.in_words());
    let response = Response::error(Status::new(limit.status), "too many requests");
    // A number is a valid header.
    let response = match response.header("Retry-After", seconds.to_string()) {
        Ok(response) => response,
        Err(_) => Response::error(Status::new(limit.status), "too many requests"),
    };
    let limit = Some(limit.name.as_str().into());
    OwnAnswer { reason: reason.into(), closing, limit, ..OwnAnswer::refusal(response, "") }
}
