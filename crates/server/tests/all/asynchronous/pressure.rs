//! Handlers and clients that do not read.

use std::future::{pending, poll_fn};
use std::io::{ErrorKind, Write};
use std::net::Shutdown;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use throng::asynchronous::{AsyncOptions, AsyncSocket, SessionClosed};
use throng::prelude::*;
use throng_proto::ws::{self, Opcode};

use super::{close, counter, exchange_numbers, families, is, runtime, serve};
use crate::support::served::{self, dial_narrow, start, start_narrow, stop};
use crate::support::{Alive, Client, Got, eventually};

/// The bytes that a client can write to a handler that never reads a message are bounded: then it
/// waits in the kernel's buffers.
#[test]
fn a_handler_that_does_not_receive_stops_its_client() {
    let runtime = runtime();
    let both = ["/each", "/whole"]
        .into_iter()
        .flat_map(|path| families().into_iter().map(move |server| (path, server)));
    // A separate server each: figures are a moment old, and must not include messages of an earlier
    // client.
    for (path, server) in both {
        let sleeping = counter();
        let asleep = Arc::clone(&sleeping);
        let each = Ws::new()
            .on_message_async(runtime.handle().clone(), move |_, _| {
                let alive = Alive::new(&asleep);
                async move {
                    let _alive = alive;
                    pending::<()>().await;
                }
            })
            .async_options(AsyncOptions::new().credits(4));
        let whole = Ws::new().on_session_async(
            runtime.handle().clone(),
            |socket: AsyncSocket| async move {
                socket.closed().await;
            },
        );
        let (address, running) = start(server(served::app().ws("/each", each).ws("/whole", whole)));
        let mut client = Client::connect(address, path);
        client.stream.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
        let mut frame = Vec::new();
        ws::encode_masked(Opcode::Binary, &[0; 16 << 10], [1; 4], &mut frame);
        let mut written = 0;
        let error = loop {
            match client.stream.write(&frame[written % frame.len()..]) {
                Ok(n) => written += n,
                Err(error) => break error,
            }
            assert!(written < 64 << 20, "the client is never stopped");
        };
        assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut));
        // The server has taken its maximum, and the rest of one read.
        let mut taken = 0;
        eventually("messages are counted", || {
            taken = running.stats().messages_in;
            taken > 0
        });
        assert!(taken <= 64, "{taken} messages of 16 KiB were taken in");
        assert!(sleeping.load(Ordering::SeqCst) <= 1);
        // With data unread this is a reset.
        drop(client);
        stop(running);
        eventually("no future is left", || is(&sleeping, 0));
    }
}

/// A client that has used up the credits is not read, and its end comes after unread messages.
#[cfg(target_os = "linux")]
#[test]
fn a_client_that_goes_while_it_is_not_read_takes_its_futures_with_it() {
    let runtime = runtime();
    for server in families() {
        let alive = counter();
        let working = Arc::clone(&alive);
        let each = Ws::new().on_message_async(runtime.handle().clone(), move |_, _| {
            let alive = Alive::new(&working);
            async move {
                let _alive = alive;
                pending::<()>().await;
            }
        });
        let each = each.async_options(AsyncOptions::new().credits(4).concurrency(4));
        let (address, running) = start(server(served::app().ws("/", each)));
        let mut client = Client::connect(address, "/");
        let mut frames = Vec::new();
        (0..20).for_each(|_| ws::encode_masked(Opcode::Text, b"wait", [1; 4], &mut frames));
        client.stream.write_all(&frames).unwrap();
        eventually("the credits are used up", || is(&alive, 4));
        client.stream.shutdown(Shutdown::Write).unwrap();
        eventually("no future is left", || is(&alive, 0));
        stop(running);
    }
}

#[test]
fn halves_of_a_split_socket_work_in_tasks_of_their_own() {
    let runtime = runtime();
    let split =
        Ws::new().on_session_async(runtime.handle().clone(), |socket: AsyncSocket| async move {
            let (mut sink, mut stream) = socket.split();
            let (to_writer, from_reader) = mpsc::channel::<OwnedMessage>();
            let reader = tokio::spawn(async move {
                while let Some(message) = stream.next().await {
                    to_writer.send(message).unwrap();
                }
            });
            let writer = tokio::spawn(async move {
                loop {
                    match from_reader.try_recv() {
                        Ok(message) => sink.send(message).await?,
                        Err(mpsc::TryRecvError::Empty) => tokio::task::yield_now().await,
                        Err(mpsc::TryRecvError::Disconnected) => return Ok::<(), SessionClosed>(()),
                    }
                }
            });
            reader.await.unwrap();
            let _ = writer.await.unwrap();
        });
    let (address, running) = serve(split);
    let mut client = Client::connect(address, "/");
    exchange_numbers(&mut client, 2_000);
    close(client);
    stop(running);
}

const LARGE: usize = 4 << 10;

fn numbered(i: usize) -> Vec<u8> {
    let mut payload = vec![0; LARGE];
    payload[..8].copy_from_slice(&(i as u64).to_be_bytes());
    payload
}

/// Sends this many large messages. Records how many the sink accepted, and how often it had to
/// wait.
async fn flood(
    socket: &mut AsyncSocket,
    count: usize,
    given: &AtomicUsize,
    waits: &AtomicUsize,
) -> Result<(), SessionClosed> {
    for i in 0..count {
        let mut send = pin!(SinkExt::send(socket, numbered(i)));
        let mut waited = false;
        poll_fn(|cx| {
            let polled = send.as_mut().poll(cx);
            if polled.is_pending() && !std::mem::replace(&mut waited, true) {
                waits.fetch_add(1, Ordering::SeqCst);
            }
            polled
        })
        .await?;
        given.fetch_add(1, Ordering::SeqCst);
    }
    Ok(())
}

#[test]
fn a_slow_reader_has_the_sink_wait_and_loses_nothing() {
    const COUNT: usize = 1_200;
    let runtime = runtime();
    for server in families() {
        let (given, waits) = (counter(), counter());
        let (all, pauses) = (Arc::clone(&given), Arc::clone(&waits));
        let flooding =
            Ws::new().on_session_async(runtime.handle().clone(), move |mut socket: AsyncSocket| {
                let (given, waits) = (Arc::clone(&all), Arc::clone(&pauses));
                async move { flood(&mut socket, COUNT, &given, &waits).await }
            });
        let (address, running) = start_narrow(server(served::app().ws("/", flooding)));
        let stream = dial_narrow(address);
        let mut client = Client::upgrade(stream, "/", &[], &[]).unwrap();
        eventually("the sink waits", || waits.load(Ordering::SeqCst) > 0);
        for i in 0..COUNT {
            // The window, half of the backlog's limit, the kernel's narrow buffers, and a message
            // in each.
            let ahead = given.load(Ordering::SeqCst).saturating_sub(i);
            assert!(ahead * LARGE < 2 << 20, "{ahead} messages were taken in before {i}");
            assert!(client.next() == Got::Binary(numbered(i)), "message {i}");
        }
        assert_eq!(client.next(), Got::Close(1000, String::new()));
        assert!(is(&given, COUNT));
        eventually("no client was too slow", || running.stats().sessions == 0);
        assert_eq!((running.stats().slow_consumers, running.stats().messages_dropped), (0, 0));
        stop(running);
    }
}

/// If a peer does not read but keeps sending requests, its requests wait, even if their effects
/// need no room.
#[test]
fn a_client_that_does_not_read_is_not_processed() {
    const FRAMES: usize = 64;
    const QUESTIONS: usize = 3_000;
    const OTHERS: usize = 1_000;
    let runtime = runtime();
    for server in families() {
        let (sent, dealt) = (counter(), counter());
        let (frames, questions) = (Arc::clone(&sent), Arc::clone(&dealt));
        let handler = Ws::new()
            .on_message_async(runtime.handle().clone(), move |session, message| {
                let (frames, questions) = (Arc::clone(&frames), Arc::clone(&questions));
                async move {
                    match message.as_bytes() {
                        b"fill" => drop(tokio::spawn(async move {
                            for _ in 0..FRAMES {
                                session.send(vec![7; 64 << 10]).await.unwrap();
                                frames.fetch_add(1, Ordering::SeqCst);
                            }
                        })),
                        b"another" => {
                            session.subscribe(&"x".repeat(100)).unwrap();
                            questions.fetch_add(1, Ordering::SeqCst);
                        }
                        _ => session.send(message).await.unwrap(),
                    }
                }
            })
            .async_options(AsyncOptions::new().credits(8));
        let (address, running) = start(server(served::app().ws("/", handler)));
        let mut client = Client::upgrade(dial_narrow(address), "/", &[], &[]).unwrap();
        client.send_text("fill");
        eventually("what it sends waits", || running.stats().backlogged == 1);
        let mut frame = Vec::new();
        ws::encode_masked(Opcode::Text, b"another", [1, 2, 3, 4], &mut frame);
        let mut stream = client.stream.try_clone().unwrap();
        let asking = thread::spawn(move || {
            (0..QUESTIONS).for_each(|_| stream.write_all(&frame).unwrap());
        });
        // Messages of other clients, one at a time, are processed in between.
        let mut other = Client::connect(address, "/");
        for _ in 0..OTHERS {
            other.send_text("mine");
            assert_eq!(other.next(), Got::Text("mine".into()));
        }
        // A few are processed each time the kernel's buffer grows and takes more of the frames;
        // without the wait all of them would be.
        let early = dealt.load(Ordering::SeqCst);
        assert!(
            early < QUESTIONS / 10 && sent.load(Ordering::SeqCst) < FRAMES,
            "{early} were dealt with"
        );
        for _ in 0..FRAMES {
            assert!(client.next() == Got::Binary(vec![7; 64 << 10]));
        }
        asking.join().unwrap();
        eventually("all are dealt with", || is(&dealt, QUESTIONS));
        stop(running);
    }
}

#[test]
fn a_sender_that_waits_for_a_client_that_disconnects_gets_an_error() {
    let runtime = runtime();
    let (waits, ended) = (counter(), counter());
    let (pauses, ends) = (Arc::clone(&waits), Arc::clone(&ended));
    let flooding =
        Ws::new().on_session_async(runtime.handle().clone(), move |mut socket: AsyncSocket| {
            let (waits, ends) = (Arc::clone(&pauses), Arc::clone(&ends));
            async move {
                let sent = flood(&mut socket, usize::MAX, &counter(), &waits).await;
                assert!(sent.is_err());
                ends.fetch_add(1, Ordering::SeqCst);
            }
        });
    let (address, running) = serve(flooding);
    let client = Client::upgrade(dial_narrow(address), "/", &[], &[]).unwrap();
    eventually("it waits", || waits.load(Ordering::SeqCst) > 0);
    drop(client);
    eventually("its end is reported", || is(&ended, 1));
    stop(running);
}
