//! Every way a session ends.

use std::future::pending;
use std::net::Shutdown;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use futures_util::SinkExt;
use throng::asynchronous::{AsyncOptions, AsyncSender, AsyncSocket, CloseReason, SessionClosed};
use throng::prelude::*;
use throng_proto::ws::Opcode;
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;

use super::{close, counter, families, is, runtime, serve};
use crate::support::served::{self, start, stop};
use crate::support::{Alive, Client, Got, TIMEOUT, eventually};

async fn panic_unless_well(message: &[u8]) {
    if message == b"later" {
        tokio::task::yield_now().await;
    }
    assert!(message == b"well", "asked to burst");
}

#[test]
fn a_panic_closes_its_session_with_1011_and_is_counted() {
    let runtime = runtime();
    for server in families() {
        let each = Ws::new()
            .on_message_async(runtime.handle().clone(), |session, message| {
                assert!(message.as_bytes() != b"at once", "asked to burst");
                async move {
                    panic_unless_well(message.as_bytes()).await;
                    session.send(message).await
                }
            })
            .async_options(AsyncOptions::new().credits(8));
        let whole = Ws::new().on_session_async(runtime.handle().clone(), |mut socket| async move {
            while let Some(message) = socket.next().await {
                panic_unless_well(message.as_bytes()).await;
                socket.send(message).await?;
            }
            Ok(())
        });
        let given = Ws::new().on_session_async(runtime.handle().clone(), |mut socket| async move {
            tokio::spawn(async move {
                while let Some(message) = socket.next().await {
                    panic_unless_well(message.as_bytes()).await;
                    let _ = socket.send(message).await;
                }
            });
        });
        let server =
            server(served::app().ws("/each", each).ws("/whole", whole).ws("/given", given));
        let (address, running) = start(server);
        let mut panics = 0;
        for path in ["/each", "/whole", "/given"] {
            let mut other = Client::connect(address, path);
            for last in ["now", "later", "at once"] {
                let mut client = Client::connect(address, path);
                client.send_text("well");
                assert_eq!(client.next(), Got::Text("well".into()));
                client.send_text(last);
                // None of these messages is processed.
                client.send_text("well");
                client.send_text("well");
                assert!(matches!(client.next(), Got::Close(1011, _)), "{path} {last}");
                panics += 1;
            }
            other.send_text("well");
            assert_eq!(other.next(), Got::Text("well".into()));
        }
        eventually("panics are counted", || running.stats().handler_panics == panics);
        stop(running);
    }
}

#[test]
fn when_the_client_vanishes_its_futures_learn_of_it() {
    let runtime = runtime();
    for server in families() {
        let (alive, reasons) = (counter(), Arc::new(Mutex::new(Vec::new())));
        let (working, recorded) = (Arc::clone(&alive), Arc::clone(&reasons));
        let each = Ws::new()
            .on_message_async(runtime.handle().clone(), move |session, message| {
                let alive = Alive::new(&working);
                async move {
                    let _alive = alive;
                    session.send(message).await?;
                    pending::<Result<(), SessionClosed>>().await
                }
            })
            .async_options(AsyncOptions::new().credits(8));
        let whole = Ws::new().on_session_async(runtime.handle().clone(), move |mut socket| {
            let recorded = Arc::clone(&recorded);
            async move {
                while let Some(message) = socket.next().await {
                    assert_eq!(socket.close_reason(), None);
                    socket.send(message).await?;
                }
                assert!(socket.send("too late").await.is_err());
                recorded.lock().unwrap().extend(socket.close_reason());
                Ok(())
            }
        });
        let (address, running) = start(server(served::app().ws("/each", each).ws("/whole", whole)));
        for path in ["/each", "/whole"] {
            let mut client = Client::connect(address, path);
            client.send_text("here");
            assert_eq!(client.next(), Got::Text("here".into()));
            if path == "/each" {
                assert!(is(&alive, 1));
            }
            client.stream.shutdown(Shutdown::Both).unwrap();
        }
        eventually("the future of a message is dropped", || is(&alive, 0));
        eventually("the stream has ended", || reasons.lock().unwrap().len() == 1);
        let reasons = reasons.lock().unwrap();
        assert_eq!((reasons[0].code.get(), reasons[0].reason.as_str()), (1006, ""));
        stop(running);
    }
}

/// An error of a program.
struct NotAllowed(&'static str);

impl From<NotAllowed> for CloseReason {
    fn from(NotAllowed(action): NotAllowed) -> Self {
        Self::new(CloseCode::new(4003), format!("{action} is not allowed"))
    }
}

async fn right_to(action: &[u8]) -> Result<(), NotAllowed> {
    tokio::task::yield_now().await;
    (action != b"write").then_some(()).ok_or(NotAllowed("write"))
}

#[test]
fn an_error_of_the_program_closes_its_session_with_the_code_of_the_error() {
    let runtime = runtime();
    for server in families() {
        let each = Ws::new()
            .on_message_async(runtime.handle().clone(), |session, message| async move {
                session.send("asked").await?;
                right_to(message.as_bytes()).await?;
                session.send("done").await
            })
            .async_options(AsyncOptions::new().credits(8));
        let whole = Ws::new().on_session_async(runtime.handle().clone(), |mut socket| async move {
            while let Some(message) = socket.next().await {
                socket.send("asked").await?;
                right_to(message.as_bytes()).await?;
                socket.send("done").await?;
            }
            Ok(())
        });
        let kept = Ws::new().on_session_async(runtime.handle().clone(), |mut socket| async move {
            let message = socket.next().await;
            let sender = socket.sender().clone();
            // The error wins over a socket that was dropped in the same poll.
            drop(socket);
            match message {
                Some(_) => Err(NotAllowed("write"))?,
                None => sender.send("never").await,
            }
        });
        let app = served::app().ws("/each", each).ws("/whole", whole).ws("/kept", kept);
        let (address, running) = start(server(app));
        for path in ["/each", "/whole", "/kept"] {
            let mut client = Client::connect(address, path);
            if path != "/kept" {
                client.send_text("read");
                assert_eq!(client.next(), Got::Text("asked".into()));
                assert_eq!(client.next(), Got::Text("done".into()));
                client.send_text("write");
                assert_eq!(client.next(), Got::Text("asked".into()));
            } else {
                client.send_text("write");
            }
            assert_eq!(client.next(), Got::Close(4003, "write is not allowed".into()), "{path}");
        }
        stop(running);
    }
}

#[test]
fn each_way_to_close_says_so() {
    let runtime = runtime();
    let (reasons, reported) = mpsc::channel();
    let ways = Ws::from_request(|request| Ok(request.param("way").unwrap_or_default().to_owned()))
        .on_session_async(runtime.handle().clone(), move |mut socket: AsyncSocket<String>| {
            let reasons = reasons.clone();
            async move {
                let ended = socket.closed();
                for i in 0..100 {
                    socket.send(i.to_string()).await?;
                }
                match &*socket.data().clone() {
                    "code" => {
                        socket.close(CloseCode::new(4000), "bye");
                        socket.close(CloseCode::new(4001), "the first counts");
                        assert!(socket.send("too late").await.is_err());
                        assert_eq!(socket.next().await, None);
                    }
                    "sink" => SinkExt::<&str>::close(&mut socket).await?,
                    "given" => {
                        // The owner of the socket keeps the session open.
                        tokio::spawn(async move {
                            let message = socket.next().await.unwrap();
                            socket.send(message).await.unwrap();
                        });
                    }
                    "client" => assert_eq!(socket.next().await, None),
                    "session" => {
                        let session = socket.sender().clone();
                        session.close(CloseCode::new(4002), "");
                        while socket.next().await.is_some() {}
                    }
                    _ => drop(socket),
                }
                reasons.send(ended.await).unwrap();
                Ok(())
            }
        });
    let (address, running) = start(Server::new(served::app().ws("/{way}", ways)).shards(1));
    let expected = [
        ("end", 1000, ""),
        ("code", 4000, "bye"),
        ("sink", 1000, ""),
        ("given", 1000, ""),
        ("session", 4002, ""),
        ("client", 3001, "enough"),
    ];
    for (way, code, reason) in expected {
        let mut client = Client::connect(address, &format!("/{way}"));
        for i in 0..100 {
            assert_eq!(client.next(), Got::Text(i.to_string()), "{way}");
        }
        match way {
            "given" => {
                client.send_text("still here");
                assert_eq!(client.next(), Got::Text("still here".into()));
            }
            "client" => {
                client.send(Opcode::Close, &[&3001u16.to_be_bytes(), &b"enough"[..]].concat())
            }
            _ => {}
        }
        let echoed = if way == "client" { "" } else { reason };
        assert_eq!(client.next(), Got::Close(code, echoed.to_owned()), "{way}");
        client.send(Opcode::Close, &code.to_be_bytes());
        let got = reported.recv_timeout(TIMEOUT).unwrap();
        // The reason is the peer's, if any.
        let reason = if way == "client" { reason } else { "" };
        assert_eq!((got.code.get(), got.reason.as_str()), (code, reason), "{way}");
    }
    stop(running);
}

#[test]
fn messages_before_a_close_are_processed_with_finish_after_close() {
    let runtime = runtime();
    let (cancelled, finished, alive) = (counter(), counter(), counter());
    let handler = |done: &Arc<AtomicUsize>| {
        let (done, alive) = (Arc::clone(done), Arc::clone(&alive));
        move |session: AsyncSender, _| {
            let (done, alive) = (Arc::clone(&done), Alive::new(&alive));
            async move {
                let _alive = alive;
                session.closed().await;
                // Cancelled here at the latest: the end may come while the future is polled.
                tokio::task::yield_now().await;
                done.fetch_add(1, Ordering::SeqCst);
            }
        }
    };
    let forgets = Ws::new().on_message_async(runtime.handle().clone(), handler(&cancelled));
    let finishes = Ws::new()
        .on_message_async(runtime.handle().clone(), handler(&finished))
        .async_options(AsyncOptions::new().finish_after_close());
    let app = served::app().ws("/forgets", forgets).ws("/finishes", finishes);
    let (address, running) = start(Server::new(app).shards(1));
    for path in ["/forgets", "/finishes"] {
        let mut client = Client::connect(address, path);
        for _ in 0..5 {
            client.send_text("note this");
        }
        close(client);
    }
    eventually("all is dealt with", || is(&finished, 5) && is(&alive, 0));
    assert!(is(&cancelled, 0), "{cancelled:?}");
    stop(running);
}

#[test]
fn without_its_runtime_a_session_is_closed_with_1001() {
    let (stays, goes) = (runtime(), runtime());
    let echo = |runtime: &Runtime| {
        Ws::new().on_session_async(runtime.handle().clone(), |mut socket: AsyncSocket| async move {
            while let Some(message) = socket.next().await {
                socket.send(message).await?;
            }
            Ok(())
        })
    };
    let each = Ws::new()
        .on_message_async(goes.handle().clone(), |session, message| async move {
            session.send(message).await?;
            pending::<Result<(), SessionClosed>>().await
        })
        .async_options(AsyncOptions::new().credits(1));
    let app = served::app().ws("/stays", echo(&stays)).ws("/goes", echo(&goes)).ws("/each", each);
    let (address, running) = start(Server::new(app).shards(1));
    let mut clients = ["/stays", "/goes", "/each"].map(|path| Client::connect(address, path));
    for client in &mut clients {
        client.send_text("hello");
        assert_eq!(client.next(), Got::Text("hello".into()));
    }
    let mut late = Client::connect(address, "/each");
    goes.shutdown_background();
    let [mut stays, mut whole, mut each] = clients;
    late.send_text("hello");
    for client in [&mut whole, &mut each, &mut late, &mut Client::connect(address, "/goes")] {
        assert_eq!(client.next(), Got::Close(1001, "going away".into()));
    }
    stays.send_text("hello");
    assert_eq!(stays.next(), Got::Text("hello".into()));
    stop(running);
}

/// Messages received while the handler is busy wait, and come before the end of the stream.
#[test]
fn messages_before_a_close_come_before_the_end_of_the_stream() {
    let runtime = runtime();
    let (open, is_open) = (Arc::new(Semaphore::new(0)), counter());
    let (gate, done) = (Arc::clone(&open), Arc::clone(&is_open));
    let waits =
        Ws::new().on_session_async(runtime.handle().clone(), move |mut socket: AsyncSocket| {
            let (gate, done) = (Arc::clone(&gate), Arc::clone(&done));
            async move {
                // Closed: all tasks continue.
                gate.acquire().await.unwrap_err();
                assert!(socket.close_reason().is_some());
                let mut count = 0;
                while socket.next().await.is_some() {
                    count += 1;
                }
                done.store(count, Ordering::SeqCst);
            }
        });
    let (address, running) = serve(waits);
    let mut client = Client::connect(address, "/");
    for _ in 0..10 {
        client.send_text("one");
    }
    close(client);
    open.close();
    eventually("all ten came", || is(&is_open, 10));
    stop(running);
}
