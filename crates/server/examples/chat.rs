//! A chat with rooms: `ws://127.0.0.1:9001/chat/lobby?name=ada`.

use throng::prelude::*;

pub(crate) struct User {
    name: String,
    room: String,
}

pub(crate) fn chat() -> Ws<User> {
    Ws::from_request(|request| {
        let name = request.query("name").unwrap_or("anonymous").to_owned();
        let room = request.param("room").ok_or(Reject::not_found())?.to_owned();
        Ok(User { name, room })
    })
    .max_message_size(16 << 10)
    .on_open(|ws, user| ws.subscribe(&user.room))
    .on_message(|ws, user, message| {
        let Message::Text(text) = message else {
            return ws.close(CloseCode::UNSUPPORTED_DATA, "text only");
        };
        let line = Frame::format(format_args!("{}: {text}", user.name));
        // Everyone in the room, the sender included, in the same order for all.
        ws.publish(&user.room, line);
    })
}

#[allow(dead_code, reason = "a test uses the handler alone")]
fn main() -> throng::Result<()> {
    Server::new(App::new().ws("/chat/{room}", chat())).bind("127.0.0.1:9001")?.run()
}

#[cfg(all(test, feature = "test"))]
mod tests {
    use throng::test::LocalServer;

    use super::*;

    #[test]
    fn a_line_reaches_everyone_in_its_room_and_no_one_else() {
        let server = LocalServer::start(Server::new(App::new().ws("/chat/{room}", chat())));
        let mut ada = server.ws("/chat/lobby?name=ada");
        let mut bob = server.ws("/chat/lobby?name=bob");
        let mut eve = server.ws("/chat/attic?name=eve");
        ada.send("hello");
        assert_eq!(ada.recv(), OwnedMessage::from("ada: hello"));
        assert_eq!(bob.recv(), OwnedMessage::from("ada: hello"));
        assert_eq!(eve.try_recv(), None);
        bob.send(b"\x00");
        assert_eq!(bob.try_recv(), None);
        assert_eq!(bob.close_frame().unwrap().code, CloseCode::UNSUPPORTED_DATA);
    }
}
