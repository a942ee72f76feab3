//! Explanations of lookups, for operators.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};
use throng_http::Match;
use throng_proto::http1::Request;

use super::policy::Policy;
use super::readings;
use super::split::{SplitShare, Splitting};
use super::variables::Variables;
use super::{HostTable, RuleAction, Site, SiteRule, Sites, Unrouted};
use crate::cookie::CookieKey;
use crate::forward::{self, Hop, Scheme};
use crate::limit::LimitConfig;
use crate::listener::ListenerRules;
use crate::pool::DEFAULT_POOL;
use crate::settings::Settings;

/// The route of a request, and why the other routes of its site are not.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(default)]
pub struct Explanation {
    /// The listener, where sites name listeners.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listener: Option<String>,
    /// The site of its host.
    pub site: Option<String>,
    /// The route; `None` for the action of the site itself.
    pub route: Option<String>,
    /// The pool that answers it; `None` if it is drawn for each request.
    pub pool: Option<String>,
    /// The source of the point by which a split chooses the pool.
    pub split_by: Option<String>,
    /// The client's point; `None` if it is random.
    pub point: Option<u16>,
    /// The ranges of points of the pools of a split.
    pub split: Vec<SplitShare>,
    /// The status of the balancer's own answer.
    pub status: Option<u16>,
    /// The target of a redirection.
    pub location: Option<String>,
    /// Why the balancer answers; empty if a pool does.
    pub reason: Cow<'static, str>,
    /// The head of the request for a backend, if it is not as the client has sent it.
    pub forwarded: Vec<String>,
    /// The headers that its answer has besides the backend's.
    pub response_headers: Vec<String>,
    /// The names of the limits that count it.
    pub limits: Vec<String>,
    /// The ways in which backends are known to read the path, if there are several.
    pub readings: Vec<Reading>,
    /// The other routes whose path it has.
    pub others: Vec<OtherRoute>,
    /// The number of routes of the site with other paths.
    pub elsewhere: usize,
}

/// A way in which backends are known to read a path.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Reading {
    /// The path.
    pub path: String,
    /// The name of its route, `-` for the site's own action; `None`: it has none.
    pub route: Option<String>,
}

/// A route that a request does not take.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct OtherRoute {
    /// Its name.
    pub route: String,
    /// The reason.
    pub why: String,
}

/// A request to explain.
#[derive(Clone, Copy)]
pub(crate) struct Asked<'r> {
    pub(crate) request: &'r Request<'r>,
    /// The other end of its connection.
    pub(crate) peer: SocketAddr,
    pub(crate) is_secure: bool,
    /// The rules of its listener.
    pub(crate) listener: &'r ListenerRules,
}

impl Asked<'_> {
    /// Explains what would happen to it.
    pub(crate) fn explain(
        self,
        (sites, policy): (Option<&Sites>, &Policy),
        settings: &Settings,
        limits: &[LimitConfig],
    ) -> Explanation {
        let Self { request, peer, is_secure, listener } = self;
        if let Err(refusal) = forward::validate(request) {
            return Explanation::refused(refusal.status(), refusal.reason());
        }
        let proxies = listener.trusted_proxies.as_deref().unwrap_or(&settings.trusted_proxies);
        let client = forward::client_address(request, peer, proxies);
        let (server_name, certificate, names, request_id) = (None, None, None, None);
        let peer = peer.ip();
        let of = Variables {
            request,
            is_secure,
            client,
            peer,
            server_name,
            certificate,
            names,
            request_id,
        };
        let Some(sites) = sites else {
            let pool = Some(DEFAULT_POOL.to_owned());
            let mut explanation = Explanation { pool, ..Explanation::default() };
            explanation.treat(policy, &of);
            return explanation;
        };
        let mut explanation =
            sites.explain(of, sites.table(&listener.name), (limits, &settings.cookie_key));
        if sites.have_listeners() {
            explanation.listener = Some(listener.name.to_string());
        }
        explanation
    }
}

impl Sites {
    /// Explains the lookup of a request from a client.
    pub(super) fn explain(
        &self,
        of: Variables<'_>,
        table: HostTable,
        (limits, key): (&[LimitConfig], &CookieKey),
    ) -> Explanation {
        let Variables { request, client, .. } = of;
        let found = self.find((request, table), client, &mut Vec::new());
        let site = self.site_of(request, table);
        let mut explanation = Explanation {
            site: site.map(|site| site.names.site.to_string()),
            readings: site.map_or(Vec::new(), |site| site.read(request, client)),
            ..Explanation::default()
        };
        if let Some(pool) = site.and_then(|site| site.passthrough.as_deref())
            && of.is_secure
        {
            explanation.pool = Some(pool.to_owned());
            explanation.reason = "its TLS is passed through, and no route looked up".into();
            return explanation;
        }
        match &found {
            Ok(rule) => {
                let names = Some(&*rule.names);
                explanation.treat(&rule.policy, &Variables { names, ..of });
                let limits = rule.limits.iter().filter_map(|at| limits.get(usize::from(*at)));
                explanation.limits = limits.map(|limit| limit.name.clone()).collect();
                explanation.choose(rule, of, Splitting { request, client, key });
            }
            Err(Unrouted { status, reason, .. }) => {
                (explanation.status, explanation.reason) = (Some(status.code()), (*reason).into());
            }
        }
        if let Some((response, _)) = self.maintenance((request, table), client, &BTreeMap::new()) {
            explanation.status = Some(response.status().code());
            explanation.reason = "the site is under maintenance".into();
        }
        let chosen = found.ok();
        if let Some(site) = site {
            (explanation.others, explanation.elsewhere) = site.others(request, client, chosen);
        }
        explanation
    }
}

impl Explanation {
    /// The balancer refuses the request.
    fn refused(status: u16, reason: &'static str) -> Self {
        Self { status: Some(status), reason: reason.into(), ..Self::default() }
    }

    /// Adds the changes of headers.
    pub(crate) fn treat(&mut self, policy: &Policy, of: &Variables<'_>) {
        let lines = |out: &mut Vec<u8>| policy.request.write(of, out);
        let target = |out: &mut Vec<u8>| policy.write_target(of, out);
        if let Some(edits) = policy.request_edits(of, (&target, &lines)) {
            let hop = Hop {
                peer: of.peer,
                trusted: false,
                scheme: if of.is_secure { Scheme::Https } else { Scheme::Http },
                certificate: None,
                close: false,
                dropped: &[],
                loop_id: "ID",
            };
            let mut head = Vec::new();
            let host_at = forward::write_request_with(&mut head, of.request, &hop, Some(&edits));
            if let Some(at) = host_at {
                head.splice(at..at, *b"Host: BACKEND\r\n");
            }
            self.forwarded = in_lines(&head);
        }
        let mut lines = Vec::new();
        policy.write_answer_lines(of, &mut lines);
        self.response_headers = in_lines(&lines);
    }

    fn choose(&mut self, rule: &SiteRule, of: Variables<'_>, client: Splitting<'_>) {
        let name = |name: &str| Some(name.to_owned()).filter(|name| !name.is_empty());
        self.route = name(&rule.names.route);
        if let Some(denied) = rule.refusal(of.request, client.client) {
            (self.status, self.reason) = (Some(denied.status().code()), denied.reason.into());
            self.limits.clear();
            self.forwarded.clear();
            return;
        }
        self.pool = name(&rule.names.pool);
        self.split(rule, client);
        if !rule.has_pool() {
            let (response, reason) = rule.answer(of);
            (self.status, self.reason) = (Some(response.status().code()), reason.into());
            self.forwarded.clear();
        }
        if let RuleAction::Redirect { to, .. } = &rule.action {
            self.location = to.render(of);
        }
    }

    fn split(&mut self, rule: &SiteRule, of: Splitting<'_>) {
        let RuleAction::Split(split) = &rule.action else { return };
        (self.split_by, self.split) = (Some(split.by().to_string()), split.shares());
        self.point = split.point(of);
        self.pool = self.point.map(|point| split.at(point).pool.to_string());
    }
}

/// Returns the lines of a head, with a word for a backend that is not known.
fn in_lines(head: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(head).replace('\0', "BACKEND");
    text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

impl Site {
    /// Returns the readings of an ambiguous path with their routes.
    fn read(&self, request: &Request<'_>, client: IpAddr) -> Vec<Reading> {
        let mut all = Vec::new();
        if readings::is_plain(request.path()) {
            return all;
        }
        // The reason of a refusal is in the verdict.
        let _ = readings::for_each_reading(request.path(), &mut Vec::new(), |path| {
            let found = self.look_up(request, path, client).ok().flatten();
            let name = |rule: u32| match &*self.rules[rule as usize].names.route {
                "" => "-".to_owned(),
                name => name.to_owned(),
            };
            all.push(Reading { path: path.to_owned(), route: found.map(name) });
            ControlFlow::<()>::Continue(())
        });
        if all.len() < 2 { Vec::new() } else { all }
    }

    /// Returns the other routes whose path a request has, and the number of the rest.
    fn others(
        &self,
        request: &Request<'_>,
        client: IpAddr,
        chosen: Option<&SiteRule>,
    ) -> (Vec<OtherRoute>, usize) {
        let (mut others, mut elsewhere) = (Vec::new(), 0);
        let routes = (0..).zip(&self.rules).filter(|(at, _)| Some(*at) != self.own);
        for (at, rule) in routes {
            if chosen.is_some_and(|chosen| std::ptr::eq(chosen, rule)) {
                continue;
            }
            let has_rule = |run: u32| self.runs.run(run).contains(&at);
            let found = self.router.find_if(request.method(), request.path(), has_rule);
            if !matches!(found, Match::Found { .. }) {
                elsewhere += 1;
                continue;
            }
            let why = match rule.mismatch(request, client) {
                Some(mismatch) => mismatch.to_string(),
                None => "another route is more specific, or before it".to_owned(),
            };
            others.push(OtherRoute { route: rule.names.route.to_string(), why });
        }
        (others, elsewhere)
    }
}
