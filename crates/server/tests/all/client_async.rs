//! The asynchronous client against this server.

#[path = "../../examples/client_async.rs"]
mod example;

use futures_util::{SinkExt, StreamExt};
use throng::client::{AsyncClient, Client, ClientError};
use throng::prelude::*;
use throng::ws::{Deflate, DeflateMode};

use crate::support::served::{start, stop};

fn serve() -> (String, Running) {
    let echo = Ws::new().on_message(|ws, (), message| ws.send(message));
    let server = Server::new(App::new().ws("/", echo))
        .compression(Deflate::new(DeflateMode::Window { bits: 11 }))
        .limits(Limits::default().max_backlog(64 << 20));
    let (address, running) = start(server);
    (format!("ws://{address}/"), running)
}

#[tokio::test]
async fn the_example_counts_and_gets_its_echoes() {
    let (url, running) = serve();
    assert_eq!(example::count_to(&url, 3).await.unwrap(), ["1", "2", "3"]);
    stop(running);
}

#[tokio::test]
async fn messages_of_all_sizes_come_back_with_and_without_compression() {
    let (url, running) = serve();
    let plain = Client::builder(&url);
    let deflate = plain.clone().compression(Deflate::new(DeflateMode::Window { bits: 11 }));
    for builder in [plain, deflate] {
        let mut client = builder.connect_async().await.unwrap();
        for len in [0, 1, 125, 126, 65_535, 65_536, 1_000_000] {
            let sent = throng_testkit::noise(len, len as u64);
            client.send(&sent).await.unwrap();
            assert_eq!(client.recv().await.unwrap(), Some(Message::Binary(&sent)), "{len}");
            let sent = "wörds ".repeat(len / 8);
            client.send(&sent).await.unwrap();
            assert_eq!(client.recv().await.unwrap(), Some(Message::Text(&sent)), "{len}");
        }
        assert_eq!(client.close(1000, "").await.unwrap().code, 1000);
        assert_eq!(client.recv().await.unwrap(), None);
        assert!(matches!(client.send("x").await, Err(ClientError::Closed(None))));
    }
    stop(running);
}

#[tokio::test]
async fn a_refusal_is_an_error_with_its_status() {
    let (url, running) = serve();
    let error = AsyncClient::connect(&format!("{url}nowhere")).await.unwrap_err();
    let ClientError::Refused(refused) = &error else { panic!("{error}") };
    assert_eq!(refused.status, 404);
    stop(running);
}

#[tokio::test]
async fn it_is_a_stream_and_a_sink_that_can_be_split() {
    const COUNT: usize = 200;
    let (url, running) = serve();
    let client = AsyncClient::connect(&url).await.unwrap();
    let (mut sink, mut stream) = client.split();
    // Far more than fits in both kernels: each half waits for the other, and no wake-up is lost.
    let sender = tokio::spawn(async move {
        for n in 0..COUNT {
            sink.send(throng_testkit::noise(100_000, n as u64)).await.unwrap();
        }
        sink.send(vec![]).await.unwrap();
        sink.close().await.unwrap();
    });
    for n in 0..COUNT {
        let message = stream.next().await.unwrap().unwrap();
        assert!(message.as_bytes() == throng_testkit::noise(100_000, n as u64), "{n}");
    }
    assert_eq!(stream.next().await.unwrap().unwrap(), OwnedMessage::Binary(vec![]));
    assert!(stream.next().await.is_none());
    assert!(stream.next().await.is_none());
    sender.await.unwrap();
    stop(running);
}
