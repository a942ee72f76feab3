//! A blocking client: sends a greeting to an echo server, such as the example `echo`, and prints
//! what comes back.
//!
//! `cargo run -p throng --example client --features client -- ws://127.0.0.1:9001/`

use throng::client::{Client, ClientError};
use throng::{CloseCode, Message};

/// Sends `greeting`, and returns the echo.
pub(crate) fn greet(url: &str, greeting: &str) -> Result<String, ClientError> {
    let mut client = Client::connect(url)?;
    client.send(greeting)?;
    let mut echo = String::new();
    while let Some(message) = client.recv()? {
        if let Message::Text(text) = message {
            echo.push_str(text);
            break;
        }
    }
    client.close(CloseCode::NORMAL, "")?;
    Ok(echo)
}

#[allow(dead_code, reason = "a test uses `greet` alone")]
fn main() {
    let url = std::env::args().nth(1).unwrap_or_else(|| "ws://127.0.0.1:9001/".to_owned());
    match greet(&url, "hello") {
        Ok(echo) => println!("{echo}"),
        Err(error) => {
            eprintln!("{error} ({:?} has to act)", error.blame());
            std::process::exit(1);
        }
    }
}
