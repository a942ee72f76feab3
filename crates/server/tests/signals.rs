//! A server that runs until a signal. Alone in its process, which it signals.
#![cfg(unix)]

mod support;

use std::thread;

use support::polite;
use throng::prelude::*;

#[test]
fn a_signal_drains_the_server() {
    let app = App::new().ws("/", Ws::new());
    let bound = Server::new(app).bind("127.0.0.1:0").unwrap();
    let (address, hub) = (bound.local_addr(), bound.hub());
    let plan = DrainPlan::DEFAULT.window(std::time::Duration::ZERO);
    let running = thread::spawn(move || bound.run_until_signal(plan).unwrap());
    let client = polite(address, "/");
    // It is connected, so the signals are handled.
    signal_hook::low_level::raise(signal_hook::consts::SIGTERM).unwrap();
    client.join().unwrap();
    assert_eq!(running.join().unwrap().forced, 0);
    assert!(hub.channels().is_empty());
}
