//! A router of axum as a route of an app.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Path;
use axum::http::{Extensions, HeaderMap, StatusCode, Uri};
use axum::routing::{get, post};
use throng::prelude::*;
use throng::test::TestServer;
use throng_testkit::eventually;

/// A body of so many pieces, which counts those that were asked for.
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
        let made = self.made.fetch_add(1, Ordering::SeqCst);
        Poll::Ready(match self.left.checked_sub(1) {
            None => None,
            // A body that fails has no end.
            Some(0) if made == 2 => Some(Err(std::io::Error::other("as the test wants"))),
            Some(left) => {
                self.left = left;
                Some(Ok(http_body::Frame::data(vec![b'x'; PIECE].into())))
            }
        })
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
                tokio::time::sleep(Duration::from_millis(1)).await;
                ([("x-two", "2")], format!("{:?} {peer}", headers.get("x-one").unwrap()))
            }),
        )
        .route("/pieces/{count}", get(|Path(count): Path<usize>| async move { pieces(count) }))
        .route("/endless", get(|| async move { endless(usize::MAX / 2) }))
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
    let service = App::new().service(runtime.handle().clone(), router(&made));
    let app = App::new()
        .get("/", |_| "ours")
        .get("/api/ours", |_| "ours as well")
        .ws("/api/live", Ws::new().on_message(|ws, message| ws.send(message)))
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
    let mut live = server.ws("/api/live");
    live.send("a session beside it").unwrap();
    assert_eq!(live.recv().unwrap(), Some(Message::Text("a session beside it")));
}

#[test]
fn a_body_waits_for_its_client_and_ends_with_it() {
    use std::io::{Read, Write};

    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let made = Arc::new(AtomicUsize::new(0));
    let app = App::new().service(runtime.handle().clone(), router(&made));
    let server = TestServer::start(Server::new(app));
    let ask = |path: &str| {
        let mut stream = throng_testkit::dial(server.address());
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        stream
    };
    let base = Arc::strong_count(&made);
    let mut stream = ask("/endless");
    let mut some = vec![0; 1 << 20];
    stream.read_exact(&mut some).unwrap();
    // What fits into the buffers on the way: then it is not asked for more.
    let mut before = 0;
    eventually("it waits", || {
        let now = made.load(Ordering::SeqCst);
        now == std::mem::replace(&mut before, now) && now > 64
    });
    assert!(before < 4096, "{before} pieces for a client that does not read");
    drop(stream);
    eventually("it is dropped", || Arc::strong_count(&made) == base);
    // A body that fails has no end.
    let mut answer = Vec::new();
    let _ = ask("/pieces/3").read_to_end(&mut answer);
    assert!(!answer.ends_with(b"\r\n0\r\n\r\n"), "{} bytes", answer.len());
}

/// A service that is not ready at once, and fails.
#[derive(Clone, Default)]
struct Failing(bool);

impl tower_service::Service<http::Request<throng::ServiceBody>> for Failing {
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

    fn call(&mut self, request: http::Request<throng::ServiceBody>) -> Self::Future {
        assert!(self.0, "it was ready");
        std::future::ready(match request.uri().path() {
            "/fails" => Err("as the test wants".to_owned()),
            _ => {
                Ok(http::Response::builder().header("Connection", "x").body(Body::empty()).unwrap())
            }
        })
    }
}

#[test]
fn errors_of_a_service_are_500() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let app = App::new().service(runtime.handle().clone(), Failing::default());
    let server = TestServer::start(Server::new(app));
    for (path, expected) in [("/fails", "the service failed"), ("/", "cannot be sent")] {
        let response = server.get(path);
        assert_eq!(response.status, 500);
        assert!(response.text().contains(expected), "{}", response.text());
    }
}
