//! An echo server. Talk to it with any WebSocket client: `websocat ws://127.0.0.1:9001/`.

use throng::prelude::*;

fn main() -> throng::Result<()> {
    let app = App::new().ws("/", Ws::new().on_message(|ws, (), message| ws.send(message)));
    Server::new(app).bind("127.0.0.1:9001")?.run()
}
