//! Rules for the sites of a configuration together with its pools.

use std::collections::HashSet;

use super::Config;
use super::mistakes::Mistakes;
use crate::settings::Sticky;
use crate::site::{RouteAction, SplitBy};

/// Checks that the backends that end the TLS of a site get no TLS of the balancer's own, and that
/// no backend has a name of the site.
pub(super) fn passed_sites(config: &Config, mistakes: &mut Mistakes) {
    let all = config.all_backends().map(|it| &it.passthrough);
    let all = all.chain(config.all_names().map(|it| &it.passthrough));
    let taken: HashSet<&str> = all.flat_map(|names| names.iter().map(|name| &**name)).collect();
    for (at, site) in config.sites.iter().enumerate() {
        let Some(name) = &site.tls.passthrough else { continue };
        let pool = config.pools.iter().find(|pool| *pool.name == **name);
        let (tls, backends, names) = match pool {
            Some(pool) => (&pool.tls, &pool.backends, &pool.names),
            None => (&config.backend_tls, &config.backends, &config.names),
        };
        let secured = |own: Option<bool>| own.unwrap_or(tls.is_some());
        let is_secured =
            backends.iter().any(|it| secured(it.tls)) || names.iter().any(|it| secured(it.tls));
        let remedy = "the balancer has TLS with backends of this pool, inside of which the \
                      client's would be: write tls = false at each of them";
        let key = format!("sites[{at}].passthrough");
        mistakes.must(!is_secured, key, format_args!("{name:?}"), remedy);
        for (index, host) in site.hosts.iter().enumerate() {
            let is_free = !taken.contains(&*host.to_ascii_lowercase());
            let remedy = "a backend has it in passthrough: give it to one of the two";
            let key = format!("sites[{at}].hosts[{index}]");
            mistakes.must(is_free, key, format_args!("{host:?}"), remedy);
        }
    }
}

/// Checks that the cookies of splits have other names than the sticky cookies of pools.
pub(super) fn split_cookies(config: &Config, mistakes: &mut Mistakes) {
    let others = config.pools.iter().map(|pool| &pool.settings.sticky);
    let taken: Vec<_> = others.chain([&config.settings.sticky]).collect();
    let mut check = |key: String, action: &Option<RouteAction>| {
        let Some(RouteAction::Split(split)) = action else { return };
        let SplitBy::Sticky(name) = &split.by else { return };
        let is_taken = taken.iter().any(|it| matches!(it, Sticky::Cookie(other) if other == name));
        let remedy = "a pool has this name in sticky: write another name";
        mistakes.must(!is_taken, key, format_args!("\"sticky:{name}\""), remedy);
    };
    for (at, site) in config.sites.iter().enumerate() {
        check(format!("sites[{at}].split_by"), &site.action);
        for (route, of) in site.routes.iter().enumerate() {
            check(format!("sites[{at}].routes[{route}].split_by"), &of.action);
        }
    }
}
