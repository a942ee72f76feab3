//! A server that `throng tune` can tune: its handlers block, and its pool of workers is too small
//! for that: `ws://127.0.0.1:9001/ask`.
//!
//! ```text
//! throng tune --url ws://127.0.0.1:9001/ask --scenario game -- target/release/examples/tuned
//! THRONG_TUNED=throng.tuned.toml target/release/examples/tuned
//! ```

use std::thread;
use std::time::Duration;

use throng::prelude::*;
use throng::workers::WorkerSettings;

/// Stands for a query that takes its time.
const LATENCY: Duration = Duration::from_millis(50);

fn main() -> throng::Result<()> {
    let ask = Ws::new().on_message_blocking(|replies, (), message| {
        thread::sleep(LATENCY);
        replies.send(message);
    });
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:9001".to_owned());
    let workers = WorkerSettings::default().pool_size(2);
    let server = Server::new(App::new().ws("/ask", ask)).workers(workers);
    // After the settings of the program, which it overrides.
    server.settings_from_env()?.bind(&*address)?.run()
}
