//! A handler as a type of its own, with state that all connections share:
//! `ws://127.0.0.1:9001/count`.

use std::sync::atomic::{AtomicU64, Ordering};

use throng::prelude::*;

/// Counts the messages of each connection, and of all.
#[derive(Default)]
struct Counter {
    all: AtomicU64,
}

impl Handler for Counter {
    /// Messages of this connection.
    type Data = u64;

    fn on_upgrade(&self, _: &Request<'_>) -> Result<u64, Reject> {
        Ok(0)
    }

    fn on_message(&self, ws: &mut Socket<'_, u64>, count: &mut u64, message: Message<'_>) {
        *count += 1;
        let all = self.all.fetch_add(1, Ordering::Relaxed) + 1;
        let text = String::from_utf8_lossy(message.as_bytes());
        ws.send(format!("{text}: your message {count}, of {all} in all"));
    }

    fn on_event(&self, _: &mut Socket<'_, u64>, count: &mut u64, event: SessionEvent<'_>) {
        if let SessionEvent::Closed(close) = event {
            println!("{count} messages, closed with {}", close.code);
        }
    }
}

fn main() -> throng::Result<()> {
    let app = App::new().ws("/count", Counter::default());
    Server::new(app).bind("127.0.0.1:9001")?.run()
}
