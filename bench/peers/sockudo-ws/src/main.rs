//! Echo at any path, broadcast at `/ws/...` (through the library's own `PubSub`):
//! `peer-sockudo-ws PORT`

use std::sync::Arc;

use bytes::BytesMut;
use futures_util::{SinkExt, StreamExt};
use sockudo_ws::handshake::{build_response, generate_accept_key, parse_request};
use sockudo_ws::pubsub::PubSub;
use sockudo_ws::{Config, Error, Message, Result, WebSocketStream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::unbounded_channel;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let port: u16 = std::env::args().nth(1).and_then(|p| p.parse().ok()).expect("usage: PORT");
    let listener = TcpListener::bind(("127.0.0.1", port)).await.expect("bind");
    let channels = Arc::new(PubSub::new());
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let _ = stream.set_nodelay(true);
        let channels = channels.clone();
        tokio::spawn(async move {
            let _ = serve(stream, channels).await;
        });
    }
}

fn config() -> Config {
    Config::builder().idle_timeout(600).max_backpressure(256 * 1024 * 1024).build()
}

async fn serve(mut stream: TcpStream, channels: Arc<PubSub>) -> Result<()> {
    let path = shake_hands(&mut stream).await?;
    let ws = WebSocketStream::server(stream, config());
    if path.starts_with("/ws/") { take_part(ws, &path, &channels).await } else { echo(ws).await }
}

/// Returns the requested path.
async fn shake_hands(stream: &mut TcpStream) -> Result<String> {
    let mut head = BytesMut::with_capacity(4096);
    loop {
        if stream.read_buf(&mut head).await? == 0 {
            return Err(Error::ConnectionClosed);
        }
        if let Some((request, _)) = parse_request(&head)? {
            let response = build_response(&generate_accept_key(request.key), None, None);
            stream.write_all(&response).await?;
            return Ok(request.path.into_owned());
        }
    }
}

async fn echo(mut ws: WebSocketStream<TcpStream>) -> Result<()> {
    while let Some(message) = ws.next().await {
        match message? {
            message @ (Message::Text(_) | Message::Binary(_)) => ws.send(message).await?,
            Message::Close(_) => break,
            _ => {}
        }
    }
    Ok(())
}

async fn take_part(ws: WebSocketStream<TcpStream>, path: &str, channels: &PubSub) -> Result<()> {
    let (mut reader, mut writer) = ws.split();
    let (outbox, mut inbox) = unbounded_channel();
    let me = channels.create_subscriber(outbox);
    channels.subscribe(me, path);
    let result = loop {
        tokio::select! {
            message = reader.next() => match message {
                Some(Ok(message @ (Message::Text(_) | Message::Binary(_)))) => {
                    channels.publish_excluding(me, path, message);
                }
                Some(Ok(Message::Close(_))) | None => break Ok(()),
                Some(Ok(_)) => {}
                Some(Err(error)) => break Err(error),
            },
            Some(message) = inbox.recv() => {
                if let Err(error) = writer.send(message).await {
                    break Err(error);
                }
            }
        }
    };
    channels.remove_subscriber(me);
    result
}
