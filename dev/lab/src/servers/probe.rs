//! `lab serve-probe`: what probes from outside ask of any server, to compare how it behaves.

use std::process::ExitCode;

use throng::prelude::*;

use throng_cli::Failure;
use throng_cli::serve::{self, SettingFlags, Settings, site};

/// Payload of a message at `/push`, in bytes.
const PUSHED: usize = 1024;

/// Limit of the backlog of one connection; half of it is pushed at a time. Less than the default,
/// so that no turn takes long, and enough for the kernel never to wait for us.
const MAX_BACKLOG: &str = "256KiB";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    flags: SettingFlags,
}

/// Serves until a signal comes.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let settings = args.flags.settings("serve-probe", &[("max_backlog", MAX_BACKLOG)])?;
    serve::until_stopped(bind(&settings)?, settings.drain)
}

fn bind(settings: &Settings) -> throng::Result<Bound> {
    // One frame for all: what waits for a slow reader are references to it, not copies.
    let frame = Frame::binary(vec![b'.'; PUSHED]);
    let next = frame.clone();
    let push =
        Ws::new().on_open(move |ws, ()| push(ws, &frame)).on_drained(move |ws, ()| push(ws, &next));
    let app = App::new().ws("/push", push).any("/", echo).get("/echo", head);
    site::listen(site::configured(app, settings), settings)
}

/// Sends until the connection is behind; the shard then sees to all others before it comes back.
fn push(ws: &mut Socket<'_>, frame: &Frame) {
    while ws.send(frame) == Sent::Accepted {}
}

fn echo(request: &Request<'_>) -> Response {
    Response::new(Status::OK).with_bytes("application/octet-stream", request.body().to_vec())
}

/// The header lines as they were received, with their line ends.
fn head(request: &Request<'_>) -> Response {
    let lines = request.head().lines().raw().to_vec();
    Response::new(Status::OK).with_bytes("text/plain", lines)
}
