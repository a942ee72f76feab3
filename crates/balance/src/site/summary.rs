//! Sites as they are configured, for operators.

use serde::Serialize;

use super::Sites;
use super::config::{RouteAction, RouteConfig, SiteConfig};
use super::split::SplitShare;
use crate::pool::DEFAULT_POOL;

/// A site for operators.
#[derive(Clone, Debug, Serialize)]
pub struct SiteSummary {
    /// Its name.
    pub name: String,
    /// Its hosts.
    pub hosts: Vec<String>,
    /// The action of requests without a route.
    pub action: ActionSummary,
    /// The names of the limits of all its requests.
    pub limits: Vec<String>,
    /// Its routes.
    pub routes: Vec<RouteSummary>,
}

/// A route for operators.
#[derive(Clone, Debug, Serialize)]
pub struct RouteSummary {
    /// Its name.
    pub name: String,
    /// Its paths.
    pub path: Vec<String>,
    /// Beginnings of its paths.
    pub prefix: Vec<String>,
    /// Its own action, or the action of its site.
    pub action: ActionSummary,
    /// The names of its own limits.
    pub limits: Vec<String>,
}

/// The action of a site or route: one of the pool, the split and the status.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ActionSummary {
    /// `pool`, `split`, `redirect`, `respond`, or `none`: 404.
    pub kind: &'static str,
    /// The pool that answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// The pools of a split, with the weights in force.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub split: Vec<SplitShare>,
    /// The status of the balancer's own answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
}

impl SiteConfig {
    /// Returns its name, or else its first host.
    fn shown_name(&self) -> &str {
        let first = || self.hosts.first().map_or("*", String::as_str);
        self.name.as_deref().unwrap_or_else(first)
    }
}

impl RouteConfig {
    /// Returns its name, or else its first path or prefix.
    fn shown_name(&self) -> &str {
        let first = || self.path.iter().chain(&self.prefix).next().map_or("/", String::as_str);
        self.name.as_deref().unwrap_or_else(first)
    }
}

impl Sites {
    /// Returns a summary of each configured site.
    pub(crate) fn summaries<'s>(
        &'s self,
        configured: &'s [SiteConfig],
    ) -> impl Iterator<Item = SiteSummary> + 's {
        configured.iter().zip(&self.sites).map(move |(config, site)| {
            let top = self.has_backends.then(|| RouteAction::Pool(DEFAULT_POOL.to_owned()));
            let own = config.action.clone().or(top);
            // The rules are the routes in their order, and the site's own.
            let action = |action: Option<&RouteAction>, rule: Option<usize>| match action {
                None => ActionSummary { kind: "none", ..ActionSummary::default() },
                Some(action) => {
                    let rule = rule.and_then(|rule| site.rules.get(rule));
                    summary(action, rule.and_then(|rule| rule.split()).map(|it| it.shares()))
                }
            };
            let route = |(at, route): (usize, &RouteConfig)| RouteSummary {
                name: route.shown_name().to_owned(),
                path: route.path.clone(),
                prefix: route.prefix.clone(),
                action: action(route.action.as_ref().or(own.as_ref()), Some(at)),
                limits: route.limits.clone(),
            };
            SiteSummary {
                name: config.shown_name().to_owned(),
                hosts: config.hosts.clone(),
                action: action(own.as_ref(), site.own.map(|rule| rule as usize)),
                limits: config.limits.clone(),
                routes: config.routes.iter().enumerate().map(route).collect(),
            }
        })
    }
}

fn summary(action: &RouteAction, split: Option<Vec<SplitShare>>) -> ActionSummary {
    match action {
        RouteAction::Pool(pool) => {
            ActionSummary { kind: "pool", pool: Some(pool.clone()), ..ActionSummary::default() }
        }
        RouteAction::Split(_) => ActionSummary {
            kind: "split",
            split: split.unwrap_or_default(),
            ..ActionSummary::default()
        },
        RouteAction::Redirect { status, .. } => {
            ActionSummary { kind: "redirect", status: Some(*status), ..ActionSummary::default() }
        }
        RouteAction::Respond { status, .. } | RouteAction::File { status, .. } => {
            ActionSummary { kind: "respond", status: Some(*status), ..ActionSummary::default() }
        }
    }
}
