//! Rules of who may use a route: networks of clients, origins of pages, and keys.

use std::net::IpAddr;

use throng_http::{Network, Origins, Status};
use throng_proto::http1::Request;

use super::secrets::Secrets;

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
    /// Keys of clients; if empty, none is needed. Others get 401, and after ten wrong keys a minute
    /// 429.
    pub secrets: Secrets,
}

/// The refusal of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Denied {
    /// For the log.
    pub(crate) reason: &'static str,
    /// With a key it is admitted: 401. Others get 403.
    pub(crate) needs_key: bool,
}

impl Denied {
    fn forbidden(reason: &'static str) -> Self {
        Self { reason, needs_key: false }
    }

    /// Returns the status of the answer.
    pub(crate) fn status(self) -> Status {
        if self.needs_key { Status::UNAUTHORIZED } else { Status::FORBIDDEN }
    }
}

/// The rules of a route and its site together.
#[derive(Debug)]
pub(super) struct Guard {
    allow: Box<[Network]>,
    deny: Box<[Network]>,
    origins: Option<AllowedOrigins>,
    secrets: Secrets,
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
            secrets: self.secrets.within(&site.secrets),
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
        Some(Self { allow, deny, origins, secrets: config.secrets.clone() })
    }

    /// Returns why a request of a client is refused.
    pub(super) fn refusal(&self, request: &Request<'_>, client: IpAddr) -> Option<Denied> {
        let is_in = |networks: &[Network]| networks.iter().any(|it| it.contains(client));
        if is_in(&self.deny) {
            return Some(Denied::forbidden("deny lists the client's network"));
        }
        if !self.allow.is_empty() && !is_in(&self.allow) {
            return Some(Denied::forbidden("allow does not list the client's network"));
        }
        if !self.admits_page(request) {
            return Some(Denied::forbidden("allowed_origins does not list the page's origin"));
        }
        let is_admitted = self.secrets.is_empty() || self.secrets.admit(request);
        (!is_admitted).then_some(Denied { reason: "secrets have no such key", needs_key: true })
    }

    fn admits_page(&self, request: &Request<'_>) -> bool {
        let Some(origins) = &self.origins else { return true };
        let admits =
            |which: &Origins| which.allow(request.lines().all_bytes("Origin"), request.host());
        admits(&origins.others) || origins.same_host && admits(&Origins::SameHost)
    }
}
