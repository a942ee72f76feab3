//! Cross-origin requests.

use std::net::SocketAddr;

use throng::http::{Cors, Next, Origins};
use throng::prelude::*;

use crate::support::exchange;
use crate::support::served::{start, stop};

const PAGE: &str = "https://app.example";

/// The status line and the fields of an answer that have to do with origins, sorted.
fn ask(address: SocketAddr, line: &str, fields: &str) -> (String, Vec<String>) {
    let request = format!("{line} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{fields}\r\n");
    let answer = exchange(address, request.as_bytes());
    let head = answer.split("\r\n\r\n").next().unwrap();
    let mut lines = head.lines();
    let status = lines.next().unwrap().to_owned();
    let is_meant = |line: &&str| line.starts_with("Access-Control-") || line.starts_with("Vary");
    let mut fields: Vec<String> = lines.filter(is_meant).map(str::to_owned).collect();
    fields.sort();
    (status, fields)
}

fn app(cors: Cors) -> App {
    App::new()
        .get("/price", |_| "1.17")
        .put("/price", |_| Err::<&str, _>(Reject::forbidden()))
        .layer(cors)
}

#[test]
fn pages_of_listed_origins_may_use_the_routes_and_others_may_not() {
    let cors = Cors::new([PAGE]).credentials(true).expose(["X-Total"]);
    let (address, running) = start(Server::new(app(cors)));
    let from = |origin: &str| format!("Origin: {origin}\r\n");
    let allowed = [
        "Access-Control-Allow-Credentials: true",
        "Access-Control-Allow-Origin: https://app.example",
        "Access-Control-Expose-Headers: X-Total",
        "Vary: Origin",
    ];
    // Errors have the headers as well, or the page could not read them.
    for (line, status) in [
        ("GET /price", "HTTP/1.1 200 OK"),
        ("PUT /price", "HTTP/1.1 403 Forbidden"),
        ("GET /nothing", "HTTP/1.1 404 Not Found"),
    ] {
        let (got, fields) = ask(address, line, &from(PAGE));
        assert_eq!((got.as_str(), fields.as_slice()), (status, &allowed.map(String::from)[..]));
    }
    for origin in ["https://evil.example", "https://app.example.evil.example", "null"] {
        let (status, fields) = ask(address, "GET /price", &from(origin));
        assert_eq!((status.as_str(), fields), ("HTTP/1.1 200 OK", vec!["Vary: Origin".to_owned()]));
    }
    stop(running);
}

#[test]
fn a_stream_of_events_has_what_its_layers_add() {
    let streams = |layer: Cors| App::new().sse("/events", |_| Ok("news")).layer(layer);
    let closed = App::new().sse("/closed", |_| Ok("news")).layer(|_: &mut Request<'_>| {
        Next::then(|response| {
            response.with_status(Status::SERVICE_UNAVAILABLE).with_text("no stream")
        })
    });
    let app = streams(Cors::new([PAGE]).credentials(true).expose(["X-Total"]))
        .merge(App::new().nest("/open", streams(Cors::any())))
        .merge(App::new().sse("/plain", |_| Ok("news")))
        .merge(closed);
    let (address, running) = start(Server::new(app).origins(Origins::Any));
    let from = format!("Origin: {PAGE}\r\n");
    for (path, expected) in [
        (
            "/events",
            &[
                "Access-Control-Allow-Credentials: true",
                "Access-Control-Allow-Origin: https://app.example",
                "Access-Control-Expose-Headers: X-Total",
                "Vary: Origin",
            ][..],
        ),
        ("/open/events", &["Access-Control-Allow-Origin: *"]),
        ("/plain", &["Access-Control-Allow-Origin: https://app.example", "Vary: Origin"]),
    ] {
        let (status, fields) = ask(address, &format!("HEAD {path}"), &from);
        let expected: Vec<String> = expected.iter().map(ToString::to_string).collect();
        assert_eq!((status.as_str(), fields), ("HTTP/1.1 200 OK", expected), "{path}");
    }
    let answer = exchange(address, b"GET /closed HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(answer.ends_with("\r\n\r\nno stream"), "{answer}");
    stop(running);
}

#[test]
fn a_preflight_is_answered_for_any_path() {
    let cors = Cors::new([PAGE]).methods([Method::Get, Method::Put]);
    let (address, running) = start(Server::new(app(cors)));
    let asked =
        "Access-Control-Request-Method: PUT\r\nAccess-Control-Request-Headers: x-a, x-b\r\n";
    for path in ["/price", "/nothing"] {
        let line = format!("OPTIONS {path}");
        let (status, fields) = ask(address, &line, &format!("Origin: {PAGE}\r\n{asked}"));
        assert_eq!(status, "HTTP/1.1 204 No Content");
        let expected = [
            "Access-Control-Allow-Headers: x-a, x-b",
            "Access-Control-Allow-Methods: GET, PUT",
            "Access-Control-Allow-Origin: https://app.example",
            "Access-Control-Max-Age: 600",
            "Vary: Origin, Access-Control-Request-Method, Access-Control-Request-Headers",
        ];
        assert_eq!(fields, expected);
        let (status, fields) = ask(address, &line, &format!("Origin: http://evil\r\n{asked}"));
        assert_eq!((status.as_str(), fields.len()), ("HTTP/1.1 204 No Content", 1), "{fields:?}");
    }
    // No preflight: the usual answer.
    let (status, _) = ask(address, "OPTIONS /price", "");
    assert!(!status.is_empty());
    stop(running);
}

#[test]
fn a_preflight_passes_through_the_layers_of_the_route_that_it_asks_about() {
    let api = App::new()
        .get("/price", |_| "1.17")
        .put("/price/{symbol}", |_| "set")
        .layer(Cors::new([PAGE]).methods([Method::Put]));
    let open = App::new().put("/price/open", |_| "set").layer(Cors::any());
    // The layer refuses requests without credentials, and runs before `Cors`.
    let closed = App::new()
        .put("/", |_| "set")
        .layer(Cors::any())
        .layer(|_: &mut Request<'_>| Next::respond(Reject::unauthorized()));
    let app = App::new().nest("/{tenant}/api", api.merge(open)).nest("/closed", closed);
    let (address, running) = start(Server::new(app));
    let preflight = |path: &str, method: &str| {
        let fields = format!("Origin: {PAGE}\r\nAccess-Control-Request-Method: {method}\r\n");
        let (status, fields) = ask(address, &format!("OPTIONS {path}"), &fields);
        let allowed =
            fields.iter().find_map(|line| line.strip_prefix("Access-Control-Allow-Origin: "));
        (status.split(' ').nth(1).unwrap().to_owned(), allowed.map(str::to_owned))
    };
    let answer =
        |status: &str, origin: Option<&str>| (status.to_owned(), origin.map(str::to_owned));
    assert_eq!(preflight("/acme/api/price", "GET"), answer("204", Some(PAGE)));
    assert_eq!(preflight("/acme/api/price/EUR", "PUT"), answer("204", Some(PAGE)));
    assert_eq!(preflight("/acme/api/price/open", "PUT"), answer("204", Some("*")));
    // A method that the path does not have, and a path that does not exist.
    assert_eq!(preflight("/acme/api/price", "PUT"), answer("204", None));
    assert_eq!(preflight("/nothing", "GET"), answer("404", None));
    assert_eq!(preflight("/closed", "PUT"), answer("401", None));
    stop(running);
}

#[test]
fn any_origin_is_allowed_without_cookies() {
    let (address, running) = start(Server::new(app(Cors::any().credentials(true))));
    let (_, fields) = ask(address, "GET /price", "Origin: https://somewhere\r\n");
    assert_eq!(fields, ["Access-Control-Allow-Origin: *"]);
    assert_eq!(ask(address, "GET /price", "").1, [""; 0]);
    stop(running);
}
