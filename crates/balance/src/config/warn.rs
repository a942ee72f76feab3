//! Warnings about a whole configuration: it is valid, and probably not what was meant.

use std::collections::BTreeMap;

use super::Config;
use crate::pool::DEFAULT_POOL;
use crate::settings::Sticky;
use crate::site::{RouteAction, SiteConfig};

/// Returns the warnings, one line each.
pub(super) fn warnings(config: &Config) -> Vec<String> {
    let mut warnings = unreached_routes(config);
    for site in config.sites.iter() {
        shared_cookies(config, site, &mut warnings);
    }
    warnings
}

/// Warns of routes that no request comes to.
fn unreached_routes(config: &Config) -> Vec<String> {
    let Ok(Some(sites)) = config.compiled_sites() else { return Vec::new() };
    let warning = |(site, route): (&str, &str)| {
        format!(
            "route {route} of site {site} gets no request: a route before it has its paths and no \
             conditions; move it up, or drop it"
        )
    };
    sites.unreached().into_iter().map(warning).collect()
}

/// Warns of pools that replace each other's sticky cookie: a client that comes to both by paths of
/// one site is bound in neither. Two pools of a split, or of routes with other conditions for the
/// same paths, may share a name: there a client stays with one of them. So may pools of different
/// sites, since browsers keep cookies by host.
fn shared_cookies(config: &Config, site: &SiteConfig, warnings: &mut Vec<String>) {
    let cookie_of = |name: &str| {
        let pool = config.pools.iter().find(|pool| *pool.name == *name);
        let own = (name == DEFAULT_POOL).then_some(&config.settings.sticky);
        match pool.map(|pool| &pool.settings.sticky).or(own) {
            Some(Sticky::Cookie(cookie)) => Some(cookie.as_str()),
            _ => None,
        }
    };
    let top = RouteAction::Pool(DEFAULT_POOL.to_owned());
    let own = site.action.as_ref().unwrap_or(&top);
    let of_routes = site.routes.iter().map(|route| {
        let paths: Vec<&str> = route.path.iter().chain(&route.prefix).map(String::as_str).collect();
        (paths, route.action.as_ref().unwrap_or(own))
    });
    // By cookie: the first paths with their pools.
    let mut seen: BTreeMap<&str, (Vec<&str>, Vec<&str>)> = BTreeMap::new();
    for (mut paths, action) in of_routes.chain([(Vec::new(), own)]) {
        paths.retain(|path| *path != "/");
        let pools: Vec<&str> = match action {
            RouteAction::Pool(pool) => vec![pool],
            RouteAction::Split(split) => split.shares.iter().map(|(pool, _)| &**pool).collect(),
            RouteAction::Redirect { .. }
            | RouteAction::Respond { .. }
            | RouteAction::File { .. } => Vec::new(),
        };
        for pool in pools {
            let Some(cookie) = cookie_of(pool) else { continue };
            let (first, others) = seen.entry(cookie).or_insert_with(|| (paths.clone(), vec![pool]));
            if *first == paths {
                if !others.contains(&pool) {
                    others.push(pool);
                }
            } else if let Some(other) = others.iter().find(|other| **other != pool) {
                let first = site.hosts.first().map_or("*", String::as_str);
                let name = site.name.as_deref().unwrap_or(first);
                let warning = format!(
                    "pools {other} and {pool} have the sticky cookie {cookie:?}, and paths of site \
                     {name} lead to both: each replaces the cookie of the other; give them \
                     different names"
                );
                if !warnings.contains(&warning) {
                    warnings.push(warning);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::Config;

    fn warnings(text: &str) -> Vec<String> {
        Config::parse(text, "b.toml").unwrap().warnings().to_vec()
    }

    #[test]
    fn a_route_behind_one_without_conditions_is_a_warning() {
        let site = |routes: &str| {
            format!(
                "backends = [\"127.0.0.1:9001\"]\n[[site]]\nhosts = \"a\"\nroutes = [{routes}]\n"
            )
        };
        for (routes, unreached) in [
            ("{ path = \"/a\" }, { path = \"/a\", websocket = true, name = \"ws\" }", Some("ws")),
            ("{ path = \"/a\", websocket = true }, { path = \"/a\" }", None),
            ("{ prefix = \"/a\" }, { path = \"/a\", name = \"x\" }", None),
            ("{ prefix = \"/a\" }, { prefix = [\"/a\", \"/b\"] }", None),
            ("{ prefix = [\"/a\", \"/b\"] }, { prefix = \"/b\", name = \"x\" }", Some("x")),
            ("{ }, { methods = \"GET\", name = \"x\" }", Some("x")),
            ("{ path = \"/{a}\" }, { path = \"/{b}\", name = \"x\" }", Some("x")),
        ] {
            let warnings = warnings(&site(routes));
            let expected = unreached.map(|name| format!("route {name} of site a gets no request"));
            assert_eq!(warnings.len(), usize::from(expected.is_some()), "{routes}: {warnings:?}");
            if let Some(expected) = expected {
                assert!(warnings[0].starts_with(&expected), "{warnings:?}");
            }
        }
    }

    #[test]
    fn pools_that_replace_each_others_cookie_are_a_warning() {
        let pools = "pools = [{ name = \"a\", backends = [\"127.0.0.1:9001\"], sticky.cookie = \
                     \"lb\" }, { name = \"b\", backends = [\"127.0.0.1:9002\"], sticky.cookie = \
                     \"lb\" }]\n";
        let two = "[[site]]\nhosts = \"x\"\npool = \"a\"\n[[site]]\nhosts = \"y\"\npool = \"b\"\n";
        let split = "[[site]]\nhosts = \"x\"\nsplit = [{ pool = \"a\" }, { pool = \"b\" }]\n\
                     routes = [{ prefix = \"/\", cookie.canary = \"1\", pool = \"b\" }]\n";
        for text in [two, split] {
            assert_eq!(warnings(&format!("{pools}{text}")), [""; 0], "{text}");
        }
        let paths = "[[site]]\nhosts = \"x\"\npool = \"a\"\nroutes = [\
                     { path = \"/ws\", pool = \"b\" }, { path = \"/x\", pool = \"b\" }]\n";
        let [warning] = &warnings(&format!("{pools}{paths}"))[..] else { panic!("one warning") };
        let expected =
            "pools b and a have the sticky cookie \"lb\", and paths of site x lead to both";
        assert!(warning.starts_with(expected), "{warning}");
        let other = pools.replacen("\"lb\"", "\"of_a\"", 1);
        assert_eq!(warnings(&format!("{other}{paths}")), [""; 0]);
    }
}
