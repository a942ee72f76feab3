//! Order, credits and wake-ups.

use std::future::poll_fn;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use futures_util::{FutureExt, StreamExt};
use throng::asynchronous::{AsyncOptions, AsyncSocket};
use throng::prelude::*;
use throng_proto::ws::Opcode;

use super::{close, counter, exchange_numbers, families, is, runtime, serve};
use crate::support::served::{self, start, stop};
use crate::support::{Alive, Client, Got, eventually};

#[test]
fn ten_thousand_pipelined_messages_are_answered_in_order_with_any_number_of_credits() {
    let runtime = runtime();
    for credits in [1, 2, 64] {
        for server in families() {
            let (at_work, most) = (counter(), counter());
            let (working, highest) = (Arc::clone(&at_work), Arc::clone(&most));
            let each = Ws::new()
                .on_message_async(runtime.handle().clone(), move |session, message| {
                    let (working, highest) = (Arc::clone(&working), Arc::clone(&highest));
                    async move {
                        let _alive = Alive::new(&working);
                        highest.fetch_max(working.load(Ordering::SeqCst), Ordering::SeqCst);
                        if message.as_bytes().ends_with(b"7") {
                            tokio::task::yield_now().await;
                        }
                        session.send(message).await
                    }
                })
                .async_options(AsyncOptions::new().credits(credits));
            let whole =
                Ws::new().on_session_async(runtime.handle().clone(), |mut socket| async move {
                    while let Some(message) = socket.next().await {
                        socket.send(message).await?;
                    }
                    Ok(())
                });
            let whole = whole.async_options(AsyncOptions::new().credits(credits));
            let server = server(served::app().ws("/each", each).ws("/whole", whole));
            let (address, running) = start(server);
            for path in ["/each", "/whole"] {
                let mut client = Client::connect(address, path);
                exchange_numbers(&mut client, 10_000);
                close(client);
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
    let three = Ws::new().on_message_async(runtime.handle().clone(), move |session, message| {
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
    let (address, running) =
        serve(three.async_options(AsyncOptions::new().credits(8).concurrency(3)));
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

#[test]
fn a_wait_that_is_cancelled_loses_no_message_and_sends_none_twice() {
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
        // So narrow that nearly every send waits for the one before.
        let narrow = AsyncOptions::new().credits(3).send_window(1);
        let (address, running) = start(server(served::app().ws("/", storm.async_options(narrow))));
        let mut client = Client::connect(address, "/");
        for _ in 0..3 {
            exchange_numbers(&mut client, MESSAGES);
        }
        // One by one, so that the receiver also has to wait.
        for _ in 0..200 {
            exchange_numbers(&mut client, 1);
        }
        close(client);
        assert!(cancelled_receives.load(Ordering::Relaxed) > 0);
        assert!(cancelled_sends.load(Ordering::Relaxed) > 0);
        stop(running);
    }
}

/// Echoes between many threads, where a lost wake-up would leave a client waiting forever.
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
        let each = Ws::new()
            .on_message_async(runtime.handle().clone(), |session, message| async move {
                session.send(message).await
            })
            .async_options(AsyncOptions::new().credits(1));
        let echo = echo.async_options(AsyncOptions::new().credits(1).send_window(1));
        let (address, running) = start(server(served::app().ws("/whole", echo).ws("/each", each)));
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

#[test]
fn sessions_join_channels_and_publish_to_the_others_in_order() {
    let runtime = runtime();
    for server in families() {
        let room = Ws::new()
            .on_open(|ws, ()| {
                ws.offload(|| "hall", |ws, (), hall| ws.subscribe(hall).then_some(()).unwrap());
            })
            .on_session_async(runtime.handle().clone(), |mut socket: AsyncSocket| async move {
                socket.sender().subscribe("room")?;
                socket.send("in").await?;
                while let Some(message) = socket.next().await {
                    match message.as_bytes() {
                        b"leave" => socket.sender().unsubscribe("room")?,
                        // Before the shard has processed the command.
                        own if own.starts_with(b"own") => {
                            let (session, own) = (socket.sender(), str::from_utf8(own).unwrap());
                            session.subscribe(own)?;
                            session.hub().publish(own, "from the hub").unwrap();
                        }
                        _ => socket.sender().publish_to_others("room", &message).await?,
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
            // Their order is not specified.
            let got = [ada.next(), ada.next()];
            assert!(got.contains(&text("from the hub")) && got.contains(&text("done")), "{got:?}");
        }
        eventually("both are in the hall", || running.hub().subscribers("hall") == 2);
        running.hub().publish("hall", "all").unwrap();
        assert_eq!([ada.next(), bob.next()], [text("all"), text("all")]);
        stop(running);
    }
}

#[test]
fn options_that_do_not_fit_are_refused() {
    let runtime = runtime();
    let each = || Ws::new().on_message_async(runtime.handle().clone(), |_, _| async {});
    let whole = || Ws::new().on_session_async(runtime.handle().clone(), |_: AsyncSocket| async {});
    let options = AsyncOptions::new;
    for (handler, texts) in [
        (each().async_options(options().credits(0)), ["credits is 0", "give at least 1"]),
        (each().async_options(options().concurrency(0)), ["concurrency is 0", "give at least 1"]),
        (whole().async_options(options().concurrency(2)), ["concurrency", "on_message_async"]),
        (
            whole().async_options(options().finish_after_close()),
            ["finish_after", "on_message_async"],
        ),
        (Ws::new().async_options(options()), ["async_options", "on_session_async"]),
    ] {
        let error = Server::new(App::new().ws("/", handler)).check().unwrap_err().to_string();
        assert!(texts.iter().all(|text| error.contains(text)), "{error}");
    }
}

/// A poll that does not follow a wake-up.
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
    let (address, running) = serve(polls.async_options(AsyncOptions::new().credits(2)));
    let mut client = Client::connect(address, "/");
    exchange_numbers(&mut client, 2_000);
    close(client);
    stop(running);
}

#[test]
fn a_future_awaits_the_counts_of_its_publication() {
    let runtime = runtime();
    for server in families() {
        let session =
            Ws::new().on_session_async(runtime.handle().clone(), |mut socket| async move {
                while socket.next().await.is_some() {
                    let receipt = socket.sender().hub().publish("hall", "all").unwrap();
                    let delivery = receipt.await;
                    socket.send(format!("{} receivers", delivery.receivers())).await?;
                }
                Ok(())
            });
        let member = Ws::new().on_open(|ws, ()| ws.subscribe("hall"));
        let app = served::app().ws("/session", session).ws("/member", member);
        let (address, running) = start(server(app));
        let mut members: Vec<_> = (0..3).map(|_| Client::connect(address, "/member")).collect();
        eventually("all are members", || running.hub().subscribers("hall") == 3);
        let mut client = Client::connect(address, "/session");
        client.send_text("go");
        assert_eq!(client.next(), Got::Text("3 receivers".into()));
        for member in &mut members {
            assert_eq!(member.next(), Got::Text("all".into()));
        }
        stop(running);
    }
}
