//! What `throng serve` has to say of its cluster: refused messages, and servers with other rules.

use throng::Running;

use crate::log::Log;
#[cfg(feature = "redis")]
use {
    crate::log::events,
    std::time::{Duration, Instant},
};

/// The shortest time between two lines.
#[cfg(feature = "redis")]
const EACH: Duration = Duration::from_secs(10);

/// Logs that messages were refused, whether a client or the program published them, and which
/// servers have other rules for channels.
#[derive(Default)]
pub(super) struct Refusals {
    /// Refused messages that have been logged.
    #[cfg(feature = "redis")]
    logged: u64,
    #[cfg(feature = "redis")]
    last: Option<Instant>,
    /// Servers with other rules that have been logged.
    #[cfg(feature = "redis")]
    differing: Vec<String>,
}

impl Refusals {
    /// Looks whether there are more. To be called once a second.
    #[cfg(feature = "redis")]
    pub(super) fn look(&mut self, running: &Running, log: &Log) {
        let hub = running.hub();
        let Some(cluster) = hub.cluster() else { return };
        let differing = cluster.differing();
        if differing != self.differing {
            let servers = match differing.is_empty() {
                true => "none".to_owned(),
                false => differing.join(" "),
            };
            let remedy = "give all servers the same histories and scopes of channels; `throng \
                          cluster status` with the addresses of all shows which rules differ";
            log.event(&events::CLUSTER_RULES, remedy, [("servers", servers.into())]);
            self.differing = differing;
        }
        let refused = cluster.refused();
        if refused == self.logged || self.last.is_some_and(|last| last.elapsed() < EACH) {
            return;
        }
        let (reason, remedy) = match cluster.down() {
            Some((time, why)) => (
                format!("the cluster has delivered nothing for {} s: {why}", time.as_secs()),
                "bring the cluster's server back; while_down = \"buffer\" has them wait for 5 s",
            ),
            None => (
                "the cluster's server did not take them in time, or was away for a moment"
                    .to_owned(),
                "the cluster's server may be out of memory, or slower than what is published: \
                 look at its log and at `throng cluster status`",
            ),
        };
        let messages = refused - self.logged;
        log.event(
            &events::CLUSTER_REFUSED,
            remedy,
            [("messages", messages.into()), ("reason", reason.into())],
        );
        (self.logged, self.last) = (refused, Some(Instant::now()));
    }

    /// Does nothing: a build without the feature has no clusters.
    #[cfg(not(feature = "redis"))]
    pub(super) fn look(&mut self, _running: &Running, _log: &Log) {}
}
