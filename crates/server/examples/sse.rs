//! Server-sent events: the page at `http://127.0.0.1:9001/?hello` shows the time, which comes by
//! `curl -N http://127.0.0.1:9001/events`.

use std::time::{Duration, SystemTime};

use throng::prelude::*;

const PAGE: &str = "<!doctype html><title>hello</title><p>waiting<script>\
    new EventSource('/events').onmessage = e => \
    document.querySelector('p').textContent = e.data</script>\n";

fn main() -> throng::Result<()> {
    let app = App::new().get("/", |_| Response::html(PAGE)).sse("/events", |_| Ok("clock"));
    let bound = Server::new(app).bind("127.0.0.1:9001")?;
    let hub = bound.hub();
    std::thread::spawn(move || {
        loop {
            let seconds = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs();
            // A slow receiver skips to the next time.
            let _ = hub.publish("clock", seconds.to_string());
            std::thread::sleep(Duration::from_secs(1));
        }
    });
    bound.run()
}
