//! HTTP handlers that are futures, and responses from streams.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use throng::http::{any_async, get, get_async, post_async};
use throng::prelude::*;
use throng::test::TestServer;
use throng_testkit::eventually;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

use crate::support::TIMEOUT;

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap()
}

/// Asks for `path`, without reading the response.
fn ask(server: &TestServer, path: &str) -> TcpStream {
    let mut stream = throng_testkit::dial(server.address());
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).unwrap();
    stream
}

/// Reads until the response so far contains `part`.
fn read_to(stream: &mut TcpStream, part: &str) -> String {
    let mut all = Vec::new();
    while !all.windows(part.len()).any(|window| window == part.as_bytes()) {
        let mut bytes = [0; 1024];
        let n = stream.read(&mut bytes).unwrap();
        assert_ne!(n, 0, "{}", String::from_utf8_lossy(&all));
        all.extend_from_slice(&bytes[..n]);
    }
    String::from_utf8(all).unwrap()
}

#[test]
fn futures_answer_requests() {
    let runtime = runtime();
    let handle = runtime.handle();
    let name = |request: &throng::asynchronous::OwnedRequest| {
        request.param("name").filter(|name| name != "unknown").ok_or(Reject::not_found())
    };
    let users = get_async(handle.clone(), move |request| async move {
        let greeting = request.query("greeting").unwrap_or("hello".to_owned());
        tokio::time::sleep(Duration::from_millis(1)).await;
        Ok::<_, Reject>(format!("{greeting} {}", name(&request)?))
    })
    .post_async(handle.clone(), |request| async move { request.body().len().to_string() })
    .delete(|_| Status::NO_CONTENT)
    .max_body(100_000);
    let app = App::new()
        .route("/users/{name}", users)
        .route("/panic", get_async(handle.clone(), |_| async { panic_of_the_test() }))
        .route("/any", any_async(handle.clone(), |_| async { Status::ACCEPTED }))
        .layer(|request: &mut Request<'_>| {
            request.insert_extension("from a layer");
            throng::http::Next::Continue
        })
        .route("/later", Route::on_async(handle.clone(), Method::Get, |_| async { "later" }));
    let server = TestServer::start(Server::new(app));
    for (path, expected) in [
        ("/users/ada%20b", (200, "hello ada b")),
        ("/users/ada?greeting=hi", (200, "hi ada")),
        ("/users/unknown", (404, "404 Not Found\n")),
        ("/later", (200, "later")),
        ("/panic", (500, "500 Internal Server Error: this request got no answer\n")),
    ] {
        let response = server.get(path);
        assert_eq!((response.status, response.text()), expected, "{path}");
    }
    eventually("it is counted", || server.running().stats().handler_panics == 1);
    assert_eq!(server.post("/users/ada", vec![b'x'; 100_000]).text(), "100000");
    assert_eq!(server.post("/users/ada", vec![b'x'; 100_001]).status, 413);
    assert_eq!(server.request("DELETE", "/users/ada", &[], b"").status, 204);
    assert_eq!(server.request("PUT", "/any", &[], b"").status, 202);
    let head = server.request("HEAD", "/users/ada", &[], b"");
    assert_eq!((head.header("Content-Length"), head.body.len()), (Some("9"), 0));

    // Requests of one connection are answered in their order.
    let mut stream = ask(&server, "/users/ada");
    stream.write_all(b"GET /later HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut both = String::new();
    stream.read_to_string(&mut both).unwrap();
    let (first, second) = (both.find("hello ada").unwrap(), both.find("later").unwrap());
    assert!(first < second, "{both}");
}

fn panic_of_the_test() -> &'static str {
    panic!("as the test wants")
}

#[test]
fn values_of_middleware_reach_futures() {
    let runtime = runtime();
    let handler = post_async(runtime.handle().clone(), |request| async move {
        request.extension::<&str>().map(|value| format!("{value}: {:?}", request.body()))
    });
    let app = App::new().route("/", handler).layer(|request: &mut Request<'_>| {
        request.insert_extension("attached");
        throng::http::Next::Continue
    });
    let server = TestServer::start(Server::new(app));
    assert_eq!(server.post("/", [1, 2]).text(), "attached: [1, 2]");
}

#[test]
fn only_handlers_that_return_can_be_blocking() {
    let runtime = runtime();
    let route = get_async(runtime.handle().clone(), |_| async { "never" }).blocking();
    let mistake = Server::new(App::new().route("/", route)).check().unwrap_err();
    assert!(mistake.to_string().contains("Route::blocking"), "{mistake}");
}

#[test]
fn events_of_one_request_are_streamed() {
    let runtime = runtime();
    // Its timers are made while it is polled, on a shard.
    let ticks = get_async(runtime.handle().clone(), |_| async {
        let ticks = stream::unfold(0, |n| async move {
            tokio::time::sleep(Duration::from_millis(1)).await;
            (n < 3).then(|| (Frame::format(format_args!("{n}")).event_id(n.to_string()), n + 1))
        });
        Response::events(ticks)
    });
    let app = App::new()
        .route("/ticks", ticks)
        .get("/texts", |_| Response::events(stream::iter(["a\nb", "c"])));
    let server = TestServer::start(Server::new(app));
    let response = server.get("/ticks");
    assert_eq!(response.text(), "id: 0\ndata: 0\n\nid: 1\ndata: 1\n\nid: 2\ndata: 2\n\n");
    assert_eq!(response.header("Content-Type"), Some("text/event-stream"));
    assert_eq!(response.header("Cache-Control"), Some("no-store"));
    assert_eq!(server.get("/texts").text(), "data: a\ndata: b\n\ndata: c\n\n");
    assert_eq!(server.request("HEAD", "/texts", &[], b"").body, b"");
}

#[test]
fn a_body_is_a_stream_of_bytes() {
    let pieces = || stream::iter((0..100).map(|n| Ok::<_, std::io::Error>(vec![n; 10_000])));
    let app = App::new()
        .get("/chunks", move |_| Response::new(Status::OK).with_body_stream(None, pieces()))
        .get("/length", move |_| {
            Response::new(Status::OK).with_body_stream(Some(1_000_000), pieces())
        })
        .get("/fails", |_| {
            let items = [Ok("part"), Err("as the test wants")];
            Response::new(Status::OK).with_body_stream(None, stream::iter(items))
        });
    let server = TestServer::start(Server::new(app));
    let expected: Vec<u8> = (0..100).flat_map(|n| vec![n; 10_000]).collect();
    for (path, length) in [("/chunks", None), ("/length", Some("1000000"))] {
        let response = server.get(path);
        assert_eq!(response.header("Content-Length"), length, "{path}");
        assert!(response.body == expected, "{path}: {} bytes", response.body.len());
    }
    let mut answer = String::new();
    ask(&server, "/fails").read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 ") && !answer.ends_with("0\r\n\r\n"), "{answer}");
}

/// A value that a handler keeps: its receiver learns when it is dropped.
type Kept = (oneshot::Sender<()>, oneshot::Receiver<()>);

fn keep(to: &Sender<oneshot::Receiver<()>>) -> oneshot::Sender<()> {
    let (kept, seen): Kept = oneshot::channel();
    to.send(seen).unwrap();
    kept
}

#[test]
fn a_client_that_leaves_drops_the_future_or_the_stream() {
    let runtime = runtime();
    let (to, begun): (Sender<_>, Receiver<oneshot::Receiver<()>>) = mpsc::channel();
    // One event, then silence.
    let events = |kept: oneshot::Sender<()>| {
        Response::events(stream::once(async { "begun" }).chain(stream::unfold(
            kept,
            |kept| async {
                std::future::pending::<()>().await;
                Some(("never", kept))
            },
        )))
    };
    let (a, b, c, d) = (to.clone(), to.clone(), to.clone(), to);
    let future = get_async(runtime.handle().clone(), move |_| {
        let kept = keep(&a);
        async move {
            std::future::pending::<()>().await;
            drop(kept);
        }
    });
    let deferred = Route::deferred(Method::Get, move |_, responder| {
        responder.send(events(keep(&b)));
    });
    let app = App::new()
        .route("/future", future)
        .route("/deferred", deferred)
        .route("/plain", get(move |_| events(keep(&c))))
        .route(
            "/async",
            get_async(runtime.handle().clone(), move |_| {
                let kept = keep(&d);
                async move { events(kept) }
            }),
        );
    let server = TestServer::start(Server::new(app));
    for path in ["/future", "/deferred", "/plain", "/async"] {
        for half in [true, false] {
            let mut stream = ask(&server, path);
            let mut seen = begun.recv_timeout(TIMEOUT).unwrap();
            if path != "/future" {
                read_to(&mut stream, "data: begun");
            }
            assert_eq!(seen.try_recv(), Err(oneshot::error::TryRecvError::Empty), "{path}");
            match half {
                true => stream.shutdown(Shutdown::Write).unwrap(),
                false => drop(stream),
            }
            eventually(&format!("{path}, {half}: it is dropped"), || {
                seen.try_recv() == Err(oneshot::error::TryRecvError::Closed)
            });
        }
    }
    eventually("nothing is left", || server.running().stats().connections == 0);
}

/// The client has left before there is a stream that could notice it.
#[test]
fn a_stream_that_comes_after_its_client_has_left_is_dropped() {
    let (to, waiting) = mpsc::channel();
    let later = Route::deferred(Method::Get, move |_, responder| to.send(responder).unwrap());
    let server = TestServer::start(Server::new(App::new().route("/", later)));
    let stream = ask(&server, "/");
    let responder: throng::http::Responder = waiting.recv_timeout(TIMEOUT).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    eventually("it is noticed", || responder.is_closed());
    let (kept, mut seen): Kept = oneshot::channel();
    responder.send(Response::events(stream::unfold(kept, |kept| async {
        std::future::pending::<()>().await;
        Some(("never", kept))
    })));
    eventually("it is dropped", || seen.try_recv() == Err(oneshot::error::TryRecvError::Closed));
    drop(stream);
}

#[test]
fn a_stream_waits_for_its_client() {
    let runtime = runtime();
    let (events, receiver) = tokio::sync::mpsc::channel::<String>(1);
    let receiver = std::sync::Mutex::new(Some(receiver));
    let endless = get_async(runtime.handle().clone(), move |_| {
        let mut events = receiver.lock().unwrap().take().unwrap();
        async move { Response::events(stream::poll_fn(move |cx| events.poll_recv(cx))) }
    });
    let server = TestServer::start(Server::new(App::new().route("/", endless)));
    let stream = ask(&server, "/");
    // Each event wakes the stream on its own.
    let taken = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&taken);
    let source = std::thread::spawn(move || {
        while events.blocking_send("x".repeat(16 << 10)).is_ok() {
            counted.fetch_add(1, Ordering::SeqCst);
        }
    });
    let mut before = 0;
    eventually("it waits", || {
        let now = taken.load(Ordering::SeqCst);
        now == std::mem::replace(&mut before, now) && now > 4
    });
    drop(stream);
    source.join().unwrap();
    let all = taken.load(Ordering::SeqCst);
    assert!(all < 4096, "{all} events for a client that does not read");
}

/// The handler runs on the thread of the test.
#[tokio::test]
async fn a_test_on_one_thread_awaits_its_responses() {
    let handle = tokio::runtime::Handle::current();
    let app = App::new()
        .route("/", get_async(handle.clone(), |_| async { "hello" }))
        .route("/body", post_async(handle, |request| async move { request.body().to_vec() }));
    let server = TestServer::start(Server::new(app));
    assert_eq!(server.get_async("/").await.text(), "hello");
    let response = server.request_async("POST", "/body", &[], b"bytes").await;
    assert_eq!((response.status, response.text()), (200, "bytes"));
    let call = std::panic::AssertUnwindSafe(|| server.get("/"));
    let panicked = std::panic::catch_unwind(call).unwrap_err();
    let advice = panicked.downcast_ref::<String>().unwrap();
    assert!(advice.contains("get_async"), "{advice}");
    // On a thread that may block, the same call waits.
    let (server, response) = tokio::task::spawn_blocking(move || {
        let response = server.get("/");
        (server, response)
    })
    .await
    .unwrap();
    assert_eq!(response.text(), "hello");
    drop(server);
}
