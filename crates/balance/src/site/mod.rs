//! Sites: from a request to its route, by host, path and further conditions.
//!
//! Nothing here depends on the order of sites and routes in a file, except between routes with the
//! same pattern of paths.

mod compile;
mod config;
mod counts;
mod explain;
mod guard;
mod headers;
mod hosts;
mod matchers;
mod pages;
mod policies;
mod policy;
mod readings;
mod rewrite;
mod secrets;
mod split;
mod summary;
mod template;
#[cfg(test)]
mod tests;
mod variables;
mod weights;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::sync::Arc;

use throng_config::AccessDetail;
use throng_engine::random::Random;
use throng_http::{Match, Network, Response, Router, Status};
use throng_proto::http1::Request;

pub(crate) use compile::{Names, SiteMistake};
pub use config::{Paths, RouteAction, RouteConfig, SiteConfig, SiteTls};
use counts::CountedNames;
pub(crate) use counts::{CarriedSite, CountedRequest};
pub use counts::{SiteCounters, SiteRow};
pub(crate) use explain::Asked;
pub use explain::{Explanation, OtherRoute, Reading};
pub(crate) use guard::Denied;
use guard::Guard;
pub use guard::GuardConfig;
pub use headers::HeaderRulesConfig;
use hosts::Hosts;
use matchers::Mismatch;
pub use matchers::{Matchers, ValuePattern};
pub(crate) use pages::MAX_PAGES;
pub use pages::Page;
pub use policies::HostPolicies;
pub(crate) use policies::{passed_hosts, with_sites};
pub(crate) use policy::Treatment;
pub use policy::{Policy, PolicyConfig, RequestIds, RouteTimes, TunnelTimes};
pub use rewrite::PathChange;
pub use secrets::Secrets;
pub(crate) use secrets::ask_for_key;
use split::Split;
pub(crate) use split::{Chosen, Splitting};
pub use split::{SplitBy, SplitConfig, SplitShare};
pub use summary::{ActionSummary, RouteSummary, SiteSummary};
pub use template::{RedirectTarget, Template};
pub(crate) use variables::Variables;
pub(crate) use weights::{SetWeights, SplitMistake};

/// The most sites.
pub(crate) const MAX_SITES: usize = 4096;
/// The most routes of all sites together.
pub(crate) const MAX_ROUTES: usize = 65_535;

/// The reason of a refusal: backends that read the path differently would serve another route.
const AMBIGUOUS: &str = "two readings of this path lead to different routes";
/// The reason of a refusal: no reading at all.
const BAD_PATH: &str = "the path has an invalid encoding";

/// All sites in the form in which requests are looked up. It does not change.
#[derive(Debug, Default)]
pub struct Sites {
    /// The hosts at listeners without a table of their own.
    hosts: Hosts,
    /// The hosts at each listener, by its name, if sites name listeners.
    of_listeners: Vec<(Arc<str>, Hosts)>,
    sites: Vec<Site>,
    /// Whether a site is under maintenance.
    has_maintenance: bool,
    /// The names with counters, by the indexes that routes have.
    counted: Vec<CountedNames>,
    classes: Vec<(Arc<str>, TunnelTimes)>,
    /// Sites without an action have the pool of the top-level backends.
    has_backends: bool,
}

/// The table of the hosts of a listener: the common one, or the one after this index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HostTable(u16);

/// A site. Its routes with the same pattern of paths are a run, in the order in which they are
/// tried.
#[derive(Debug)]
struct Site {
    router: Router<u32>,
    runs: Runs,
    rules: Vec<SiteRule>,
    /// The rule of requests without a route, which has no pattern.
    own: Option<u32>,
    /// Whether a rule takes paths as they were sent.
    has_raw: bool,
    /// Its name, without a route.
    names: Arc<RuleNames>,
    /// The page of its maintenance, if it is under one.
    maintenance: Option<Page>,
    /// The clients that it serves in maintenance.
    except: Box<[Network]>,
    /// The pool that its clients with TLS are passed through to.
    passthrough: Option<Box<str>>,
}

/// Runs of rules, by their indexes.
#[derive(Debug, Default)]
struct Runs {
    /// The end of each run in `rules`.
    ends: Vec<u32>,
    rules: Vec<u32>,
}

impl Runs {
    /// Adds a run; returns its index.
    fn push(&mut self, rules: impl IntoIterator<Item = u32>) -> u32 {
        self.rules.extend(rules);
        self.ends.push(self.rules.len() as u32);
        self.ends.len() as u32 - 1
    }

    fn run(&self, index: u32) -> &[u32] {
        let index = index as usize;
        let from = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.rules[from as usize..self.ends[index] as usize]
    }

    fn iter(&self) -> impl Iterator<Item = &[u32]> {
        (0..self.ends.len() as u32).map(|index| self.run(index))
    }
}

/// A route.
#[derive(Debug)]
pub(crate) struct SiteRule {
    pub(crate) names: Arc<RuleNames>,
    pub(crate) action: RuleAction,
    /// The indexes of the limits of its site, then of its own.
    pub(crate) limits: Box<[u16]>,
    /// `None`: all may use it.
    guard: Option<Arc<Guard>>,
    pub(crate) policy: Arc<Policy>,
    /// The name of the class of its tunnels, if they have timeouts of their own.
    pub(crate) class: Option<Arc<str>>,
    /// `None`: it has no further conditions.
    matchers: Option<Box<Matchers>>,
    is_raw: bool,
}

/// The names of a route for the log, and which of its requests that wants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RuleNames {
    pub(crate) site: Arc<str>,
    /// Empty for the site's own rule.
    pub(crate) route: Box<str>,
    /// Empty if the balancer answers, and before a split has chosen.
    pub(crate) pool: Box<str>,
    /// The place of that pool, unless pools have changed since.
    pub(crate) pool_at: u16,
    /// `None`: as of all requests.
    pub(crate) access: Option<AccessDetail>,
    /// The index of its counters in [`SiteCounters`].
    pub(crate) counts: u32,
}

/// The action of a route.
#[derive(Debug)]
pub(crate) enum RuleAction {
    /// A backend answers.
    Pool,
    /// A backend of the pool that it chooses answers.
    Split(Box<Split>),
    Redirect {
        to: RedirectTarget,
        status: Status,
    },
    Respond {
        status: Status,
        text: Template,
    },
    /// The balancer answers with a file.
    File {
        status: Status,
        page: Page,
    },
}

/// The reason why a request has no route: no site has its host, no route of its site the path, or
/// the path is refused.
#[derive(Debug)]
pub(crate) struct Unrouted<'s> {
    /// 404 or 400.
    pub(crate) status: Status,
    pub(crate) reason: &'static str,
    /// The site, if one has the host.
    pub(crate) names: Option<&'s Arc<RuleNames>>,
}

impl Sites {
    /// Returns the route of a request of a client. `scratch`: memory for readings of the path, only
    /// used for ambiguous paths.
    pub(crate) fn find(
        &self,
        (request, table): (&Request<'_>, HostTable),
        client: IpAddr,
        scratch: &mut Vec<u8>,
    ) -> Result<&SiteRule, Unrouted<'_>> {
        let Some(site) = self.site_of(request, table) else {
            let reason = "no site has this host";
            return Err(Unrouted { status: Status::NOT_FOUND, reason, names: None });
        };
        let (status, reason) = match site.find(request, client, scratch) {
            Ok(Some(rule)) => return Ok(&site.rules[rule as usize]),
            Ok(None) => (Status::NOT_FOUND, "no route has this path"),
            Err(reason) => (Status::BAD_REQUEST, reason),
        };
        Err(Unrouted { status, reason, names: Some(&site.names) })
    }

    /// Returns the split of the first route of this name that has one, or of the site itself.
    ///
    /// # Errors
    /// A sentence with the unknown name and the remedy.
    fn split_of(&self, site: &str, route: Option<&str>) -> Result<&Split, String> {
        let mut named = self.sites.iter().filter(|it| *it.names.site == *site).peekable();
        if named.peek().is_none() {
            return Err(format!("site {site} is unknown: sites lists them"));
        }
        let name = route.unwrap_or_default();
        let mut rules = named.flat_map(|site| &site.rules).filter(|it| *it.names.route == *name);
        let mut is_known = false;
        let split = rules.find_map(|rule| {
            is_known = true;
            rule.split()
        });
        split.ok_or_else(|| match (is_known, route) {
            (false, Some(route)) => format!("the site {site} has no route {route}"),
            (_, Some(route)) => format!("the route {route} of the site {site} has no split"),
            (_, None) => format!("the site {site} has no split of its own: name a route"),
        })
    }

    /// Returns the names of what has counters; a site comes before its routes.
    fn counted(&self) -> &[CountedNames] {
        &self.counted
    }

    /// Returns the names of the sites and routes that no request comes to: a route without
    /// conditions is before them in each run.
    pub(crate) fn unreached(&self) -> Vec<(&str, &str)> {
        let of_site = |site: &'_ Site| {
            let mut is_reached = vec![false; site.rules.len()];
            for run in site.runs.iter() {
                for &rule in run {
                    is_reached[rule as usize] = true;
                    if site.rules[rule as usize].matchers.is_none() {
                        break;
                    }
                }
            }
            if let Some(own) = site.own {
                is_reached[own as usize] = true;
            }
            is_reached
        };
        let mut names = Vec::new();
        for site in &self.sites {
            let unreached = of_site(site).into_iter().zip(&site.rules).filter(|(is, _)| !is);
            names.extend(unreached.map(|(_, rule)| (&*rule.names.site, &*rule.names.route)));
        }
        names
    }

    /// Returns the answer to a request for a site under maintenance, unless its client is excepted,
    /// and the site's name. `switched`: the sites for which operators have switched it.
    pub(crate) fn maintenance(
        &self,
        (request, table): (&Request<'_>, HostTable),
        client: IpAddr,
        switched: &BTreeMap<Arc<str>, bool>,
    ) -> Option<(Response, &Arc<RuleNames>)> {
        if !self.has_maintenance && switched.is_empty() {
            return None;
        }
        let site = self.site_of(request, table)?;
        let is_on = switched.get(&site.names.site).copied();
        let is_excepted = || site.except.iter().any(|network| network.contains(client));
        if !is_on.unwrap_or(site.maintenance.is_some()) || is_excepted() {
            return None;
        }
        Some((pages::maintenance(site.maintenance.as_ref(), request), &site.names))
    }

    /// Returns the names of all sites, with whether the file has them under maintenance.
    pub(crate) fn names(&self) -> impl Iterator<Item = (&Arc<str>, bool)> {
        self.sites.iter().map(|site| (&site.names.site, site.maintenance.is_some()))
    }

    /// Returns the classes of tunnels with timeouts of their own.
    pub(crate) fn classes(&self) -> &[(Arc<str>, TunnelTimes)] {
        &self.classes
    }

    /// Returns whether sites name listeners.
    pub(crate) fn have_listeners(&self) -> bool {
        !self.of_listeners.is_empty()
    }

    /// Returns the table of the listener with this name.
    pub(crate) fn table(&self, listener: &str) -> HostTable {
        let at = self.of_listeners.iter().position(|(name, _)| **name == *listener);
        // A listener that the file no longer has: the sites of all listeners.
        HostTable(at.and_then(|at| u16::try_from(at + 1).ok()).unwrap_or_default())
    }

    /// Returns the index of the site of a host.
    pub(crate) fn index(&self, host: Option<&str>, table: HostTable) -> Option<u16> {
        let hosts = match table {
            HostTable(0) => &self.hosts,
            HostTable(at) => self.of_listeners.get(usize::from(at) - 1).map(|(_, hosts)| hosts)?,
        };
        hosts.find(host)
    }

    fn site_of(&self, request: &Request<'_>, table: HostTable) -> Option<&Site> {
        self.index(request.host(), table).map(|at| &self.sites[usize::from(at)])
    }
}

impl Site {
    /// Returns the index of a request's rule.
    fn find(
        &self,
        request: &Request<'_>,
        client: IpAddr,
        scratch: &mut Vec<u8>,
    ) -> Result<Option<u32>, &'static str> {
        let path = request.path();
        if readings::is_plain(path) {
            return Ok(self.look_up_as_sent(request, client));
        }
        if self.has_raw {
            let found = self.look_up_as_sent(request, client);
            if found.is_some_and(|rule| self.rules[rule as usize].is_raw) {
                return Ok(found);
            }
        }
        let mut first = None;
        let differs = readings::for_each_reading(path, scratch, |reading| {
            match self.look_up(request, reading, client) {
                Err(reason) => ControlFlow::Break(reason),
                Ok(found) if *first.get_or_insert(found) == found => ControlFlow::Continue(()),
                Ok(_) => ControlFlow::Break(AMBIGUOUS),
            }
        })?;
        differs.map_or(Ok(first.flatten()), Err)
    }

    /// Returns the rule of one reading.
    fn look_up(
        &self,
        request: &Request<'_>,
        path: &str,
        client: IpAddr,
    ) -> Result<Option<u32>, &'static str> {
        let found = Cell::new(None);
        let admits = |run| self.admits(run, request, client, &found);
        match self.router.find_if(request.method(), path, admits) {
            Match::BadPath => Err(BAD_PATH),
            Match::Found { .. } => Ok(found.get()),
            _ => Ok(self.own),
        }
    }

    fn look_up_as_sent(&self, request: &Request<'_>, client: IpAddr) -> Option<u32> {
        let found = Cell::new(None);
        let admits = |run| self.admits(run, request, client, &found);
        let path = request.path();
        match self.router.find_as_sent(request.method(), path, admits) {
            Match::Found { .. } => found.get(),
            _ => self.own,
        }
    }

    /// Records the first rule of a run whose conditions hold.
    fn admits(
        &self,
        run: u32,
        request: &Request<'_>,
        client: IpAddr,
        found: &Cell<Option<u32>>,
    ) -> bool {
        let holds = |rule: &&u32| self.rules[**rule as usize].mismatch(request, client).is_none();
        let first = self.runs.run(run).iter().find(holds);
        found.set(first.copied());
        first.is_some()
    }
}

impl SiteRule {
    /// Returns a condition that a request does not meet.
    fn mismatch<'r>(&'r self, request: &Request<'_>, client: IpAddr) -> Option<Mismatch<'r>> {
        self.matchers.as_ref()?.mismatch(request, client)
    }

    /// Returns why a client may not use it for a request.
    pub(crate) fn refusal(&self, request: &Request<'_>, client: IpAddr) -> Option<Denied> {
        self.guard.as_ref()?.refusal(request, client)
    }

    /// Returns the split of its clients.
    fn split(&self) -> Option<&Split> {
        match &self.action {
            RuleAction::Split(split) => Some(split),
            _ => None,
        }
    }

    /// Returns the names for a request, with its pool.
    pub(crate) fn choose(&self, of: Splitting<'_>, random: &mut Random) -> Chosen<'_> {
        match &self.action {
            RuleAction::Split(split) => split.choose(of, random),
            _ => Chosen { names: &self.names, point: None, cookie: None },
        }
    }

    /// Returns whether a pool answers.
    pub(crate) fn has_pool(&self) -> bool {
        matches!(self.action, RuleAction::Pool | RuleAction::Split(_))
    }

    /// Returns the balancer's own answer and the reason for the log.
    pub(crate) fn answer(&self, of: Variables<'_>) -> (Response, &'static str) {
        let no_host = || Response::error(Status::BAD_REQUEST, "this route needs a Host");
        match &self.action {
            RuleAction::Pool | RuleAction::Split(_) => {
                (Response::error(Status::SERVICE_UNAVAILABLE, ""), "the route has a pool")
            }
            RuleAction::Redirect { to, status } => {
                let header = |target| Response::new(*status).header("Location", target).ok();
                (to.render(of).and_then(header).unwrap_or_else(no_host), "the route redirects")
            }
            RuleAction::Respond { status, text } => {
                let text = text.render(of);
                let response = text.map(|text| Response::new(*status).with_text(text));
                let response = response.unwrap_or_else(no_host);
                (upgrade_if_required(response), "the route responds")
            }
            RuleAction::File { status, page } => {
                let response = page.body_of(Response::new(*status));
                (upgrade_if_required(response), "the route responds")
            }
        }
    }
}

/// Adds the protocol that a 426 must name (RFC 9110 section 15.5.22).
fn upgrade_if_required(response: Response) -> Response {
    if response.status() != Status::UPGRADE_REQUIRED {
        return response;
    }
    let status = response.status();
    // The header is valid.
    response.header("Upgrade", "websocket").unwrap_or_else(|_| Response::new(status))
}
