//! The reports of `throng serve` on messages that it has dropped, and on its cluster: whether it
//! serves, messages that it has lost, and servers with other rules.

use std::time::{Duration, Instant};

use throng::server::Running;

use crate::log::{Log, LogEvent, events};

/// The shortest time between two lines of a kind.
const EACH: Duration = Duration::from_secs(10);

/// Logs that the cluster is away or back, that messages were lost, whether a client or the program
/// published them, and which servers have other rules for channels.
#[derive(Default)]
pub(super) struct Refusals {
    dropped: Logged,
    #[cfg(feature = "redis")]
    refused: Logged,
    #[cfg(feature = "redis")]
    unknown: Logged,
    #[cfg(feature = "redis")]
    gaps: Logged,
    /// When the log reported that the cluster does not serve.
    #[cfg(feature = "redis")]
    degraded: Option<Instant>,
    /// Servers with other rules that were logged.
    #[cfg(feature = "redis")]
    differing: Vec<String>,
}

/// Losses that have been logged, and when.
#[derive(Default)]
struct Logged {
    count: u64,
    last: Option<Instant>,
}

impl Logged {
    fn look(&mut self, count: u64, event: &'static LogEvent, reason: &str, help: &str, log: &Log) {
        if count == self.count || self.last.is_some_and(|last| last.elapsed() < EACH) {
            return;
        }
        let more = count - self.count;
        log.event(event, help, [(event.fields[0], more.into()), ("reason", reason.into())]);
        (self.count, self.last) = (count, Some(Instant::now()));
    }
}

impl Refusals {
    /// Checks for new ones. Call it once a second.
    pub(super) fn look(&mut self, running: &Running, log: &Log) {
        let reason = "their receivers read more slowly than they are sent to; max_backlog, \
                      slow_policy";
        let help = "throng_class_dropped_total has them by channel and reason";
        let dropped = running.stats().messages_dropped;
        self.dropped.look(dropped, &events::MESSAGES_DROPPED, reason, help, log);
        #[cfg(feature = "redis")]
        self.look_at_cluster(running, log);
    }

    #[cfg(feature = "redis")]
    fn look_at_cluster(&mut self, running: &Running, log: &Log) {
        let hub = running.hub();
        let Some(cluster) = hub.cluster() else { return };
        let differing = cluster.differing();
        if differing != self.differing {
            let servers = match differing.is_empty() {
                true => "none".to_owned(),
                false => differing.join(" "),
            };
            let remedy = "give all servers the same rules for channels; `throng cluster status` \
                          with the addresses of all shows which rules differ";
            log.event(&events::CLUSTER_RULES, remedy, [("servers", servers.into())]);
            self.differing = differing;
        }
        let trouble = cluster.trouble();
        match (&trouble, self.degraded) {
            (Some((time, why)), None) => {
                log.event(
                    &events::CLUSTER_DEGRADED,
                    "channels of the cluster are not served; `throng cluster status` follows it",
                    [("duration", (*time).into()), ("reason", why.as_str().into())],
                );
                self.degraded = Some(Instant::now());
            }
            (None, Some(since)) => {
                log.event(&events::CLUSTER_UP, "", [("duration", since.elapsed().into())]);
                self.degraded = None;
            }
            _ => {}
        }
        let reason = match (cluster.down(), trouble) {
            (Some((time, why)), _) => {
                format!("the cluster has delivered nothing for {} s: {why}", time.as_secs())
            }
            (None, Some((_, why))) => why,
            (None, None) => cluster.refusal().unwrap_or_else(|| {
                "the cluster's server did not take them in time, or was away for a moment"
                    .to_owned()
            }),
        };
        let help = match cluster.down() {
            Some(_) => {
                "bring the cluster's server back; while_down = \"buffer\" has them wait for 5 s"
            }
            None if cluster.refusal().is_some() => {
                "remove a key of another type, which another program has written, or give the \
                 user the rights that docs/cluster.md lists"
            }
            None => {
                "the cluster's server may be out of memory, or slower than what is published: \
                 look at its log and at `throng cluster status`"
            }
        };
        self.refused.look(cluster.refused(), &events::CLUSTER_REFUSED, &reason, help, log);
        let help = "members may have got them or not: their publishers learn it";
        self.unknown.look(cluster.unknown(), &events::CLUSTER_UNKNOWN, &reason, help, log);
        let reason = "the cluster's server was away for a moment, or has closed the connection: \
                      this server had read too slowly (client-output-buffer-limit pubsub)";
        let help = "event streams get `lost`; give channels a history whose members must not miss \
                    any";
        self.gaps.look(cluster.gaps(), &events::CLUSTER_GAP, reason, help, log);
    }
}
