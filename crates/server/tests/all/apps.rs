//! Apps: routes as data, in any order, merged, nested, and behind middleware.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};

use throng::http::{IntoResponse, Next, RequestId, RequestIds};
#[cfg(feature = "metrics")]
use throng::metrics::openmetrics::Type;
use throng::prelude::*;
use throng::server::Observe;
use throng_proto::ws::Opcode;

use crate::support::served::{self, start, stop};
use crate::support::{Client, Got, exchange};

fn serve(app: App) -> (SocketAddr, Running) {
    start(Server::new(app).shards(1))
}

fn echo() -> Ws {
    Ws::new().on_message(|ws, (), message| ws.send(message))
}

/// The response to a request with these header lines and body.
fn ask(address: SocketAddr, method: &str, path: &str, lines: &str, body: &str) -> String {
    let length = match body {
        "" => String::new(),
        body => format!("Content-Length: {}\r\n", body.len()),
    };
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{lines}{length}\r\n{body}"
    );
    exchange(address, request.as_bytes())
}

fn get(address: SocketAddr, path: &str) -> String {
    ask(address, "GET", path, "", "")
}

fn body(response: &str) -> &str {
    response.split_once("\r\n\r\n").expect("a whole head").1
}

fn mistake(app: App) -> String {
    let bound: throng::Result<Bound> = Server::new(app).bind("127.0.0.1:0");
    bound.expect_err("a mistake").to_string()
}

#[test]
fn routes_come_from_loops_conditions_and_other_apps() {
    fn users() -> App {
        App::new()
            .get("/", |_| "all users")
            .get("/{id}", |request| format!("user {}", request.param("id").unwrap_or_default()))
    }
    let mut app = App::new();
    for name in ["a", "b"] {
        app = app.get(&format!("/loop/{name}"), move |_| format!("loop {name}"));
    }
    for (present, path) in [(true, "/present"), (false, "/absent")] {
        if present {
            app = app.get(path, |_| "here");
        }
    }
    let app = app
        .merge(App::new().get("/merged", |_| "merged"))
        .nest("/users", users())
        .nest("/{tenant}/v2/", users())
        .nest("", App::new().get("/plain", |_| "plain"));
    let (address, running) = serve(app);
    for (path, expected) in [
        ("/loop/a", "loop a"),
        ("/loop/b", "loop b"),
        ("/present", "here"),
        ("/merged", "merged"),
        ("/users", "all users"),
        ("/users/7", "user 7"),
        ("/acme/v2", "all users"),
        ("/acme/v2/8", "user 8"),
        ("/plain", "plain"),
    ] {
        assert_eq!(body(&get(address, path)), expected, "{path}");
    }
    assert!(get(address, "/absent").starts_with("HTTP/1.1 404 "));
    stop(running);
}

/// 300 WebSocket routes, each of a closure of its own type with captured data.
#[test]
fn many_routes_are_one_type() {
    let mut app = served::app();
    for number in 0..300 {
        let route = Ws::new().on_message(move |ws, (), _| ws.send(format!("route {number}")));
        app = app.ws(&format!("/{number}"), route);
    }
    let (address, running) = serve(app);
    for number in [0, 1, 128, 299] {
        let mut client = Client::connect(address, &format!("/{number}"));
        client.send_text("which?");
        assert_eq!(client.next(), Got::Text(format!("route {number}")));
    }
    stop(running);
}

#[test]
fn a_path_has_a_websocket_and_pages_in_either_order() {
    let websocket_first = App::new().ws("/", echo()).get("/", |_| "page");
    let page_first = App::new().get("/", |_| "page").ws("/", echo());
    for app in [websocket_first, page_first] {
        let (address, running) = serve(app);
        assert_eq!(body(&get(address, "/")), "page");
        let mut client = Client::connect(address, "/");
        client.send_text("hello");
        assert_eq!(client.next(), Got::Text("hello".into()));
        stop(running);
    }
}

#[test]
fn an_upgrade_prefers_a_websocket_route_and_other_requests_a_page() {
    let pages = || App::new().get("/rooms/lobby", |_| "the lobby's page");
    let rooms = || App::new().ws("/rooms/{room}", echo());
    for app in [pages().merge(rooms()), rooms().merge(pages())] {
        let (address, running) = serve(app);
        assert_eq!(body(&get(address, "/rooms/lobby")), "the lobby's page");
        let mut client = Client::connect(address, "/rooms/lobby");
        client.send_text("hello");
        assert_eq!(client.next(), Got::Text("hello".into()));
        let other = get(address, "/rooms/other");
        assert!(other.starts_with("HTTP/1.1 426 "), "{other}");
        stop(running);
    }
}

#[test]
fn a_handler_may_be_a_type_of_the_users() {
    struct Counter;

    impl Handler for Counter {
        type Data = u32;

        fn on_upgrade(&self, request: &Request<'_>) -> Result<u32, Reject> {
            let from = request.query("from").ok_or(Reject::bad_request("give ?from="))?;
            from.parse().map_err(|_| Reject::bad_request("from is a number"))
        }

        fn on_event(&self, ws: &mut Socket<'_, u32>, _: &mut u32, event: SessionEvent<'_>) {
            if let SessionEvent::Open = event {
                ws.send("ready");
            }
        }

        fn on_message(&self, ws: &mut Socket<'_, u32>, count: &mut u32, _: Message<'_>) {
            *count += 1;
            ws.send(count.to_string());
        }
    }

    let route = Ws::handler(Counter).subprotocols(["count.v1"]).max_message_size(4);
    let (address, running) = serve(App::new().ws("/count", route));
    let mut client = Client::connect(address, "/count?from=41");
    assert_eq!(client.next(), Got::Text("ready".into()));
    client.send_text("more");
    assert_eq!(client.next(), Got::Text("42".into()));
    client.send_text("too much");
    assert!(matches!(client.next(), Got::Close(1009, _)));
    stop(running);
}

#[test]
fn events_without_a_callback_of_their_own_come_to_one_for_all() {
    let (sender, events) = mpsc::channel();
    let handler = Ws::from_request(|_| Ok(0))
        .on_open(|ws, count| {
            *count += 10;
            ws.send("open")
        })
        .on_event(move |_, count, event| {
            *count += 1;
            let name = match event {
                SessionEvent::Refresh(bytes) => String::from_utf8_lossy(bytes).into_owned(),
                SessionEvent::Closed(close) => close.code.get().to_string(),
                other => format!("{other:?}"),
            };
            sender.send((*count, name)).unwrap();
        });
    let (address, running) = serve(App::new().ws("/", handler));
    let mut client = Client::connect(address, "/");
    assert_eq!(client.next(), Got::Text("open".into()));
    running.hub().refresh(&Filter::new(), "rights").unwrap();
    assert_eq!(events.recv().unwrap(), (11, "rights".to_owned()));
    client.send(Opcode::Close, &1000u16.to_be_bytes());
    assert_eq!(client.next(), Got::Close(1000, String::new()));
    assert_eq!(events.recv().unwrap(), (12, "1000".to_owned()));
    stop(running);
}

/// Stored by name, where a program needs that.
struct Site {
    chat: Ws<String>,
    routes: Vec<(&'static str, Ws)>,
}

#[test]
fn handlers_and_routes_can_be_stored_in_structs() {
    let site = Site {
        chat: Ws::from_request(|_| Ok("guest".to_owned()))
            .on_message(|ws, name, _| ws.send(&*name)),
        routes: vec![("/a", echo()), ("/b", echo())],
    };
    let app = App::new().ws("/chat", site.chat);
    let app = site.routes.into_iter().fold(app, |app, (path, route)| app.ws(path, route));
    let (address, running) = serve(app);
    for (path, expected) in [("/chat", "guest"), ("/a", "hello"), ("/b", "hello")] {
        let mut client = Client::connect(address, path);
        client.send_text("hello");
        assert_eq!(client.next(), Got::Text(expected.into()), "{path}");
    }
    stop(running);
}

#[test]
fn mistakes_name_the_route() {
    let twice = App::new().get("/x", |_| "a").merge(App::new().get("/x", |_| "b"));
    assert_eq!(mistake(twice), "route \"/x\" is registered twice for the same method");
    let nested = App::new().nest("api", App::new().get("/x", |_| "a"));
    assert_eq!(mistake(nested), "prefix \"api\" does not start with a slash");
    let twice = App::new().ws("/ws", echo()).ws("/ws", echo());
    assert!(mistake(twice).contains("\"/ws\""));
    let token = App::new().ws("/", echo().subprotocols(["not a token"]));
    assert!(mistake(token).contains("\"not a token\""));
}

#[derive(Clone)]
struct User(String);

/// Admits requests with a token, and attaches its user.
fn authenticate(request: &mut Request<'_>) -> Next {
    match request.bearer() {
        Some(token) => {
            let user = User(format!("user of {token}"));
            request.insert_extension(user);
            Next::Continue
        }
        None => Next::respond(Reject::unauthorized()),
    }
}

/// Adds a header line to the response.
fn mark(value: &'static str) -> impl Fn(&mut Request<'_>) -> Next {
    move |_| Next::then(move |response| response.header("X-Layer", value).into_response())
}

fn user(request: &Request<'_>) -> String {
    request.extension::<User>().map_or_else(|| "no one".to_owned(), |user| user.0.clone())
}

#[test]
fn middleware_runs_before_handlers_of_every_kind() {
    let app = App::new()
        .get("/http", user)
        .post("/body", |request| format!("{}: {}", user(request), request.body().len()))
        .route(
            "/blocking",
            Route::on(Method::Post, |request| {
                format!("{}: {}", user(request), request.body().len())
            })
            .blocking(),
        )
        .route(
            "/deferred",
            Route::deferred(Method::Get, |request, responder| responder.send(user(request))),
        )
        .route(
            "/streaming",
            Route::streaming(Method::Post, |request, _, responder| {
                responder.send(user(request));
            })
            .max_body(100),
        )
        .sse("/sse", |request| Ok(user(request)))
        .ws(
            "/ws",
            Ws::from_request(|request| Ok(user(request))).on_message(|ws, user, _| ws.send(&*user)),
        )
        .layer(authenticate)
        .layer(mark("outer"));
    let (address, running) = serve(app.get("/open", user));
    for (method, path, sent, expected) in [
        ("GET", "/http", "", "user of secret"),
        ("POST", "/body", "12345", "user of secret: 5"),
        ("POST", "/blocking", "123", "user of secret: 3"),
        ("GET", "/deferred", "", "user of secret"),
        ("POST", "/streaming", "12345", "user of secret"),
        ("GET", "/open", "", "no one"),
    ] {
        let response = ask(address, method, path, "Authorization: Bearer secret\r\n", sent);
        assert_eq!(body(&response), expected, "{path}");
        let marked = response.contains("X-Layer: outer\r\n");
        assert_eq!(marked, path != "/open", "{path}: {response}");
        let refused = ask(address, method, path, "", sent);
        assert_eq!(refused.starts_with("HTTP/1.1 401 "), path != "/open", "{path}: {refused}");
    }
    for path in ["/sse", "/ws"] {
        let refused = get(address, path);
        assert!(refused.starts_with("HTTP/1.1 401 "), "{path}: {refused}");
        assert!(refused.contains("X-Layer: outer\r\n"), "{path}: {refused}");
    }
    let secret = [("Authorization", "Bearer secret")];
    let mut client = Client::request(address, "/ws", &secret).expect("accepted");
    client.send_text("who?");
    assert_eq!(client.next(), Got::Text("user of secret".into()));
    stop(running);
}

#[test]
fn layers_wrap_what_was_added_before_and_the_innermost_changes_a_response_first() {
    let inner = App::new().get("/inner", |_| "inner").layer(mark("1"));
    let app = App::new().get("/before", |_| "before").merge(inner).layer(mark("2"));
    let (address, running) = serve(app.get("/after", |_| "after"));
    let layers = |path| {
        let response = get(address, path);
        let values = response.lines().filter_map(|line| line.strip_prefix("X-Layer: "));
        values.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(layers("/inner"), ["1", "2"]);
    assert_eq!(layers("/before"), ["2"]);
    assert!(layers("/after").is_empty());
    assert_eq!(layers("/nowhere"), ["2"], "that of the whole app sees what no route answers");
    stop(running);
}

/// Middleware decides by the head alone: a refused body is not waited for, and an accepted body is
/// read once.
#[test]
fn middleware_runs_once_for_a_request_with_a_body() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let app = App::new().post("/", |request| request.body().len().to_string()).layer(
        move |_: &mut Request<'_>| {
            counted.fetch_add(1, Ordering::SeqCst);
            Next::Continue
        },
    );
    let (address, running) = serve(app);
    assert_eq!(body(&ask(address, "POST", "/", "", "123456")), "6");
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    stop(running);
}

#[test]
fn routes_have_limits_for_bodies_of_their_own() {
    let small = App::new().post("/small", |request| request.body().len().to_string()).max_body(4);
    let large = App::new().post("/large", |request| request.body().len().to_string());
    let (address, running) = serve(small.merge(large).max_body(10));
    for (path, sent, status) in [
        ("/small", "1234", 200),
        ("/small", "12345", 413),
        ("/large", "1234567890", 200),
        ("/large", "12345678901", 413),
    ] {
        let response = ask(address, "POST", path, "", sent);
        assert!(response.starts_with(&format!("HTTP/1.1 {status} ")), "{path}: {response}");
    }
    stop(running);
}

#[test]
fn requests_have_an_id_and_a_safe_one_of_a_proxy_is_kept() {
    let app = App::new()
        .get("/", |request| request.extension::<RequestId>().map(ToString::to_string))
        .post("/", |_| Err::<&str, _>(Reject::forbidden()))
        .layer(RequestIds::new());
    let (address, running) = start(Server::new(app));
    let ask = |line: &str, field: &str| {
        let request = format!("{line} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{field}\r\n");
        let answer = exchange(address, request.as_bytes());
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let id = head.lines().find_map(|line| line.strip_prefix("X-Request-ID: "));
        (id.unwrap_or_else(|| panic!("{head}")).to_owned(), body.to_owned())
    };
    let (id, seen) = ask("GET /", "X-Request-ID: ab-12\r\n");
    assert_eq!((id.as_str(), seen.as_str()), ("ab-12", "ab-12"));
    let (mine, seen) = ask("GET /", "");
    assert_eq!(mine, seen);
    let is_ours = |id: &str| id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    let long = "x".repeat(129);
    let others =
        [("GET /", ""), ("POST /", ""), ("GET /none", "")].map(|(line, _)| ask(line, "").0);
    let replaced =
        ["a b", "\"", &long].map(|id| ask("GET /", &format!("X-Request-ID: {id}\r\n")).0);
    for id in others.iter().chain(&replaced) {
        assert!(is_ours(id) && *id != mine, "{id}");
    }
    stop(running);
}

#[cfg(feature = "metrics")]
#[test]
fn the_metrics_of_the_program_follow_those_of_the_server() {
    let app = App::new().route(
        "/metrics",
        throng::metrics::route(|own| {
            own.set_prefix("shop");
            own.metric("orders", "Orders taken", Type::Counter).sample(&[("country", "NL")], 7);
        }),
    );
    let (address, running) = start(Server::new(app));
    let answer =
        exchange(address, b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    let own = "\nshop_orders_total{country=\"NL\"} 7\n";
    assert!(answer.ends_with(own) && answer.contains("\nthrong_sessions"), "{answer}");
    stop(running);
}

#[test]
fn refusals_have_the_form_of_the_app() {
    let fails = |_: &Request<'_>| -> &'static str { panic!("as the test wants") };
    let app = App::new()
        .get("/nothing", |_| None::<String>)
        .get("/busy", |_| Reject::unavailable(7).with_reason("a: b"))
        .get("/own", |_| (Status::NOT_FOUND, "a text of the handler"))
        .get("/panic", fails)
        .get("/form", |_| Reject::status(Status::new(418)))
        .route("/blocking", Route::on(Method::Get, fails).blocking())
        .route("/deferred", Route::deferred(Method::Get, |_, responder| drop(responder)))
        .post("/body", |_| "short enough")
        .ws("/ws", echo())
        .max_body(3)
        .layer(|request: &mut Request<'_>| match request.path() {
            "/layer" => Next::respond(Reject::forbidden()),
            _ => Next::then(|response| {
                let length = response.body().len().to_string();
                response.header("X-Seen", length).into_response()
            }),
        })
        .refusals(|refused| {
            assert_ne!(refused.code(), 418, "as the test wants");
            let text = format!("<{}: {}>", refused.code(), refused.reason());
            Response::html(text).header("X-Form", "1")
        });
    let server = Server::new(app).shards(1).observe(Observe::new().on_event(|_| {}));
    let (address, running) = start(server);
    let refused = |what: &str, answer: &str, expected: &str, field: &str| {
        assert_eq!(body(answer), expected, "{what}: {answer}");
        assert!(answer.contains(field), "{field:?} of {what}: {answer}");
        for field in ["\r\nX-Form: 1\r\n", "\r\nContent-Type: text/html; charset=utf-8\r\n"] {
            assert_eq!(answer.matches(field).count(), 1, "{field:?} of {what}: {answer}");
        }
    };
    for (method, path, expected, field) in [
        ("GET", "/none", "<404: there is nothing at this path>", "X-Seen: 36\r\n"),
        ("GET", "/nothing", "<404: >", "X-Seen: 7\r\n"),
        ("GET", "/busy", "<503: a: b>", "Retry-After: 7\r\n"),
        ("PUT", "/busy", "<405: this path does not answer this method>", "Allow: GET, HEAD"),
        ("GET", "/panic", "<500: internal error>", "X-Seen: 21\r\n"),
        ("GET", "/blocking", "<500: this request got no answer>", "X-Seen: "),
        ("GET", "/deferred", "<500: this request got no answer>", "X-Seen: "),
        ("GET", "/layer", "<403: >", "HTTP/1.1 403 "),
    ] {
        refused(path, &ask(address, method, path, "", ""), expected, field);
    }
    let too_large = ask(address, "POST", "/body", "", "1234");
    assert!(body(&too_large).starts_with("<413: "), "{too_large}");
    let answer = get(address, "/ws");
    assert!(answer.starts_with("HTTP/1.1 426 ") && body(&answer).starts_with("<426: "), "{answer}");
    let invalid = exchange(address, b"GET / HTTP/1.1\r\nHost : x\r\n\r\n");
    assert!(body(&invalid).starts_with("<400: "), "{invalid}");
    assert_eq!(body(&get(address, "/own")), "a text of the handler");
    // A form that panics does not do so for ever.
    let panicked = get(address, "/form");
    assert!(panicked.starts_with("HTTP/1.1 500 ") && body(&panicked).starts_with("500 "));
    refused("after a panic", &get(address, "/nothing"), "<404: >", "");
    stop(running);

    let inner = || App::new().refusals(|_| "never");
    for app in [App::new().merge(inner()), App::new().nest("/inner", inner())] {
        let mistake = mistake(app);
        assert!(mistake.contains("App::refusals"), "{mistake}");
    }
}

/// The server's answers in place of a handler also pass through middleware: without the headers of
/// CORS a page sees a network error instead of a 413.
#[test]
fn answers_in_place_of_a_handler_pass_through_the_middleware_of_its_route() {
    let fails = |_: &Request<'_>| -> &'static str { panic!("as the test wants") };
    let inner = App::new()
        .get("/then", |_| "never")
        .layer(|_: &mut Request<'_>| Next::then(|_| panic!("as the test wants")));
    let app = App::new()
        .get("/panic", fails)
        .post("/panic", fails)
        .post("/body", |_| "short enough")
        .route(
            "/stream",
            Route::streaming(Method::Post, |_, _, responder| {
                std::thread::spawn(move || drop(responder));
            })
            .max_body(10),
        )
        .route("/deferred", Route::deferred(Method::Get, |_, _| panic!("as the test wants")))
        .route("/blocking", Route::on(Method::Get, fails).blocking())
        .sse("/events", |_| -> Result<&str, Reject> { panic!("as the test wants") })
        .ws("/ws", Ws::from_request(|_| -> Result<(), Reject> { panic!("as the test wants") }))
        .get("/layer", |_| "never")
        .merge(inner)
        .max_body(10)
        .layer(|request: &mut Request<'_>| match request.path() {
            "/layer" | "/none" => panic!("as the test wants"),
            _ => Next::Continue,
        })
        .layer(mark("outer"))
        .layer(RequestIds::new());
    let mut limits = Limits::default();
    limits.handshake_timeout = std::time::Duration::from_secs(1);
    let server = Server::new(app).limits(limits).shards(1).observe(Observe::new().on_event(|_| {}));
    let (address, running) = start(server);
    let check = |what: &str, answer: &str, status: u16| {
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{what}: {answer}");
        for field in ["\r\nX-Layer: outer\r\n", "\r\nX-Request-ID: "] {
            assert_eq!(answer.matches(field).count(), 1, "{field:?} of {what}: {answer}");
        }
    };
    let too_long = "x".repeat(11);
    for path in ["/body", "/stream"] {
        check(path, &ask(address, "POST", path, "", &too_long), 413);
        let chunked = format!(
            "POST {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n6\r\n123456\r\n\
             6\r\n123456\r\n0\r\n\r\n"
        );
        check(path, &exchange(address, chunked.as_bytes()), 413);
    }
    for path in ["/panic", "/deferred", "/blocking", "/events", "/layer", "/none", "/then"] {
        check(path, &ask(address, "GET", path, "", ""), 500);
    }
    check("a body", &ask(address, "POST", "/panic", "", "body"), 500);
    let upgrade = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
                   Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    check("an upgrade", &ask(address, "GET", "/ws", upgrade, ""), 500);
    let half = b"POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhal";
    let mut stream = crate::support::dial(address);
    std::io::Write::write_all(&mut stream, half).unwrap();
    let mut answer = String::new();
    std::io::Read::read_to_string(&mut stream, &mut answer).unwrap();
    check("half a body", &answer, 408);
    // The connection's next request gets no state of the one before.
    check("the next", &ask(address, "POST", "/body", "", "short"), 200);
    stop(running);
}
