//~ cannot be served at a WebSocket route
//~ make a handler of closures with `Ws::new().on_message(|ws, (), message| ..)`

use throng::prelude::*;

fn main() {
    let echo = |ws: &mut Socket<'_>, (): &mut (), message: Message<'_>| ws.send(message);
    let _ = App::new().ws("/", echo);
}
