//! Treatment of the requests of a route before they reach a backend, and of the answers: rules of
//! the whole file, of a site, and of a route together.

use std::collections::HashMap;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use throng_http::strict_transport_security;
use throng_io::PeerAddress;

use super::RuleNames;
use super::headers::{HeaderMistake, HeaderRules, HeaderRulesConfig, HeaderSide};
use super::pages::Page;
use super::rewrite::{PathChange, Rewrite};
use super::variables::Variables;
use crate::forward::{AnswerEdits, ForwardedHost, RequestEdits, WritePart};
use crate::meter::TunnelRates;

/// The name of the header with the id of a request.
const REQUEST_ID: &str = "X-Request-ID";

/// The word for the backend's own name as [`PolicyConfig::host`].
const OF_BACKEND: &str = "${backend}";

/// The treatment of requests and answers, of a site, a route or the whole file. What is not set is
/// as in the level above.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PolicyConfig {
    /// Rules of the headers of requests.
    pub request_headers: HeaderRulesConfig,
    /// Rules of the headers of answers.
    pub response_headers: HeaderRulesConfig,
    /// The treatment of ids of requests. Default: [`RequestIds::Pass`].
    pub request_id: Option<RequestIds>,
    /// The Host of requests for backends; `${backend}` for the backend's own. Default: as sent.
    pub host: Option<String>,
    /// The change of the path of requests for backends; not of the whole file.
    pub path: Option<PathChange>,
    /// The bodies of the balancer's own answers with an error, by status.
    pub error_pages: Vec<(u16, Page)>,
    /// The time for which browsers use TLS only, and whether it also counts for subdomains; of a
    /// site. Default: [`ClientSide::hsts`](crate::ClientSide::hsts).
    pub hsts: Option<(Duration, bool)>,
    /// Times and limits, before the whole file's.
    pub times: RouteTimes,
    /// The timeouts and rates of tunnels, before the whole file's. A change reaches open tunnels; a
    /// first rate counts in tunnels that are opened later.
    pub tunnel: TunnelTimes,
}

/// Timeouts and rates of tunnels. Where a timeout is not set, [`Timeouts`](crate::Timeouts) has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TunnelTimes {
    /// In place of [`Timeouts::tunnel`](crate::Timeouts::tunnel).
    pub tunnel: Option<Duration>,
    /// In place of [`Timeouts::half_closed`](crate::Timeouts::half_closed).
    pub half_closed: Option<Duration>,
    /// The rates of the client, and the longest life.
    pub rates: TunnelRates,
}

impl TunnelTimes {
    pub(super) fn within(&self, outer: &Self) -> Self {
        Self {
            tunnel: self.tunnel.or(outer.tunnel),
            half_closed: self.half_closed.or(outer.half_closed),
            rates: self.rates.within(&outer.rates),
        }
    }
}

/// Times and limits of a route. Where one is not set, [`Settings`](crate::Settings) has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RouteTimes {
    /// In place of [`Timeouts::response`](crate::Timeouts::response).
    pub response: Option<Duration>,
    /// In place of [`Timeouts::upgrade`](crate::Timeouts::upgrade).
    pub upgrade: Option<Duration>,
    /// In place of [`Timeouts::body`](crate::Timeouts::body).
    pub body: Option<Duration>,
    /// In place of [`Settings::retries`](crate::Settings::retries).
    pub retries: Option<u8>,
    /// In place of [`Settings::max_body`](crate::Settings::max_body).
    pub max_body: Option<u64>,
    /// In place of [`Settings::min_body_rate`](crate::Settings::min_body_rate).
    pub min_body_rate: Option<u64>,
    /// In place of [`Settings::min_response_rate`](crate::Settings::min_response_rate).
    pub min_response_rate: Option<u64>,
}

impl RouteTimes {
    fn within(&self, outer: &Self) -> Self {
        Self {
            response: self.response.or(outer.response),
            upgrade: self.upgrade.or(outer.upgrade),
            body: self.body.or(outer.body),
            retries: self.retries.or(outer.retries),
            max_body: self.max_body.or(outer.max_body),
            min_body_rate: self.min_body_rate.or(outer.min_body_rate),
            min_response_rate: self.min_response_rate.or(outer.min_response_rate),
        }
    }
}

/// The treatment of the header X-Request-ID. The id is in the log, in the request for the backend
/// and, unless it passes, in the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RequestIds {
    /// The client's stays. [`Settings::request_ids`](crate::Settings::request_ids) adds missing
    /// ones.
    #[default]
    Pass,
    /// A trusted proxy's stays; all others are replaced by 128 random bits in hexadecimal.
    Add,
    /// All are replaced.
    Replace,
}

impl FromStr for RequestIds {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        match text {
            "pass" => Ok(Self::Pass),
            "add" => Ok(Self::Add),
            "replace" => Ok(Self::Replace),
            _ => Err("write \"pass\", \"add\" or \"replace\""),
        }
    }
}

/// The rules of a route in the form in which they are applied. Routes with the same rules share
/// one.
#[derive(Debug, Default)]
pub struct Policy {
    pub(crate) request: HeaderRules,
    response: HeaderRules,
    pub(crate) request_ids: RequestIds,
    host: Option<Box<str>>,
    rewrite: Option<Rewrite>,
    pub(crate) times: RouteTimes,
    /// The value of Strict-Transport-Security, if it is not the whole server's.
    pub(crate) hsts: Option<Arc<str>>,
    error_pages: Box<[(u16, Page)]>,
}

/// The treatment of a request, with the lines of its answer that depend on it.
pub(crate) type Treatment = (Arc<Policy>, Option<Box<[u8]>>);

/// The policies of all routes.
#[derive(Debug, Default)]
pub(super) struct Policies(HashMap<(PolicyConfig, Option<Bound>), Arc<Policy>>);

/// The names and patterns of a route whose rules depend on them.
type Bound = ([Box<str>; 3], Vec<String>);

impl PolicyConfig {
    /// Returns the rules with the rules of the level above.
    pub(super) fn within(&self, outer: &Self) -> Self {
        Self {
            request_headers: self.request_headers.within(&outer.request_headers),
            response_headers: self.response_headers.within(&outer.response_headers),
            request_id: self.request_id.or(outer.request_id),
            host: self.host.clone().or_else(|| outer.host.clone()),
            path: self.path.clone().or_else(|| outer.path.clone()),
            error_pages: {
                let is_own = |status: u16| self.error_pages.iter().any(|it| it.0 == status);
                let kept = outer.error_pages.iter().filter(|(status, _)| !is_own(*status));
                kept.chain(&self.error_pages).cloned().collect()
            },
            hsts: self.hsts.or(outer.hsts),
            times: self.times.within(&outer.times),
            tunnel: self.tunnel.within(&outer.tunnel),
        }
    }

    /// Returns the mistakes of one level. `patterns`: the paths and prefixes of the route.
    pub(super) fn mistakes(&self, patterns: &[String]) -> Vec<HeaderMistake> {
        let (requests, answers) = (&self.request_headers, &self.response_headers);
        let requests = requests.mistakes(HeaderSide::Requests);
        let mut all = named("request_headers", requests);
        all.extend(named("response_headers", answers.mistakes(HeaderSide::Answers)));
        all.extend(self.path.as_ref().and_then(|path| path.mistake(patterns)));
        if let Some(host) = &self.host
            && !is_host(host)
        {
            let remedy = "write a host such as \"app.internal\", perhaps with a port, or \
                          \"${backend}\" for the backend's own";
            all.push(("host".to_owned(), format!("{host:?}"), remedy.to_owned()));
        }
        all
    }

    /// Returns whether its form depends on the names of the route or on its paths.
    pub(super) fn depends_on_route(&self) -> bool {
        self.request_headers.depends_on_route()
            || self.response_headers.depends_on_route()
            || self.path.as_ref().is_some_and(PathChange::depends_on_route)
    }
}

fn named(key: &str, mistakes: Vec<HeaderMistake>) -> Vec<HeaderMistake> {
    let named = |(rest, value, remedy)| (format!("{key}.{rest}"), value, remedy);
    mistakes.into_iter().map(named).collect()
}

/// Returns whether a text is a host, perhaps with a port, or the backend's.
fn is_host(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte);
    text == OF_BACKEND || !text.is_empty() && !text.starts_with(':') && text.bytes().all(is_part)
}

impl Policy {
    /// Compiles rules without mistakes.
    ///
    /// # Errors
    /// A pattern of the route does not have a part of the path.
    pub(super) fn new(
        config: &PolicyConfig,
        names: &RuleNames,
        patterns: &[String],
    ) -> Result<Self, HeaderMistake> {
        let side = |key, rules| {
            let named = |(rest, value, remedy)| (format!("{key}.{rest}"), value, remedy);
            HeaderRules::new(rules, names, patterns).map_err(named)
        };
        let request_ids = config.request_id.unwrap_or_default();
        let (mut requests, mut answers) = (&config.request_headers, &config.response_headers);
        let with_id;
        if request_ids != RequestIds::Pass {
            let id = (REQUEST_ID.to_owned(), "${request_id}".to_owned());
            let id = HeaderRulesConfig { set: vec![id], ..HeaderRulesConfig::default() };
            with_id = [requests.within(&id), answers.within(&id)];
            [requests, answers] = with_id.each_ref();
        }
        Ok(Self {
            request: side("request_headers", requests)?,
            response: side("response_headers", answers)?,
            request_ids,
            host: config.host.as_deref().map(Into::into),
            times: config.times,
            hsts: config.hsts.map(|(age, subdomains)| strict_transport_security(age, subdomains)),
            error_pages: config.error_pages.clone().into(),
            rewrite: match &config.path {
                Some(path) => Some(Rewrite::new(path, names, patterns)?),
                None => None,
            },
        })
    }

    /// Returns the policy of requests that no site has, and the mistakes of the rules.
    pub(crate) fn of_all(config: &PolicyConfig) -> Result<Arc<Self>, Vec<HeaderMistake>> {
        let mistakes = config.mistakes(&[]);
        if !mistakes.is_empty() {
            return Err(mistakes);
        }
        let names = RuleNames { pool: "default".into(), ..RuleNames::default() };
        Self::new(config, &names, &[]).map(Arc::new).map_err(|mistake| vec![mistake])
    }

    /// Returns the Host of requests for backends, if it is not the client's.
    fn host(&self) -> Option<ForwardedHost<'_>> {
        Some(match self.host.as_deref()? {
            OF_BACKEND => ForwardedHost::Backend,
            host => ForwardedHost::Fixed(host),
        })
    }

    /// Returns the changes of a request, which `target` and `lines` write; `None` if it passes as
    /// sent.
    pub(crate) fn request_edits<'a>(
        &'a self,
        of: &Variables<'_>,
        (target, lines): (WritePart<'a>, WritePart<'a>),
    ) -> Option<RequestEdits<'a>> {
        if self.request.is_empty() && self.host.is_none() && self.rewrite.is_none() {
            return None;
        }
        let rewrite = self.rewrite.as_ref().filter(|rewrite| rewrite.applies(of));
        Some(RequestEdits {
            removed: self.request.removed(),
            target: rewrite.map(|_| target),
            host: self.host(),
            prefix: rewrite.and_then(|rewrite| rewrite.prefix(of)),
            lines,
        })
    }

    /// Appends the target of a request, if it is changed.
    pub(crate) fn write_target(&self, of: &Variables<'_>, out: &mut Vec<u8>) {
        if let Some(rewrite) = &self.rewrite {
            rewrite.write(of, out);
        }
    }

    /// Returns the body of the balancer's own answers with this status.
    pub(crate) fn error_page(&self, status: u16) -> Option<&Page> {
        self.error_pages.iter().find(|(of, _)| *of == status).map(|(_, page)| page)
    }

    /// Returns the changes of an answer, with the lines that depend on its request.
    pub(crate) fn answer_edits<'a>(
        &'a self,
        lines: Option<&'a [u8]>,
        backend: Option<PeerAddress>,
    ) -> AnswerEdits<'a> {
        let lines = lines.unwrap_or_else(|| self.response.fixed_lines());
        AnswerEdits { removed: self.response.removed(), lines, backend }
    }

    /// Appends the lines of an answer to a request, without the backend.
    pub(super) fn write_answer_lines(&self, of: &Variables<'_>, out: &mut Vec<u8>) {
        self.response.write(of, out);
    }

    /// Returns the lines of an answer to a request, if they are not the same for all.
    pub(crate) fn answer_lines(&self, of: &Variables<'_>) -> Option<Box<[u8]>> {
        self.response.lines_of(of)
    }
}

impl Policies {
    /// Returns the policy of a route with these rules, which include all levels.
    ///
    /// # Errors
    /// As of [`Policy::new`].
    pub(super) fn intern(
        &mut self,
        config: &PolicyConfig,
        names: &RuleNames,
        patterns: Vec<String>,
    ) -> Result<Arc<Policy>, HeaderMistake> {
        let bound = config.depends_on_route().then(|| {
            let RuleNames { site, route, pool, .. } = names;
            ([(**site).into(), route.clone(), pool.clone()], patterns)
        });
        let key = (config.clone(), bound);
        if let Some(known) = self.0.get(&key) {
            return Ok(Arc::clone(known));
        }
        let patterns = key.1.as_ref().map_or(&[][..], |(_, patterns)| patterns);
        let policy = Arc::new(Policy::new(config, names, patterns)?);
        self.0.insert(key, Arc::clone(&policy));
        Ok(policy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forward::{Hop, Scheme, write_request_with};
    use crate::site::tests::{variables, with_request};

    fn headers(names: &[(&str, &str)]) -> HeaderRulesConfig {
        let set = names.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        HeaderRulesConfig { set: set.collect(), ..HeaderRulesConfig::default() }
    }

    #[test]
    fn a_request_with_rules_is_written_without_another_allocation() {
        let values =
            [("X-Client", "${client}"), ("X-Uri", "<${uri}>"), ("X-Room", "${param.room}")];
        let config = PolicyConfig {
            request_headers: headers(&values),
            path: Some(PathChange::Rewrite("/v2/${param.room}".to_owned())),
            ..PolicyConfig::default()
        };
        let names = RuleNames::default();
        let policy = Policy::new(&config, &names, &["/ws/{room}".to_owned()]).unwrap();
        let head = "GET /ws/7?q HTTP/1.1\nHost: a\nX-Client: evil\nX-Other: 1";
        with_request(head, |request| {
            let of = variables(request);
            let hop = Hop {
                peer: of.peer,
                trusted: false,
                scheme: Scheme::Http,
                certificate: None,
                close: false,
                dropped: &[],
                loop_id: "own",
            };
            let mut out = Vec::with_capacity(1024);
            let mut write = || {
                out.clear();
                let lines = |out: &mut Vec<u8>| policy.request.write(&of, out);
                let target = |out: &mut Vec<u8>| policy.write_target(&of, out);
                let edits = policy.request_edits(&of, (&target, &lines));
                write_request_with(&mut out, request, &hop, edits.as_ref());
            };
            assert_eq!(allocation_counter::measure(&mut write).count_total, 0);
            let text = String::from_utf8(out).unwrap();
            assert!(
                text.starts_with("GET /v2/7?q HTTP/1.1\r\nHost: a\r\nX-Other: 1\r\n"),
                "{text}"
            );
            let own = "X-Client: 192.0.2.7\r\nX-Room: 7\r\nX-Uri: </ws/7?q>\r\n";
            assert!(own.lines().all(|line| text.contains(line)), "{text}");
            assert!(!text.contains("evil"), "{text}");
        });
    }

    #[test]
    fn routes_with_the_same_rules_share_one_policy_unless_it_has_their_names() {
        let mut policies = Policies::default();
        let mut intern = |config: &PolicyConfig, route: &str| {
            let names = RuleNames { route: route.into(), ..RuleNames::default() };
            policies.intern(config, &names, vec![format!("/{route}")]).unwrap()
        };
        let with = |value| PolicyConfig {
            request_headers: headers(&[("X-A", value)]),
            ..PolicyConfig::default()
        };
        let (same, own) = (with("1"), with("${route}"));
        assert!(Arc::ptr_eq(&intern(&same, "a"), &intern(&same, "b")));
        assert!(!Arc::ptr_eq(&intern(&own, "a"), &intern(&own, "b")));
        assert!(Arc::ptr_eq(&intern(&own, "a"), &intern(&own, "a")));
    }

    #[test]
    fn a_route_has_the_rules_of_its_site_and_of_the_file_where_it_has_none() {
        let time = |seconds| Some(Duration::from_secs(seconds));
        let page = |text: &str| Page::new("a.txt".as_ref(), text.as_bytes());
        let outer = PolicyConfig {
            host: Some("outer".to_owned()),
            request_id: Some(RequestIds::Add),
            error_pages: vec![(502, page("outer")), (503, page("outer"))],
            times: RouteTimes { response: time(1), body: time(1), ..RouteTimes::default() },
            tunnel: TunnelTimes { tunnel: time(1), half_closed: time(1), ..TunnelTimes::default() },
            ..PolicyConfig::default()
        };
        let inner = PolicyConfig {
            request_id: Some(RequestIds::Pass),
            error_pages: vec![(502, page("inner"))],
            times: RouteTimes { body: time(2), retries: Some(0), ..RouteTimes::default() },
            tunnel: TunnelTimes { tunnel: time(2), ..TunnelTimes::default() },
            ..PolicyConfig::default()
        };
        let all = inner.within(&outer);
        assert_eq!((all.host.as_deref(), all.request_id), (Some("outer"), Some(RequestIds::Pass)));
        assert_eq!(all.error_pages, [(503, page("outer")), (502, page("inner"))]);
        assert_eq!(
            (all.times.response, all.times.body, all.times.retries),
            (time(1), time(2), Some(0))
        );
        assert_eq!((all.tunnel.tunnel, all.tunnel.half_closed), (time(2), time(1)));
    }
}
