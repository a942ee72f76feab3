//! The rules of a shard: its configuration, and what follows from it.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use throng_http::{Network, PlainHttp};
use throng_io::ListenerId;
use throng_proto::http1;

use super::records::{Exchange, Fact};
use crate::configuration::Configuration;
use crate::forward::{self, Bound, Framing};
use crate::listener::Listeners;
use crate::settings::{Settings, Sticky, Timeouts};
use crate::site::{HostTable, Policy, Sites};
use crate::unix_peer::is_among;

/// The configuration in force.
pub(super) struct BalanceRules {
    configuration: Arc<Configuration>,
    /// Limits of requests, and of responses.
    request_limits: http1::Limits,
    response_limits: http1::Limits,
    listeners: Listeners,
    /// The tables of hosts, by listener; missing ones have the common table.
    tables: Box<[HostTable]>,
}

impl BalanceRules {
    pub(super) fn new(configuration: Arc<Configuration>, listeners: Listeners) -> Self {
        let settings = &configuration.settings;
        let request_limits = http1::Limits {
            max_header_bytes: settings.max_header_bytes,
            max_headers: settings.max_headers,
            max_body: settings.max_body,
        };
        // Bodies are limited for clients only, not for backends: a body of any length is forwarded
        // as it is received.
        let response_limits = http1::Limits {
            max_header_bytes: settings.max_response_header_bytes,
            max_headers: settings.max_response_headers,
            max_body: u64::MAX,
        };
        let sites = configuration.sites.as_deref().filter(|sites| sites.have_listeners());
        let of_sites =
            |sites: &Sites| listeners.all_rules().map(|rules| sites.table(&rules.name)).collect();
        let tables = sites.map(of_sites).unwrap_or_default();
        Self { configuration, request_limits, response_limits, listeners, tables }
    }

    pub(super) fn configuration(&self) -> &Arc<Configuration> {
        &self.configuration
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.configuration.settings
    }

    pub(super) fn timeouts(&self) -> &Timeouts {
        &self.configuration.settings.timeouts
    }

    /// Returns the timeouts of a tunnel with this class.
    pub(super) fn tunnel_timeouts(&self, class: u16) -> Timeouts {
        self.configuration.classes.timeouts(class, self.timeouts())
    }

    /// Returns the limits of a request, or of a head. With sites, a body is checked once the route
    /// is known.
    pub(super) fn request_limits(&self, exchange: Option<&Exchange>) -> http1::Limits {
        let max_body = match exchange {
            Some(exchange) => exchange.times().max_body.unwrap_or(self.request_limits.max_body),
            None if self.configuration.sites.is_some() => u64::MAX,
            None => self.request_limits.max_body,
        };
        http1::Limits { max_body, ..self.request_limits }
    }

    pub(super) fn response_limits(&self) -> http1::Limits {
        self.response_limits
    }

    pub(super) fn listeners(&self) -> &Listeners {
        &self.listeners
    }

    /// Returns the table of the hosts of a listener.
    pub(super) fn host_table(&self, listener: ListenerId) -> HostTable {
        self.tables.get(usize::from(listener.0)).copied().unwrap_or_default()
    }

    /// Returns whether connections to a listener begin with a PROXY header.
    pub(super) fn accepts_proxy(&self, listener: ListenerId) -> bool {
        let own = self.listeners.rules(listener).and_then(|rules| rules.accept_proxy);
        own.unwrap_or(self.settings().accept_proxy)
    }

    /// Returns the proxies that a listener trusts.
    pub(super) fn proxies(&self, listener: ListenerId) -> &[Network] {
        let own = self.listeners.rules(listener);
        let own = own.and_then(|rules| rules.trusted_proxies.as_deref());
        own.unwrap_or(&self.settings().trusted_proxies)
    }

    /// Returns whether an address belongs to a proxy that a listener trusts.
    pub(super) fn trusts(&self, ip: IpAddr, listener: ListenerId) -> bool {
        is_among(ip, self.proxies(listener))
    }

    /// Returns whether an address may belong to a trusted proxy of a connection whose listener is
    /// not known.
    pub(super) fn may_trust(&self, ip: IpAddr) -> bool {
        let own = self.listeners.all_rules().filter_map(|rules| rules.trusted_proxies.as_deref());
        own.chain([&*self.settings().trusted_proxies]).any(|proxies| is_among(ip, proxies))
    }

    /// Returns the rules of HTTP without TLS at a listener with TLS.
    pub(super) fn plain(&self, listener: ListenerId) -> PlainHttp {
        let own = self.listeners.rules(listener).and_then(|rules| rules.plain);
        own.unwrap_or(self.configuration.https.plain)
    }

    /// Returns the value of Strict-Transport-Security for a client's answer with this policy.
    pub(super) fn hsts(&self, has_tls: bool, policy: Option<&Policy>) -> Option<Arc<str>> {
        if !has_tls {
            return None;
        }
        let own = policy.and_then(|policy| policy.hsts.as_ref());
        own.or(self.configuration.https.hsts.as_ref()).cloned()
    }

    /// Returns the time between two bytes of a body of an exchange.
    pub(super) fn body_timeout(&self, exchange: Option<&Exchange>) -> Duration {
        let own = exchange.and_then(|exchange| exchange.times().body);
        own.unwrap_or(self.timeouts().body)
    }

    /// Returns the bytes of a request's body that must come within `timeouts.body`.
    pub(super) fn enough_of_request(&self, exchange: &Exchange) -> u64 {
        let rate = exchange.times().min_body_rate.unwrap_or(self.settings().min_body_rate);
        self.enough(exchange, rate)
    }

    /// Returns the bytes of an answer's body that must come within `timeouts.body`. A body of
    /// unknown length may be a stream of events, which may be slow.
    pub(super) fn enough_of_answer(&self, exchange: &Exchange) -> u64 {
        let own = exchange.times().min_response_rate;
        match exchange.framing() {
            Framing::Length(_) => {
                self.enough(exchange, own.unwrap_or(self.settings().min_response_rate))
            }
            Framing::Empty | Framing::Chunked | Framing::UntilClose => 0,
        }
    }

    /// Returns the bytes of a body that must come within `timeouts.body`, at `rate` a second.
    fn enough(&self, exchange: &Exchange, rate: u64) -> u64 {
        let millis = self.body_timeout(Some(exchange)).as_millis();
        u64::try_from(u128::from(rate) * millis / 1000).unwrap_or(u64::MAX)
    }

    /// Returns the cookie that brings a client back to the same backend.
    pub(super) fn cookie_for(&self, exchange: &Exchange) -> Option<String> {
        let (settings, pool) = (self.settings(), exchange.serving_pool());
        let Sticky::Cookie(name) = &pool.settings.sticky else { return None };
        let tag = pool.tag(exchange.backend()?.address());
        let is_new = exchange.facts().bound() != Some(Bound::Backend(tag));
        let same_site = settings.cookie_same_site;
        is_new.then(|| forward::set_cookie(name, tag, exchange.facts().is(Fact::Secure), same_site))
    }
}
