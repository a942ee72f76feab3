//! A ticker: a slow reader misses old prices, never the newest. Send something to
//! `ws://127.0.0.1:9001/prices` and they come; or without a WebSocket: `curl -N
//! http://127.0.0.1:9001/prices.txt`.

use std::time::Duration;

use throng::prelude::*;

const SYMBOLS: [&str; 4] = ["CHF", "EUR", "GBP", "JPY"];

fn main() -> throng::Result<()> {
    let prices = Ws::new().on_message(|ws, msg| {
        let said = String::from_utf8_lossy(msg.as_bytes());
        let _ = ws.send(format!("{said}: here are the prices"));
        ws.subscribe("prices");
    });
    let rules = Backpressure::new(SlowPolicy::Latest).max_age(Duration::from_secs(5));
    let app = App::new().ws("/prices", prices).sse("/prices.txt", |_| Ok("prices".to_owned()));
    let bound = Server::new(app).channel_backpressure("prices", rules).bind("127.0.0.1:9001")?;
    let hub = bound.hub();
    std::thread::spawn(move || {
        for tick in 0u64.. {
            for (n, symbol) in SYMBOLS.into_iter().enumerate() {
                let price = 1000 + (tick * (n as u64 + 3)) % 97;
                let frame = Frame::text(format!("{symbol} {price}")).keyed(symbol);
                // If a shard is too far behind to take it, the next price is as good.
                let _ = hub.publish("prices", frame);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    bound.run()
}
