//~ cannot be served at a WebSocket route
//~ make a handler of closures with `Ws::new().on_message(|ws, message| ..)`

use throng::prelude::*;

fn main() {
    let _ = App::new().ws("/", |ws: &mut Socket<'_, ()>, message: Message<'_>| ws.send(message));
}
