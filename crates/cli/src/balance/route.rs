//! `throng balance route`: what happens to a request, without sending it.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;

use throng_balance::{Config, Explanation};
use throng_proto::Input;
use throng_proto::http1::{Decoder, Event, Limits, Request};

use serde_json::json;

use super::{Flags, ctl};
use crate::failure::Failure;
use crate::terminal;

#[derive(clap::Args)]
#[command(override_usage = "throng balance route [OPTIONS] [METHOD] URL")]
pub(super) struct Args {
    /// The request: a URL such as https://app.example.com/api, or a method and a URL
    ///
    /// Without a method it is a GET; with ws:// or wss:// it is a WebSocket handshake. The path is
    /// taken as it is written.
    #[arg(required = true, num_args = 1..=2, value_name = "REQUEST")]
    request: Vec<String>,
    /// Header of the request, for example "X-Canary: always"; may be repeated
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE")]
    headers: Vec<String>,
    /// Address of the client
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    from: IpAddr,
    /// Ask the running balancer with this admin API, in place of a file
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with_all = ["config", "set"])]
    admin: Option<String>,
    /// File with the admin API's token
    #[arg(long, value_name = "FILE", requires = "admin")]
    token_file: Option<PathBuf>,
    /// Read settings from a TOML file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Set any setting, as for throng balance; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Name of the listener; without it, the first one with TLS for https and wss, or without it
    #[arg(long, value_name = "NAME")]
    listener: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: Args) -> Result<ExitCode, Failure> {
    let (method, url) = match args.request.as_slice() {
        [url] => ("GET", url),
        [method, url, ..] => (method.as_str(), url),
        [] => return Err(Failure::usage("write a URL such as https://app.example.com/")),
    };
    let (head, is_secure) = head(method, url, &args.headers).map_err(Failure::usage)?;
    let explanation = match &args.admin {
        Some(admin) => {
            let asked = json!({
                "method": method, "url": url, "headers": args.headers, "from": args.from,
                "listener": args.listener,
            });
            let client = ctl::admin(Some(admin), args.token_file.as_ref())?;
            let answer = ctl::ask(&client, "POST", "/v1/route", Some(&asked))?;
            serde_json::from_value(answer).map_err(|why| Failure::runtime(why.to_string()))?
        }
        None => {
            let config = Flags::of_file(args.config, args.set).config()?;
            let peer = (SocketAddr::new(args.from, 0), is_secure);
            explain(&config, head, peer, args.listener.as_deref())?
        }
    };
    if args.json {
        let json = serde_json::to_value(&explanation).unwrap_or_default();
        terminal::report_line(format_args!("{json:#}"))?;
    } else {
        terminal::report(in_words(&explanation))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn explain(
    config: &Config,
    head: String,
    peer: (SocketAddr, bool),
    listener: Option<&str>,
) -> Result<Explanation, Failure> {
    let limits = Limits {
        max_header_bytes: config.settings.max_header_bytes,
        max_headers: config.settings.max_headers,
        ..Limits::default()
    };
    let explain = |request: &Request<'_>| config.explain(request, peer, listener);
    decoded(head, &limits, explain).map_err(Failure::usage)
}

/// Explains the request of a head, with the usual limits of heads.
pub(super) fn explained(
    head: String,
    explain: impl FnOnce(&Request<'_>) -> Result<Explanation, String>,
) -> Result<Explanation, String> {
    decoded(head, &Limits::default(), explain)
}

fn decoded(
    head: String,
    limits: &Limits,
    explain: impl FnOnce(&Request<'_>) -> Result<Explanation, String>,
) -> Result<Explanation, String> {
    let mut bytes = head.into_bytes();
    let (mut decoder, mut input) = (Decoder::new(), Input::new(&mut bytes));
    match decoder.next_event(&mut input, limits) {
        Ok(Some(Event::Head(request))) => explain(&request),
        Ok(_) => Err("the request is incomplete: a header has an empty line".to_owned()),
        Err(error) => Err(format!(
            "the balancer answers such a request with {}: {}",
            error.status(),
            error.reason()
        )),
    }
}

/// Returns the head of a request, and whether it comes with TLS. The error is the remedy.
pub(super) fn head(method: &str, url: &str, headers: &[String]) -> Result<(String, bool), String> {
    let remedy = || format!("{url:?} is not a URL: write one such as https://app.example.com/");
    let (scheme, rest) = url.split_once("://").ok_or_else(remedy)?;
    let (is_secure, is_websocket) = match scheme {
        "http" => (false, false),
        "https" => (true, false),
        "ws" => (false, true),
        "wss" => (true, true),
        _ => return Err(remedy()),
    };
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (host, target) = rest.split_at(end);
    let slash = if target.starts_with('/') { "" } else { "/" };
    let mut head = format!("{method} {slash}{target} HTTP/1.1\r\nHost: {host}\r\n");
    if is_websocket {
        head.push_str(
            "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
        );
    }
    for header in headers {
        head.push_str(header);
        head.push_str("\r\n");
    }
    head.push_str("\r\n");
    Ok((head, is_secure))
}

/// Returns the explanation for people.
fn in_words(explanation: &Explanation) -> String {
    let mut out = String::new();
    let mut line = |name: &str, text: &str| out.push_str(&format!("{name:<9}{text}\n"));
    let or_none = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    if let Some(listener) = &explanation.listener {
        line("listener", listener);
    }
    line("site", &or_none(&explanation.site));
    line("route", &or_none(&explanation.route));
    line("pool", &or_none(&explanation.pool));
    if let Some(by) = &explanation.split_by {
        let point = explanation.point.map_or_else(String::new, |point| format!(", point {point}"));
        line("split", &format!("by {by}{point}"));
    }
    for share in &explanation.split {
        let points = share.to - share.from;
        let range = match points {
            0 => String::new(),
            _ => format!(", points {} to {}", share.from, share.to - 1),
        };
        let percent = f64::from(points) / 655.36;
        line("share", &format!("{}: {percent:.2} %{range}", share.pool));
    }
    for limit in &explanation.limits {
        line("limit", limit);
    }
    if let Some(status) = explanation.status {
        line("answer", &format!("{status}: {}", explanation.reason));
    }
    if let Some(location) = &explanation.location {
        line("location", location);
    }
    for forwarded in &explanation.forwarded {
        line("sends", forwarded);
    }
    for header in &explanation.response_headers {
        line("adds", header);
    }
    for reading in &explanation.readings {
        let route = reading.route.as_deref().unwrap_or("no route");
        line("reading", &format!("{}: {route}", reading.path));
    }
    for other in &explanation.others {
        line("not", &format!("{}: {}", other.route, other.why));
    }
    if explanation.elsewhere > 0 {
        let routes = if explanation.elsewhere == 1 { "route" } else { "routes" };
        line("not", &format!("{} {routes} with other paths", explanation.elsewhere));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "
        backends = [\"127.0.0.1:9001\"]
        pools = [{ name = \"b\", backends = [\"127.0.0.1:9002\"] }]
        [[site]]
        hosts = [\"app.example\"]
        deny = \"192.0.2.0/24\"
        routes = [
            { path = \"/ws\", websocket = true },
            { path = \"/ws\", redirect.to = \"https://${host}/page\" },
            { path = \"/canary\", split_by = \"client\", split = [
                { pool = \"default\", weight = 3 }, { pool = \"b\" },
            ] },
            { path = \"/drawn\", split = [{ pool = \"default\" }, { pool = \"b\", weight = 0 }] },
            { prefix = \"/admin\", from = [\"10.0.0.0/8\"], name = \"staff\" },
            { prefix = \"/\", header = { X-Canary = \"always\" }, respond = { text = \"canary\" } },
        ]
    ";

    fn explained(method: &str, url: &str, headers: &[&str], from: &str) -> String {
        let headers: Vec<_> = headers.iter().map(|header| (*header).to_owned()).collect();
        let (head, is_secure) = head(method, url, &headers).unwrap();
        let config = Config::parse(FILE, "b.toml").unwrap();
        let peer = (SocketAddr::new(from.parse().unwrap(), 0), is_secure);
        in_words(&explain(&config, head, peer, None).unwrap())
    }

    #[test]
    fn a_listener_has_its_own_sites_and_proxies() {
        let file = "backends = [\"127.0.0.1:9001\"]\n\
                    listeners = [{ name = \"alb\", address = \"127.0.0.1:8080\", trusted_proxies \
                    = [\"192.0.2.0/24\"] }, { name = \"open\", address = \"127.0.0.1:8081\" }]\n\
                    sites = [{ name = \"one\", hosts = [\"a\"], listeners = [\"alb\"], routes = [{ \
                    prefix = \"/\", from = [\"203.0.113.0/24\"], name = \"known\" }] }, { name = \
                    \"two\", hosts = [\"a\"], listeners = [\"open\"] }]\n";
        let config = Config::parse(file, "b.toml").unwrap();
        let explained = |listener| {
            let headers = ["X-Forwarded-For: 203.0.113.9".to_owned()];
            let (head, is_secure) = head("GET", "http://a/", &headers).unwrap();
            let peer = (SocketAddr::new("192.0.2.1".parse().unwrap(), 0), is_secure);
            explain(&config, head, peer, listener).map(|it| in_words(&it)).map_err(|it| it.message)
        };
        for (listener, expected) in [
            (Some("alb"), "listener alb\nsite     one\nroute    known\n"),
            (None, "listener alb\nsite     one\nroute    known\n"),
            (Some("open"), "listener open\nsite     two\nroute    -\n"),
        ] {
            assert!(explained(listener).unwrap().starts_with(expected), "{listener:?}");
        }
        let why = explained(Some("nlb")).unwrap_err();
        assert!(why.contains("no listener has the name \"nlb\": write one of alb, open"), "{why}");
    }

    #[test]
    fn a_request_is_explained() {
        for (url, headers, from, expected) in [
            (
                "wss://app.example/ws",
                &[][..],
                "127.0.0.1",
                "site     app.example\nroute    /ws\npool     default\n\
                 not      /ws: another route is more specific, or before it\n\
                 not      /: header X-Canary does not hold\n\
                 not      3 routes with other paths\n",
            ),
            (
                "https://app.example:8443/ws?x",
                &[],
                "127.0.0.1",
                "site     app.example\nroute    /ws\npool     -\n\
                 answer   308: the route redirects\nlocation https://app.example/page\n\
                 not      /ws: websocket does not hold\n\
                 not      /: header X-Canary does not hold\n\
                 not      3 routes with other paths\n",
            ),
            (
                "https://app.example//admin",
                &[],
                "10.1.2.3",
                "site     app.example\nroute    -\npool     -\n\
                 answer   400: two readings of this path lead to different routes\n\
                 reading  //admin: -\nreading  /: -\nreading  /admin: staff\n\
                 not      /: header X-Canary does not hold\n\
                 not      5 routes with other paths\n",
            ),
            (
                "http://app.example",
                &["X-Canary: always"],
                "127.0.0.1",
                "site     app.example\nroute    /\npool     -\n\
                 answer   200: the route responds\nnot      5 routes with other paths\n",
            ),
            (
                "http://app.example/canary",
                &[],
                "10.0.0.1",
                "site     app.example\nroute    /canary\npool     default\n\
                 split    by client, point 19289\nshare    default: 75.00 %, points 0 to 49151\n\
                 share    b: 25.00 %, points 49152 to 65535\n\
                 not      /: header X-Canary does not hold\n\
                 not      4 routes with other paths\n",
            ),
            (
                "http://app.example/drawn",
                &[],
                "10.0.0.1",
                "site     app.example\nroute    /drawn\npool     -\nsplit    by random\n\
                 share    default: 100.00 %, points 0 to 65535\nshare    b: 0.00 %\n\
                 not      /: header X-Canary does not hold\n\
                 not      4 routes with other paths\n",
            ),
            (
                "http://app.example/canary",
                &[],
                "192.0.2.1",
                "site     app.example\nroute    /canary\npool     -\n\
                 answer   403: deny lists the client's network\n\
                 not      /: header X-Canary does not hold\n\
                 not      4 routes with other paths\n",
            ),
            (
                "http://other.example/x",
                &[],
                "127.0.0.1",
                "site     *\nroute    -\npool     default\n",
            ),
        ] {
            assert_eq!(explained("GET", url, headers, from), expected, "{url}");
        }
        let refused = explained("TRACE", "http://app.example/", &[], "127.0.0.1");
        assert!(refused.contains("answer   501: TRACE"), "{refused}");
    }

    /// The file in docs/balance-reference.md does what the text there says.
    #[test]
    fn the_documented_sites_are_valid() {
        let document = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/balance-reference.md");
        let text = std::fs::read_to_string(document).unwrap();
        let (_, section) = text.split_once("\n## Sites\n").unwrap();
        let (_, example) = section.split_once("```toml\n").unwrap();
        let config = Config::parse(example.split("```").next().unwrap(), "b.toml").unwrap();
        let answer = |url: &str, from: &str| {
            let (head, is_secure) = head("GET", url, &[]).unwrap();
            let peer = SocketAddr::new(from.parse().unwrap(), 0);
            let explanation = explain(&config, head, (peer, is_secure), None).unwrap();
            (explanation.pool.is_some(), explanation.status, explanation.location)
        };
        let (near, far) = ("10.0.0.7", "203.0.113.5");
        let to = |to: &str| Some(to.to_owned());
        for (url, from, expected) in [
            ("ws://app.example/ws", far, (true, None, None)),
            ("http://app.example/ws", far, (false, Some(426), None)),
            ("http://app.example/admin/x", near, (true, None, None)),
            ("http://app.example/admin/x", far, (false, Some(404), None)),
            ("http://app.example//admin", near, (false, Some(400), None)),
            ("http://app.example/robots.txt", far, (false, Some(200), None)),
            (
                "http://www.app.example/old?a",
                far,
                (false, Some(301), to("https://www.app.example/new/old?a")),
            ),
            ("http://a.b.old.example/x?a", far, (false, Some(308), to("https://app.example/x?a"))),
            ("http://else.example/", far, (true, None, None)),
        ] {
            assert_eq!(answer(url, from), expected, "{url} from {from}");
        }
    }

    #[test]
    fn a_text_that_is_not_a_request_is_refused_with_the_remedy() {
        for url in ["app.example/x", "/x", "ftp://app.example/"] {
            assert!(
                head("GET", url, &[]).unwrap_err().contains("https://app.example.com/"),
                "{url}"
            );
        }
        let config = Config::parse(FILE, "b.toml").unwrap();
        let (head, _) = head("GET", "http://app.example/", &["Host: b".to_owned()]).unwrap();
        let peer = "127.0.0.1:0".parse().unwrap();
        let failure = explain(&config, head, (peer, false), None).unwrap_err();
        assert!(failure.message.contains("with 400"), "{}", failure.message);
    }
}
