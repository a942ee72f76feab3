//! Handlers that are futures: order, back-pressure, cancellation, and every way a session ends.

mod support;

use std::future::{pending, poll_fn};
use std::io::{ErrorKind, Write};
use std::net::{Shutdown, SocketAddr};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use futures_util::{FutureExt, SinkExt, StreamExt};
use support::served::{self, dial_narrow, start, stop};
use support::{Alive, Client, Got, TIMEOUT, eventually};
use throng::prelude::*;
use throng::{Closed, IntoWsRoute, IoBackend, Running};
use throng_proto::ws::{self, Opcode};
use throng_testkit::settled;
use tokio::runtime::{self, Runtime};

fn runtime() -> Runtime {
    runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap()
}

/// Both families of drivers; the first with two shards.
fn families() -> Vec<fn(App) -> Server> {
    vec![
        |app| Server::new(app).shards(2),
        #[cfg(unix)]
        |app| Server::new(app).io(IoBackend::Threads),
    ]
}

fn serve(handler: impl IntoWsRoute) -> (SocketAddr, Running) {
    start(Server::new(served::app().ws("/", handler)).shards(1))
}

fn counter() -> Arc<AtomicUsize> {
    Arc::default()
}

fn is(count: &AtomicUsize, expected: usize) -> bool {
    count.load(Ordering::SeqCst) == expected
}

/// Sends `count` numbered messages in one go from a thread of its own, and expects them back in
/// order.
fn exchange_numbers(client: &mut Client, count: usize) {
    let mut writer = client.stream.try_clone().unwrap();
    let sender = thread::spawn(move || {
        let mut frames = Vec::new();
        for i in 0..count {
            ws::encode_masked(Opcode::Text, i.to_string().as_bytes(), [7, 1, 2, 3], &mut frames);
        }
        writer.write_all(&frames).unwrap();
    });
    for i in 0..count {
        assert_eq!(client.next(), Got::Text(i.to_string()));
    }
    sender.join().unwrap();
}

fn say_goodbye(mut client: Client) {
    client.send(Opcode::Close, &1000u16.to_be_bytes());
    loop {
        match client.next() {
            Got::Close(code, _) => return assert_eq!(code, 1000),
            Got::End => panic!("no Close came"),
            _ => {}
        }
    }
}

#[test]
fn ten_thousand_pipelined_messages_are_answered_in_order_with_any_number_of_credits() {
    let runtime = runtime();
    for credits in [1, 2, 64] {
        for server in families() {
            let (at_work, most) = (counter(), counter());
            let (working, highest) = (Arc::clone(&at_work), Arc::clone(&most));
            let each = Ws::new().on_message_async(
                runtime.handle().clone(),
                credits,
                move |session, message| {
                    let (working, highest) = (Arc::clone(&working), Arc::clone(&highest));
                    async move {
                        let _alive = Alive::new(&working);
                        highest.fetch_max(working.load(Ordering::SeqCst), Ordering::SeqCst);
                        if message.as_bytes().ends_with(b"7") {
                            tokio::task::yield_now().await;
                        }
                        session.send(message).await
                    }
                },
            );
            let whole =
                Ws::new().on_session_async(runtime.handle().clone(), |mut socket| async move {
                    while let Some(message) = socket.next().await {
                        socket.send(message).await?;
                    }
                    Ok(())
                });
            let server =
                server(served::app().ws("/each", each).ws("/whole", whole.credits(credits)));
            let (address, running) = start(server);
            for path in ["/each", "/whole"] {
                let mut client = Client::connect(address, path);
                exchange_numbers(&mut client, 10_000);
                say_goodbye(client);
            }
            assert!(is(&most, 1), "two messages of one connection were at work at once");
            stop(running);
        }
    }
}

#[test]
fn as_many_as_asked_for_run_at_once_and_begin_in_order() {
    let runtime = runtime();
    let (at_work, begun) = (counter(), Arc::new(Mutex::new(Vec::new())));
    let (working, order) = (Arc::clone(&at_work), Arc::clone(&begun));
    let most = counter();
    let seen = Arc::clone(&most);
    let three = Ws::new().on_message_async(runtime.handle().clone(), 8, move |session, message| {
        order.lock().unwrap().push(message.as_bytes()[0]);
        let (working, seen) = (Arc::clone(&working), Arc::clone(&seen));
        async move {
            let alive = Alive::new(&working);
            // Only three at once get any further.
            while seen.fetch_max(working.load(Ordering::SeqCst), Ordering::SeqCst) < 3 {
                tokio::task::yield_now().await;
            }
            drop(alive);
            session.send(message).await
        }
    });
    let (address, running) = serve(three.concurrency(3));
    let mut client = Client::connect(address, "/");
    let said: Vec<u8> = (b'a'..=b'z').collect();
    for letter in &said {
        client.send(Opcode::Text, &[*letter]);
    }
    let mut answered: Vec<u8> = said
        .iter()
        .map(|_| match client.next() {
            Got::Text(text) => text.as_bytes()[0],
            other => panic!("{other:?}"),
        })
        .collect();
    answered.sort_unstable();
    assert_eq!(answered, said);
    assert!(is(&most, 3), "{most:?} at once");
    stop(running);
    assert_eq!(begun.lock().unwrap().len(), said.len());
}

/// The bytes a client can write to a handler that never takes a message are bounded: it waits in
/// the kernel's buffers.
#[test]
fn a_handler_that_does_not_receive_stops_its_client() {
    let runtime = runtime();
    let both = ["/each", "/whole"]
        .into_iter()
        .flat_map(|path| families().into_iter().map(move |server| (path, server)));
    // A server each: figures are a moment old, and messages of an earlier client are to be in none.
    for (path, server) in both {
        let sleeping = counter();
        let asleep = Arc::clone(&sleeping);
        let each = Ws::new().on_message_async(runtime.handle().clone(), 4, move |_, _| {
            let alive = Alive::new(&asleep);
            async move {
                let _alive = alive;
                pending::<()>().await;
            }
        });
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
        // Of which the server has taken in what it may, and what one read brought.
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

#[test]
fn whoever_stops_waiting_loses_no_message_and_sends_none_twice() {
    const MESSAGES: usize = 3_000;
    let runtime = runtime();
    for server in families() {
        let (cancelled_receives, cancelled_sends) = (counter(), counter());
        let (receives, sends) = (Arc::clone(&cancelled_receives), Arc::clone(&cancelled_sends));
        let storm = Ws::new().on_session_async(runtime.handle().clone(), move |mut socket| {
            let (receives, sends) = (Arc::clone(&receives), Arc::clone(&sends));
            async move {
                let mut round = 0u64;
                let mut wait = move || {
                    round += 1;
                    Duration::from_micros(round % 5 * 20)
                };
                loop {
                    // Polled once and dropped, then for a moment.
                    let mut received = socket.next().now_or_never();
                    if received.is_none() {
                        receives.fetch_add(1, Ordering::Relaxed);
                        received = tokio::select! {
                            message = socket.next() => Some(message),
                            () = tokio::time::sleep(wait()) => None,
                        };
                    }
                    let message = match received {
                        Some(Some(message)) => message,
                        Some(None) => return Ok(()),
                        None => continue,
                    };
                    let frame = Frame::from(message);
                    while socket.send(&frame).now_or_never().is_none() {
                        sends.fetch_add(1, Ordering::Relaxed);
                        let waited = tokio::time::timeout(wait(), socket.send(&frame));
                        if waited.await.is_ok() {
                            break;
                        }
                    }
                }
            }
        });
        // So narrow that nearly every send has to wait for the one before.
        let (address, running) =
            start(server(served::app().ws("/", storm.credits(3).send_window(1))));
        let mut client = Client::connect(address, "/");
        for _ in 0..3 {
            exchange_numbers(&mut client, MESSAGES);
        }
        // One by one, so that the receiver has to wait, too.
        for _ in 0..200 {
            exchange_numbers(&mut client, 1);
        }
        say_goodbye(client);
        assert!(cancelled_receives.load(Ordering::Relaxed) > 0);
        assert!(cancelled_sends.load(Ordering::Relaxed) > 0);
        stop(running);
    }
}

/// Echoes between many threads, where a lost wake-up would be a client that waits for ever.
#[test]
fn no_wake_up_is_lost_between_many_sessions() {
    let runtime = runtime();
    for server in families() {
        let echo = Ws::new().on_session_async(runtime.handle().clone(), |mut socket| async move {
            while let Some(message) = socket.next().await {
                socket.send(message).await?;
            }
            Ok(())
        });
        let each = Ws::new().on_message_async(
            runtime.handle().clone(),
            1,
            |session, message| async move { session.send(message).await },
        );
        let server =
            server(served::app().ws("/whole", echo.credits(1).send_window(1)).ws("/each", each));
        let (address, running) = start(server);
        let clients: Vec<_> = (0..8)
            .map(|i| {
                thread::spawn(move || {
                    let path = ["/whole", "/each"][i % 2];
                    let mut client = Client::connect(address, path);
                    for i in 0..500 {
                        client.send_text(&i.to_string());
                        assert_eq!(client.next(), Got::Text(i.to_string()));
                    }
                    exchange_numbers(&mut client, 500);
                })
            })
            .collect();
        clients.into_iter().for_each(|client| client.join().unwrap());
        stop(running);
    }
}

async fn burst_if_told(message: &[u8]) {
    if message == b"later" {
        tokio::task::yield_now().await;
    }
    assert!(message == b"well", "asked to burst");
}

#[test]
fn a_panic_closes_its_session_with_1011_and_is_counted() {
    let runtime = runtime();
    for server in families() {
        let each = Ws::new().on_message_async(runtime.handle().clone(), 8, |session, message| {
            assert!(message.as_bytes() != b"at once", "asked to burst");
            async move {
                burst_if_told(message.as_bytes()).await;
                session.send(message).await
            }
        });
        let whole = Ws::new().on_session_async(runtime.handle().clone(), |mut socket| async move {
            while let Some(message) = socket.next().await {
                burst_if_told(message.as_bytes()).await;
                socket.send(message).await?;
            }
            Ok(())
        });
        let given = Ws::new().on_session_async(runtime.handle().clone(), |mut socket| async move {
            tokio::spawn(async move {
                while let Some(message) = socket.next().await {
                    burst_if_told(message.as_bytes()).await;
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
                // None of these is dealt with.
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
        let each =
            Ws::new().on_message_async(runtime.handle().clone(), 8, move |session, message| {
                let alive = Alive::new(&working);
                async move {
                    let _alive = alive;
                    session.send(message).await?;
                    pending::<Result<(), Closed>>().await
                }
            });
        let whole = Ws::new().on_session_async(runtime.handle().clone(), move |mut socket| {
            let recorded = Arc::clone(&recorded);
            async move {
                while let Some(message) = socket.next().await {
                    assert_eq!(socket.close_reason(), None);
                    socket.send(message).await?;
                }
                assert_eq!(socket.send("too late").await, Err(Closed));
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

/// Whose messages have used up the credits is not read, and its end lies behind unread messages.
#[cfg(target_os = "linux")]
#[test]
fn a_client_that_goes_while_it_is_not_read_takes_its_futures_with_it() {
    let runtime = runtime();
    for server in families() {
        let alive = counter();
        let working = Arc::clone(&alive);
        let each = Ws::new().on_message_async(runtime.handle().clone(), 4, move |_, _| {
            let alive = Alive::new(&working);
            async move {
                let _alive = alive;
                pending::<()>().await;
            }
        });
        let (address, running) = start(server(served::app().ws("/", each.concurrency(4))));
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
                        Err(mpsc::TryRecvError::Disconnected) => return Ok::<(), Closed>(()),
                    }
                }
            });
            reader.await.unwrap();
            let _ = writer.await.unwrap();
        });
    let (address, running) = serve(split);
    let mut client = Client::connect(address, "/");
    exchange_numbers(&mut client, 2_000);
    say_goodbye(client);
    stop(running);
}

const LARGE: usize = 4 << 10;

fn numbered(i: usize) -> Vec<u8> {
    let mut payload = vec![0; LARGE];
    payload[..8].copy_from_slice(&(i as u64).to_be_bytes());
    payload
}

/// Sends so many large messages; notes how many were given to the sink, and how many times that had
/// to wait.
async fn flood(
    socket: &mut AsyncSocket,
    count: usize,
    given: &AtomicUsize,
    waits: &AtomicUsize,
) -> Result<(), Closed> {
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
        let (address, running) = start(server(served::app().ws("/", flooding)));
        let stream = dial_narrow(address);
        let mut client = Client::upgrade(stream, "/", &[], &[]).unwrap();
        let stuck = |least: usize| {
            eventually("the sink waits", || {
                waits.load(Ordering::SeqCst) > 0 && given.load(Ordering::SeqCst) > least
            });
            settled("it takes no more", || given.load(Ordering::SeqCst))
        };
        // The window, half of the backlog's limit, the kernel's narrow buffers, and a message in
        // each.
        let first = stuck(0);
        assert!(first * LARGE < 2 << 20, "{first} messages were taken in");
        for i in 0..500 {
            assert!(client.next() == Got::Binary(numbered(i)), "message {i}");
        }
        let second = stuck(first);
        assert!((second - 500) * LARGE < 2 << 20, "{second} messages were taken in");
        for i in 500..COUNT {
            assert!(client.next() == Got::Binary(numbered(i)), "message {i}");
        }
        assert_eq!(client.next(), Got::Close(1000, String::new()));
        assert!(is(&given, COUNT));
        eventually("no client was too slow", || running.stats().sessions == 0);
        assert_eq!((running.stats().slow_consumers, running.stats().messages_dropped), (0, 0));
        stop(running);
    }
}

/// A peer that takes nothing and goes on asking has its questions wait, though what they lead to
/// waits for no room.
#[test]
fn a_client_that_does_not_read_is_not_processed() {
    const FRAMES: usize = 64;
    const QUESTIONS: usize = 3_000;
    let runtime = runtime();
    for server in families() {
        let (sent, dealt) = (counter(), counter());
        let (frames, questions) = (Arc::clone(&sent), Arc::clone(&dealt));
        let handler =
            Ws::new().on_message_async(runtime.handle().clone(), 8, move |session, message| {
                let (frames, questions) = (Arc::clone(&frames), Arc::clone(&questions));
                async move {
                    if message.as_bytes() == b"fill" {
                        drop(tokio::spawn(async move {
                            for _ in 0..FRAMES {
                                session.send(vec![7; 64 << 10]).await.unwrap();
                                frames.fetch_add(1, Ordering::SeqCst);
                            }
                        }));
                        return;
                    }
                    session.subscribe(&"x".repeat(100)).unwrap();
                    questions.fetch_add(1, Ordering::SeqCst);
                }
            });
        let (address, running) = start(server(served::app().ws("/", handler)));
        let mut client = Client::upgrade(dial_narrow(address), "/", &[], &[]).unwrap();
        client.send_text("fill");
        eventually("it sends", || sent.load(Ordering::SeqCst) > 0);
        settled("the sender waits", || sent.load(Ordering::SeqCst));
        let mut frame = Vec::new();
        ws::encode_masked(Opcode::Text, b"another", [1, 2, 3, 4], &mut frame);
        let mut stream = client.stream.try_clone().unwrap();
        let asking = thread::spawn(move || {
            (0..QUESTIONS).for_each(|_| stream.write_all(&frame).unwrap());
        });
        // All of them are dealt with, if any are.
        let early = settled("questions wait", || dealt.load(Ordering::SeqCst));
        assert!(early < 10 && sent.load(Ordering::SeqCst) < FRAMES, "{early} were dealt with");
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
                assert_eq!(sent, Err(Closed));
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

#[test]
fn a_drain_closes_with_1001_and_ends_all_futures() {
    let runtime = runtime();
    for server in families() {
        let alive = counter();
        let (first, second, third) = (Arc::clone(&alive), Arc::clone(&alive), Arc::clone(&alive));
        let each =
            Ws::new().on_message_async(runtime.handle().clone(), 2, move |session, message| {
                let alive = Alive::new(&first);
                async move {
                    let _alive = alive;
                    session.send(message).await?;
                    pending::<Result<(), Closed>>().await
                }
            });
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
        // Takes no further message, and waits for the end alone.
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
        let server = server(
            served::app().ws("/each", each).ws("/whole", whole).ws("/silent", silent.credits(1)),
        );
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
        running.begin_drain(DrainPlan::default().window(Duration::ZERO));
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
        assert_eq!(running.join().unwrap().forced, 0);
        eventually("no future is left", || is(&alive, 0));
    }
}

#[test]
fn each_way_to_close_says_so() {
    let runtime = runtime();
    let (reasons, reported) = mpsc::channel();
    let ways = Ws::on_upgrade(|request| Ok(request.param("way").unwrap_or_default().to_owned()))
        .on_session_async(runtime.handle().clone(), move |mut socket: AsyncSocket<String>| {
            let reasons = reasons.clone();
            async move {
                let ended = socket.closed();
                for i in 0..100 {
                    socket.send(i.to_string()).await?;
                }
                match &*socket.data().clone() {
                    "code" => {
                        socket.close(4000, "bye");
                        socket.close(4001, "the first counts");
                        assert_eq!(socket.send("too late").await, Err(Closed));
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
                        let session = socket.session().clone();
                        session.close(4002, "");
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
        move |session: AsyncSession, _| {
            let (done, alive) = (Arc::clone(&done), Alive::new(&alive));
            async move {
                let _alive = alive;
                session.closed().await;
                done.fetch_add(1, Ordering::SeqCst);
                // Cancelled here at the latest.
                tokio::task::yield_now().await;
                done.fetch_add(1, Ordering::SeqCst);
            }
        }
    };
    let forgets = Ws::new().on_message_async(runtime.handle().clone(), 64, handler(&cancelled));
    let finishes = Ws::new().on_message_async(runtime.handle().clone(), 64, handler(&finished));
    let app = served::app().ws("/forgets", forgets).ws("/finishes", finishes.finish_after_close());
    let (address, running) = start(Server::new(app).shards(1));
    for path in ["/forgets", "/finishes"] {
        let mut client = Client::connect(address, path);
        for _ in 0..5 {
            client.send_text("note this");
        }
        say_goodbye(client);
    }
    eventually("all is dealt with", || is(&finished, 10) && is(&alive, 0));
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
    let each =
        Ws::new().on_message_async(goes.handle().clone(), 1, |session, message| async move {
            session.send(message).await?;
            pending::<Result<(), Closed>>().await
        });
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

#[test]
fn sessions_join_channels_and_publish_to_the_others_in_order() {
    let runtime = runtime();
    for server in families() {
        let room = Ws::on_upgrade(|_| Ok(()))
            .on_open(|ws| {
                let joined =
                    ws.offload(|| "hall", |ws, hall| ws.subscribe(hall).then_some(()).unwrap());
                joined.unwrap();
            })
            .on_session_async(runtime.handle().clone(), |mut socket: AsyncSocket| async move {
                socket.session().subscribe("room")?;
                socket.send("in").await?;
                while let Some(message) = socket.next().await {
                    match message.as_bytes() {
                        b"leave" => socket.session().unsubscribe("room")?,
                        // Before the shard has heard of it.
                        own if own.starts_with(b"own") => {
                            let (session, own) = (socket.session(), str::from_utf8(own).unwrap());
                            session.subscribe(own)?;
                            session.hub().publish(own, "from the hub").unwrap();
                        }
                        _ => socket.session().publish_to_others("room", &message).await?,
                    }
                    socket.send("done").await?;
                }
                Ok(())
            });
        let (address, running) = start(server(served::app().ws("/", room)));
        let [mut ada, mut bob] = [(); 2].map(|()| {
            let mut client = Client::connect(address, "/");
            assert_eq!(client.next(), Got::Text("in".into()));
            client
        });
        let text = |text: &str| Got::Text(text.to_owned());
        ada.send_text("hello");
        assert_eq!(ada.next(), text("done"), "not its own");
        assert_eq!(bob.next(), text("hello"));
        bob.send_text("leave");
        assert_eq!(bob.next(), text("done"));
        ada.send_text("anybody?");
        assert_eq!(ada.next(), text("done"));
        for n in 0..100 {
            ada.send_text(&format!("own {n}"));
            // Which is first is not said.
            let got = [ada.next(), ada.next()];
            assert!(got.contains(&text("from the hub")) && got.contains(&text("done")), "{got:?}");
        }
        eventually("both are in the hall", || running.hub().subscribers("hall") == 2);
        running.hub().publish("hall", "all").unwrap();
        assert_eq!([ada.next(), bob.next()], [text("all"), text("all")]);
        stop(running);
    }
}

/// Messages received while the handler is busy wait, and comes before the end of the stream.
#[test]
fn messages_before_a_close_come_before_the_end_of_the_stream() {
    let runtime = runtime();
    let (open, is_open) = (Arc::new(AtomicBool::new(false)), counter());
    let (gate, done) = (Arc::clone(&open), Arc::clone(&is_open));
    let waits =
        Ws::new().on_session_async(runtime.handle().clone(), move |mut socket: AsyncSocket| {
            let (gate, done) = (Arc::clone(&gate), Arc::clone(&done));
            async move {
                while !gate.load(Ordering::SeqCst) {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
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
    say_goodbye(client);
    open.store(true, Ordering::SeqCst);
    eventually("all ten came", || is(&is_open, 10));
    stop(running);
}

#[test]
fn no_credits_are_refused() {
    let runtime = runtime();
    let handler = Ws::new().on_message_async(runtime.handle().clone(), 0, |_, _| async {});
    let error = Server::new(App::new().ws("/", handler)).check().unwrap_err();
    assert!(error.to_string().contains("credits is 0"), "{error}");
}

/// The poll of one who does not know whether there is anything.
#[test]
fn a_stream_that_is_polled_once_in_a_while_misses_nothing() {
    let runtime = runtime();
    let polls = Ws::new().on_session_async(
        runtime.handle().clone(),
        |mut socket: AsyncSocket| async move {
            loop {
                let next = poll_fn(|cx| Poll::Ready(socket.poll_next_unpin(cx))).await;
                match next {
                    Poll::Ready(Some(message)) => socket.send(message).await?,
                    Poll::Ready(None) => return Ok(()),
                    Poll::Pending => tokio::task::yield_now().await,
                }
            }
        },
    );
    let (address, running) = serve(polls.credits(2));
    let mut client = Client::connect(address, "/");
    exchange_numbers(&mut client, 2_000);
    say_goodbye(client);
    stop(running);
}

#[test]
fn messages_that_futures_have_begun_are_answered_before_a_drain_closes_their_session() {
    let runtime = runtime();
    for server in families() {
        let (gate, begun) = (Arc::new(AtomicBool::new(false)), counter());
        let (opens, begins) = (Arc::clone(&gate), Arc::clone(&begun));
        let each =
            Ws::new().on_message_async(runtime.handle().clone(), 4, move |session, message| {
                let gate = Arc::clone(&gate);
                begins.fetch_add(1, Ordering::SeqCst);
                async move {
                    while !gate.load(Ordering::SeqCst) {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                    session.send(message).await
                }
            });
        let (address, running) = start(server(served::app().ws("/", each)));
        let mut client = Client::connect(address, "/");
        client.send_text("first");
        eventually("it has begun", || is(&begun, 1));
        running.begin_drain(DrainPlan::default().window(Duration::ZERO));
        opens.store(true, Ordering::SeqCst);
        assert_eq!(client.next(), Got::Text("first".into()));
        assert_eq!(client.next(), Got::Close(1001, "going away".into()));
        client.send(Opcode::Close, &1001u16.to_be_bytes());
        assert_eq!(running.join().unwrap().forced, 0);
    }
}

#[test]
fn the_future_of_a_session_that_waits_for_the_shutdown_closes_it_itself() {
    let runtime = runtime();
    for server in families() {
        let session = Ws::new().on_session_async(
            runtime.handle().clone(),
            |mut socket: AsyncSocket| async move {
                let mut shutdown = socket.session().shutting_down();
                socket.send("in").await?;
                tokio::select! {
                    message = socket.next() => panic!("{message:?}"),
                    ended = &mut shutdown => ended?,
                }
                socket.send("last words").await?;
                socket.session().close(4000, "moved");
                Ok(())
            },
        );
        let (address, running) = start(server(served::app().ws("/", session)));
        let mut client = Client::connect(address, "/");
        assert_eq!(client.next(), Got::Text("in".into()));
        running.begin_drain(DrainPlan::default().window(Duration::ZERO));
        assert_eq!(client.next(), Got::Text("last words".into()));
        assert_eq!(client.next(), Got::Close(4000, "moved".into()));
        client.send(Opcode::Close, &4000u16.to_be_bytes());
        assert_eq!(running.join().unwrap().forced, 0);
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
                let mut shutdown = socket.session().shutting_down();
                assert!(socket.next().await.is_none());
                // Again, since a future that was polled to its end says so each time.
                let ended = [(&mut shutdown).await, (&mut shutdown).await];
                report.send(ended).unwrap();
                Ok(())
            }
        }
    });
    let (address, running) = serve(session);
    let mut client = Client::connect(address, "/");
    client.send(Opcode::Close, &1000u16.to_be_bytes());
    assert_eq!(reported.recv_timeout(TIMEOUT).unwrap(), [Err(Closed); 2]);
    stop(running);
}
