//! The chat of crates/server/examples/chat.rs inside a program on axum, at one port: embedded PORT

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use hyper_util::rt::TokioIo;
use hyper_util::server::conn::auto::upgrade::downcast;
use throng::embed::Upgrade;
use throng::prelude::*;
use tokio::net::TcpStream;

#[path = "../../../../../crates/server/examples/chat.rs"]
#[allow(dead_code, reason = "its handler is what is used")]
mod chat;

async fn upgrade(State(hub): State<Hub>, mut request: Request) -> Response {
    let Ok(upgrade) = Upgrade::new(&request) else {
        return StatusCode::UPGRADE_REQUIRED.into_response();
    };
    let (response, upgraded) = (upgrade.response(), hyper::upgrade::on(&mut request));
    tokio::spawn(async move {
        let Ok(upgraded) = upgraded.await else { return };
        let Ok(parts) = downcast::<TokioIo<TcpStream>>(upgraded) else { return };
        if let Ok(stream) = parts.io.into_inner().into_std() {
            let _ = upgrade.adopt(&hub, stream, &parts.read_buf);
        }
    });
    response.map(|()| axum::body::Body::empty())
}

#[tokio::main]
async fn main() {
    let port = std::env::args().nth(1).expect("a port");
    let chat = App::new().ws("/chat/{room}", chat::chat());
    let running = Server::new(chat).without_listener().unwrap().start().unwrap();
    let app = Router::new()
        .route("/", get(|| async { "axum" }))
        .route("/chat/{room}", any(upgrade))
        .with_state(running.hub());
    let listener = tokio::net::TcpListener::bind(format!("127.0.0.1:{port}")).await.unwrap();
    axum::serve(listener, app).await.unwrap();
}
