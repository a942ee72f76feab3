//! Echo at any path, broadcast at `/ws/...` (through the library's own `PubSub`):
//! `peer-sockudo-ws PORT [deflate]`

use std::sync::Arc;

use bytes::BytesMut;
use futures_util::{Sink, SinkExt, Stream, StreamExt};
use sockudo_ws::deflate::{DeflateConfig, negotiate_server_deflate};
use sockudo_ws::handshake::{build_response, generate_accept_key, parse_request};
use sockudo_ws::pubsub::PubSub;
use sockudo_ws::{CompressedWebSocketStream, Config, Error, Message, Result, WebSocketStream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::unbounded_channel;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let port: u16 = std::env::args().nth(1).and_then(|p| p.parse().ok()).expect("usage: PORT");
    let deflate = std::env::args().nth(2).is_some_and(|mode| mode == "deflate");
    let listener = TcpListener::bind(("127.0.0.1", port)).await.expect("bind");
    let channels = Arc::new(PubSub::new());
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let _ = stream.set_nodelay(true);
        let channels = channels.clone();
        tokio::spawn(async move {
            let _ = serve(stream, channels, deflate).await;
        });
    }
}

fn config() -> Config {
    Config::builder().idle_timeout(600).max_backpressure(256 * 1024 * 1024).build()
}

async fn serve(mut stream: TcpStream, channels: Arc<PubSub>, deflate: bool) -> Result<()> {
    let (path, agreed) = shake_hands(&mut stream, deflate).await?;
    let channel = path.starts_with("/ws/");
    match agreed {
        Some(deflate) => {
            let ws = CompressedWebSocketStream::server(stream, config(), deflate);
            if channel { take_part_compressed(ws, &path, &channels).await } else { echo(ws).await }
        }
        None => {
            let ws = WebSocketStream::server(stream, config());
            if channel { take_part(ws, &path, &channels).await } else { echo(ws).await }
        }
    }
}

/// Returns the requested path, and how to compress if that was agreed on.
async fn shake_hands(
    stream: &mut TcpStream,
    deflate: bool,
) -> Result<(String, Option<DeflateConfig>)> {
    let mut head = BytesMut::with_capacity(4096);
    loop {
        if stream.read_buf(&mut head).await? == 0 {
            return Err(Error::ConnectionClosed);
        }
        if let Some((request, _)) = parse_request(&head)? {
            let offer = request.extensions.filter(|_| deflate);
            let agreed = offer.and_then(|o| negotiate_server_deflate(o, &DeflateConfig::default()));
            let header = agreed.as_ref().map(|agreed| agreed.to_response_header());
            let response =
                build_response(&generate_accept_key(request.key), None, header.as_deref());
            stream.write_all(&response).await?;
            return Ok((request.path.into_owned(), agreed.map(|agreed| agreed.config)));
        }
    }
}

async fn echo<S>(mut ws: S) -> Result<()>
where
    S: Stream<Item = Result<Message>> + Sink<Message, Error = Error> + Unpin,
{
    while let Some(message) = ws.next().await {
        match message? {
            message @ (Message::Text(_) | Message::Binary(_)) => ws.send(message).await?,
            Message::Close(_) => break,
            _ => {}
        }
    }
    Ok(())
}

/// The two kinds of stream split into halves that share no trait.
macro_rules! member {
    ($name:ident, $stream:ty) => {
        async fn $name(ws: $stream, path: &str, channels: &PubSub) -> Result<()> {
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
    };
}

member!(take_part, WebSocketStream<TcpStream>);
member!(take_part_compressed, CompressedWebSocketStream<TcpStream>);
