//! Handlers that block, for example for a database, on the pool of worker threads:
//! `ws://127.0.0.1:9001/ask`, and `curl http://127.0.0.1:9001/ask/hello`.

use std::thread;
use std::time::Duration;

use throng::http::get;
use throng::prelude::*;
use throng::workers::{WorkerSettings, suggested_size, usable_cpus};

const LATENCY: Duration = Duration::from_millis(20);

/// Stands for a query that takes its time.
fn query(text: &str) -> String {
    thread::sleep(LATENCY);
    format!("{text}, after {LATENCY:?}")
}

fn main() -> throng::Result<()> {
    let ask = Ws::new().on_message_blocking(|replies, (), message| {
        let Message::Text(text) = message else {
            return replies.close(CloseCode::UNSUPPORTED_DATA, "text only");
        };
        replies.send(query(text));
    });
    let answer = get(|request| query(request.param("text").unwrap_or_default()));
    let app = App::new().ws("/ask", ask).route("/ask/{text}", answer.blocking());
    // So many threads keep the CPUs busy with jobs that wait for so long and compute for so long.
    let threads = suggested_size(usable_cpus(), LATENCY, Duration::from_millis(1));
    let workers = WorkerSettings::default().pool_size(threads).queue_size(1_000);
    Server::new(app).workers(workers).bind("127.0.0.1:9001")?.run()
}
