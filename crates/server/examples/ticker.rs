//! A ticker of quotes: send a symbol, such as `EUR`, to `ws://127.0.0.1:9001/prices`, and its price
//! comes at once, then each change; or without a WebSocket: `curl -N
//! http://127.0.0.1:9001/prices/EUR`. A slow reader misses old prices, never the newest.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use throng::prelude::*;

const SYMBOLS: [&str; 4] = ["CHF", "EUR", "GBP", "JPY"];

/// The newest quotes: their numbers, eight bytes each, and prices.
#[derive(Clone, Default)]
pub(crate) struct Book(Arc<Mutex<HashMap<String, Vec<u8>>>>);

impl Book {
    /// Records and publishes a quote. Under the lock, so that it comes after a snapshot without it.
    pub(crate) fn set(&self, hub: &Hub, symbol: &str, number: u64, price: u64) {
        let mut book = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let quote = [number.to_be_bytes(), price.to_be_bytes()].concat();
        // If a shard is too far behind to accept it, the next price replaces it.
        let _ = hub.publish(&format!("prices.{symbol}"), Frame::binary(&quote).keyed(symbol));
        book.insert(symbol.to_owned(), quote);
    }
}

/// A quote in flight while its reader joins may come twice, with the same number.
pub(crate) fn server(book: &Book) -> Server {
    let book = book.clone();
    let prices = Ws::new().max_message_size(16).on_message(move |ws, (), message| {
        let symbol = String::from_utf8_lossy(message.as_bytes());
        let book = book.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(quote) = book.get(&*symbol) else {
            ws.send(format!("{symbol}: no such symbol"));
            return;
        };
        if ws.subscribe(&format!("prices.{symbol}")) {
            ws.send(quote);
        }
    });
    let app = App::new().ws("/prices", prices).sse("/prices/{symbol}", |request| {
        Ok(format!("prices.{}", request.param("symbol").unwrap_or_default()))
    });
    let rules = Backpressure::new(SlowPolicy::Latest).max_age(Duration::from_secs(5));
    Server::new(app).channels(Channels::new().backpressure("prices.*", rules))
}

#[allow(dead_code, reason = "a test makes its own quotes")]
fn main() -> throng::Result<()> {
    let book = Book::default();
    let bound = server(&book).bind("127.0.0.1:9001")?;
    let hub = bound.hub();
    std::thread::spawn(move || {
        for tick in 1u64.. {
            for (n, symbol) in SYMBOLS.into_iter().enumerate() {
                book.set(&hub, symbol, tick, 1000 + (tick * (n as u64 + 3)) % 97);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    bound.run()
}
