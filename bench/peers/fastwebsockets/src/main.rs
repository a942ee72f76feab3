//! Echo at any path: `peer-fastwebsockets PORT`. It has no channels, so it takes no part in the
//! broadcast. The loop is the one of the project's own echo example.

use fastwebsockets::upgrade::{UpgradeFut, upgrade};
use fastwebsockets::{FragmentCollector, OpCode, WebSocketError};
use http_body_util::Empty;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let port: u16 = std::env::args().nth(1).and_then(|p| p.parse().ok()).expect("usage: PORT");
    let listener = TcpListener::bind(("127.0.0.1", port)).await.expect("bind");
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let _ = stream.set_nodelay(true);
        tokio::spawn(async move {
            let _ = http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service_fn(answer))
                .with_upgrades()
                .await;
        });
    }
}

async fn answer(mut request: Request<Incoming>) -> Result<Response<Empty<Bytes>>, WebSocketError> {
    let (response, socket) = upgrade(&mut request)?;
    tokio::spawn(async move {
        let _ = tokio::task::unconstrained(echo(socket)).await;
    });
    Ok(response)
}

async fn echo(socket: UpgradeFut) -> Result<(), WebSocketError> {
    let mut ws = FragmentCollector::new(socket.await?);
    loop {
        let frame = ws.read_frame().await?;
        match frame.opcode {
            OpCode::Close => return Ok(()),
            OpCode::Text | OpCode::Binary => ws.write_frame(frame).await?,
            _ => {}
        }
    }
}
