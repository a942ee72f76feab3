//! Clients that chat for a demonstration, without a measurement, until they are stopped.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::client::{self, Handshake, PoolShared, ThreadStart, Timeline, WsStart, open_driver};
use crate::clock::Clock;
use crate::error::Error;
use crate::record::Summary;
use crate::sources::Sources;
use crate::target::Target;
use crate::tls::TlsPlan;
use crate::work::{Chat, ChatCounters};
use crate::{descriptors, sources};

/// Maximum wait for the closing handshakes when the clients end.
const CLOSE: Duration = Duration::from_secs(3);

/// Number, channels and message rate of the clients.
#[derive(Clone, Debug)]
pub struct ClientPlan {
    /// The server; the path of the URL is not used.
    pub target: Target,
    /// Clients. Default 1,000.
    pub clients: usize,
    /// Channels at `/ws/{channel}`, over which the clients are spread evenly. If there are fewer
    /// than two clients per channel, only the first few channels are used, so that no client is
    /// alone. Default: 50 channels.
    pub channels: Vec<String>,
    /// Messages per second from each client. Default 0.5: a thousand clients send 500 messages per
    /// second and, with 20 in a channel, receive 9,500.
    pub rate_per_s: f64,
    /// TLS settings for a server with `wss://`.
    pub tls: TlsPlan,
}

impl ClientPlan {
    /// A plan with all defaults.
    #[must_use]
    pub fn new(target: Target) -> Self {
        let channels = (1..=50).map(|room| format!("room-{room}")).collect();
        Self { target, clients: 1000, channels, rate_per_s: 0.5, tls: TlsPlan::default() }
    }

    /// Returns the used channels: at most one for every two clients.
    fn used_channels(&self) -> &[String] {
        let most = (self.clients / 2).max(1);
        &self.channels[..self.channels.len().min(most)]
    }
}

/// Counters of the clients.
#[derive(Clone, Debug, Default)]
pub struct ClientStats {
    /// Connections open now.
    pub connections: u64,
    /// Messages sent since the start.
    pub messages_out: u64,
    /// Messages received since the start.
    pub messages_in: u64,
    /// From the planned time of a message to each receiver, since the last snapshot; `None` if
    /// nothing was received.
    pub latency: Option<Summary>,
    /// Connections that could not be made, or ended before the clients were stopped.
    pub failures: u64,
    /// A description of the first such failure.
    pub first_error: Option<String>,
}

/// A handle of clients that run on their own thread. Dropping it resets the connections;
/// [`ClientsHandle::stop`] closes them with a closing handshake.
#[derive(Debug)]
pub struct ClientsHandle {
    shared: Arc<PoolShared>,
    counters: Arc<ChatCounters>,
    thread: Option<JoinHandle<()>>,
}

/// Starts the clients; they begin to chat before all of them are connected.
///
/// # Errors
/// The plan has no clients or channels, the host is unknown, the descriptor limit is too low, or a
/// thread cannot be started. An unreachable server shows in [`ClientStats::failures`].
pub fn spawn_clients(plan: ClientPlan) -> Result<ClientsHandle, Error> {
    if plan.clients == 0 || plan.channels.is_empty() || !(1e-6..=1e6).contains(&plan.rate_per_s) {
        return Err(Error::Usage(
            "a demonstration needs a client, a channel and a rate".to_owned(),
        ));
    }
    let peer = plan.target.resolve()?;
    let sources = Sources::plan(peer, plan.clients, sources::ephemeral_ports(), None)?;
    descriptors::make_room(plan.clients)?;
    let shared = Arc::new(PoolShared::new(1));
    let counters = Arc::new(ChatCounters::default());
    let now = Clock.now();
    let never = now.after(Duration::from_secs(100 * 365 * 24 * 3600));
    shared.begin(Timeline { start: now, from: now, to: never });
    let tls = plan.tls.load(&plan.target)?;
    let driver = open_driver(plan.clients, 4096, tls.as_ref())?;
    let start =
        ThreadStart { tls, ..ThreadStart::single(&shared, peer, sources, plan.clients, driver) };
    let ws = WsStart {
        handshake: Arc::new(Handshake::plain(&plan.target.host_header())),
        setup_timeout: Duration::from_secs(10),
        size: 4096,
        backlog: 1 << 20,
    };
    let resources = plan.used_channels().iter().map(|channel| format!("/ws/{channel}")).collect();
    let chat = Chat::new(resources, plan.rate_per_s, Arc::clone(&counters));
    let thread = std::thread::Builder::new()
        .name("throng-clients".to_owned())
        .spawn({
            let (shared, counters) = (Arc::clone(&shared), Arc::clone(&counters));
            move || {
                let ran = client::run(start, &ws, chat);
                if let Some(error) = ran.err().or_else(|| shared.take_failure()) {
                    counters.failed.fetch_add(1, Ordering::Relaxed);
                    let mut first =
                        counters.first_error.lock().unwrap_or_else(PoisonError::into_inner);
                    first.get_or_insert_with(|| error.to_string());
                }
            }
        })
        .map_err(|error| Error::io("start a thread", error))?;
    Ok(ClientsHandle { shared, counters, thread: Some(thread) })
}

impl ClientsHandle {
    /// Returns the current counters, with the latencies since the last call.
    #[must_use]
    pub fn snapshot(&self) -> ClientStats {
        let counters = &self.counters;
        let read = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
        let latency =
            std::mem::take(&mut *counters.latency.lock().unwrap_or_else(PoisonError::into_inner));
        let first_error =
            counters.first_error.lock().unwrap_or_else(PoisonError::into_inner).clone();
        ClientStats {
            connections: self.shared.sum(|lane| &lane.ready),
            messages_out: read(&counters.sent),
            messages_in: read(&counters.received),
            latency: latency.summary(),
            failures: read(&counters.lost) + read(&counters.failed),
            first_error,
        }
    }

    /// Closes every connection with a closing handshake, waits for them up to three seconds, and
    /// returns the last figures.
    #[must_use]
    pub fn stop(mut self) -> ClientStats {
        self.counters.leave.store(true, Ordering::Release);
        self.shared.wake_all();
        let deadline = std::time::Instant::now() + CLOSE;
        while self.shared.sum(|lane| &lane.ready) > 0 && std::time::Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.end();
        self.snapshot()
    }

    fn end(&mut self) {
        self.shared.finish();
        if let Some(thread) = self.thread.take() {
            // The thread has already printed its panic.
            let _ = thread.join();
        }
    }
}

impl Drop for ClientsHandle {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_client_is_alone_in_its_channel() {
        let target = Target::parse("ws://127.0.0.1:9001").unwrap();
        for (clients, channels) in
            [(1, 1), (2, 1), (3, 1), (20, 10), (50, 25), (100, 50), (1000, 50)]
        {
            let plan = ClientPlan { clients, ..ClientPlan::new(target.clone()) };
            assert_eq!(plan.used_channels().len(), channels, "{clients} clients");
        }
    }
}
