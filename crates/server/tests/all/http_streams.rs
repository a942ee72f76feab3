//! Answers that come later, and bodies that are longer than memory, in both directions.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::pin::pin;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::Duration;

use throng::http::{Responder, SourcePull, StreamSource};
use throng::prelude::*;
use throng::server::{IoBackend, Shards};
use throng_testkit::eventually;

use crate::support::{EXTREMES, TIMEOUT};

/// A connection whose answers are read one by one.
struct Client(BufReader<TcpStream>);

/// An answer as it came.
#[derive(Debug)]
struct Got {
    head: String,
    body: Vec<u8>,
    trailers: String,
}

impl Client {
    fn dial(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.set_write_timeout(Some(TIMEOUT)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self(BufReader::new(stream))
    }

    fn say(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.get_mut().write_all(bytes.as_ref()).unwrap();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line
    }

    fn lines(&mut self) -> String {
        let mut lines = String::new();
        loop {
            let line = self.line();
            if line == "\r\n" || line.is_empty() {
                return lines;
            }
            lines += &line;
        }
    }

    /// The next answer, by its length, its chunks, or the end.
    fn hear(&mut self) -> Got {
        let head = self.lines();
        let (mut body, mut trailers) = (Vec::new(), String::new());
        let field = |name: &str| head.lines().find_map(|line| line.strip_prefix(name));
        if let Some(length) = field("Content-Length: ") {
            body.resize(length.parse().unwrap(), 0);
            self.0.read_exact(&mut body).unwrap();
        } else if field("Transfer-Encoding: chunked").is_some() {
            loop {
                let size = usize::from_str_radix(self.line().trim_end(), 16).unwrap();
                if size == 0 {
                    trailers = self.lines();
                    break;
                }
                let at = body.len();
                body.resize(at + size, 0);
                self.0.read_exact(&mut body[at..]).unwrap();
                assert_eq!(self.line(), "\r\n");
            }
        } else {
            self.0.read_to_end(&mut body).unwrap();
        }
        Got { head, body, trailers }
    }

    /// No more data and no loss: an orderly end.
    fn ends(&mut self) {
        assert_eq!(self.0.read(&mut [0; 1]).unwrap(), 0);
    }

    /// All that still comes, up to a reset or an orderly end.
    fn rest(&mut self) -> String {
        let mut rest = Vec::new();
        let _ = self.0.read_to_end(&mut rest);
        String::from_utf8_lossy(&rest).into_owned()
    }
}

fn at_once() -> DrainPlan {
    DrainPlan::default().window(Duration::ZERO)
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n")
}

fn serve(server: Server) -> (SocketAddr, Running) {
    let bound = server.shards(1).bind("127.0.0.1:0").unwrap();
    (bound.local_addr(), bound.start().unwrap())
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 13) as u8).collect()
}

/// A server whose answers to `/later/{n}` wait until the test sends them.
fn waiting() -> (SocketAddr, Running, Receiver<(String, Responder)>) {
    waiting_on(IoBackend::Auto)
}

fn waiting_on(io: IoBackend) -> (SocketAddr, Running, Receiver<(String, Responder)>) {
    let (give, take): (Sender<_>, _) = channel();
    let give = Mutex::new(give);
    let app = App::new().get("/now", |_: &Request<'_>| "now").route(
        "/later/{n}",
        Route::deferred(Method::Get, move |request, responder| {
            let n = request.param("n").unwrap_or_default().to_owned();
            give.lock().unwrap().send((n, responder)).unwrap();
        }),
    );
    let served = serve(Server::new(app).shards(Shards::new().io(io)));
    (served.0, served.1, take)
}

#[test]
fn answers_that_come_later_keep_their_order() {
    let (address, running, asked) = waiting();
    let mut client = Client::dial(address);
    // Pipelined: the second request is not read before the first is answered.
    client.say(get("/later/1") + &get("/now") + &get("/later/2") + &get("/now"));
    let (n, responder) = asked.recv_timeout(TIMEOUT).unwrap();
    assert_eq!(n, "1");
    // Other clients are served until then.
    let mut other = Client::dial(address);
    other.say(get("/now"));
    assert_eq!(other.hear().body, b"now");
    assert!(asked.try_recv().is_err());
    responder.send("one");
    assert_eq!(client.hear().body, b"one");
    assert_eq!(client.hear().body, b"now");
    let (n, responder) = asked.recv_timeout(TIMEOUT).unwrap();
    assert_eq!(n, "2");
    thread::spawn(move || responder.send((404, "two"))).join().unwrap();
    let two = client.hear();
    assert!(two.head.starts_with("HTTP/1.1 404 ") && two.body == b"two", "{two:?}");
    assert_eq!(client.hear().body, b"now");
    // The same for requests that come one by one on the same connection.
    for round in 0..50 {
        client.say(get(&format!("/later/{round}")));
        let (n, responder) = asked.recv_timeout(TIMEOUT).unwrap();
        responder.send(n);
        assert_eq!(client.hear().body, round.to_string().as_bytes());
    }
    running.shutdown(at_once()).wait().unwrap();
}

#[test]
fn a_responder_that_is_dropped_answers_500_and_the_connection_goes_on() {
    let (address, running, asked) = waiting();
    let mut client = Client::dial(address);
    client.say(get("/later/1") + &get("/now"));
    drop(asked.recv_timeout(TIMEOUT).unwrap());
    assert!(client.hear().head.starts_with("HTTP/1.1 500 "));
    assert_eq!(client.hear().body, b"now");
    running.shutdown(at_once()).wait().unwrap();
}

#[test]
fn a_client_that_has_half_closed_gets_all_its_answers() {
    let (address, running, asked) = waiting();
    let mut client = Client::dial(address);
    client.say(get("/later/1") + &get("/now") + &get("/later/2"));
    client.0.get_ref().shutdown(Shutdown::Write).unwrap();
    let (_, responder) = asked.recv_timeout(TIMEOUT).unwrap();
    responder.send("one");
    assert_eq!(client.hear().body, b"one");
    assert_eq!(client.hear().body, b"now");
    let (_, responder) = asked.recv_timeout(TIMEOUT).unwrap();
    responder.send("two");
    assert_eq!(client.hear().body, b"two");
    client.ends();
    running.shutdown(at_once()).wait().unwrap();
}

#[test]
fn an_answer_to_a_client_that_has_gone_goes_nowhere() {
    let (address, running, asked) = waiting();
    for _ in 0..20 {
        let mut client = Client::dial(address);
        client.say(get("/later/1"));
        let (_, responder) = asked.recv_timeout(TIMEOUT).unwrap();
        drop(client);
        let mut next = Client::dial(address);
        next.say(get("/now"));
        assert_eq!(next.hear().body, b"now");
        responder.send("no one");
        next.say(get("/now"));
        assert_eq!(next.hear().body, b"now");
    }
    running.shutdown(at_once()).wait().unwrap();
}

#[test]
fn a_responder_learns_that_its_client_has_left() {
    let (address, running, asked) = waiting();
    for half in [true, false] {
        let mut client = Some(Client::dial(address));
        client.as_mut().unwrap().say(get("/later/1"));
        let (_, mut responder) = asked.recv_timeout(TIMEOUT).unwrap();
        assert!(!responder.is_closed());
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut cx = Context::from_waker(&waker);
        assert!(responder.poll_closed(&mut cx).is_pending());
        match &client {
            Some(client) if half => client.0.get_ref().shutdown(Shutdown::Write).unwrap(),
            _ => drop(client.take()),
        }
        eventually("it is woken", || woken.0.load(Relaxed));
        assert!(responder.is_closed());
        assert!(responder.poll_closed(&mut cx).is_ready());
        assert!(pin!(responder.closed()).poll(&mut cx).is_ready());
        responder.send("late");
        if let Some(mut client) = client {
            assert_eq!(client.hear().body, b"late", "one that still reads gets it");
        }
    }
    running.shutdown(at_once()).wait().unwrap();
}

/// Records that it was woken.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Relaxed);
    }
}

/// A request that waits after the current one has paused the connection, and a paused connection
/// does not report its end.
#[cfg(target_os = "linux")]
#[test]
fn a_responder_learns_of_a_client_that_left_requests_behind_its_own() {
    for io in EXTREMES {
        let (address, running, asked) = waiting_on(io);
        for half in [true, false] {
            let mut client = Client::dial(address);
            client.say(get("/later/1") + &get("/now"));
            let (_, responder) = asked.recv_timeout(TIMEOUT).unwrap();
            assert!(!responder.is_closed());
            // It is not even read.
            client.say(get("/later/2"));
            if !half {
                drop(client);
                eventually("it has left", || responder.is_closed());
                continue;
            }
            client.0.get_ref().shutdown(Shutdown::Write).unwrap();
            eventually("it has half-closed", || responder.is_closed());
            responder.send("one");
            assert_eq!(client.hear().body, b"one", "one that still reads gets it");
            assert_eq!(client.hear().body, b"now");
            let (_, responder) = asked.recv_timeout(TIMEOUT).unwrap();
            responder.send("two");
            assert_eq!(client.hear().body, b"two", "and so for those behind it");
            client.ends();
        }
        running.shutdown(at_once()).wait().unwrap();
    }
}

#[test]
fn draining_waits_for_an_answer_that_is_due() {
    let (address, running, asked) = waiting();
    let mut client = Client::dial(address);
    client.say(get("/later/1"));
    let (_, responder) = asked.recv_timeout(TIMEOUT).unwrap();
    let drain = thread::spawn(move || running.shutdown(at_once()).wait().unwrap());
    // The listener closes when every client was answered.
    eventually("it listens no more", || TcpStream::connect(address).is_err());
    responder.send("last");
    let last = client.hear();
    assert!(last.body == b"last" && last.head.contains("Connection: close"), "{last:?}");
    client.ends();
    drop(client);
    assert_eq!(drain.join().unwrap().forced, 0);
}

/// Streams `/sized` and `/chunked`: 5 MB made while they are sent.
fn streaming() -> (SocketAddr, Running, Arc<Vec<u8>>) {
    let all = Arc::new(pattern(5_000_000));
    let source = |all: &Arc<Vec<u8>>| {
        let (all, mut at) = (Arc::clone(all), 0);
        move |room: usize, out: &mut Vec<u8>| {
            let end = all.len().min(at + room);
            out.extend_from_slice(&all[at..end]);
            at = end;
            Ok(if at == all.len() { SourcePull::End } else { SourcePull::More })
        }
    };
    let (a, b) = (Arc::clone(&all), Arc::clone(&all));
    let served = serve(Server::new(
        App::new()
            .get("/sized", move |_: &Request<'_>| {
                Response::new(Status::OK).with_stream(Some(a.len() as u64), source(&a))
            })
            .get("/chunked", move |_: &Request<'_>| {
                Response::new(Status::OK).with_stream(None, source(&b))
            })
            .get("/empty", |_: &Request<'_>| {
                Response::new(Status::OK)
                    .with_stream(None, |_, _: &mut Vec<u8>| Ok(SourcePull::End))
            })
            .get("/fails", |_: &Request<'_>| {
                let mut chunks = 0;
                Response::new(Status::OK).with_stream(None, move |_, out: &mut Vec<u8>| {
                    chunks += 1;
                    out.extend_from_slice(&[b'x'; 1000]);
                    if chunks < 3 {
                        Ok(SourcePull::More)
                    } else {
                        Err(std::io::Error::other("lost"))
                    }
                })
            })
            .get("/short", |_: &Request<'_>| {
                Response::new(Status::OK).with_stream(Some(10), |_, out: &mut Vec<u8>| {
                    out.extend_from_slice(b"short");
                    Ok(SourcePull::End)
                })
            })
            .get("/long", |_: &Request<'_>| {
                Response::new(Status::OK).with_stream(Some(3), |_, out: &mut Vec<u8>| {
                    out.extend_from_slice(b"long");
                    Ok(SourcePull::End)
                })
            }),
    ));
    (served.0, served.1, all)
}

#[test]
fn bodies_are_made_while_they_are_sent() {
    let (address, running, all) = streaming();
    let mut client = Client::dial(address);
    client.say(get("/sized") + &get("/chunked") + &get("/empty") + &get("/sized"));
    let sized = client.hear();
    assert!(sized.head.contains("Content-Length: 5000000\r\n") && sized.body == *all);
    let chunked = client.hear();
    assert!(chunked.head.contains("Transfer-Encoding: chunked\r\n") && chunked.body == *all);
    assert!(client.hear().body.is_empty());
    assert!(client.hear().body == *all);
    // Without a body, and to a client that does not support chunks.
    client.say("HEAD /chunked HTTP/1.1\r\nHost: h\r\n\r\n");
    assert!(client.lines().contains("Transfer-Encoding: chunked\r\n"));
    client.say("GET /chunked HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    let old = client.hear();
    assert!(old.head.contains("Connection: close\r\n") && old.body == *all);
    running.shutdown(at_once()).wait().unwrap();
}

#[test]
fn a_body_that_cannot_be_finished_is_not_taken_for_whole() {
    let (address, running, _) = streaming();
    for path in ["/fails", "/short", "/long"] {
        let mut client = Client::dial(address);
        client.say(get("/empty") + &get(path) + &get("/empty"));
        // Earlier answers arrive, and nothing after them.
        assert!(client.hear().body.is_empty());
        let rest = client.rest();
        assert!(
            rest.starts_with("HTTP/1.1 200 ") && rest.matches("HTTP/1.1").count() == 1,
            "{path}: {rest}"
        );
        let (head, body) = rest.split_once("\r\n\r\n").unwrap();
        match head.lines().find_map(|line| line.strip_prefix("Content-Length: ")) {
            Some(length) => assert!(body.len() < length.parse().unwrap(), "{path}: {rest}"),
            None => assert!(!body.ends_with("\r\n0\r\n\r\n"), "{path}: {rest}"),
        }
    }
    // A client without chunked coding can only see it by a reset.
    let mut old = Client::dial(address);
    old.say("GET /fails HTTP/1.0\r\n\r\n");
    assert!(old.0.read_to_end(&mut Vec::new()).is_err());
    running.shutdown(at_once()).wait().unwrap();
}

#[test]
fn a_client_that_does_not_read_holds_one_chunk_and_little_in_the_kernel() {
    const LENGTH: usize = 50_000_000;
    let pulled = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&pulled);
    let (address, running) = serve(Server::new(
        App::new().get("/now", |_: &Request<'_>| "now").get("/", move |_: &Request<'_>| {
            let count = Arc::clone(&count);
            let source = move |room: usize, out: &mut Vec<u8>| {
                out.resize(room.min(LENGTH - count.load(Relaxed)), b'x');
                count.fetch_add(out.len(), Relaxed);
                Ok(SourcePull::More)
            };
            Response::new(Status::OK).with_stream(Some(LENGTH as u64), source)
        }),
    ));
    let mut client = Client::dial(address);
    client.say(get("/"));
    eventually("it has to wait for its client", || running.stats().backlogged == 1);
    // Other clients are served until then, and more often than this one.
    for _ in 0..20 {
        let mut other = Client::dial(address);
        other.say(get("/now"));
        assert_eq!(other.hear().body, b"now");
    }
    // Without the limit the kernel would take up to 4 MB.
    let pulled = pulled.load(Relaxed);
    assert!(pulled < 1_200_000, "{pulled} bytes for one who reads nothing");
    assert_eq!(client.hear().body.len(), LENGTH);
    running.shutdown(at_once()).wait().unwrap();
}

/// Echoes the body, with a thread for each request.
fn echoing(max_body: u64) -> (SocketAddr, Running) {
    serve(Server::new(
        App::new().get("/now", |_: &Request<'_>| "now").route(
            "/echo",
            Route::streaming(Method::Post, |_, mut body, responder| {
                thread::spawn(move || {
                    let mut writer = responder.stream(Response::new(Status::OK), None);
                    let mut piece = vec![0; 10_000];
                    while let Ok(count @ 1..) = body.read(&mut piece) {
                        if writer.write_all(&piece[..count]).is_err() {
                            return;
                        }
                    }
                    let trailers = body.trailers();
                    writer.finish_with(trailers);
                });
            })
            .max_body(max_body),
        ),
    ))
}

#[test]
fn a_body_larger_than_any_limit_on_memory_goes_in_and_out_at_once() {
    let (address, running) = echoing(u64::MAX);
    let sent = pattern(20_000_000);
    let client = Client::dial(address);
    let mut writer = client.0.get_ref().try_clone().unwrap();
    let copy = sent.clone();
    let speaking = thread::spawn(move || {
        let head = "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 20000000\r\n\r\n";
        writer.write_all(head.as_bytes()).unwrap();
        writer.write_all(&copy).unwrap();
    });
    let mut client = client;
    assert!(client.hear().body == sent);
    speaking.join().unwrap();
    running.shutdown(at_once()).wait().unwrap();
}

#[test]
fn chunks_and_trailers_pass_both_ways() {
    let (address, running) = echoing(1 << 20);
    let mut client = Client::dial(address);
    client.say(
        "POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nTE: trailers\r\n\r\n\
         3\r\nabc\r\n4;x=y\r\ndefg\r\n0\r\nChecksum: 7\r\n\r\n",
    );
    let echo = client.hear();
    assert_eq!(echo.body, b"abcdefg");
    assert_eq!(echo.trailers, "Checksum: 7\r\n");
    running.shutdown(at_once()).wait().unwrap();
}

#[test]
fn a_stream_has_a_limit_of_its_own() {
    let (address, running) = echoing(10);
    let mut client = Client::dial(address);
    client.say("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 11\r\n\r\n");
    assert!(client.hear().head.starts_with("HTTP/1.1 413 "));
    client.ends();
    // In chunks, the excess is found when it arrives: after the answer has begun, or before.
    let mut client = Client::dial(address);
    client.say(
        "POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nb\r\nhello world\r\n",
    );
    let mut rest = Vec::new();
    let _ = client.0.read_to_end(&mut rest);
    assert!(!rest.ends_with(b"0\r\n\r\n"), "{}", String::from_utf8_lossy(&rest));
    running.shutdown(at_once()).wait().unwrap();
}

#[test]
fn a_reader_that_rests_stops_the_client() {
    let (go, rest) = channel::<()>();
    let (rest, started) = (Arc::new(Mutex::new(rest)), channel::<()>());
    let start = Mutex::new(started.0);
    let (address, running) = serve(Server::new(
        App::new().route(
            "/",
            Route::streaming(Method::Post, move |_, mut body, responder| {
                let rest = Arc::clone(&rest);
                start.lock().unwrap().send(()).unwrap();
                thread::spawn(move || {
                    rest.lock().unwrap().recv().unwrap();
                    let bytes = std::io::copy(&mut body, &mut std::io::sink()).unwrap();
                    responder.send(bytes.to_string());
                });
            })
            .max_body(u64::MAX),
        ),
    ));
    let mut client = Client::dial(address);
    client.0.get_ref().set_write_timeout(Some(Duration::from_millis(300))).unwrap();
    client.say("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100000000\r\n\r\n");
    started.1.recv_timeout(TIMEOUT).unwrap();
    let piece = vec![0; 1 << 20];
    let mut sent = 0;
    // As much as the window and the kernel's buffers can take, and not one byte more.
    while let Ok(count) = client.0.get_mut().write(&piece) {
        sent += count;
        assert!(sent < 90_000_000, "nothing has stopped the client");
    }
    client.0.get_ref().set_write_timeout(Some(TIMEOUT)).unwrap();
    go.send(()).unwrap();
    while sent < 100_000_000 {
        let rest = piece.len().min(100_000_000 - sent);
        sent += client.0.get_mut().write(&piece[..rest]).unwrap();
    }
    assert_eq!(client.hear().body, b"100000000");
    running.shutdown(at_once()).wait().unwrap();
}

#[test]
fn a_client_that_goes_away_is_an_error_to_the_reader_and_to_the_writer() {
    let (report, reported) = channel();
    let report = Mutex::new(report);
    let (address, running) = serve(Server::new(
        App::new().route(
            "/",
            Route::streaming(Method::Post, move |_, mut body, responder| {
                let report = report.lock().unwrap().clone();
                thread::spawn(move || {
                    let mut writer = responder.stream(Response::new(Status::OK), None);
                    let read = std::io::copy(&mut body, &mut std::io::sink()).map_err(|e| e.kind());
                    let written = std::iter::repeat_with(|| writer.write_all(&[0; 100_000]))
                        .find_map(Result::err)
                        .map(|error| error.kind());
                    report.send((read, written)).unwrap();
                });
            })
            .max_body(u64::MAX),
        ),
    ));
    let mut client = Client::dial(address);
    client.say("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\nhalf");
    drop(client);
    let (read, written) = reported.recv_timeout(TIMEOUT).unwrap();
    assert_eq!(read, Err(std::io::ErrorKind::UnexpectedEof));
    assert_eq!(written, Some(std::io::ErrorKind::BrokenPipe));
    running.shutdown(at_once()).wait().unwrap();
}

#[test]
fn a_writer_that_is_dropped_leaves_the_body_without_its_end() {
    let (address, running) = serve(Server::new(
        App::new().route(
            "/",
            Route::streaming(Method::Get, |_, _, responder| {
                thread::spawn(move || {
                    let mut writer = responder.stream(Response::new(Status::OK), None);
                    writer.write_all(b"half").unwrap();
                });
            })
            .max_body(0),
        ),
    ));
    let mut client = Client::dial(address);
    client.say(get("/"));
    let rest = client.rest();
    assert!(!rest.ends_with("0\r\n\r\n"), "{rest}");
    running.shutdown(at_once()).wait().unwrap();
}

#[test]
fn an_answer_before_the_end_of_the_body_ends_the_connection() {
    let (address, running) = serve(Server::new(
        App::new().route(
            "/",
            Route::streaming(Method::Post, |_, _, responder| {
                responder.send((403, "no"));
            })
            .max_body(u64::MAX),
        ),
    ));
    let mut client = Client::dial(address);
    client.say("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\nhalf");
    let no = client.hear();
    assert!(no.head.starts_with("HTTP/1.1 403 ") && no.head.contains("Connection: close"));
    client.ends();
    running.shutdown(at_once()).wait().unwrap();
}

/// A body of numbers that come from elsewhere.
struct Numbers {
    waker: Option<Waker>,
    /// Where the waker goes when there is no number.
    waits: Sender<Waker>,
    numbers: Arc<Mutex<Vec<u8>>>,
}

impl StreamSource for Numbers {
    fn pull(&mut self, _: usize, out: &mut Vec<u8>) -> std::io::Result<SourcePull> {
        out.append(&mut self.numbers.lock().unwrap());
        if out.ends_with(b"!") {
            return Ok(SourcePull::End);
        }
        match &self.waker {
            Some(waker) if out.is_empty() => self.waits.send(waker.clone()).unwrap(),
            _ if out.is_empty() => {}
            _ => return Ok(SourcePull::More),
        }
        Ok(SourcePull::Wait)
    }

    fn set_waker(&mut self, waker: Waker) {
        // The second request is for a source that drops it.
        self.waker = self.numbers.lock().unwrap().is_empty().then_some(waker);
    }
}

#[test]
fn a_source_that_waits_is_pulled_again_when_it_wakes_the_connection() {
    for io in EXTREMES {
        let (waits, waiting) = channel();
        let numbers = Arc::new(Mutex::new(Vec::new()));
        let (waits, its) = (Mutex::new(waits), Arc::clone(&numbers));
        let app = App::new().get("/", move |_: &Request<'_>| {
            let waits = waits.lock().unwrap().clone();
            let source = Numbers { waker: None, waits, numbers: Arc::clone(&its) };
            Response::new(Status::OK).with_stream(None, source)
        });
        let (address, running) = serve(Server::new(app).shards(Shards::new().io(io)));
        let mut client = Client::dial(address);
        client.say(get("/"));
        let first = waiting.recv_timeout(TIMEOUT).unwrap();
        // With nothing new, it just waits again.
        first.wake_by_ref();
        let second = waiting.recv_timeout(TIMEOUT).unwrap();
        for number in [&b"1"[..], b"2", b"3!"] {
            numbers.lock().unwrap().extend_from_slice(number);
            for _ in 0..100 {
                second.wake_by_ref();
            }
            if number != b"3!" {
                waiting.recv_timeout(TIMEOUT).unwrap();
            }
        }
        assert_eq!(client.hear().body, b"123!");
        // The connection has another request by now.
        first.wake();
        // Nothing could wake this one: its body has no end.
        numbers.lock().unwrap().extend_from_slice(b"4");
        client.say(get("/"));
        let rest = client.rest();
        assert!(rest.contains("4") && !rest.ends_with("0\r\n\r\n"), "{rest}");
        running.shutdown(at_once()).wait().unwrap();
    }
}

#[test]
fn a_panic_in_a_handler_that_answers_later_is_a_500() {
    let (address, running) = serve(Server::new(
        App::new().route("/", Route::deferred(Method::Get, |_, _| panic!("as the test wants"))),
    ));
    let mut client = Client::dial(address);
    client.say(get("/"));
    assert!(client.hear().head.starts_with("HTTP/1.1 500 "));
    client.ends();
    running.shutdown(at_once()).wait().unwrap();
}
