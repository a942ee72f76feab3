//! Futures of a server that drains.

use std::future::pending;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use throng::asynchronous::{AsyncOptions, AsyncSocket, SessionClosed};
use throng::prelude::*;
use throng_proto::ws::Opcode;
use tokio::sync::Semaphore;

use super::{counter, families, is, runtime, serve};
use crate::support::served::{self, start, stop};
use crate::support::{Alive, Client, Got, TIMEOUT, eventually};

#[test]
fn a_drain_closes_with_1001_and_ends_all_futures() {
    let runtime = runtime();
    for server in families() {
        let alive = counter();
        let (first, second, third) = (Arc::clone(&alive), Arc::clone(&alive), Arc::clone(&alive));
        let each = Ws::new()
            .on_message_async(runtime.handle().clone(), move |session, message| {
                let alive = Alive::new(&first);
                async move {
                    let _alive = alive;
                    session.send(message).await?;
                    pending::<Result<(), SessionClosed>>().await
                }
            })
            .async_options(AsyncOptions::new().credits(2));
        let whole =
            Ws::new().on_session_async(runtime.handle().clone(), move |mut socket: AsyncSocket| {
                let alive = Alive::new(&second);
                async move {
                    let _alive = alive;
                    while let Some(message) = socket.next().await {
                        socket.send(message).await?;
                    }
                    assert_eq!(socket.close_reason().unwrap().code, 1001);
                    Ok(())
                }
            });
        // Takes no further message, and only waits for the end.
        let silent =
            Ws::new().on_session_async(runtime.handle().clone(), move |mut socket: AsyncSocket| {
                let alive = Alive::new(&third);
                async move {
                    let _alive = alive;
                    if let Some(message) = socket.next().await {
                        socket.send(message).await?;
                    }
                    assert_eq!(socket.closed().await.code, 1001);
                    Ok(())
                }
            });
        let silent = silent.async_options(AsyncOptions::new().credits(1));
        let server =
            server(served::app().ws("/each", each).ws("/whole", whole).ws("/silent", silent));
        let (address, running) = start(server);
        let mut clients: Vec<_> = (0..12)
            .map(|i| Client::connect(address, ["/each", "/whole", "/silent"][i % 3]))
            .collect();
        for client in &mut clients {
            client.send_text("hello");
            assert_eq!(client.next(), Got::Text("hello".into()));
            client.send_text("no answer");
            client.send_text("no answer");
        }
        assert!(is(&alive, 12));
        running.stopper().shutdown(DrainPlan::default().window(Duration::ZERO));
        for mut client in clients {
            loop {
                match client.next() {
                    Got::Close(code, _) => {
                        assert_eq!(code, 1001);
                        client.send(Opcode::Close, &code.to_be_bytes());
                        break;
                    }
                    Got::Text(_) => {}
                    other => panic!("{other:?}"),
                }
            }
        }
        assert_eq!(running.wait().unwrap().forced, 0);
        eventually("no future is left", || is(&alive, 0));
    }
}

#[test]
fn messages_that_futures_have_begun_are_answered_before_a_drain_closes_their_session() {
    let runtime = runtime();
    for server in families() {
        let (gate, begun) = (Arc::new(Semaphore::new(0)), counter());
        let (opens, begins) = (Arc::clone(&gate), Arc::clone(&begun));
        let each = Ws::new()
            .on_message_async(runtime.handle().clone(), move |session, message| {
                let gate = Arc::clone(&gate);
                begins.fetch_add(1, Ordering::SeqCst);
                async move {
                    // Closed: all tasks continue.
                    gate.acquire().await.unwrap_err();
                    session.send(message).await
                }
            })
            .async_options(AsyncOptions::new().credits(4));
        let (address, running) = start(server(served::app().ws("/", each)));
        let mut client = Client::connect(address, "/");
        client.send_text("first");
        eventually("it has begun", || is(&begun, 1));
        running.stopper().shutdown(DrainPlan::default().window(Duration::ZERO));
        opens.close();
        assert_eq!(client.next(), Got::Text("first".into()));
        assert_eq!(client.next(), Got::Close(1001, "going away".into()));
        client.send(Opcode::Close, &1001u16.to_be_bytes());
        assert_eq!(running.wait().unwrap().forced, 0);
    }
}

#[test]
fn the_future_of_a_session_that_waits_for_the_shutdown_closes_it_itself() {
    let runtime = runtime();
    for server in families() {
        let session = Ws::new().on_session_async(
            runtime.handle().clone(),
            |mut socket: AsyncSocket| async move {
                let mut shutdown = socket.sender().shutting_down();
                socket.send("in").await?;
                tokio::select! {
                    message = socket.next() => panic!("{message:?}"),
                    ended = &mut shutdown => ended?,
                }
                socket.send("last words").await?;
                socket.sender().close(CloseCode::new(4000), "moved");
                Ok(())
            },
        );
        let (address, running) = start(server(served::app().ws("/", session)));
        let mut client = Client::connect(address, "/");
        assert_eq!(client.next(), Got::Text("in".into()));
        running.stopper().shutdown(DrainPlan::default().window(Duration::ZERO));
        assert_eq!(client.next(), Got::Text("last words".into()));
        assert_eq!(client.next(), Got::Close(4000, "moved".into()));
        client.send(Opcode::Close, &4000u16.to_be_bytes());
        assert_eq!(running.wait().unwrap().forced, 0);
    }
}

#[test]
fn a_session_that_ends_is_no_shutdown() {
    let runtime = runtime();
    let (report, reported) = mpsc::channel();
    let session = Ws::new().on_session_async(runtime.handle().clone(), {
        move |mut socket: AsyncSocket| {
            let report = report.clone();
            async move {
                let mut shutdown = socket.sender().shutting_down();
                assert!(socket.next().await.is_none());
                // Polled again after it has completed: it returns the same result each time.
                let ended = [(&mut shutdown).await, (&mut shutdown).await];
                report.send(ended).unwrap();
                Ok(())
            }
        }
    });
    let (address, running) = serve(session);
    let mut client = Client::connect(address, "/");
    client.send(Opcode::Close, &1000u16.to_be_bytes());
    assert!(reported.recv_timeout(TIMEOUT).unwrap().iter().all(Result::is_err));
    stop(running);
}
