//! A client on tokio that receives and sends at the same time: every tenth of a second it sends a
//! number to an echo server, and it prints each answer.
//!
//! `cargo run -p throng --example client_async --features client,tokio -- ws://127.0.0.1:9001/`

use std::time::Duration;

use throng::client::{AsyncClient, ClientError};
use throng::{CloseCode, Message};

/// Sends `count` numbers, and returns the echoes.
pub(crate) async fn count_to(url: &str, count: usize) -> Result<Vec<String>, ClientError> {
    let mut client = AsyncClient::connect(url).await?;
    let mut echoes = Vec::new();
    let mut sent = 0;
    let mut clock = tokio::time::interval(Duration::from_millis(100));
    while echoes.len() < count {
        tokio::select! {
            // Cancel-safe: when the clock is faster, no message is lost.
            message = client.recv() => match message? {
                Some(Message::Text(text)) => echoes.push(text.to_owned()),
                Some(Message::Binary(_)) => {}
                None => return Ok(echoes),
            },
            _ = clock.tick(), if sent < count => {
                sent += 1;
                client.send(&sent.to_string()).await?;
            }
        }
    }
    client.close(CloseCode::NORMAL, "").await?;
    Ok(echoes)
}

#[allow(dead_code, reason = "a test uses `count_to` alone")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "ws://127.0.0.1:9001/".to_owned());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    for echo in runtime.block_on(count_to(&url, 10))? {
        println!("{echo}");
    }
    Ok(())
}
