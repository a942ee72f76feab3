//! The hosts that requests may name. A web page may give its own name the address 127.0.0.1 (DNS
//! rebinding), and then has the same origin as a server that listens there; but its requests still
//! name the page's host.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use throng::http::{Next, Status};
use throng::{Request, Response};
use throng_config::Listen;
use throng_http::HostPattern;

/// The hosts that requests may name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AllowedHosts {
    Any,
    /// Addresses, `localhost`, and these names.
    Names(Vec<HostPattern>),
}

/// A member of the list of hosts; `None` is `*`, any host.
#[derive(Clone, Debug)]
pub(crate) struct ListedHost(Option<HostPattern>);

impl FromStr for ListedHost {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "*" => Ok(Self(None)),
            _ => text.parse().map(|name| Self(Some(name))),
        }
    }
}

/// The hosts that requests to a running server may name. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct LiveHosts(Arc<Live>);

#[derive(Debug)]
struct Live {
    /// The hosts are [`AllowedHosts::Any`]: then requests do not take the lock, which all event
    /// loops share.
    any: AtomicBool,
    hosts: RwLock<AllowedHosts>,
}

impl LiveHosts {
    pub(crate) fn new(hosts: AllowedHosts) -> Self {
        let any = AtomicBool::new(hosts == AllowedHosts::Any);
        Self(Arc::new(Live { any, hosts: RwLock::new(hosts) }))
    }

    pub(crate) fn replace(&self, with: &Self) {
        let hosts = with.read().clone();
        self.0.any.store(hosts == AllowedHosts::Any, Ordering::Relaxed);
        *self.0.hosts.write().unwrap_or_else(PoisonError::into_inner) = hosts;
    }

    /// Refuses a request for another host.
    pub(crate) fn check(&self, request: &Request<'_>) -> Next {
        match self.0.any.load(Ordering::Relaxed) {
            true => Next::Continue,
            false => self.read().check(request),
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, AllowedHosts> {
        self.0.hosts.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AllowedHosts {
    /// Returns the hosts in the list `names`. Without one, any host, unless all of `addresses`,
    /// which the server listens on, are loopback addresses: then the server's own names.
    pub(crate) fn new(names: Option<&[ListedHost]>, addresses: &[String]) -> Self {
        let Some(listed) = names else {
            if !addresses.iter().all(|address| is_loopback(address)) {
                return Self::Any;
            }
            let own = addresses.iter().flat_map(|address| own_names(address));
            return Self::Names(own.filter_map(|name| name.parse().ok()).collect());
        };
        let names = listed.iter().map(|ListedHost(name)| name.clone());
        names.collect::<Option<_>>().map_or(Self::Any, Self::Names)
    }

    /// Allows these names as well.
    pub(crate) fn and(self, more: Vec<String>) -> Self {
        match self {
            Self::Any => Self::Any,
            Self::Names(names) => {
                let more = more.iter().filter_map(|name| name.parse().ok());
                Self::Names(names.into_iter().chain(more).collect())
            }
        }
    }

    /// Refuses a request for another host. A request without Host is HTTP/1.0, and does not come
    /// from a browser.
    fn check(&self, request: &Request<'_>) -> Next {
        let Self::Names(names) = self else { return Next::Continue };
        let Some(host) = request.host() else { return Next::Continue };
        let name = name_of(host);
        if is_address(host) || names.iter().any(|known| known.matches(name)) {
            return Next::Continue;
        }
        Next::respond(Response::error(
            Status::new(421),
            &format!(
                "this request is for the host {name:?}, which is not among allowed_hosts: ask by \
                 address or as localhost, or start the server with --set allowed_hosts={name} (* = \
                 any, behind a proxy)"
            ),
        ))
    }
}

/// Returns whether `address`, a value of `listen`, contains only loopback addresses.
pub(crate) fn is_loopback(address: &str) -> bool {
    let addresses = Listen::parse(address).addresses();
    // A Unix socket is for a proxy, which may forward requests from anywhere.
    let is_loopback = |one: &Option<SocketAddr>| {
        one.is_some_and(|address| address.ip().to_canonical().is_loopback())
    };
    !addresses.is_empty() && addresses.iter().all(is_loopback)
}

/// Returns the names of the server in `address`, a value of `listen`.
fn own_names(address: &str) -> Vec<String> {
    match Listen::parse(address) {
        Listen::Address(text) => vec![name_of(text).to_owned()],
        other => other.addresses().into_iter().flatten().map(|one| one.ip().to_string()).collect(),
    }
}

/// Returns `host` without its port.
fn name_of(host: &str) -> &str {
    match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    }
}

/// Returns whether `host` is an address or `localhost`, with a port or without: `127.0.0.1:8081`,
/// `[::1]:8081`, `localhost`. Only pages of this machine have such a host.
pub(crate) fn is_address(host: &str) -> bool {
    let name = name_of(host);
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_and_localhost_are_hosts() {
        for host in [
            "127.0.0.1:8081",
            "127.0.0.1",
            "[::1]:8081",
            "[::1]",
            "localhost",
            "LocalHost:80",
            "10.1.2.3:1",
        ] {
            assert!(is_address(host), "{host}");
        }
        for host in [
            "evil.example:8081",
            "127.0.0.1.evil.example",
            "localhost.evil.example:1",
            "",
            ":80",
            "[evil]:1",
            "127.1",
        ] {
            assert!(!is_address(host), "{host}");
        }
    }

    #[test]
    fn by_default_a_server_on_loopback_alone_has_its_own_names_only() {
        let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let auto = |addresses: &[&str]| AllowedHosts::new(None, &owned(addresses));
        let listed = |names: &[&str], addresses: &[&str]| {
            let names: Vec<_> = names.iter().map(|name| name.parse().unwrap()).collect();
            AllowedHosts::new(Some(&names), &owned(addresses))
        };
        let names = |names: &[&str]| {
            AllowedHosts::Names(names.iter().map(|name| name.parse().unwrap()).collect())
        };
        assert_eq!(auto(&["127.0.0.1:0", "[::1]:80"]), names(&["127.0.0.1", "::1"]));
        assert_eq!(auto(&["localhost:80"]), names(&["localhost"]));
        assert_eq!(auto(&["127.0.0.1:0", "0.0.0.0:80"]), AllowedHosts::Any);
        assert_eq!(
            listed(&["a.example", "b.example"], &["0.0.0.0:80"]),
            names(&["a.example", "b.example"])
        );
        assert_eq!(listed(&["a.example", "*"], &["127.0.0.1:0"]), AllowedHosts::Any);
    }
}
