//! `https` and `wss` at port 9443, and a server at `http://127.0.0.1:9001/hello` that redirects to
//! it. Needs the feature `tls`. Try `curl -k https://127.0.0.1:9443/`.
//!
//! The certificate is made at the start; a real one comes from files, which can be renewed while
//! the server runs.

use std::fs;
use std::time::Duration;

use throng::prelude::*;
use throng::tls::Tls;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::temp_dir().join("throng-example-tls");
    fs::create_dir_all(&folder)?;
    let (chain, key) = (folder.join("chain.pem"), folder.join("key.pem"));
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
    fs::write(&chain, made.cert.pem())?;
    fs::write(&key, made.signing_key.serialize_pem())?;
    let app = App::new()
        .get("/", |_| "secured\n")
        .ws("/echo", Ws::new().on_message(|ws, (), message| ws.send(message)));
    let secured =
        Server::new(app).tls(Tls::from_files(chain, key)).bind("127.0.0.1:9443")?.start()?;
    let redirect = App::new().get("/{*path}", |request| {
        let target = format!("https://127.0.0.1:9443{}", request.path());
        let moved = Response::new(Status::new(308)).header("Location", target.clone())?;
        Ok::<_, throng::http::HeaderError>(moved.with_text(format!("moved to {target}\n")))
    });
    let _plain = Server::new(redirect).bind("127.0.0.1:9001")?.start()?;
    loop {
        std::thread::sleep(Duration::from_secs(60));
        // Sessions are not touched.
        if let Err(error) = secured.reload_tls_if_changed() {
            eprintln!("{error}");
        }
    }
}
