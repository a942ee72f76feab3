//! Rules for the listeners of a configuration.

use std::collections::HashSet;

use throng_config::listen::overlap;
use throng_http::Network;
use throng_io::PeerAddress;

use super::Config;
use super::mistakes::{Mistakes, quoted};
use crate::listener::{LISTEN, ListenAt, TLS_LISTEN};
use crate::pool::{LABEL, is_label};

/// The most listeners with tables.
const MAX_LISTENERS: usize = 256;

/// Checks the listeners.
pub(super) fn check(config: &Config, mistakes: &mut Mistakes) {
    let all = config.all_listeners();
    let remedy = "write where clients connect, for example \"127.0.0.1:8080\"";
    mistakes.must(!all.is_empty(), "listen", "empty", remedy);
    for (at, ListenAt { address, .. }) in all.iter().enumerate() {
        let is_same = |other: &PeerAddress| match (other.socket_addr(), address.socket_addr()) {
            (Some(one), Some(other)) => overlap(one, other),
            _ => other == address,
        };
        let first = all[..at].iter().find(|other| is_same(&other.address));
        if let Some(ListenAt { address: first, .. }) = first {
            let remedy = match first == address {
                true => "it is there already: give it once".to_owned(),
                false => format!("{first} has its connections already: take one of the two out"),
            };
            mistakes.add(key(config, at), quoted(*address), remedy);
        }
    }
    own(config, mistakes);
    trusted_unix(config, &all, mistakes);
}

/// Returns the key of the address of a listener.
fn key(config: &Config, at: usize) -> String {
    let secured = config.tls.as_ref().map_or(0, |tls| tls.listen.len());
    match at.checked_sub(config.listen.len()) {
        None => format!("listen[{at}]"),
        Some(at) => match at.checked_sub(secured) {
            None => format!("tls.listen[{at}]"),
            Some(at) => format!("listeners[{at}].address"),
        },
    }
}

/// Checks the listeners with tables.
fn own(config: &Config, mistakes: &mut Mistakes) {
    let count = config.listeners.len();
    let remedy = format!("{MAX_LISTENERS} are the most");
    mistakes.must(count <= MAX_LISTENERS, "listeners", format_args!("a list of {count}"), remedy);
    let mut names = HashSet::from([LISTEN, TLS_LISTEN]);
    for (at, listener) in config.listeners.iter().enumerate() {
        let key = |field: &str| format!("listeners[{at}].{field}");
        let rules = &listener.rules;
        let (name, value) = (&*rules.name, format_args!("{:?}", rules.name));
        let remedy = match name {
            LISTEN | TLS_LISTEN => "the addresses of that setting have it: write another name",
            _ => "another listener has it: write another name",
        };
        mistakes.must(names.insert(name), key("name"), value, remedy);
        let is_named = is_label(name) || name == listener.address.to_string();
        mistakes.must(is_named, key("name"), value, LABEL);
        let remedy = "there is no certificate: add a table [tls], or drop it";
        mistakes.must(!listener.has_tls || config.tls.is_some(), key("tls"), true, remedy);
        let remedy = "it is for listeners with TLS: add tls = true, or drop it";
        let is_plain = rules.plain.is_none() || listener.has_tls;
        mistakes.must(is_plain, key("plain"), "set", remedy);
        let proxies = rules.trusted_proxies.as_deref();
        let trusts = !proxies.unwrap_or(&config.settings.trusted_proxies).is_empty();
        let accepts = rules.accept_proxy.unwrap_or(config.settings.accept_proxy);
        let remedy = "any client could claim any address: name the trusted ones in \
                      trusted_proxies, for example [\"10.0.0.0/8\"]";
        // Of the whole file it was reported.
        let is_own = rules.accept_proxy == Some(true) || proxies.is_some();
        mistakes.must(trusts || !accepts || !is_own, key("accept_proxy"), accepts, remedy);
    }
}

/// Checks that peers on Unix sockets are trusted only where there are some.
fn trusted_unix(config: &Config, all: &[ListenAt], mistakes: &mut Mistakes) {
    let position = |proxies: &[Network]| proxies.iter().position(|it| it.includes(None));
    let is_unix = |at: &ListenAt| at.address.socket_addr().is_none();
    let trusted = position(&config.settings.trusted_proxies);
    if let Some(at) = trusted.filter(|_| !all.iter().any(is_unix)) {
        let remedy =
            "listen has no Unix socket: add one, such as \"unix:/run/lb.sock\", or drop it";
        mistakes.add(format!("trusted_proxies[{at}]"), "\"unix:\"", remedy);
    }
    for (listener, own) in config.listeners.iter().enumerate() {
        let proxies = own.rules.trusted_proxies.as_deref();
        let trusted = proxies.and_then(position).filter(|_| own.address.socket_addr().is_some());
        if let Some(at) = trusted {
            let key = format!("listeners[{listener}].trusted_proxies[{at}]");
            mistakes.add(key, "\"unix:\"", "the listener is no Unix socket: drop it");
        }
    }
}
