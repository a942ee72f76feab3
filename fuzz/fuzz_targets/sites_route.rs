//! Any request to sites gets the route that a naive matcher finds, and a path that is served has
//! that route in each way in which backends are known to read it.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use throng_balance::Config;
use throng_proto::Input;
use throng_proto::http1::{Decoder, Event, Limits};

/// The routes of the site `a`, `^` before a prefix, in the order of their precedence for any path.
const ROUTES: [&str; 7] = ["/a/b", "^/a/b", "/a/{x}/c", "^/a", "^/b", "/{x}/c", "^/"];

static CONFIG: LazyLock<Config> = LazyLock::new(|| {
    let route = |route: &&str| match route.strip_prefix('^') {
        Some(prefix) => format!("{{ prefix = {prefix:?}, name = {route:?} }}"),
        None => format!("{{ path = {route:?}, name = {route:?} }}"),
    };
    let routes: Vec<String> = ROUTES.iter().map(route).collect();
    let text = format!(
        "sites = [{{ hosts = [\"a\"], respond.text = \"\", routes = [{}] }}]\n",
        routes.join(", ")
    );
    Config::parse(&text, "fuzz.toml").expect("a valid file")
});

/// Returns whether a route has a path without encodings.
fn has(route: &str, path: &[&str]) -> bool {
    let Some(prefix) = route.strip_prefix('^') else {
        let pattern: Vec<&str> = route[1..].split('/').collect();
        let is_same = |(one, other): (&&str, &&str)| {
            if *one == "{x}" { !other.is_empty() } else { one == other }
        };
        return pattern.len() == path.len() && pattern.iter().zip(path).all(is_same);
    };
    let prefix: Vec<&str> = prefix.split('/').filter(|segment| !segment.is_empty()).collect();
    path.starts_with(&prefix)
}

/// Returns the first route of a path, whose encodings are decoded segment by segment.
fn reference(path: &str) -> Option<&'static str> {
    let decoded: Vec<_> =
        path[1..].split('/').map(|it| throng_http::percent::decode_path(it)).collect();
    let decoded: Vec<&str> = decoded.iter().map(|it| it.as_deref().unwrap_or("%")).collect();
    ROUTES.into_iter().find(|route| has(route, &decoded))
}

/// All that backends are known to make of a path, by replacements of text.
fn readings(path: &str) -> Vec<String> {
    let slashes = |path: &str| {
        let notations = ["%2f", "%2F", "%5c", "%5C", "\\"];
        notations.iter().fold(path.to_owned(), |path, notation| path.replace(notation, "/"))
    };
    let dropped = |path: &str| {
        let first = |segment: &str| segment.split(';').next().unwrap_or_default().to_owned();
        path.split('/').map(first).collect::<Vec<_>>().join("/")
    };
    let mut all = vec![
        path.to_owned(),
        slashes(path),
        dropped(path),
        slashes(&dropped(path)),
        dropped(&slashes(path)),
    ];
    for at in 0..all.len() {
        let mut merged = all[at].clone();
        while merged.contains("//") {
            merged = merged.replace("//", "/");
        }
        all.push(merged);
    }
    all
}

fuzz_target!(|data: &[u8]| {
    // Parts that routes and readings are made of, instead of bytes that no path has.
    const PARTS: [&str; 24] = [
        "/", "a", "b", "c", "x", ".", "..", "%2e", "%2E", "%2f", "%2F", "%5c", "\\", ";", "%3b",
        "%61", "%62", "%", "%00", "%ff", "%c3%a9", "//", "/a", "/b",
    ];
    let path: String = data.iter().map(|byte| PARTS[usize::from(*byte) % PARTS.len()]).collect();
    let path = format!("/{path}");
    let mut head = format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").into_bytes();
    let (mut decoder, mut input) = (Decoder::new(), Input::new(&mut head));
    let Ok(Some(Event::Head(request))) = decoder.next_event(&mut input, &Limits::default()) else {
        return;
    };
    let explanation = CONFIG.explain(&request, (([127, 0, 0, 1], 1).into(), false), None).unwrap();
    if explanation.status == Some(400) {
        return;
    }
    for reading in readings(&path) {
        assert_eq!(explanation.route.as_deref(), reference(&reading), "{path} as {reading}");
        let is_dots = |segment: &str| matches!(segment, "." | "..");
        let decoded = throng_http::percent::decode_path(&reading).expect("a valid path");
        assert!(!decoded.split('/').any(is_dots), "{path} as {reading}");
    }
    // What is the same in each reading is served.
    if path.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'/') && !path.contains("//")
    {
        assert!(explanation.route.is_some());
    }
});
