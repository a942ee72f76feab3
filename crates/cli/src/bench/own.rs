//! The processes that `throng bench` starts by itself: this program again, with hidden subcommands.
//!
//! `bench part` is a server or the subscribers of a measurement, and ends when its standard input
//! does; `bench blank-work` is the server of the blank/work benchmark, and ends by a signal.
//! Separate processes, so that their CPU time and memory can be measured.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::process::{Command, ExitCode};

use throng::prelude::*;
use throng_compare::blank_work::{self, Mode};
use throng_compare::parts::{OwnServer, Part, ServerPart};
use throng_load::find_max::Load;
use throng_load::{Error, MAX_SHARDS, Target};

use crate::failure::Failure;

/// The server of the blank/work benchmark.
#[derive(Debug, clap::Args)]
pub(super) struct BlankWork {
    mode: Mode,
    address: SocketAddr,
}

impl BlankWork {
    /// Serves until the process is ended.
    pub(super) fn run(&self) -> Result<ExitCode, Failure> {
        Server::new(blank_work::app(self.mode)).bind(self.address)?.run()?;
        Ok(ExitCode::SUCCESS)
    }
}

/// This program. If it cannot be found, starting it fails with a message that names it.
pub(super) fn this_program() -> OsString {
    std::env::current_exe().map_or_else(|_| "throng".into(), Into::into)
}

/// The command that starts a part.
pub(super) fn launch(part: &Part) -> Command {
    let mut command = Command::new(this_program());
    command.args(["bench", "part"]).arg(part.text());
    command
}

/// Stands for the URL of a started server until it runs.
pub(super) const PLACEHOLDER: &str = "ws://127.0.0.1:1";

/// Returns the event loops of the server to start, if no URL is given.
///
/// # Errors
/// Too many event loops for a server; or a process is named, although the started server's is
/// known.
pub(super) fn own_shards(
    has_url: bool,
    shards: usize,
    server_pids: &[u32],
) -> Result<Option<usize>, Error> {
    if has_url {
        return Ok(None);
    }
    match shards {
        1..=MAX_SHARDS if server_pids.is_empty() => Ok(Some(shards)),
        1..=MAX_SHARDS => Err(Error::Usage(
            "--server-pid is for a foreign server; that of our own is known".to_owned(),
        )),
        _ => Err(Error::Usage(format!("--shards is {shards}; a server has 1 to {MAX_SHARDS}"))),
    }
}

/// Starts a server with this many event loops, and makes it the target of this load. It ends when
/// it is dropped.
///
/// # Errors
/// It could not be started, or ended before it listened.
pub(super) fn start(shards: usize, load: &mut Load) -> Result<OwnServer, Error> {
    let server = OwnServer::start(&launch, ServerPart::with_shards(shards))?;
    let address = &server.address;
    let target = match load {
        Load::WebSocket(_) => Target::parse(&format!("ws://{address}"))?,
        Load::Http(_) => Target::parse_http(&format!("http://{address}/"))?,
    };
    let common = load.common_mut();
    (common.target, common.server_pids) = (target, vec![server.pid()]);
    Ok(server)
}
