//~ cannot be sent as a message
//~ text is sent from `&str` or `String`, binary data from `&[u8]` or `Vec<u8>`

use throng::prelude::*;

fn main() {
    let _ = Ws::new().on_message(|ws, (), _| ws.send(5));
}
