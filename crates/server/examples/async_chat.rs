//! A chat whose handler is a future: `ws://127.0.0.1:9001/lobby?name=ada`. Needs the feature
//! `tokio`.

use std::time::Duration;

use throng::asynchronous::{AsyncSocket, SessionClosed};
use throng::prelude::*;

#[derive(Clone)]
struct User {
    name: String,
    room: String,
}

async fn chat(mut socket: AsyncSocket<User>) -> Result<(), SessionClosed> {
    let User { name, room } = socket.data().clone();
    socket.sender().subscribe(&room)?;
    let mut silence = tokio::time::interval(Duration::from_secs(60));
    silence.reset();
    loop {
        tokio::select! {
            message = socket.next() => {
                let Some(message) = message else { return Ok(()) };
                let text = String::from_utf8_lossy(message.as_bytes());
                let line = Frame::text(format!("{name}: {text}"));
                // Everyone in the room, in the same order for all.
                socket.sender().publish(&room, &line).await?;
                silence.reset();
            }
            _ = silence.tick() => socket.send("is anybody there?").await?,
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let rooms = Ws::from_request(|request| {
        let name = request.query("name").unwrap_or("anonymous").to_owned();
        let room = request.param("room").ok_or(Reject::not_found())?.to_owned();
        Ok(User { name, room })
    })
    .max_message_size(16 << 10)
    .on_session_async(runtime.handle().clone(), chat);
    Server::new(App::new().ws("/{room}", rooms)).bind("127.0.0.1:9001")?.run()?;
    Ok(())
}
