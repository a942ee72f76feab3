use throng::prelude::*;

fn main() {
    let _ = App::new().get("/", |_| async { "text" });
}
