//! `lab serve-netbench`: the server that the public suite NetBenchmarks compares, blank or at work.
//!
//! One port, any path and method. As a WebSocket (which the suite leaves open) it answers in both
//! modes: an empty message with the text `OK`, a document as a text message with its answer. What
//! is no such document ends the session with 1007, which says in RFC 6455 section 7.4.1 that a
//! message was not what its type promises.

mod document;
mod timestamp;

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use throng::Error;
use throng::prelude::*;

use self::document::Mistake;
use throng_cli::Failure;
use throng_cli::serve::site;
use throng_cli::serve::{self, SettingFlags, Settings};

/// Cost of a request at the server. `0` and `1` are the suite's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Mode {
    /// `OK`, whatever was asked.
    #[value(alias = "0")]
    Blank,
    /// The answer to the JSON document in the request's body.
    #[value(alias = "1")]
    Work,
}

/// Where the suite expects its servers: on both loopback addresses, where there are both.
fn addresses() -> &'static str {
    match UdpSocket::bind("[::1]:0") {
        Ok(_) => "127.0.0.1:1234,[::1]:1234",
        Err(_) => "127.0.0.1:1234",
    }
}

/// Defaults of this server besides its addresses: the suite ends it with thousands of connections
/// that are kept alive and idle, and starts the next one at once.
const DEFAULTS: &[(&str, &str)] = &[("drain.window", "0s"), ("drain.grace", "1s")];

/// Longest wait for the port of a predecessor, which was asked to end the moment before. The suite
/// dials after a second.
const BIND_TIMEOUT: Duration = Duration::from_millis(800);

pub(crate) const HELP: &str = "blank answers OK; work answers the JSON document of a request's \
    body, or 400 with the reason. As a
WebSocket at any path, both answer an empty message with OK and a document as text with its answer;
anything else ends the session with 1007. Without --listen: port 1234 of 127.0.0.1 and ::1.";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// blank (0) or work (1)
    #[arg(value_enum, value_name = "blank|work", hide_possible_values = true)]
    mode: Mode,
    #[command(flatten)]
    flags: SettingFlags,
}

/// Serves until a signal comes.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let listen = ("listen", addresses());
    let defaults: Vec<_> = std::iter::once(listen).chain(DEFAULTS.iter().copied()).collect();
    let settings = args.flags.settings("serve-netbench", &defaults)?;
    serve::until_stopped(bind(&settings, args.mode)?, settings.drain)
}

/// Binds the benchmark's server.
fn bind(settings: &Settings, mode: Mode) -> throng::Result<Bound> {
    let until = Instant::now() + BIND_TIMEOUT;
    loop {
        match site::listen(server(settings, mode), settings) {
            Err(Error::Bind { source, .. })
                if source.kind() == ErrorKind::AddrInUse && Instant::now() < until =>
            {
                std::thread::sleep(Duration::from_millis(10));
            }
            done => return done,
        }
    }
}

fn server(settings: &Settings, mode: Mode) -> Server {
    let app = App::new().ws("/{*rest}", Ws::new().on_message(message));
    let app = app.any("/{*rest}", move |request| match mode {
        Mode::Blank => Response::new(Status::OK).with_body("text/plain", "OK"),
        Mode::Work => work(request.body()),
    });
    site::configured(app, settings)
}

fn work(body: &[u8]) -> Response {
    match str::from_utf8(body).map_err(Mistake::from).and_then(document::answer) {
        Ok(answer) => Response::new(Status::OK).with_bytes("application/json", answer),
        Err(mistake) => Response::error(Status::BAD_REQUEST, &mistake.to_string()),
    }
}

fn message(ws: &mut Socket<'_>, (): &mut (), message: Message<'_>) {
    match message {
        Message::Text("") | Message::Binary([]) => {
            ws.send("OK");
        }
        Message::Text(text) => match document::answer(text) {
            // Checked here for the whole answer: what is written piece by piece is known to be
            // bytes only.
            Ok(answer) => {
                ws.send(&*String::from_utf8_lossy(&answer));
            }
            Err(mistake) => ws.close(CloseCode::INVALID_PAYLOAD, &mistake.to_string()),
        },
        Message::Binary(_) => ws.close(CloseCode::UNSUPPORTED_DATA, "send the document as text"),
    }
}
