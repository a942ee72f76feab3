//! Rules of TLS by site: which sites need a connection of their own.

use throng_tls::{TlsConfig, TlsPolicy};

use super::config::{SiteConfig, SiteTls};

/// Returns the rules for the hosts of a site, unless they are the rules of the whole server.
fn policy(site: &SiteTls, own: &TlsConfig) -> Option<TlsPolicy> {
    let min_version = site.min_version.unwrap_or(own.min_version);
    let client_auth = site.client_auth.as_ref().unwrap_or(&own.client_auth).clone();
    let is_own = min_version == own.min_version && client_auth == own.client_auth;
    (!is_own).then(|| TlsPolicy { names: Vec::new(), min_version, client_auth })
}

/// Adds certificates and rules of sites to the TLS of the whole server.
pub(crate) fn with_sites(mut own: TlsConfig, sites: &[SiteConfig]) -> TlsConfig {
    let mut own_names = Vec::new();
    for site in sites {
        own.certificates.extend(site.tls.certificates.iter().cloned());
        let names = site.hosts.iter().map(|host| folded(host));
        match policy(&site.tls, &own) {
            None => own_names.extend(names),
            Some(policy) => {
                let is_it = |other: &&mut TlsPolicy| other.number() == policy.number();
                match own.policies.iter_mut().find(is_it) {
                    Some(same) => same.names.extend(names),
                    None => own.policies.push(TlsPolicy { names: names.collect(), ..policy }),
                }
            }
        }
    }
    if !own.policies.is_empty() {
        own.own_names = own_names;
    }
    own
}

/// Returns the hosts of a site whose TLS its backends end, as server names.
pub(crate) fn passed_hosts(site: &SiteConfig) -> impl Iterator<Item = Box<str>> {
    let is_passed = site.tls.passthrough.is_some();
    site.hosts.iter().filter(move |_| is_passed).map(|host| folded(host))
}

fn folded(host: &str) -> Box<str> {
    host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase().into()
}

/// The rules of TLS that the hosts of requests need.
#[derive(Debug)]
pub struct HostPolicies {
    /// By site: the number of its rules, and whether they ask clients for certificates.
    of_sites: Vec<(u64, bool)>,
}

impl HostPolicies {
    /// Returns the rules of these sites; `None` if all have the rules of the whole
    /// server.
    pub(crate) fn new(sites: &[SiteConfig], own: &TlsConfig) -> Option<Self> {
        let policies: Vec<_> = sites.iter().map(|site| policy(&site.tls, own)).collect();
        if policies.iter().all(Option::is_none) {
            return None;
        }
        let of_one = |policy: Option<TlsPolicy>| {
            policy.map_or((0, false), |it| (it.number().into(), it.client_auth.is_some()))
        };
        Some(Self { of_sites: policies.into_iter().map(of_one).collect() })
    }

    /// Returns whether a request for the site with this index must come by another connection.
    /// `policy`: the number of the rules that its connection has followed; `None` without TLS.
    pub(crate) fn refuses(&self, site: Option<u16>, policy: Option<u64>) -> bool {
        // The default site of the top-level backends has no rules.
        let site = site.and_then(|at| self.of_sites.get(usize::from(at)).copied());
        let (needed, needs_certificate) = site.unwrap_or_default();
        policy.map_or(needs_certificate, |policy| policy != needed)
    }
}

#[cfg(test)]
mod tests {
    use throng_tls::{ClientAuth, Version};

    use super::*;
    use crate::site::hosts::Hosts;

    fn sites() -> Vec<SiteConfig> {
        let auth = |ca: &str| {
            Some(Some(ClientAuth { authorities: ca.into(), revoked: None, is_required: true }))
        };
        let site = |hosts: &[&str], min_version, client_auth| SiteConfig {
            hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
            tls: SiteTls { min_version, client_auth, ..SiteTls::default() },
            ..SiteConfig::default()
        };
        vec![
            site(&["Plain.example", "*.wild.example"], None, None),
            site(&["mesh.example", "**.deep.example"], None, auth("ca.pem")),
            site(&["mesh2.example"], Some(Version::Tls12), auth("ca.pem")),
            site(&["other.example"], None, auth("other.pem")),
            site(&["new.example"], Some(Version::Tls13), None),
        ]
    }

    /// Each pair of the host of the connection and the host of the request.
    #[test]
    fn a_request_is_served_where_both_hosts_have_the_same_rules() {
        let (own, sites) = (TlsConfig::new(Vec::new()), sites());
        let config = with_sites(own.clone(), &sites);
        assert_eq!(config.policies.len(), 3);
        assert_eq!(
            *config.policies[0].names,
            ["mesh.example", "**.deep.example", "mesh2.example"].map(Box::from)
        );
        assert_eq!(*config.own_names, ["plain.example", "*.wild.example"].map(Box::from));
        let policies = HostPolicies::new(&sites, &own).unwrap();
        let mut hosts_of = Hosts::default();
        for (at, site) in (0..).zip(&sites) {
            site.hosts.iter().for_each(|host| hosts_of.add(host, at).unwrap());
        }
        let refuses = |host, policy| policies.refuses(hosts_of.find(host), policy);
        let number = |at: usize| Some(u64::from(config.policies[at].number()));
        let hosts = [
            ("plain.example", Some(0)),
            ("a.wild.example:443", Some(0)),
            ("unknown.example", Some(0)),
            ("mesh.example", number(0)),
            ("MESH2.example.", number(0)),
            ("a.b.deep.example", number(0)),
            ("other.example", number(1)),
            ("new.example", number(2)),
        ];
        for (of_connection, policy) in hosts {
            for (host, needed) in hosts {
                assert_eq!(refuses(Some(host), policy), policy != needed, "{of_connection} {host}");
            }
        }
        // No name in the handshake, and no host in the request.
        assert!(refuses(Some("mesh.example"), Some(0)));
        assert!(!refuses(None, Some(0)));
        // Without TLS only sites that know their clients by certificates refuse.
        for (host, _) in hosts {
            let knows = host.to_ascii_lowercase().contains("mesh")
                || host.contains("deep")
                || host.contains("other");
            assert_eq!(refuses(Some(host), None), knows, "{host}");
        }
    }

    #[test]
    fn sites_with_the_rules_of_the_server_cost_nothing() {
        let own = TlsConfig::new(Vec::new());
        let sites = &sites()[..1];
        assert!(HostPolicies::new(sites, &own).is_none());
        let config = with_sites(own.clone(), sites);
        assert!(config.policies.is_empty() && config.own_names.is_empty());
    }
}
