//! A chat with rooms: `ws://127.0.0.1:9001/chat/lobby?name=ada`.

use throng::prelude::*;

struct User {
    name: String,
    room: String,
}

fn main() -> throng::Result<()> {
    let chat = WsRoute::new(
        Ws::on_upgrade(|req| {
            let name = req.query("name").unwrap_or("anonymous").to_owned();
            let room = req.param("room").ok_or(Reject::not_found())?.to_owned();
            Ok(User { name, room })
        })
        .on_open(|ws| {
            let room = ws.data().room.clone();
            ws.subscribe(&room);
        })
        .on_message(|ws, msg| {
            let Message::Text(text) = msg else { return ws.close(1003, "text only") };
            let room = ws.data().room.clone();
            let frame = Frame::text(format!("{}: {text}", ws.data().name));
            ws.publish(&room, &frame); // everyone else in the room
            let _ = ws.send(&frame); // and me
        }),
    )
    .max_message_size(16 << 10);
    Server::new(App::new().ws("/chat/{room}", chat)).bind("127.0.0.1:9001")?.run()
}
