//! The configuration of shards.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use throng_http::{HttpsPolicy, IntoResponse, Response};
use throng_proto::http1::Request;
use throng_tls::Challenges;

use crate::blocks::Blocks;
use crate::classes::TunnelClasses;
use crate::config::Config;
use crate::limit::RateLimits;
use crate::pool::{DEFAULT_POOL, Pool, Pools};
use crate::settings::{Settings, Target};
use crate::site::{HostPolicies, Policy, SiteCounters, Sites};

/// The configuration of shards: one value, replaced as a whole. A connection uses the one it began
/// with only during a call; tunnels need none.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// The settings.
    pub settings: Settings,
    /// The pools of backends.
    pub pools: Pools,
    /// The sites, by the hosts and paths of requests; `None`: the pool `default` serves all.
    pub sites: Option<Arc<Sites>>,
    /// The treatment of requests that no site has.
    pub policy: Arc<Policy>,
    /// The classes of tunnels.
    pub classes: TunnelClasses,
    /// The sites for which operators have switched maintenance on or off.
    pub maintenance: Arc<BTreeMap<Arc<str>, bool>>,
    /// The limits of rates, by the indexes that the sites have.
    pub limits: RateLimits,
    /// The counters of the sites, by the indexes that these have.
    pub counters: SiteCounters,
    /// The blocked networks of clients.
    pub blocks: Arc<Blocks>,
    /// The rules of HTTP at addresses with TLS.
    pub https: HttpsPolicy,
    /// The rules of TLS that the hosts of sites need; `None`: all have the same.
    pub policies: Option<Arc<HostPolicies>>,
    /// The challenges of the authority that issues the certificate, if one does.
    pub challenges: Option<Arc<Challenges>>,
    /// The balancer's own id: [`Settings::loop_id`], or a drawn one.
    pub loop_id: Arc<str>,
}

impl Default for Configuration {
    /// Returns the configuration of a balancer without backends, with a drawn id.
    fn default() -> Self {
        Self::new(Settings::default(), Vec::new())
    }
}

/// Returns an id that no other balancer has.
pub(crate) fn drawn_loop_id() -> Arc<str> {
    format!("throng-{:016x}", RandomState::new().hash_one(0)).into()
}

impl Configuration {
    /// Creates the configuration of a balancer with one pool, with a drawn id.
    #[must_use]
    pub fn new(settings: Settings, backends: Vec<Target>) -> Self {
        let default = Pool::new(DEFAULT_POOL.into(), settings.pool(), backends);
        Self {
            settings,
            pools: Pools::new(default, Vec::new()),
            sites: None,
            policy: Arc::default(),
            classes: TunnelClasses::default(),
            maintenance: Arc::default(),
            limits: RateLimits::default(),
            counters: SiteCounters::default(),
            blocks: Arc::default(),
            https: HttpsPolicy::default(),
            policies: None,
            challenges: None,
            loop_id: drawn_loop_id(),
        }
    }

    /// Returns it with the sites and limits of a configuration without mistakes, for simulations.
    #[doc(hidden)]
    #[must_use]
    pub fn with_sites(self, config: &Config) -> Self {
        let sites = config.compiled_sites().unwrap_or_default();
        let limits = RateLimits::new(&config.limits, &RateLimits::default());
        let counters = SiteCounters::new(sites.as_deref(), &SiteCounters::default());
        let classes = self.classes.with(sites.as_deref().map_or(&[], Sites::classes));
        Self { sites, limits, counters, classes, ..self }
    }

    /// Returns the answer to an authority that validates a domain by a request without TLS.
    pub(crate) fn answer_challenge(&self, request: &Request<'_>) -> Option<Response> {
        let key_authorization = self.challenges.as_ref()?.http_01(request.path())?;
        Some(key_authorization.into_string().into_bytes().into_response())
    }
}
