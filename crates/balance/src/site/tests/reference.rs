//! A property: lookups agree with a matcher that is written apart, and tries each route.

use proptest::prelude::*;

use super::*;

/// The order of patterns, segment by segment: literals first, then parameters, then rests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Literal,
    Parameter,
    Rest,
}

/// The precedence of a route: the smallest wins.
type Rating = (Vec<Rank>, bool, usize);

/// Returns the ranks of a pattern's segments if it matches a path.
fn ranks(pattern: &[&str], path: &[&str]) -> Option<Vec<Rank>> {
    match (pattern, path) {
        ([], []) => Some(Vec::new()),
        (["{*r}"], [_, ..]) => Some(vec![Rank::Rest]),
        ([first, pattern @ ..], [segment, path @ ..]) => {
            let rank = match *first {
                "{p}" | "{q}" if !segment.is_empty() => Rank::Parameter,
                literal if literal == *segment => Rank::Literal,
                _ => return None,
            };
            let mut all = vec![rank];
            all.extend(ranks(pattern, path)?);
            Some(all)
        }
        _ => None,
    }
}

fn segments(path: &str) -> Vec<&str> {
    path[1..].split('/').collect()
}

/// Returns the name of the route of a plain path: the smallest of ranks, kind and place.
fn reference(routes: &[RouteConfig], method: &str, path: &str) -> Option<String> {
    let path = segments(path);
    let mut best: Option<(Rating, &RouteConfig)> = None;
    for (at, route) in routes.iter().enumerate() {
        if !route.matchers.methods.is_empty()
            && !route.matchers.methods.iter().any(|it| it == method)
        {
            continue;
        }
        let of_paths = route.path.iter().map(|path| (path.clone(), false));
        let of_prefixes = route.prefix.iter().flat_map(|prefix| {
            let whole = prefix.trim_end_matches('/');
            [(whole.to_owned(), true), (format!("{whole}/{{*r}}"), true)]
        });
        for (pattern, is_prefix) in of_paths.chain(of_prefixes) {
            if pattern.is_empty() {
                continue;
            }
            if let Some(ranks) = ranks(&segments(&pattern), &path) {
                let key = (ranks, is_prefix, at);
                if best.as_ref().is_none_or(|(known, _)| key < *known) {
                    best = Some((key, route));
                }
            }
        }
    }
    best.and_then(|(_, route)| route.name.clone())
}

fn pattern() -> impl Strategy<Value = String> {
    let segment = prop::sample::select(vec!["a", "b", "ab", "{p}"]);
    (prop::collection::vec(segment, 0..3), prop::sample::select(vec!["", "/{*r}", "/{q}", "/"]))
        .prop_map(|(segments, end)| {
            let mut named = Vec::new();
            for segment in segments {
                // A name appears once in a pattern.
                let is_again = segment == "{p}" && named.contains(&segment);
                named.push(if is_again { "a" } else { segment });
            }
            let path = named.iter().map(|segment| format!("/{segment}")).collect::<String>() + end;
            if path.is_empty() { "/".to_owned() } else { path }
        })
}

fn any_route() -> impl Strategy<Value = RouteConfig> {
    let prefix = prop::collection::vec(prop::sample::select(vec!["a", "b", "ab"]), 0..3)
        .prop_map(|segments| format!("/{}", segments.join("/")));
    let methods = prop::sample::select(vec![vec![], vec!["GET"], vec!["POST"]]);
    (prop::collection::vec(pattern(), 0..3), prop::collection::vec(prefix, 0..2), methods).prop_map(
        |(path, prefix, methods)| {
            // Without both, a route is for all paths.
            let is_empty = path.is_empty() && prefix.is_empty();
            let prefix = if is_empty { vec!["/".to_owned()] } else { prefix };
            let methods = methods.into_iter().map(str::to_owned).collect();
            let matchers = Matchers { methods, ..Matchers::default() };
            RouteConfig { path, prefix, matchers, action: pool("p"), ..RouteConfig::default() }
        },
    )
}

proptest! {
    #[test]
    fn lookups_agree_with_trying_each_route(
        routes in prop::collection::vec(any_route(), 0..8),
        paths in prop::collection::vec("(/(a|b|ab|c|)){1,4}", 1..20),
        method in prop::sample::select(vec!["GET", "POST"]),
    ) {
        let named = routes.into_iter().enumerate();
        let routes: Vec<_> = named
            .map(|(at, route)| RouteConfig { name: Some(format!("r{at}")), ..route })
            .collect();
        let sites = compile(&[site(&["h"], routes.clone())]);
        for path in paths.iter().filter(|path| readings::is_plain(path)) {
            let head = format!("{method} {path} HTTP/1.1\nHost: h");
            let expected = reference(&routes, method, path);
            let expected = expected.map_or("404".to_owned(), |name| format!("h {name}"));
            prop_assert_eq!(found(&sites, &head), expected, "{}", head);
        }
    }

    /// No path that is served has a reading with another route.
    #[test]
    fn all_readings_of_a_served_path_lead_to_its_route(
        path in "(/|//|a|b|\\.|%2e|%2E|%2f|%2F|%5c|\\\\|;|%61|%62|x){1,10}",
    ) {
        let path = format!("/{path}");
        let routes = [("a", "^/a"), ("b", "/x/{p}/b"), ("c", "/b/{*r}")];
        let routes = routes.map(|(name, path)| route(name, &[path])).to_vec();
        let sites = compile(&[SiteConfig { action: pool("q"), ..site(&["h"], routes) }]);
        let served = found(&sites, &get("h", &path));
        prop_assume!(!served.starts_with("400"));
        for reading in naive_readings(&path) {
            let decoded = percent_decoded(&reading);
            prop_assert!(
                !decoded.split('/').any(|segment| matches!(segment, "." | "..")),
                "{} as {}", path, reading
            );
            let again = found_decoded(&sites, &reading);
            prop_assert_eq!(&again, &served, "{} as {}", path, reading);
        }
    }
}

/// Looks up one reading alone.
fn found_decoded(sites: &Sites, reading: &str) -> String {
    with_request(&get("h", "/"), |request| {
        let rule = sites.sites[0].look_up(request, reading, CLIENT).unwrap().unwrap();
        let names = &sites.sites[0].rules[rule as usize].names;
        let route = if names.route.is_empty() { "-" } else { &names.route };
        format!("{} {route}", names.site)
    })
}

fn percent_decoded(text: &str) -> String {
    throng_http::percent::decode_path(text).unwrap().into_owned()
}

/// All combinations of what backends do to a path, by replacements of text.
fn naive_readings(path: &str) -> Vec<String> {
    let slashes = |path: &str| {
        ["%2f", "%2F", "%5c", "%5C", "\\"]
            .iter()
            .fold(path.to_owned(), |path, it| path.replace(it, "/"))
    };
    let dropped = |path: &str| {
        let segments = path.split('/').map(|it| it.split(';').next().unwrap_or_default());
        segments.collect::<Vec<_>>().join("/")
    };
    let merged = |path: &str| {
        let mut path = path.to_owned();
        while path.contains("//") {
            path = path.replace("//", "/");
        }
        path
    };
    let mut all = vec![
        path.to_owned(),
        slashes(path),
        dropped(path),
        slashes(&dropped(path)),
        dropped(&slashes(path)),
    ];
    for at in 0..all.len() {
        all.push(merged(&all[at]));
    }
    all
}
