//! `lab serve-netbench`: the server that the public suite NetBenchmarks compares, blank or at work.
//!
//! One port, for any path and method; [`blank_work`] has the answers.

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use throng::Error;
use throng::prelude::*;
use throng_compare::blank_work::{self, Mode};

use throng_cli::Failure;
use throng_cli::serve::site;
use throng_cli::serve::{self, SettingFlags, Settings};

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
        match site::listen(site::configured(blank_work::app(mode), settings), settings) {
            Err(Error::Bind { source, .. })
                if source.kind() == ErrorKind::AddrInUse && Instant::now() < until =>
            {
                std::thread::sleep(Duration::from_millis(10));
            }
            done => return done,
        }
    }
}
