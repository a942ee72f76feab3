//~ a handler cannot answer with `
//~ an `async` handler is added with `get_async`

use throng::prelude::*;

fn main() {
    let _ = App::new().get("/", |_| async { "text" });
}
