//! A chat with rooms: `ws://127.0.0.1:9001/chat/lobby?name=ada`.

use throng::prelude::*;

struct User {
    name: String,
    room: String,
}

fn chat() -> Ws<User> {
    Ws::on_upgrade(|request| {
        let name = request.query("name").unwrap_or("anonymous").to_owned();
        let room = request.param("room").ok_or(Reject::not_found())?.to_owned();
        Ok(User { name, room })
    })
    .on_open(|ws| {
        let (user, mut session) = ws.split();
        session.subscribe(&user.room);
    })
    .on_message(|ws, message| {
        let (user, mut session) = ws.split();
        let Message::Text(text) = message else { return session.close(1003, "text only") };
        let line = Frame::format(format_args!("{}: {text}", user.name));
        // Everyone in the room, the sender included, in the same order for all.
        session.publish(&user.room, line);
    })
}

fn main() -> throng::Result<()> {
    let chat = WsRoute::new(chat()).max_message_size(16 << 10);
    Server::new(App::new().ws("/chat/{room}", chat)).bind("127.0.0.1:9001")?.run()
}
