//! `lab serve-blocking`: handlers that block for as long as the client says, to see what that does
//! to a server.

use std::process::ExitCode;
use std::time::Duration;

use throng::prelude::*;
use throng::workers::WorkerSettings;

use throng_cli::Failure;
use throng_cli::serve::{self, SettingFlags, Settings, site};

/// The longest a client may have a thread blocked by one message.
const MAX_MS: u64 = 1000;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Worker threads; 0 = one per usable CPU
    #[arg(long, value_name = "N", default_value_t = 0)]
    workers: usize,
    #[command(flatten)]
    flags: SettingFlags,
}

/// Serves until a signal comes.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let settings = args.flags.settings("", &[])?;
    serve::until_stopped(bind(&settings, args.workers)?, settings.drain)
}

/// Binds a server of echoes: `/echo` at once, `/sleep/{ms}` after so long on the event loop,
/// `/worker/{ms}` after so long on a worker, and a page at `/page/{ms}`, from a worker too.
fn bind(settings: &Settings, pool_size: usize) -> throng::Result<Bound> {
    let sleep = Ws::from_request(length).on_message(|ws, length, message| {
        std::thread::sleep(*length);
        ws.send(message)
    });
    let work = Ws::from_request(length).on_message_blocking(|replies, length, message| {
        std::thread::sleep(*length);
        replies.send(message);
    });
    let workers = WorkerSettings::default().pool_size(Some(pool_size).filter(|&number| number > 0));
    let app = App::new()
        .ws("/echo", Ws::new().on_message(|ws, (), message| ws.send(message)))
        .ws("/sleep/{ms}", sleep)
        .ws("/worker/{ms}", work)
        .route(
            "/page/{ms}",
            Route::on(Method::Get, |request| {
                std::thread::sleep(length(request)?);
                Ok::<_, Reject>("done\n")
            })
            .blocking(),
        )
        .health()
        .metrics("/metrics")
        .route("/stats.json", throng::metrics::stats());
    let server = site::configured(app, settings).workers(workers);
    site::listen(server, settings)
}

fn length(request: &Request<'_>) -> Result<Duration, Reject> {
    match request.param("ms").and_then(|ms| ms.parse().ok()) {
        Some(ms @ ..=MAX_MS) => Ok(Duration::from_millis(ms)),
        _ => Err(Reject::bad_request("milliseconds to block are a whole number up to 1000")),
    }
}
