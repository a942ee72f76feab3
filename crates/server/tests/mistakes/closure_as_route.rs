use throng::prelude::*;

fn main() {
    let _ = App::new().ws("/", |ws: &mut Socket<'_, ()>, message: Message<'_>| ws.send(message));
}
