//! Echo at any path, broadcast at `/ws/...`: `peer-tokio-tungstenite PORT`

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use futures_util::{SinkExt, StreamExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::{LocalSet, spawn_local};
use tokio_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request, Response};
use tokio_tungstenite::tungstenite::{Message, Result};
use tokio_tungstenite::{WebSocketStream, accept_hdr_async};

/// The outboxes of one channel's members by their number.
type Members = Rc<RefCell<HashMap<u64, UnboundedSender<Message>>>>;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let port: u16 = std::env::args().nth(1).and_then(|p| p.parse().ok()).expect("usage: PORT");
    LocalSet::new().run_until(serve(port)).await;
}

async fn serve(port: u16) {
    let listener = TcpListener::bind(("127.0.0.1", port)).await.expect("bind");
    let channels: RefCell<HashMap<String, Members>> = RefCell::default();
    let channels = Rc::new(channels);
    for id in 0u64.. {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let _ = stream.set_nodelay(true);
        let channels = channels.clone();
        spawn_local(async move {
            let mut path = String::new();
            #[expect(clippy::result_large_err, reason = "the shape that the library asks for")]
            let note_path = |request: &Request, response: Response| {
                path = request.uri().path().to_owned();
                Ok::<_, ErrorResponse>(response)
            };
            let Ok(ws) = accept_hdr_async(stream, note_path).await else { return };
            if path.starts_with("/ws/") {
                let members = channels.borrow_mut().entry(path).or_default().clone();
                let _ = take_part(ws, id, &members).await;
                members.borrow_mut().remove(&id);
            } else {
                let _ = echo(ws).await;
            }
        });
    }
}

async fn echo(mut ws: WebSocketStream<TcpStream>) -> Result<()> {
    while let Some(message) = ws.next().await {
        let message = message?;
        if message.is_text() || message.is_binary() {
            ws.send(message).await?;
        }
    }
    Ok(())
}

async fn take_part(ws: WebSocketStream<TcpStream>, id: u64, members: &Members) -> Result<()> {
    let (mut sink, mut stream) = ws.split();
    let (outbox, mut inbox) = unbounded_channel();
    members.borrow_mut().insert(id, outbox);
    loop {
        tokio::select! {
            message = stream.next() => match message {
                Some(Ok(message)) if message.is_text() || message.is_binary() => {
                    for (member, outbox) in members.borrow().iter() {
                        if *member != id {
                            let _ = outbox.send(message.clone());
                        }
                    }
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error),
                None => return Ok(()),
            },
            Some(message) = inbox.recv() => sink.send(message).await?,
        }
    }
}
