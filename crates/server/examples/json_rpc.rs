//! Calls over a WebSocket, answered in any order by another service:
//! `ws://127.0.0.1:9001/rpc`. Needs the feature `tokio`.
//!
//! `{"id":1,"method":"price","params":"EUR"}` calls, `{"cancel":1}` cancels. A call may take two
//! seconds. Cancelling a call or ending the session aborts the call; calls in progress at the
//! server's shutdown are answered before it ends. The service gets one line and answers until the
//! connection closes.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};
use throng::asynchronous::{AsyncSocket, SessionClosed};
use throng::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Handle as Runtime;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

const LIMIT: Duration = Duration::from_secs(2);
/// Calls of a client at once.
pub(crate) const CALLS: usize = 16;

async fn ask(service: SocketAddr, call: Value) -> io::Result<String> {
    let mut stream = TcpStream::connect(service).await?;
    stream.write_all(format!("{call}\n").as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

async fn answer(service: SocketAddr, limit: Duration, call: Value) -> Value {
    let id = call["id"].clone();
    match timeout(limit, ask(service, call)).await {
        Ok(Ok(result)) => json!({ "id": id, "result": result }),
        Ok(Err(error)) => json!({ "id": id, "error": error.to_string() }),
        Err(_) => json!({ "id": id, "error": "timed out" }),
    }
}

async fn serve(
    mut socket: AsyncSocket,
    to: SocketAddr,
    limit: Duration,
) -> Result<(), SessionClosed> {
    // Dropped with this future: the calls of a client that has gone are aborted.
    let mut calls = JoinSet::new();
    let mut running: HashMap<String, AbortHandle> = HashMap::new();
    let mut end = socket.closed();
    let mut shutdown = socket.sender().shutting_down();
    let mut is_ending = false;
    loop {
        if is_ending && calls.is_empty() {
            socket.close(CloseCode::GOING_AWAY, "all calls are answered");
            return Ok(());
        }
        tokio::select! {
            Some(done) = calls.join_next() => {
                // A call that was cancelled has no answer.
                let Ok(answer): Result<Value, _> = done else { continue };
                running.remove(&answer["id"].to_string());
                socket.send(answer.to_string()).await?;
            }
            // This is also polled while all calls are in use, so that a cancel or the end is
            // noticed at once.
            message = socket.next(), if !is_ending => {
                let Some(message) = message else { return Ok(()) };
                let call: Value = serde_json::from_slice(message.as_bytes()).unwrap_or_default();
                let id = call["id"].to_string();
                if let Some(id) = call.get("cancel") {
                    running.remove(&id.to_string()).inspect(AbortHandle::abort);
                } else if !call["method"].is_string() || running.contains_key(&id) {
                    let text = String::from_utf8_lossy(message.as_bytes()).into_owned();
                    socket.send(json!({ "error": "no call", "got": text }).to_string()).await?;
                } else if running.len() >= CALLS {
                    let error = json!({ "id": call["id"], "error": "too many calls" });
                    socket.send(error.to_string()).await?;
                } else {
                    running.insert(id, calls.spawn(answer(to, limit, call)));
                }
            }
            _ = &mut end => return Ok(()),
            Ok(()) = &mut shutdown, if !is_ending => is_ending = true,
        }
    }
}

pub(crate) fn server(runtime: Runtime, service: SocketAddr, limit: Duration) -> Server {
    let calls = Ws::new()
        .max_message_size(16 << 10)
        .on_session_async(runtime, move |socket| serve(socket, service, limit));
    Server::new(App::new().ws("/rpc", calls))
}

#[allow(dead_code, reason = "a test has a service of its own")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let service = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:9002".to_owned());
    let server = server(runtime.handle().clone(), service.parse()?, LIMIT);
    server.bind("127.0.0.1:9001")?.run_until_signal(DrainPlan::default())?;
    Ok(())
}
