//! A single-page application: its files, its API, and `index.html` for every other path, since the
//! page routes itself. Try `http://127.0.0.1:9001/greet/hello`.

use std::fs;

use throng::http::Files;
use throng::prelude::*;

const INDEX: &str = "<!doctype html><title>hello</title><script src=/app.js></script>\n";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // A real program has its files beside it.
    let folder = std::env::temp_dir().join("throng-example-spa");
    fs::create_dir_all(&folder)?;
    fs::write(folder.join("index.html"), INDEX)?;
    fs::write(folder.join("app.js"), "document.body.append(location.pathname)\n")?;
    let files = Files::new(&folder);
    let app = App::new().get("/api/time", |_| format!("{:?}\n", std::time::SystemTime::now())).get(
        "/{*path}",
        move |request| match files.respond(request) {
            missing if missing.status() == Status::NOT_FOUND => Response::html(INDEX),
            response => response,
        },
    );
    Server::new(app).bind("127.0.0.1:9001")?.run()?;
    Ok(())
}
