//! Servers for operators: their limits and access control.

pub(crate) mod body;
pub(crate) mod guard;

use std::net::SocketAddr;
use std::time::Duration;

use throng::server::{Bound, DrainPlan, Observe, Running, Stopper};
use throng::{App, Limits, Server};
use throng_io::{HeldListeners, Purpose};

use crate::log::{Log, log_event};

/// The largest body is a backend and its weight.
const MAX_BODY: u64 = 16 << 10;

/// Operators are few; clients need the descriptors.
const MAX_CONNECTIONS: usize = 128;
/// Connections that have not sent a request: the other places are reserved for those that have.
const MAX_PENDING: usize = 64;
/// From one address.
const MAX_PER_ADDRESS: usize = 32;
/// From accept to a whole head, which a heartbeat sends at once.
const HEAD_TIMEOUT: Duration = Duration::from_secs(2);
/// Longer than a browser's page or Prometheus asks again.
const KEEP_ALIVE: Duration = Duration::from_secs(20);

/// The time for the last answers of a process that ends.
pub(crate) const LAST_ANSWERS: Duration = Duration::from_millis(500);
/// The time for them when a successor has begun: the report of the upgrade is one.
const FINAL_ANSWERS: Duration = Duration::from_secs(5);

/// Binds a server for operators to `address`, with the process's list of listening sockets.
pub(crate) fn bind(
    app: App,
    address: SocketAddr,
    held: HeldListeners,
    log: Log,
) -> throng::Result<Bound> {
    let limits = Limits::default()
        .max_connections(MAX_CONNECTIONS)
        .max_pending_handshakes(MAX_PENDING)
        .max_connections_per_address(MAX_PER_ADDRESS)
        .handshake_timeout(HEAD_TIMEOUT)
        .keep_alive_timeout(KEEP_ALIVE)
        .max_body(MAX_BODY);
    Server::new(app)
        .limits(limits)
        .shards(1)
        .observe(Observe::new().on_event(move |event| log_event(&log, event)))
        .held_listeners(held, Purpose::Operators)
        .bind(address)
}

/// Leaves the address of a server for operators to the successor, and lets the last answers end.
pub(crate) fn hand_over(admin: Option<&Running>) {
    if let Some(admin) = admin {
        leave(&admin.stopper());
    }
}

/// Does the same with a part of it.
pub(crate) fn leave(admin: &Stopper) {
    let plan = DrainPlan::DEFAULT.window(Duration::ZERO).grace(FINAL_ANSWERS);
    admin.shutdown(plan.hand_over(true));
}

/// Ends a server for operators.
pub(crate) fn end(admin: Option<Running>) {
    let Some(admin) = admin else { return };
    let plan = DrainPlan::DEFAULT.window(Duration::ZERO).grace(LAST_ANSWERS);
    // The process ends next, whether it succeeds or not.
    let _ = admin.shutdown(plan).wait();
}
