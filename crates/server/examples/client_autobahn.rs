//! The library's client before Autobahn's fuzzing server: echoes in every case that the server has,
//! and offers permessage-deflate in each.
//!
//! `cargo run -p throng --example client_autobahn --features client -- ws://127.0.0.1:9001`, with
//! `wstest --mode fuzzingserver` listening there; `cargo xtask test --only autobahn-library` does
//! both. Further arguments: a file with the authorities to trust, for `wss://`.

use std::process::ExitCode;
use std::time::Duration;

use throng::OwnedMessage;
use throng::client::{Client, ClientBuilder, ClientError};
use throng::ws::{Deflate, DeflateMode};

/// The name in Autobahn's report.
const AGENT: &str = "throng";
/// Group 9 sends messages of 16 MiB.
const LARGEST_MESSAGE: usize = 32 << 20;
/// The time that one message may take: a thousand messages of 128 KB take the fuzzing server a
/// minute.
const LIMIT: Duration = Duration::from_secs(600);

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let Some(url) = arguments.next() else {
        eprintln!("usage: client_autobahn ws://127.0.0.1:9001");
        return ExitCode::from(2);
    };
    match run(&url, arguments.next().as_deref()) {
        Ok(cases) => {
            println!("went through {cases} cases");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("client_autobahn: {error}");
            ExitCode::from(1)
        }
    }
}

fn run(url: &str, authorities: Option<&str>) -> Result<usize, String> {
    let builder = |path: &str| -> ClientBuilder {
        let builder = Client::builder(&format!("{url}{path}"))
            .compression(Deflate::new(DeflateMode::Window { bits: 15 }))
            .max_message_size(LARGEST_MESSAGE)
            .connect_timeout(LIMIT)
            .write_timeout(LIMIT)
            .close_timeout(LIMIT)
            .heartbeat(None);
        trust(builder, authorities)
    };
    let failed = |error: ClientError| error.to_string();
    let mut client = builder("/getCaseCount").connect().map_err(failed)?;
    let count = match client.recv_timeout(LIMIT).map_err(failed)?.map(OwnedMessage::from) {
        Some(OwnedMessage::Text(count)) => count,
        _ => return Err("the server does not say how many cases there are".to_owned()),
    };
    let count = count.trim().parse::<usize>().map_err(|_| format!("`{count}` is not a number"))?;
    for case in 1..=count {
        let path = format!("/runCase?case={case}&agent={AGENT}");
        // Close even if the case fails: Autobahn judges the outcome.
        let _ = echo(builder(&path).connect().map_err(failed)?);
    }
    let reports = format!("/updateReports?agent={AGENT}");
    let _ = builder(&reports).connect().map_err(failed)?.recv_timeout(LIMIT);
    Ok(count)
}

fn echo(mut client: Client) -> Result<(), ClientError> {
    loop {
        let message = match client.recv_timeout(LIMIT)? {
            Some(message) => OwnedMessage::from(message),
            None => return Ok(()),
        };
        client.send(&message)?;
    }
}

#[cfg(feature = "tls")]
fn trust(builder: ClientBuilder, authorities: Option<&str>) -> ClientBuilder {
    match authorities {
        Some(file) => builder.trust_file(file),
        None => builder,
    }
}

#[cfg(not(feature = "tls"))]
fn trust(builder: ClientBuilder, _: Option<&str>) -> ClientBuilder {
    builder
}
