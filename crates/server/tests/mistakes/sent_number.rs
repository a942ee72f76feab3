use throng::prelude::*;

fn main() {
    let _ = Ws::new().on_message(|ws, _| ws.send(5));
}
