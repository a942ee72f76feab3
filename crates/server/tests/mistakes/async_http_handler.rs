//~ a handler cannot answer with `
//~ a handler that answers later is added with `Route::deferred`

use throng::prelude::*;

fn main() {
    let _ = App::new().get("/", |_| async { "text" });
}
