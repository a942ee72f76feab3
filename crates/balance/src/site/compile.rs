//! From configured sites to the form in which requests are looked up.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use throng_config::AccessDetail;
use throng_http::{Origins, Router, Status, param_names};
use throng_proto::ws::handshake::is_token;

use crate::pool::{DEFAULT_POOL, LABEL, is_label};

use super::config::{Paths, RouteAction, RouteConfig, SiteConfig, SiteTls};
use super::counts::CountedNames;
use super::guard::{Guard, GuardConfig, SAME_HOST};
use super::hosts::{HostMistake, Hosts};
use super::matchers::{Matchers, ValuePattern};
use super::policy::{Policies, Policy, PolicyConfig, TunnelTimes};
use super::split::{POINTS, Split, SplitConfig};
use super::template::Template;
use super::{MAX_ROUTES, MAX_SITES, RuleAction, RuleNames, Runs, Site, SiteRule, Sites};

/// A mistake in the sites.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SiteMistake {
    /// The setting, such as `sites[0].hosts[1]`.
    pub(crate) key: String,
    /// Its value.
    pub(crate) value: String,
    pub(crate) remedy: String,
}

/// The pattern of a rule: in its form for the router; whether it comes from a prefix, which counts
/// after a path with the same pattern; and the rule.
type Pattern = (String, bool, u32);

/// The names that sites and routes may write.
#[derive(Clone, Copy)]
pub(crate) struct Names<'p> {
    pub(crate) pools: &'p [Arc<str>],
    pub(crate) limits: &'p [String],
    pub(crate) listeners: &'p [Arc<str>],
}

/// The names that sites and routes may write, and the mistakes so far.
struct Compiler<'p> {
    /// By their names, with their places.
    pools: HashMap<&'p str, u16>,
    limits: &'p [String],
    listeners: &'p [Arc<str>],
    /// The pool of the top-level backends, the action of sites without one.
    top: Option<RouteAction>,
    counted: Vec<CountedNames>,
    /// The rules of the whole file, and the policies so far.
    rules: &'p PolicyConfig,
    policies: Policies,
    classes: BTreeMap<Arc<str>, TunnelTimes>,
    mistakes: Vec<SiteMistake>,
}

impl Sites {
    /// Compiles sites. `rules`: of the whole file, which are valid; `has_backends`: one of the
    /// pools, `default`, has the top-level backends, which also serve all hosts without a site.
    ///
    /// # Errors
    /// All mistakes.
    pub(crate) fn compile<'p>(
        configured: &[SiteConfig],
        Names { pools, limits, listeners }: Names<'p>,
        rules: &'p PolicyConfig,
        has_backends: bool,
    ) -> Result<Self, Vec<SiteMistake>> {
        // The default pool is the first, also without backends.
        let others = u16::from(!has_backends);
        let pools = pools.iter().map(|pool| &**pool).zip(others..).collect();
        let top = has_backends.then(|| RouteAction::Pool(DEFAULT_POOL.to_owned()));
        let (policies, mistakes, counted) = (Policies::default(), Vec::new(), Vec::new());
        let classes = BTreeMap::new();
        let mut compiler =
            Compiler { pools, limits, listeners, top, counted, rules, policies, classes, mistakes };
        let mut sites = Self::default();
        if configured.iter().any(|site| !site.listeners.is_empty()) {
            let table = |name: &Arc<str>| (Arc::clone(name), Hosts::default());
            sites.of_listeners = listeners.iter().map(table).collect();
        }
        let routes: usize = configured.iter().map(|site| site.routes.len()).sum();
        if configured.len() > MAX_SITES || routes > MAX_ROUTES {
            let value = format!("a list of {} with {routes} routes", configured.len());
            let remedy = format!("{MAX_SITES} sites and {MAX_ROUTES} routes are the most");
            compiler.add("sites".to_owned(), value, remedy);
            return Err(compiler.mistakes);
        }
        for (at, site) in (0..).zip(configured) {
            compiler.add_hosts(&mut sites, at, site);
            compiler.listeners(usize::from(at), site, configured);
            let compiled = compiler.site(&format!("sites[{at}]"), site);
            sites.sites.push(compiled);
        }
        if has_backends && !sites.tables().all(|hosts| hosts.has_others()) {
            // As without sites: the paths of these hosts are not looked at.
            let at = sites.sites.len() as u16;
            let others = SiteConfig { paths: Paths::Raw, ..SiteConfig::default() };
            sites.sites.push(compiler.site("backends", &others));
            for hosts in sites.tables().filter(|hosts| !hosts.has_others()) {
                // A pattern that no other site has there.
                let _ = hosts.add("*", at);
            }
        }
        sites.has_maintenance = configured.iter().any(|site| site.maintenance.is_some());
        sites.classes = compiler.classes.into_iter().collect();
        (sites.counted, sites.has_backends) = (compiler.counted, has_backends);
        if compiler.mistakes.is_empty() { Ok(sites) } else { Err(compiler.mistakes) }
    }
}

impl Sites {
    /// Returns all tables of hosts.
    fn tables(&mut self) -> impl Iterator<Item = &mut Hosts> {
        std::iter::once(&mut self.hosts).chain(self.of_listeners.iter_mut().map(|(_, hosts)| hosts))
    }

    /// Returns the tables of hosts of a site with these listeners; without some, all.
    fn tables_of(&mut self, listeners: &[String]) -> impl Iterator<Item = &mut Hosts> {
        let is_all = listeners.is_empty();
        let is_its = move |name: &str| is_all || listeners.iter().any(|it| **it == *name);
        let own = self.of_listeners.iter_mut().filter(move |(name, _)| is_its(name));
        is_all.then_some(&mut self.hosts).into_iter().chain(own.map(|(_, hosts)| hosts))
    }
}

impl Compiler<'_> {
    fn add(&mut self, key: String, value: impl Into<String>, remedy: impl Into<String>) {
        self.mistakes.push(SiteMistake { key, value: value.into(), remedy: remedy.into() });
    }

    fn add_hosts(&mut self, sites: &mut Sites, at: u16, site: &SiteConfig) {
        if site.hosts.is_empty() {
            let remedy = "write its hosts, for example [\"app.example.com\"], or [\"*\"] for all \
                          that no other site has";
            self.add(format!("sites[{at}].hosts"), "empty", remedy);
        }
        for (index, host) in site.hosts.iter().enumerate() {
            let added = sites.tables_of(&site.listeners).map(|hosts| hosts.add(host, at));
            let remedy = match added.collect::<Result<(), _>>() {
                Ok(()) => continue,
                Err(HostMistake::Invalid(remedy)) => remedy,
                Err(HostMistake::TakenBy(first)) => {
                    format!("sites[{first}] has it already: give it to one of the two")
                }
            };
            self.add(format!("sites[{at}].hosts[{index}]"), format!("{host:?}"), remedy);
        }
    }

    /// Checks the names of a site's listeners, and that the sites of one host have the same rules
    /// of TLS: those are by name alone.
    fn listeners(&mut self, at: usize, site: &SiteConfig, all: &[SiteConfig]) {
        for (index, name) in site.listeners.iter().enumerate() {
            if !self.listeners.iter().any(|known| **known == **name) {
                let known: Vec<_> = self.listeners.iter().take(20).map(|name| &**name).collect();
                let remedy =
                    format!("no listener has this name: write one of {}", known.join(", "));
                self.add(format!("sites[{at}].listeners[{index}]"), format!("{name:?}"), remedy);
            }
        }
        if site.listeners.is_empty() {
            return;
        }
        let rules = |site: &SiteConfig| (site.tls.min_version, site.tls.client_auth.clone());
        for (first, other) in all.iter().enumerate().filter(|(_, it)| rules(it) != rules(site)) {
            let has = |host: &&String| other.hosts.iter().any(|it| it.eq_ignore_ascii_case(host));
            if let Some(index) = site.hosts.iter().position(|host| has(&host)) {
                let remedy = format!(
                    "sites[{first}] has it with other rules of TLS, which do not depend on the \
                     listener: give both the same min_version, client_ca, client_crl and \
                     client_auth"
                );
                let value = format!("{:?}", site.hosts[index]);
                self.add(format!("sites[{at}].hosts[{index}]"), value, remedy);
            }
        }
    }

    fn site(&mut self, key: &str, site: &SiteConfig) -> Site {
        let first = || site.hosts.first().map_or("*", String::as_str);
        let name: Arc<str> = site.name.as_deref().unwrap_or_else(first).into();
        if let Some(name) = site.name.as_deref().filter(|name| !is_label(name)) {
            self.add(format!("{key}.name"), format!("{name:?}"), LABEL);
        }
        let counts = self.count(&name, "");
        let names = |route: &str, access: Option<AccessDetail>| RuleNames {
            site: Arc::clone(&name),
            route: route.into(),
            pool: Box::default(),
            pool_at: 0,
            access: access.or(site.access),
            counts,
        };
        let (mut rules, mut patterns) = (Vec::new(), Vec::new());
        let of_site = self.limits(key, &site.limits);
        let guard = self.guard(key, &site.guard, &GuardConfig::default());
        self.rule_mistakes(key, &site.policy, &[]);
        let policy = site.policy.within(self.rules);
        let class = self.class(&names("", None), policy.tunnel);
        let shared = (!policy.depends_on_route()).then(|| {
            let shared = self.policies.intern(&policy, &names("", None), Vec::new());
            // Its mistakes were reported.
            shared.unwrap_or_default()
        });
        let own_action = site.action.clone().or_else(|| self.top.clone());
        for (at, route) in site.routes.iter().enumerate() {
            let key = format!("{key}.routes[{at}]");
            self.patterns(&key, route, rules.len() as u32, &mut patterns);
            self.matchers(&key, &route.matchers);
            let Some(action) = route.action.as_ref().or(own_action.as_ref()) else {
                let remedy = "write what happens to its requests: pool, split, redirect or \
                              respond, here or in its site";
                self.add(key, "incomplete", remedy);
                continue;
            };
            let first = || route.path.iter().chain(&route.prefix).next().map_or("/", |it| it);
            let mut names = names(route.name.as_deref().unwrap_or_else(first), route.access);
            if route.metrics {
                names.counts = self.count(&name, &names.route);
            }
            let is_raw = route.paths.unwrap_or(site.paths) == Paths::Raw;
            let own = self.limits(&key, &route.limits);
            // A limit of both counts a request once.
            let own = own.into_iter().filter(|limit| !of_site.contains(limit));
            let limits = of_site.iter().copied().chain(own).collect();
            let guard = match route.guard == GuardConfig::default() {
                true => guard.clone(),
                false => self.guard(&key, &route.guard, &site.guard),
            };
            let rest = (&route.matchers, is_raw, limits, guard);
            let mut rule = self.rule(&key, names, action, rest);
            let paths = [&route.path[..], &route.prefix].concat();
            self.rule_mistakes(&key, &route.policy, &paths);
            let own = route.policy != PolicyConfig::default();
            let own = own.then(|| route.policy.within(&policy));
            let of_site = shared.clone().filter(|_| own.is_none());
            self.bind(&key, &mut rule, (own.as_ref().unwrap_or(&policy), of_site), paths);
            rule.class = match route.policy.tunnel == TunnelTimes::default() {
                true => class.clone(),
                false => self.class(&rule.names, route.policy.tunnel.within(&policy.tunnel)),
            };
            rules.push(rule);
        }
        let own = own_action.map(|action| {
            let is_raw = site.paths == Paths::Raw;
            let rest = (&Matchers::default(), is_raw, of_site.into(), guard);
            let mut rule = self.rule(key, names("", None), &action, rest);
            self.bind(key, &mut rule, (&policy, None), Vec::new());
            rule.class = class;
            rules.push(rule);
            rules.len() as u32 - 1
        });
        let has_raw = rules.iter().any(|rule| rule.is_raw);
        let (router, runs) = router(patterns);
        let names = Arc::new(names("", None));
        let maintenance = site.maintenance.clone();
        let except = site.maintenance_except.clone().into();
        let passthrough = site.tls.passthrough.as_deref().map(Into::into);
        self.passthrough(key, site);
        Site { router, runs, rules, own, has_raw, names, maintenance, except, passthrough }
    }

    /// Checks a site whose TLS its backends end.
    fn passthrough(&mut self, key: &str, site: &SiteConfig) {
        let Some(pool) = &site.tls.passthrough else { return };
        self.place_of(pool, || format!("{key}.passthrough"));
        let SiteTls { certificates, is_issued, min_version, client_auth, .. } = &site.tls;
        let ends_it = !certificates.is_empty()
            || *is_issued
            || min_version.is_some()
            || client_auth.is_some();
        let value = format!("{pool:?}");
        if ends_it {
            let remedy = "its backends end the TLS: drop it, or cert, acme, min_version, client_ca \
                          and client_auth";
            self.add(format!("{key}.passthrough"), value, remedy);
        } else if !site.listeners.is_empty() {
            let remedy = "connections are passed through by the name alone, at all listeners with \
                          TLS: drop it, or listeners";
            self.add(format!("{key}.passthrough"), value, remedy);
        }
        for (at, host) in site.hosts.iter().enumerate() {
            if !throng_tls::is_server_name_pattern(host) {
                let remedy = "with passthrough, write a name such as \"db.example.com\", \
                              \"*.example.com\" for all of one label more, or \"*\"";
                self.add(format!("{key}.hosts[{at}]"), format!("{host:?}"), remedy);
            }
        }
    }

    /// Adds counters; returns their index.
    fn count(&mut self, site: &Arc<str>, route: &str) -> u32 {
        self.counted.push((Arc::clone(site), route.into()));
        self.counted.len() as u32 - 1
    }

    fn rule(
        &mut self,
        key: &str,
        mut names: RuleNames,
        action: &RouteAction,
        (matchers, is_raw, limits, guard): (&Matchers, bool, Box<[u16]>, Option<Arc<Guard>>),
    ) -> SiteRule {
        let action = match action.clone() {
            RouteAction::Pool(pool) => {
                names.pool_at = self.place_of(&pool, || format!("{key}.pool"));
                names.pool = pool.into();
                RuleAction::Pool
            }
            RouteAction::Split(split) => {
                let places = self.split(key, &split);
                RuleAction::Split(Box::new(Split::new(&split, &places, &names)))
            }
            RouteAction::Redirect { to, status } => {
                let is_one = matches!(status, 301 | 302 | 303 | 307 | 308);
                let remedy = "write 301, 302, 303, 307 or 308";
                let status = self.status(&format!("{key}.redirect.status"), status, is_one, remedy);
                RuleAction::Redirect { to, status }
            }
            RouteAction::Respond { status, text } => {
                RuleAction::Respond { status: self.own_status(key, status), text }
            }
            RouteAction::File { status, page } => {
                RuleAction::File { status: self.own_status(key, status), page }
            }
        };
        let names = Arc::new(names);
        let matchers = (*matchers != Matchers::default()).then(|| Box::new(matchers.clone()));
        let (policy, class) = (Arc::default(), None);
        SiteRule { names, action, limits, guard, policy, class, matchers, is_raw }
    }

    /// Adds the mistakes of the rules of a site or route.
    fn rule_mistakes(&mut self, key: &str, rules: &PolicyConfig, paths: &[String]) {
        for (of, value, remedy) in rules.mistakes(paths) {
            self.add(format!("{key}.{of}"), value, remedy);
        }
    }

    /// Returns the name of a class of tunnels, by the names of its site and route; `None` without
    /// timeouts of its own.
    fn class(&mut self, names: &RuleNames, times: TunnelTimes) -> Option<Arc<str>> {
        if times == TunnelTimes::default() {
            return None;
        }
        let mut name = format!("{}\n{}", names.site, names.route);
        // Routes with different conditions may have one name.
        while self.classes.contains_key(&*name) {
            name.push('+');
        }
        let name: Arc<str> = name.into();
        self.classes.insert(Arc::clone(&name), times);
        Some(name)
    }

    /// Gives a route the policy of these rules, and its names and paths to its texts. `shared`: the
    /// policy of its site, if the route adds nothing to that.
    fn bind(
        &mut self,
        key: &str,
        rule: &mut SiteRule,
        (rules, shared): (&PolicyConfig, Option<Arc<Policy>>),
        paths: Vec<String>,
    ) {
        let mut text = |of: &str, template: &mut Template| {
            let remedy = match template.bind(&rule.names, &paths) {
                Err(remedy) => remedy,
                Ok(()) if template.has_backend() => {
                    "no backend answers: drop ${backend}".to_owned()
                }
                Ok(()) => return,
            };
            self.add(format!("{key}.{of}"), "a text with variables", remedy);
        };
        match &mut rule.action {
            RuleAction::Redirect { to, .. } => text("redirect.to", to.template()),
            RuleAction::Respond { text: of, .. } => text("respond.text", of),
            RuleAction::Pool | RuleAction::Split(_) | RuleAction::File { .. } => {}
        }
        if let Some(shared) = shared {
            rule.policy = shared;
            return;
        }
        match self.policies.intern(rules, &rule.names, paths) {
            Ok(policy) => rule.policy = policy,
            Err((of, value, remedy)) => self.add(format!("{key}.{of}"), value, remedy),
        }
    }

    /// Returns the rules of who may use a route, together with its site's.
    fn guard(&mut self, key: &str, own: &GuardConfig, site: &GuardConfig) -> Option<Arc<Guard>> {
        for (at, origin) in own.allowed_origins.iter().enumerate() {
            let checked = Origins::check_member(origin);
            if origin != SAME_HOST
                && let Err(remedy) = checked
            {
                let remedy = format!("{remedy}, or \"{SAME_HOST}\"");
                self.add(format!("{key}.allowed_origins[{at}]"), format!("{origin:?}"), remedy);
            }
        }
        Guard::new(&own.within(site)).map(Arc::new)
    }

    /// Returns the indexes of the limits of these names.
    fn limits(&mut self, key: &str, names: &[String]) -> Vec<u16> {
        let mut limits = Vec::new();
        for (at, name) in names.iter().enumerate() {
            match self.limits.iter().position(|limit| limit == name) {
                // At most as many as the list may have.
                Some(limit) if limits.contains(&(limit as u16)) => {}
                Some(limit) => limits.push(limit as u16),
                None => {
                    let known = &self.limits[..self.limits.len().min(20)];
                    let remedy = match known.is_empty() {
                        true => "the file has no [[limit]]: write one with this name".to_owned(),
                        false => {
                            format!("no limit has this name: write one of {}", known.join(", "))
                        }
                    };
                    self.add(format!("{key}.limits[{at}]"), format!("{name:?}"), remedy);
                }
            }
        }
        limits
    }

    /// Returns the place of a pool.
    fn place_of(&mut self, pool: &str, key: impl Fn() -> String) -> u16 {
        if let Some(place) = self.pools.get(pool) {
            return *place;
        }
        let remedy = self.pool_remedy();
        self.add(key(), format!("{pool:?}"), remedy);
        0
    }

    /// Returns the places of the pools of a split.
    fn split(&mut self, key: &str, split: &SplitConfig) -> Vec<u16> {
        let pools = split.shares.iter().enumerate();
        let place = |(at, (pool, _)): (usize, &(String, u32))| {
            self.place_of(pool, || format!("{key}.split[{at}].pool"))
        };
        let places = pools.map(place).collect();
        let sum: u64 = split.shares.iter().map(|(_, weight)| u64::from(*weight)).sum();
        if !(1..=u64::from(POINTS)).contains(&sum) {
            let remedy = format!(
                "write weights with a sum of 1 to {POINTS}, for example {{ pool = \"default\", \
                 weight = 100 }}"
            );
            self.add(format!("{key}.split"), format!("a sum of {sum}"), remedy);
        }
        places
    }

    fn pool_remedy(&self) -> String {
        if self.pools.is_empty() {
            return "the file has no pool: write backends, the pool \"default\", or a [[pool]]"
                .to_owned();
        }
        let mut names: Vec<&str> = self.pools.keys().copied().collect();
        names.sort_unstable();
        names.truncate(20);
        format!("no pool has this name: write one of {}", names.join(", "))
    }

    fn own_status(&mut self, key: &str, status: u16) -> Status {
        let is_one = (200..600).contains(&status);
        self.status(&format!("{key}.respond.status"), status, is_one, "write 200 to 599")
    }

    fn status(&mut self, key: &str, status: u16, is_valid: bool, remedy: &str) -> Status {
        if !is_valid {
            self.add(key.to_owned(), status.to_string(), remedy);
            return Status::OK;
        }
        Status::new(status)
    }

    /// Adds the patterns of a route.
    fn patterns(&mut self, key: &str, route: &RouteConfig, rule: u32, out: &mut Vec<Pattern>) {
        if route.path.is_empty() && route.prefix.is_empty() {
            out.push((numbered("/{*rest}"), true, rule));
        }
        for (at, path) in route.path.iter().enumerate() {
            match path_pattern(path) {
                Ok(pattern) => out.push((pattern, false, rule)),
                Err(remedy) => self.add(format!("{key}.path[{at}]"), format!("{path:?}"), remedy),
            }
        }
        for (at, prefix) in route.prefix.iter().enumerate() {
            if let Some(remedy) = prefix_mistake(prefix) {
                self.add(format!("{key}.prefix[{at}]"), format!("{prefix:?}"), remedy);
                continue;
            }
            let whole = prefix.trim_end_matches('/');
            if !whole.is_empty() {
                out.push((whole.to_owned(), true, rule));
            }
            out.push((below(whole), true, rule));
        }
    }

    fn matchers(&mut self, key: &str, matchers: &Matchers) {
        for (at, method) in matchers.methods.iter().enumerate() {
            // Methods are case-sensitive, and no client sends `post`.
            let is_upper = !method.bytes().any(|byte| byte.is_ascii_lowercase());
            if is_token(method) && is_upper {
                continue;
            }
            let upper = method.to_ascii_uppercase();
            let upper = if is_token(&upper) { &upper } else { "GET" };
            let remedy = format!("write a method such as {upper:?}");
            self.add(format!("{key}.methods[{at}]"), format!("{method:?}"), remedy);
        }
        for (kind, values) in
            [("header", &matchers.header), ("cookie", &matchers.cookie), ("query", &matchers.query)]
        {
            for (name, pattern) in values {
                let (ValuePattern::Beginning(text) | ValuePattern::Exact(text)) = pattern else {
                    continue;
                };
                if let Some((before, _)) = text.split_once('*') {
                    let remedy = format!(
                        "a * is only at the end, for values that begin with the text before it: \
                         write {:?}",
                        format!("{before}*")
                    );
                    self.add(format!("{key}.{kind}"), format!("{name} = {pattern}"), remedy);
                }
            }
        }
        for (name, _) in &matchers.header {
            let remedy = match name.eq_ignore_ascii_case("host") {
                true => "hosts are the site's: write another [[site]] with hosts",
                false if is_token(name) => continue,
                false => "write the name of a header such as \"X-Canary\"",
            };
            self.add(format!("{key}.header"), format!("{name:?}"), remedy);
        }
    }
}

/// Builds the router of a site.
fn router(mut patterns: Vec<Pattern>) -> (Router<u32>, Runs) {
    patterns.sort_unstable();
    let (mut router, mut runs) = (Router::new(), Runs::default());
    for run in patterns.chunk_by(|one, other| one.0 == other.0) {
        let index = runs.push(run.iter().map(|(_, _, rule)| *rule));
        let added = router.add_any(&run[0].0, index);
        debug_assert!(added.is_ok(), "patterns were checked, and are different");
    }
    (router, runs)
}

/// Returns a path's pattern in its form for the router. The error is the remedy.
fn path_pattern(path: &str) -> Result<String, String> {
    if let Some(remedy) = text_mistake(path) {
        return Err(remedy);
    }
    param_names(path).map_err(|error| error.to_string())?;
    Ok(numbered(path))
}

/// Returns a valid pattern with numbers for names: the names of two routes may differ.
fn numbered(pattern: &str) -> String {
    if !pattern.contains('{') {
        return pattern.to_owned();
    }
    let number = |(at, segment): (usize, &str)| match segment.as_bytes() {
        [b'{', b'*', ..] => format!("/{{*{at}}}"),
        [b'{', ..] => format!("/{{{at}}}"),
        _ => format!("/{segment}"),
    };
    pattern.split('/').skip(1).enumerate().map(number).collect()
}

/// Returns the pattern of all paths below a prefix, as [`numbered`] does.
fn below(prefix: &str) -> String {
    let segments = prefix.bytes().filter(|byte| *byte == b'/').count();
    format!("{prefix}/{{*{segments}}}")
}

/// Returns the remedy of a prefix that is not valid.
fn prefix_mistake(prefix: &str) -> Option<String> {
    if prefix.contains(['{', '}']) {
        let path = format!("{}/{{*rest}}", prefix.trim_end_matches('/'));
        return Some(format!("a prefix has no parameters: write path = {path:?}"));
    }
    if !prefix.starts_with('/') {
        return Some(format!("a path begins with a slash: write {:?}", format!("/{prefix}")));
    }
    if prefix.len() > 1 && prefix.ends_with('/') {
        let whole = prefix.trim_end_matches('/');
        let whole = if whole.is_empty() { "/" } else { whole };
        return Some(format!("a prefix is for whole segments: write {whole:?}"));
    }
    text_mistake(prefix)
}

/// Returns the remedy of a path that no request has.
fn text_mistake(path: &str) -> Option<String> {
    if let Some((before, _)) = path.split_once(['?', '#']) {
        return Some(format!(
            "a path ends before its query: write {before:?}, and query = {{ ... }}"
        ));
    }
    match throng_http::percent::decode_path(path) {
        Ok(decoded) if decoded != path => {
            Some(format!("paths are compared decoded: write {decoded:?}"))
        }
        _ => None,
    }
}
