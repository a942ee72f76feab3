//! Tests of lookups, against tables and a matcher written apart.

mod reference;

use std::net::{IpAddr, Ipv4Addr};

use throng_proto::Input;
use throng_proto::http1::{Decoder, Event, Limits, Request};

use super::*;
use crate::cookie::CookieKey;

const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7));

/// Calls `with` with the request of this head, whose lines end with `\n`.
pub(super) fn with_request<R>(head: &str, with: impl FnOnce(&Request<'_>) -> R) -> R {
    let mut bytes = format!("{}\r\n\r\n", head.replace('\n', "\r\n")).into_bytes();
    let (mut decoder, mut input) = (Decoder::new(), Input::new(&mut bytes));
    let limits = Limits { max_header_bytes: 1 << 20, ..Limits::default() };
    match decoder.next_event(&mut input, &limits) {
        Ok(Some(Event::Head(request))) => with(&request),
        other => panic!("{head:?}: {other:?}"),
    }
}

/// The variables of a request of a client without a route.
pub(super) fn variables<'r>(request: &'r Request<'r>) -> Variables<'r> {
    Variables {
        request,
        is_secure: false,
        client: CLIENT,
        peer: CLIENT,
        server_name: None,
        certificate: None,
        names: None,
        request_id: None,
    }
}

pub(super) fn get(host: &str, path: &str) -> String {
    format!("GET {path} HTTP/1.1\nHost: {host}")
}

/// The names of a file with these pools.
pub(super) fn names<'p>(pools: &'p [Arc<str>]) -> Names<'p> {
    Names { pools, limits: &[], listeners: &[] }
}

/// Formats the result of a lookup: site and route, or the status.
fn found(sites: &Sites, head: &str) -> String {
    found_at(sites, HostTable::default(), head)
}

fn found_at(sites: &Sites, table: HostTable, head: &str) -> String {
    with_request(head, |request| match sites.find((request, table), CLIENT, &mut Vec::new()) {
        Ok(rule) if rule.names.route.is_empty() => format!("{} -", rule.names.site),
        Ok(rule) => format!("{} {}", rule.names.site, rule.names.route),
        Err(Unrouted { status: Status::NOT_FOUND, .. }) => "404".to_owned(),
        Err(Unrouted { status, reason, .. }) => format!("{} {reason}", status.code()),
    })
}

fn pool(name: &str) -> Option<RouteAction> {
    Some(RouteAction::Pool(name.to_owned()))
}

fn compile(sites: &[SiteConfig]) -> Sites {
    Sites::compile(sites, names(&["p".into(), "q".into()]), &PolicyConfig::default(), false)
        .unwrap()
}

fn site(hosts: &[&str], routes: Vec<RouteConfig>) -> SiteConfig {
    let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
    SiteConfig { hosts, routes, ..SiteConfig::default() }
}

/// A route of paths, or after `^` of prefixes, with the pool `p`.
fn route(name: &str, paths: &[&str]) -> RouteConfig {
    let mut route =
        RouteConfig { name: Some(name.to_owned()), action: pool("p"), ..RouteConfig::default() };
    for path in paths {
        match path.strip_prefix('^') {
            Some(prefix) => route.prefix.push(prefix.to_owned()),
            None => route.path.push((*path).to_owned()),
        }
    }
    route
}

fn with(route: RouteConfig, matchers: Matchers) -> RouteConfig {
    RouteConfig { matchers, ..route }
}

#[test]
fn a_prefix_is_for_whole_segments() {
    let sites = compile(&[site(&["a"], vec![route("api", &["^/api"]), route("deep", &["^/x/y"])])]);
    for (path, expected) in [
        ("/api", "a api"),
        ("/api/", "a api"),
        ("/api/b/c", "a api"),
        ("/api?x", "a api"),
        ("/apix", "404"),
        ("/API", "404"),
        ("/x", "404"),
        ("/x/y", "a deep"),
        ("/x/yz", "404"),
        ("/", "404"),
    ] {
        assert_eq!(found(&sites, &get("a", path)), expected, "{path}");
    }
}

#[test]
fn the_most_specific_path_wins_in_any_order() {
    let mut routes = vec![
        route("all", &["^/"]),
        route("rest", &["/a/{*rest}"]),
        route("one", &["/a/{id}"]),
        route("literal", &["/a/b"]),
        route("below", &["^/a/b"]),
        route("list", &["/l/{x}", "/m", "^/n"]),
        route("root", &["/"]),
    ];
    for _ in 0..2 {
        let sites = compile(&[site(&["a"], routes.clone())]);
        for (path, expected) in [
            ("/", "a root"),
            ("/z", "a all"),
            ("/a", "a all"),
            ("/a/", "a rest"),
            ("/a/x", "a one"),
            // A path wins over a prefix with the same pattern.
            ("/a/b", "a literal"),
            ("/a/b/", "a below"),
            ("/a/b/c", "a below"),
            ("/a/x/c", "a rest"),
            ("/l/1", "a list"),
            ("/m", "a list"),
            ("/n/o", "a list"),
        ] {
            assert_eq!(found(&sites, &get("a", path)), expected, "{path}");
        }
        routes.reverse();
    }
}

#[test]
fn the_first_route_of_a_pattern_whose_conditions_hold_is_taken_or_a_less_specific_one() {
    let when = |websocket| Matchers { websocket: Some(websocket), ..Matchers::default() };
    let of = |methods: &[&str]| Matchers {
        methods: methods.iter().map(|it| (*it).to_owned()).collect(),
        ..Matchers::default()
    };
    let sites = compile(&[site(
        &["a"],
        vec![
            with(route("ws", &["/x"]), when(true)),
            with(route("post", &["/x"]), of(&["POST", "PURGE"])),
            with(route("get", &["/x"]), of(&["GET"])),
            with(route("get again", &["/x"]), of(&["GET", "PUT"])),
            with(route("delete", &["/{any}"]), of(&["DELETE"])),
            route("rest", &["^/"]),
        ],
    )]);
    let upgrade = "\nConnection: Upgrade\nUpgrade: websocket";
    for (head, expected) in [
        ("GET /x HTTP/1.1\nHost: a".to_owned() + upgrade, "a ws"),
        ("GET /x HTTP/1.1\nHost: a".to_owned(), "a get"),
        ("HEAD /x HTTP/1.1\nHost: a".to_owned(), "a get"),
        ("POST /x HTTP/1.1\nHost: a".to_owned(), "a post"),
        ("PURGE /x HTTP/1.1\nHost: a".to_owned(), "a post"),
        ("PUT /x HTTP/1.1\nHost: a".to_owned(), "a get again"),
        ("DELETE /x HTTP/1.1\nHost: a".to_owned(), "a delete"),
        ("PATCH /x HTTP/1.1\nHost: a".to_owned(), "a rest"),
        ("BREW /x HTTP/1.1\nHost: a".to_owned(), "a rest"),
    ] {
        assert_eq!(found(&sites, &head), expected, "{head}");
    }
}

#[test]
fn a_value_is_absent_present_the_same_or_begins_alike() {
    let sites = |fill: fn(&mut Matchers, Vec<(String, ValuePattern)>)| {
        let route = |name: &str, pattern: &str| {
            let mut matchers = Matchers::default();
            fill(&mut matchers, vec![("Key".to_owned(), pattern.into())]);
            with(route(name, &["/"]), matchers)
        };
        let routes = [("absent", ""), ("same", "v1"), ("begins", "v2*"), ("present", "*")];
        compile(&[site(&["a"], routes.map(|(name, pattern)| route(name, pattern)).to_vec())])
    };
    let header = sites(|matchers, values| matchers.header = values);
    let cookie = sites(|matchers, values| matchers.cookie = values);
    let query = sites(|matchers, values| matchers.query = values);
    for (sites, target, lines, expected) in [
        (&header, "/", "", "absent"),
        (&header, "/", "\nkey: v1", "same"),
        (&header, "/", "\nKEY:  v1  ", "same"),
        (&header, "/", "\nKey: v10", "present"),
        (&header, "/", "\nKey: v2", "begins"),
        (&header, "/", "\nKey: v2.1", "begins"),
        (&header, "/", "\nKey: x\nKey: v1", "same"),
        (&header, "/", "\nKey:", "present"),
        (&header, "/", "\nK_ey: v1", "absent"),
        (&cookie, "/", "\nCookie: a=b", "absent"),
        (&cookie, "/", "\nCookie: a=b; Key=v1", "same"),
        (&cookie, "/", "\nCookie: key=v1", "absent"),
        (&cookie, "/", "\nCookie: Key=v2x", "begins"),
        // The first of several counts.
        (&cookie, "/", "\nCookie: Key=x; Key=v1", "present"),
        (&cookie, "/", "\nCookie: Key=v1\nCookie: Key=x", "same"),
        (&query, "/?key=v1", "", "absent"),
        (&query, "/?a&Key=v1", "", "same"),
        (&query, "/?K%65y=%761", "", "same"),
        (&query, "/?Key=x&Key=v1", "", "present"),
        (&query, "/?Key", "", "present"),
    ] {
        let head = format!("GET {target} HTTP/1.1\nHost: a{lines}");
        assert_eq!(found(sites, &head), format!("a {expected}"), "{head}");
    }
}

#[test]
fn a_client_is_in_one_of_the_networks() {
    let from = |networks: &[&str]| Matchers {
        from: networks.iter().map(|it| it.parse().unwrap()).collect(),
        ..Matchers::default()
    };
    let sites = compile(&[site(
        &["a"],
        vec![
            with(route("other", &["/"]), from(&["10.0.0.0/8", "2001:db8::/32"])),
            with(route("near", &["/"]), from(&["10.0.0.0/8", "192.0.2.0/24"])),
        ],
    )]);
    assert_eq!(found(&sites, &get("a", "/")), "a near");
}

#[test]
fn hosts_lead_to_their_sites_in_each_form_of_a_request() {
    let of = |host: &str| SiteConfig { action: pool("p"), ..site(&[host], Vec::new()) };
    let sites = compile(&[of("a.example"), of("*.a.example"), of("*")]);
    for (head, expected) in [
        ("GET / HTTP/1.1\nHost: a.example", "a.example -"),
        ("GET / HTTP/1.1\nHost: A.EXAMPLE.:8080", "a.example -"),
        ("GET / HTTP/1.1\nHost: x.a.example", "*.a.example -"),
        ("GET / HTTP/1.1\nHost: y.x.a.example", "* -"),
        ("GET / HTTP/1.1\nHost: a%2eexample", "* -"),
        ("GET / HTTP/1.1\nHost:", "* -"),
        ("GET / HTTP/1.0", "* -"),
        ("GET / HTTP/1.0\nHost: a.example", "a.example -"),
        // RFC 9112 section 3.2.2: the target's host wins.
        ("GET http://a.example/ HTTP/1.1\nHost: b.example", "a.example -"),
        ("GET ws://x.a.example:80 HTTP/1.1\nHost: a.example", "*.a.example -"),
        ("GET http://b.example/ HTTP/1.1\nHost: a.example", "* -"),
    ] {
        assert_eq!(found(&sites, head), expected, "{head}");
    }
    assert_eq!(found(&sites, &get(&"h".repeat(300), "/")), "* -");
    let alone = compile(&[of("a.example")]);
    for head in ["GET / HTTP/1.1\nHost: b.example", "GET / HTTP/1.0", "GET / HTTP/1.1\nHost:"] {
        assert_eq!(found(&alone, head), "404", "{head}");
    }
}

#[test]
fn top_level_backends_have_all_other_hosts_and_routes_without_an_action() {
    let routes = vec![RouteConfig { path: vec!["/x".to_owned()], ..RouteConfig::default() }];
    let configured = [site(&["a"], routes)];
    let sites =
        Sites::compile(&configured, names(&["default".into()]), &PolicyConfig::default(), true)
            .unwrap();
    for (head, expected) in [
        (get("a", "/x"), "a /x"),
        (get("a", "/y"), "a -"),
        (get("b", "/x"), "* -"),
        // Hosts without a site are served as in a file without sites.
        (get("b", "/x/..%2fy/%zz"), "* -"),
        (
            get("a", "/x/..%2fy"),
            "400 the path has a segment \".\" or \"..\", in one of its readings",
        ),
    ] {
        assert_eq!(found(&sites, &head), expected, "{head}");
    }
    let error = Sites::compile(&configured, names(&["p".into()]), &PolicyConfig::default(), false)
        .unwrap_err();
    assert!(error[0].key == "sites[0].routes[0]" && error[0].remedy.contains("pool"), "{error:?}");
}

#[test]
fn a_path_is_served_only_if_all_its_readings_lead_to_one_route() {
    let sites = compile(&[SiteConfig {
        action: pool("q"),
        ..site(
            &["a"],
            vec![
                route("public", &["^/public"]),
                route("admin", &["^/admin"]),
                route("api", &["^/api"]),
                route("item", &["/item/{id}"]),
                route("b", &["/item/{id}/b"]),
            ],
        )
    }]);
    let dots = "400 the path has a segment \".\" or \"..\", in one of its readings";
    let differ = "400 two readings of this path lead to different routes";
    for (path, expected) in [
        ("/api/projects/group%2Fname", "a api"),
        ("/api//x", "a api"),
        ("/api/x;v=1/y", "a api"),
        ("/api\\x", differ),
        ("/api/x\\y", "a api"),
        ("/%61dmin", "a admin"),
        ("/%61pi/%20", "a api"),
        ("/.well-known/a", "a -"),
        ("/public/..%2fadmin", dots),
        ("/public/%2e%2e/admin", dots),
        ("/public/../admin", dots),
        ("/public/..;/admin", dots),
        ("/public/.%2e;x/admin", dots),
        ("/./admin", dots),
        ("/public%2F..%2Fadmin", dots),
        ("//admin", differ),
        ("//public/admin", differ),
        ("///admin", differ),
        ("/x//admin", "a -"),
        ("/%2Fadmin", differ),
        ("/%5cadmin", differ),
        ("/\\admin", differ),
        ("/admin;x", differ),
        ("/admin;x/y", differ),
        ("/;/admin", differ),
        ("/admin%2Fx", differ),
        ("/item/1%2Fb", differ),
        ("/item/1%2Fc", differ),
        ("/item/1;c", "a item"),
        ("/public%5c..%2fadmin", dots),
        ("/api/a%2fb%5cc", "400 the path has slashes in several notations"),
        ("/api/%u002f", "400 the path has an invalid encoding"),
        ("/api/%c0%af", "400 the path has an invalid encoding"),
        ("/api/%", "400 the path has an invalid encoding"),
        ("/admin%00", "400 the path has an invalid encoding"),
    ] {
        assert_eq!(found(&sites, &get("a", path)), expected, "{path}");
    }
}

#[test]
fn raw_paths_are_compared_as_they_were_sent() {
    let raw = RouteConfig { paths: Some(Paths::Raw), ..route("raw", &["^/raw"]) };
    let sites = compile(&[
        site(&["a"], vec![raw, route("strict", &["^/"])]),
        SiteConfig {
            paths: Paths::Raw,
            ..site(&["b"], vec![route("x", &["/x"]), route("all", &["^/"])])
        },
    ]);
    let dots = "400 the path has a segment \".\" or \"..\", in one of its readings";
    for (host, path, expected) in [
        ("a", "/raw/..%2fx", "a raw"),
        ("a", "/raw/../x/%zz", "a raw"),
        ("a", "/x/..%2fraw", dots),
        ("a", "/%72aw", "a raw"),
        ("b", "/x", "b x"),
        ("b", "/%78", "b all"),
        ("b", "/x/..%2f//;", "b all"),
    ] {
        assert_eq!(found(&sites, &get(host, path)), expected, "{path}");
    }
}

/// The time of a lookup grows with the length of the path, not faster.
#[test]
fn long_paths_are_looked_up() {
    let sites = compile(&[site(
        &["a"],
        vec![route("deep", &["/{a}/{b}/{c}/x"]), route("other", &["/{a}/{*rest}"])],
    )]);
    for path in ["/a".repeat(8000), "/".repeat(16 << 10), "/a;b%2f".repeat(2000)] {
        let found = found(&sites, &get("a", &path));
        assert!(found == "a other" || found == "404" || found.starts_with("400"), "{found}");
    }
    assert_eq!(found(&sites, &get("a", &"/a".repeat(8000))), "a other");
}

#[test]
fn a_lookup_does_not_allocate() {
    let count: Vec<RouteConfig> =
        (0..1000).map(|at| route("r", &[&format!("^/r{at}"), &format!("/s{at}/{{x}}")])).collect();
    let sites = compile(&[site(&["**.a.example"], count)]);
    for path in ["/r7/a/b", "/s7/x", "/r7/%20%C3%A9", "/r7/a%2Fb//c;d", "/none", "//r7/..%2f"] {
        with_request(&get("x.y.A.example:80", path), |request| {
            let mut scratch = Vec::new();
            let _ = sites.find((request, HostTable::default()), CLIENT, &mut scratch);
            let counted = allocation_counter::measure(|| {
                let _ = sites.find((request, HostTable::default()), CLIENT, &mut scratch);
            });
            assert_eq!(counted.count_total, 0, "{path}");
        });
    }
}

#[test]
fn mistakes_name_setting_value_and_remedy() {
    let methods = Matchers { methods: vec!["post".to_owned()], ..Matchers::default() };
    let action = |action| SiteConfig { action: Some(action), ..site(&["a"], Vec::new()) };
    let (to, text): (RedirectTarget, Template) = ("/x".parse().unwrap(), "x".parse().unwrap());
    let header = Matchers { header: vec![("host".into(), "x".into())], ..Matchers::default() };
    for (site, key, value, remedy) in [
        (site(&[], Vec::new()), "sites[0].hosts", "empty", "app.example.com"),
        (site(&["a b"], Vec::new()), "sites[0].hosts[0]", "\"a b\"", "commas"),
        (site(&["a"], vec![route("r", &["x"])]), "sites[0].routes[0].path[0]", "\"x\"", "\"/\""),
        (
            site(&["a"], vec![route("r", &["/a", "/{x}y"])]),
            "sites[0].routes[0].path[1]",
            "\"/{x}y\"",
            "whole segment",
        ),
        (
            site(&["a"], vec![route("r", &["/a?b"])]),
            "sites[0].routes[0].path[0]",
            "\"/a?b\"",
            "\"/a\"",
        ),
        (
            site(&["a"], vec![route("r", &["/%20"])]),
            "sites[0].routes[0].path[0]",
            "\"/%20\"",
            "\"/ \"",
        ),
        (
            site(&["a"], vec![route("r", &["^/a/"])]),
            "sites[0].routes[0].prefix[0]",
            "\"/a/\"",
            "\"/a\"",
        ),
        (
            site(&["a"], vec![route("r", &["^a"])]),
            "sites[0].routes[0].prefix[0]",
            "\"a\"",
            "\"/a\"",
        ),
        (
            site(&["a"], vec![route("r", &["^/{x}"])]),
            "sites[0].routes[0].prefix[0]",
            "\"/{x}\"",
            "\"/{x}/{*rest}\"",
        ),
        (action(RouteAction::Pool("z".into())), "sites[0].pool", "\"z\"", "write one of p, q"),
        (
            action(RouteAction::Redirect { to, status: 300 }),
            "sites[0].redirect.status",
            "300",
            "308",
        ),
        (
            action(RouteAction::Respond { status: 101, text }),
            "sites[0].respond.status",
            "101",
            "200",
        ),
        (
            site(&["a"], vec![with(route("r", &["/"]), methods)]),
            "sites[0].routes[0].methods[0]",
            "\"post\"",
            "\"POST\"",
        ),
        (
            site(&["a"], vec![with(route("r", &["/"]), header)]),
            "sites[0].routes[0].header",
            "\"host\"",
            "hosts",
        ),
    ] {
        let mistakes = Sites::compile(
            &[site],
            names(&["p".into(), "q".into()]),
            &PolicyConfig::default(),
            false,
        )
        .unwrap_err();
        let first = &mistakes[0];
        assert_eq!((first.key.as_str(), first.value.as_str()), (key, value), "{mistakes:?}");
        assert!(first.remedy.contains(remedy), "{mistakes:?}");
    }
    let two = [site(&["a", "b"], Vec::new()), site(&["c", "B"], Vec::new())];
    let mistakes =
        Sites::compile(&two, names(&["p".into()]), &PolicyConfig::default(), false).unwrap_err();
    assert_eq!(mistakes[0].key, "sites[1].hosts[1]");
    assert!(mistakes[0].remedy.contains("sites[0]"), "{mistakes:?}");
}

#[test]
fn an_explanation_names_the_route_the_readings_and_why_others_are_not() {
    let websocket = Matchers { websocket: Some(true), ..Matchers::default() };
    let to = RouteAction::Redirect { to: "https://${host}${uri}".parse().unwrap(), status: 308 };
    let sites = compile(&[SiteConfig {
        action: Some(to),
        ..site(
            &["a"],
            vec![
                with(route("ws", &["/x"]), websocket),
                route("x", &["/x"]),
                route("again", &["/x"]),
                route("y", &["^/y"]),
            ],
        )
    }]);
    let explain = |head: &str| {
        with_request(head, |request| {
            sites.explain(variables(request), HostTable::default(), (&[], &CookieKey::default()))
        })
    };
    let known = explain(&get("a", "/x"));
    assert_eq!((known.site.as_deref(), known.route.as_deref()), (Some("a"), Some("x")));
    assert_eq!((known.pool.as_deref(), known.status), (Some("p"), None));
    let others: Vec<_> = known.others.iter().map(|it| (&*it.route, &*it.why)).collect();
    let expected = [
        ("ws", "websocket does not hold"),
        ("again", "another route is more specific, or before it"),
    ];
    assert_eq!((others.as_slice(), known.elsewhere), (&expected[..], 1));
    let own = explain(&get("a", "/z?q"));
    assert_eq!((own.status, own.location.as_deref()), (Some(308), Some("https://a/z?q")));
    let refused = explain(&get("a", "/z//y"));
    assert_eq!(refused.status, Some(308));
    let refused = explain(&get("a", "//y"));
    assert_eq!((refused.status, &*refused.reason), (Some(400), AMBIGUOUS));
    let readings: Vec<_> =
        refused.readings.iter().map(|it| (&*it.path, it.route.as_deref())).collect();
    assert_eq!(readings, [("//y", Some("-")), ("/", Some("-")), ("/y", Some("y"))]);
    let unknown = explain(&get("b", "/x"));
    assert_eq!((unknown.site, unknown.status), (None, Some(404)));
}

/// Returns the time that this thread has used a processor; zero on systems without such a file.
fn processor_time() -> std::time::Duration {
    let times = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = times.split(' ').next().and_then(|nanos| nanos.parse().ok());
    std::time::Duration::from_nanos(nanos.unwrap_or(0))
}

/// Run it in an optimised build with `-- --ignored --nocapture`: it measures, and asserts nothing.
#[test]
#[ignore = "a measurement"]
fn the_cost_of_a_lookup() {
    let lookups = std::env::var("LOOKUPS").ok().and_then(|number| number.parse().ok());
    let lookups: u128 = lookups.unwrap_or(1_000_000);
    let of_site = |at: usize, routes: usize| {
        let routes = (0..routes).map(|at| route("r", &[&format!("^/api/v1/resource{at}")]));
        SiteConfig {
            action: pool("q"),
            ..site(&[&format!("site{at}.example.com")], routes.collect())
        }
    };
    for (sites, routes) in [(1, 10), (1000, 10), (1, 10_000)] {
        let configured: Vec<_> = (0..sites).map(|at| of_site(at, routes)).collect();
        let began = processor_time();
        let compiled = compile(&configured);
        let taken = processor_time().saturating_sub(began);
        println!("{sites} sites of {routes} routes: compiled in {taken:?}");
        for path in [
            "/api/v1/resource7/items/12345?q=1",
            "/static/app.js",
            "/api/v1/resource7/a%20b",
            "/api/v1/resource7/a%2Fb",
        ] {
            let head = get(&format!("site{}.example.com", sites / 2), path)
                + "\nUser-Agent: Mozilla/5.0\nAccept: */*\nCookie: a=b";
            with_request(&head, |request| {
                let mut scratch = Vec::new();
                let began = processor_time();
                for _ in 0..lookups {
                    let _ = std::hint::black_box(compiled.find(
                        std::hint::black_box((request, HostTable::default())),
                        CLIENT,
                        &mut scratch,
                    ));
                }
                let taken = processor_time().saturating_sub(began);
                println!("  {path}: {} ns", taken.as_nanos() / lookups);
            });
        }
    }
}

#[test]
fn a_pattern_is_in_one_site_of_each_listener() {
    let known = ["listen", "edge", "mesh"].map(Arc::<str>::from);
    let pools = ["default".into()];
    let compile = |sites: &[SiteConfig], has_backends| {
        let names = Names { listeners: &known, ..names(&pools) };
        Sites::compile(sites, names, &PolicyConfig::default(), has_backends)
    };
    let at = |name: &str, hosts: &[&str], listeners: &[&str]| SiteConfig {
        name: Some(name.to_owned()),
        listeners: listeners.iter().map(|it| (*it).to_owned()).collect(),
        action: pool("default"),
        ..site(hosts, Vec::new())
    };
    let sites = [
        at("edge", &["a", "*.a"], &["edge"]),
        at("mesh", &["a", "*"], &["mesh"]),
        at("all", &["b"], &[]),
    ];
    let compiled = compile(&sites, true).unwrap();
    assert!(compiled.have_listeners() && !compile(&sites[2..], true).unwrap().have_listeners());
    for (listener, expected) in [
        ("listen", ["* -", "* -", "all -"]),
        ("edge", ["edge -", "edge -", "all -"]),
        ("mesh", ["mesh -", "mesh -", "all -"]),
        // No longer in the file.
        ("gone", ["* -", "* -", "all -"]),
    ] {
        let table = compiled.table(listener);
        let found = ["a", "x.a", "b"].map(|host| found_at(&compiled, table, &get(host, "/")));
        assert_eq!(found, expected, "{listener}");
    }
    for (listeners, expected) in [
        (&["mesh", "edge"][..], "sites[1].hosts[0] is \"a\": sites[0] has it already"),
        (&[], "sites[1].hosts[0] is \"a\": sites[0] has it already"),
        (&["lan"], "sites[1].listeners[0] is \"lan\": no listener has this name: write one of"),
    ] {
        let sites = [at("edge", &["a"], &["edge"]), at("other", &["a"], listeners)];
        let mistakes = compile(&sites, false).unwrap_err();
        let [SiteMistake { key, value, remedy }] = &*mistakes else { panic!("{mistakes:?}") };
        assert!(format!("{key} is {value}: {remedy}").starts_with(expected), "{mistakes:?}");
    }
    // The rules of TLS are chosen by the name alone.
    let mut sites = [at("edge", &["a"], &["edge"]), at("mesh", &["A"], &["mesh"])];
    sites[1].tls.min_version = Some(throng_tls::Version::Tls13);
    let mistakes = compile(&sites, false).unwrap_err();
    assert!(mistakes[0].remedy.contains("other rules of TLS"), "{mistakes:?}");
}
