//! The server that `broadcast`, `fanout` and `http` start when no URL is given.
//!
//! A separate process, so that its CPU time and memory can be measured: this program again, with
//! the hidden subcommand `own-server`. `/ws/{channel}` sends each message to the channel's other
//! members, as `throng serve` does; `/` answers OK, or the request's body. It ends when its
//! standard input does.

use std::io::{BufRead, BufReader, Read, stdin};
use std::process::{Child, Command, ExitCode, Stdio};

use throng::prelude::*;
use throng::server::Shards;
use throng_load::find_max::Load;
use throng_load::{Error, MAX_SHARDS, Target};

use crate::failure::Failure;
use crate::terminal;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Event loops
    #[arg(long)]
    shards: usize,
}

/// Serves until standard input ends.
pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let channels = Ws::from_request(|request| {
        let channel = request.param("channel").ok_or(Reject::not_found())?;
        Ok(Box::<str>::from(channel))
    })
    .on_open(|ws, channel| ws.subscribe(channel))
    .on_message(|ws, channel, message| ws.publish_to_others(channel, message));
    let bound =
        Server::new(App::new().ws("/ws/{channel}", channels).any(
            "/",
            |request| match request.body() {
                [] => Response::text("OK"),
                body => {
                    Response::new(Status::OK).with_bytes("application/octet-stream", body.to_vec())
                }
            },
        ))
        .shards(Shards::new().count(Some(args.shards).filter(|&shards| shards > 0)))
        // A publication that waits because of a slow machine is measured, not cut off.
        .limits(Limits::default().max_backlog(64 << 20))
        .bind("127.0.0.1:0")?;
    terminal::line(bound.local_addr());
    // Kept until the end: dropping it stops the server.
    let _running = bound.start()?;
    stdin().lock().read_to_end(&mut Vec::new()).map_err(Failure::runtime)?;
    Ok(ExitCode::SUCCESS)
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

/// A server started by this program. Dropping it ends the server.
pub(super) struct OwnServer(Child);

impl OwnServer {
    /// Starts a server with this many event loops, and makes it the target of this load.
    ///
    /// # Errors
    /// It could not be started, or ended before it listened.
    pub(super) fn start(shards: usize, load: &mut Load) -> Result<Self, Error> {
        let cannot = |why: String| Error::Child(format!("cannot start a server to measure: {why}"));
        // If this program cannot be found, starting it fails with a message that names it.
        let program = std::env::current_exe().unwrap_or_else(|_| "throng".into());
        let mut child = Command::new(program)
            .args(["bench", "own-server", "--shards", &shards.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| cannot(error.to_string()))?;
        let mut line = String::new();
        let read = match child.stdout.take() {
            Some(output) => BufReader::new(output).read_line(&mut line),
            None => Ok(0),
        };
        let (pids, server) = (vec![child.id()], Self(child));
        match read {
            // It has printed the reason on standard error.
            Ok(0) => return Err(cannot("it ended before it listened".to_owned())),
            Ok(_) => {}
            Err(error) => return Err(cannot(error.to_string())),
        }
        let address = line.trim_end();
        let target = match load {
            Load::WebSocket(_) => Target::parse(&format!("ws://{address}"))?,
            Load::Http(_) => Target::parse_http(&format!("http://{address}/"))?,
        };
        let common = load.common_mut();
        (common.target, common.server_pids) = (target, pids);
        Ok(server)
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        // Its figures have been read; nothing is lost.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
