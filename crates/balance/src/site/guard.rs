//! Rules of who may use a route: networks of clients, and origins of pages.

use std::net::IpAddr;

use throng_http::{Network, Origins};
use throng_proto::http1::Request;

/// The member of [`GuardConfig::allowed_origins`] for pages of the request's own host.
pub(super) const SAME_HOST: &str = "same-host";

/// Rules of who may use a site or route; others get 403. The default admits all. The lists of a
/// route have the members of its site's lists as well.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuardConfig {
    /// The only networks of clients, by their addresses past trusted proxies; if empty, all.
    pub allow: Vec<Network>,
    /// Networks of clients that are refused, also if `allow` has them.
    pub deny: Vec<Network>,
    /// The only origins of pages, as in [`Origins::List`], or `same-host` for pages of the host of
    /// the request; if empty, all. Requests without `Origin`, which browsers always send with
    /// handshakes, pass.
    pub allowed_origins: Vec<String>,
}

/// The rules of a route and its site together.
#[derive(Debug)]
pub(super) struct Guard {
    allow: Box<[Network]>,
    deny: Box<[Network]>,
    origins: Option<AllowedOrigins>,
}

#[derive(Debug)]
struct AllowedOrigins {
    same_host: bool,
    others: Origins,
}

impl GuardConfig {
    /// Returns the rules of a route with the rules of its site.
    pub(super) fn within(&self, site: &Self) -> Self {
        Self {
            allow: [&site.allow[..], &self.allow].concat(),
            deny: [&site.deny[..], &self.deny].concat(),
            allowed_origins: [&site.allowed_origins[..], &self.allowed_origins].concat(),
        }
    }
}

impl Guard {
    /// Returns `None` if all are admitted.
    pub(super) fn new(config: &GuardConfig) -> Option<Self> {
        if *config == GuardConfig::default() {
            return None;
        }
        let is_same_host = |origin: &&String| *origin == SAME_HOST;
        let listed = &config.allowed_origins;
        let origins = (!listed.is_empty()).then(|| AllowedOrigins {
            same_host: listed.iter().any(|it| is_same_host(&it)),
            others: Origins::list(listed.iter().filter(|it| !is_same_host(it))),
        });
        let (allow, deny) = (config.allow.clone().into(), config.deny.clone().into());
        Some(Self { allow, deny, origins })
    }

    /// Returns why a request of a client is refused.
    pub(super) fn refusal(&self, request: &Request<'_>, client: IpAddr) -> Option<&'static str> {
        let is_in = |networks: &[Network]| networks.iter().any(|it| it.contains(client));
        if is_in(&self.deny) {
            return Some("deny lists the client's network");
        }
        if !self.allow.is_empty() && !is_in(&self.allow) {
            return Some("allow does not list the client's network");
        }
        let origins = self.origins.as_ref()?;
        let admits =
            |which: &Origins| which.allow(request.lines().all_bytes("Origin"), request.host());
        let is_allowed = admits(&origins.others) || origins.same_host && admits(&Origins::SameHost);
        (!is_allowed).then_some("allowed_origins does not list the page's origin")
    }
}
