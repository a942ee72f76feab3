//! A router of axum as a route of an app.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Path;
use axum::http::{Extensions, HeaderMap, StatusCode, Uri};
use axum::routing::{get, post};
use throng::http::Next;
use throng::prelude::*;
use throng::test::TestServer;
use throng_testkit::eventually;
use tokio::sync::oneshot;

use crate::support::TIMEOUT;

/// A body of several pieces, which counts its polls.
struct Pieces {
    left: usize,
    made: Arc<AtomicUsize>,
}

const PIECE: usize = 16 << 10;

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, std::io::Error>>> {
        self.made.fetch_add(1, Ordering::SeqCst);
        Poll::Ready(self.left.checked_sub(1).map(|left| {
            self.left = left;
            Ok(http_body::Frame::data(vec![b'x'; PIECE].into()))
        }))
    }
}

/// A body of one piece, which fails when the test wants it.
struct Waits {
    piece: Option<Bytes>,
    fail: oneshot::Receiver<()>,
}

impl http_body::Body for Waits {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, std::io::Error>>> {
        match self.piece.take() {
            Some(piece) => Poll::Ready(Some(Ok(http_body::Frame::data(piece)))),
            None => {
                let failed = Pin::new(&mut self.fail).poll(cx);
                failed.map(|_| Some(Err(std::io::Error::other("as the test wants"))))
            }
        }
    }
}

fn router(made: &Arc<AtomicUsize>) -> Router {
    let counted = Arc::clone(made);
    let pieces = move |count: usize| {
        counted.store(0, Ordering::SeqCst);
        Body::new(Pieces { left: count, made: Arc::clone(&counted) })
    };
    let endless = pieces.clone();
    Router::new()
        .route("/", get(|| async { "root" }))
        .route(
            "/users/{name}",
            get(|Path(name): Path<String>| async move { format!("user {name}") }),
        )
        .route("/target", get(|uri: Uri| async move { uri.to_string() }))
        .route("/length", post(|body: Bytes| async move { body.len().to_string() }))
        .route(
            "/seen",
            get(|headers: HeaderMap, extensions: Extensions| async move {
                let peer = extensions.get::<SocketAddr>().is_some();
                tokio::task::yield_now().await;
                ([("x-two", "2")], format!("{:?} {peer}", headers.get("x-one").unwrap()))
            }),
        )
        .route("/pieces/{count}", get(|Path(count): Path<usize>| async move { pieces(count) }))
        .route("/endless", get(|| async move { endless(usize::MAX / 2) }))
        .route(
            "/fields",
            post(|headers: HeaderMap, body: String| async move {
                let mut names: Vec<_> = headers.keys().map(|name| name.as_str()).collect();
                names.sort_unstable();
                format!("{body}: {}", names.join(" "))
            }),
        )
        .route("/teapot", get(|| async { StatusCode::IM_A_TEAPOT }))
        .route("/panic", get(panic_of_the_test))
}

async fn panic_of_the_test() -> &'static str {
    panic!("as the test wants")
}

#[test]
fn a_router_of_axum_serves_the_paths_below_its_prefix() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let made = Arc::new(AtomicUsize::new(0));
    let service = App::new().fallback_service(runtime.handle().clone(), router(&made));
    let app = App::new()
        .get("/", |_| "ours")
        .get("/api/ours", |_| "ours as well")
        .ws("/api/live", Ws::new().on_message(|ws, (), message| ws.send(message)))
        .nest("/api", service);
    let server = TestServer::start(Server::new(app));
    for (path, expected) in [
        ("/", "ours"),
        ("/api/ours", "ours as well"),
        ("/api", "root"),
        ("/api/", "root"),
        ("/api/users/ada%20b", "user ada b"),
        ("/api/target?a=%20b", "/target?a=%20b"),
    ] {
        let response = server.get(path);
        assert_eq!((response.status, response.text()), (200, expected), "{path}");
    }
    assert_eq!(server.post("/api/length", vec![b'x'; 100_000]).text(), "100000");
    let seen = server.request("GET", "/api/seen", &[("X-One", "1")], b"");
    assert_eq!((seen.text(), seen.header("x-two")), ("\"1\" true", Some("2")));
    assert_eq!(server.get("/api/teapot").status, 418);
    assert_eq!(server.get("/api/nothing").status, 404);
    assert_eq!(server.get("/api/length").status, 405);
    assert_eq!(server.get("/api/panic").status, 500);
    assert_eq!(server.get("/api/pieces/100").body.len(), 100 * PIECE);
    // HEAD gets the length of GET, or none if GET has none.
    for path in ["/api", "/api/teapot", "/api/users/ada", "/api/pieces/2"] {
        let (get, head) = (server.get(path), server.request("HEAD", path, &[], b""));
        assert_eq!((head.status, head.body.len()), (get.status, 0), "{path}");
        for name in ["Content-Length", "Transfer-Encoding", "Content-Type"] {
            assert_eq!(head.header(name), get.header(name), "{name} of {path}");
        }
    }
    assert_eq!(server.request("HEAD", "/api", &[], b"").header("Content-Length"), Some("4"));
    let mut live = server.ws("/api/live");
    live.send("a session beside it").unwrap();
    assert_eq!(live.recv().unwrap(), Some(Message::Text("a session beside it")));
}

#[test]
fn a_body_waits_for_its_client_and_ends_with_it() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let made = Arc::new(AtomicUsize::new(0));
    let (waiting, fails) = mpsc::channel();
    let waits = move || {
        let (fail, failed) = oneshot::channel();
        waiting.send(fail).unwrap();
        Body::new(Waits { piece: Some(vec![b'x'; PIECE].into()), fail: failed })
    };
    let router = router(&made).route("/waits", get(|| async move { waits() }));
    let app = App::new().fallback_service(runtime.handle().clone(), router);
    let server = TestServer::start(Server::new(app));
    let ask = |path: &str, count: usize| {
        let mut stream = throng_testkit::dial(server.address());
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut begin = vec![0; count];
        stream.read_exact(&mut begin).unwrap();
        assert!(begin.starts_with(b"HTTP/1.1 200 ") && begin.ends_with(b"xxx"), "{path}");
        stream
    };
    let base = Arc::strong_count(&made);
    let stream = ask("/endless", 1 << 20);
    // As much as fits into the buffers on the path: then the body is not polled.
    let mut before = 0;
    eventually("it waits", || {
        let now = made.load(Ordering::SeqCst);
        now == std::mem::replace(&mut before, now) && now > 64
    });
    drop(stream);
    eventually("it is dropped", || Arc::strong_count(&made) == base);
    let all = made.load(Ordering::SeqCst);
    assert!(all < 4096, "{all} pieces for a client that does not read");

    // A body that has nothing to send also ends with its client.
    let stream = ask("/waits", 1024);
    let fail = fails.recv_timeout(TIMEOUT).unwrap();
    assert!(!fail.is_closed());
    drop(stream);
    eventually("it is dropped while it waits", || fail.is_closed());

    // A body that fails has no end.
    let mut stream = ask("/waits", 1024);
    fails.recv_timeout(TIMEOUT).unwrap().send(()).unwrap();
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    assert!(!rest.ends_with(b"\r\n0\r\n\r\n"), "{} bytes", rest.len());
}

/// A client that ends only its side of the connection has left, as for hyper.
#[test]
fn a_service_and_its_waiting_body_end_with_their_client() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let (waiting, waits) = mpsc::channel();
    let called = waiting.clone();
    let router = Router::new()
        .route(
            "/future",
            get(|| async move {
                let (_held, other) = oneshot::channel::<()>();
                called.send(_held).unwrap();
                drop(other.await);
                "never"
            }),
        )
        .route(
            "/body",
            get(|| async move {
                let (fail, failed) = oneshot::channel();
                waiting.send(fail).unwrap();
                Body::new(Waits { piece: Some(vec![b'x'; PIECE].into()), fail: failed })
            }),
        );
    let server = TestServer::start(Server::new(
        App::new().fallback_service(runtime.handle().clone(), router),
    ));
    for (path, has_begun) in [("/future", false), ("/body", true)] {
        for half in [true, false] {
            let mut stream = throng_testkit::dial(server.address());
            let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
            stream.write_all(request.as_bytes()).unwrap();
            let held = waits.recv_timeout(TIMEOUT).unwrap();
            if has_begun {
                stream.read_exact(&mut [0; 1024]).unwrap();
            }
            assert!(!held.is_closed(), "{path}");
            match half {
                true => stream.shutdown(std::net::Shutdown::Write).unwrap(),
                false => drop(stream),
            }
            eventually(&format!("{path}, {half}: its work is dropped"), || held.is_closed());
        }
    }
    eventually("nothing is left", || server.running().stats().connections == 0);
}

#[test]
fn a_service_that_ends_with_its_client_does_not_take_the_answers_before() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let (waiting, waits) = mpsc::channel();
    let called = waiting.clone();
    let future = move || async move {
        let (held, other) = oneshot::channel::<()>();
        called.send(held).unwrap();
        drop(other.await);
        "never"
    };
    let body = move || async move {
        let (fail, failed) = oneshot::channel();
        waiting.send(fail).unwrap();
        Body::new(Waits { piece: Some(b"part".to_vec().into()), fail: failed })
    };
    let router = Router::new().route("/future", get(future)).route("/body", get(body));
    // More than the client's system takes while it does not read, and less than the limit that
    // stops requests.
    let big = vec![b'x'; 300 << 10];
    let expected = big.clone();
    let app = App::new()
        .get("/big", move |_: &Request<'_>| big.clone())
        .nest("/api", App::new().fallback_service(runtime.handle().clone(), router));
    let server = TestServer::start(Server::new(app));
    let ask = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
    for (path, behind) in [("/api/future", ""), ("/api/future", "/big"), ("/api/body", "")] {
        // Later input pauses the connection, whose end is then noticed on Linux only.
        let behind = if cfg!(target_os = "linux") { behind } else { "" };
        let behind = if behind.is_empty() { String::new() } else { ask(behind) };
        let mut stream = throng_testkit::dial(server.address());
        stream.write_all((ask("/big") + &ask(path) + &behind).as_bytes()).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let held = waits.recv_timeout(TIMEOUT).unwrap();
        eventually("its work is dropped", || held.is_closed());
        let mut answers = Vec::new();
        stream.read_to_end(&mut answers).unwrap();
        let begin = answers.windows(4).position(|window| window == b"\r\n\r\n").unwrap() + 4;
        assert!(answers[begin..].starts_with(&expected), "{path}: {} bytes", answers.len());
        assert!(!answers.ends_with(b"0\r\n\r\n"), "{path}: the answer has no end");
    }
}

#[test]
fn rfc9110_7_6_1_fields_of_the_connection_are_not_passed_on() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let app = App::new()
        .nest(
            "/axum",
            App::new().fallback_service(runtime.handle().clone(), router(&Arc::default())),
        )
        .fallback_service(runtime.handle().clone(), Failing::default());
    let server = TestServer::start(Server::new(app));
    let ask = |request: &str| {
        let mut stream = throng_testkit::dial(server.address());
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let answer = ask("POST /axum/fields HTTP/1.1\r\nHost: x\r\nConnection: Close, x-hop\r\n\
        X-Hop: 1\r\nX-Kept: 2\r\nKeep-Alive: timeout=5\r\nTE: trailers\r\nUpgrade: h2c\r\n\
        Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n");
    assert!(answer.ends_with("\r\n\r\nbody: host x-kept"), "{answer}");
    // The service's `close` ends the connection, which the client would have kept.
    let answer = ask("GET /fields HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\nbody"), "{answer}");
    let names = answer.lines().filter_map(|line| Some(line.split_once(':')?.0.to_lowercase()));
    let mut names: Vec<_> = names.collect();
    names.sort_unstable();
    assert_eq!(names, ["connection", "content-length", "date", "x-kept"], "{answer}");
    assert!(!answer.contains("1970"), "{answer}");
}

/// A service that is not ready at once, and whose responses cannot be sent as they are.
#[derive(Clone, Default)]
struct Failing(bool);

impl tower_service::Service<http::Request<throng::embed::ServiceBody>> for Failing {
    type Response = http::Response<Body>;
    type Error = String;
    type Future = std::future::Ready<Result<Self::Response, String>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), String>> {
        cx.waker().wake_by_ref();
        match std::mem::replace(&mut self.0, true) {
            false => Poll::Pending,
            true => Poll::Ready(Ok(())),
        }
    }

    fn call(&mut self, request: http::Request<throng::embed::ServiceBody>) -> Self::Future {
        assert!(self.0, "it was ready");
        std::future::ready(match request.uri().path() {
            "/fails" => Err("as the test wants".to_owned()),
            "/fields" => Ok(http::Response::builder()
                .header("Date", "Thu, 01 Jan 1970 00:00:00 GMT")
                .header("Connection", "X-Hop, close")
                .header("X-Hop", "1")
                .header("X-Kept", "2")
                .header("Keep-Alive", "timeout=5")
                .header("Transfer-Encoding", "chunked")
                .body(Body::from("body"))
                .unwrap()),
            _ => {
                let latin1 = http::HeaderValue::from_bytes(b"\xe9").unwrap();
                Ok(http::Response::builder().header("X", latin1).body(Body::empty()).unwrap())
            }
        })
    }
}

#[test]
fn errors_of_a_service_are_500() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let app = App::new().fallback_service(runtime.handle().clone(), Failing::default());
    let server = TestServer::start(Server::new(app));
    for (path, expected) in [("/fails", "the service failed"), ("/", "cannot be sent")] {
        let response = server.get(path);
        assert_eq!(response.status, 500);
        assert!(response.text().contains(expected), "{}", response.text());
    }
}

#[test]
fn a_service_gets_what_middleware_has_attached_and_the_id_of_the_request() {
    #[derive(Clone)]
    struct User(&'static str);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let router = Router::new().route(
        "/",
        get(|extensions: Extensions, headers: HeaderMap| async move {
            let user = extensions.get::<User>().map_or("no one", |user| user.0);
            let id = extensions.get::<throng::http::RequestId>().map(ToString::to_string);
            let in_header = headers["x-request-id"].to_str().unwrap().to_owned();
            assert_eq!(id.as_deref(), Some(&*in_header));
            format!("{user} {in_header}")
        }),
    );
    let app = App::new()
        .fallback_service(runtime.handle().clone(), router)
        .layer(|request: &mut Request<'_>| {
            request.insert_extension(User("ada"));
            Next::Continue
        })
        .layer(throng::http::RequestIds::new());
    let server = TestServer::start(Server::new(app));
    for sent in [&[][..], &[("X-Request-ID", "ab-12")], &[("X-Request-ID", "not safe")]] {
        let response = server.request("GET", "/", sent, b"");
        let id = response.header("x-request-id").unwrap();
        assert_eq!(response.text(), format!("ada {id}"));
        assert_eq!(id == "ab-12", sent.first().is_some_and(|(_, id)| *id == "ab-12"));
    }
}
