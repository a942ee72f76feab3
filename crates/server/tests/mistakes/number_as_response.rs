//~ a handler cannot answer with `u8`
//~ text, bytes, a status, a `Response`, or a `Result` of them

use throng::prelude::*;

fn main() {
    let _ = App::new().get("/", |_| 5u8);
}
