//! Channels that span processes, carried by a broker: the feature `redis`.

mod hub;
mod metrics;
mod relay;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub use hub::{
    ClusterCount, ClusterError, ClusterHandle, ClusterHandleError, ClusterHub, ClusterPresence,
    ClusterPresent, ClusterReply, ClusterSurvey,
};
pub use throng_cluster::WhileDown;
use throng_cluster::redis::Bus;
use throng_cluster::redis::{Health, Settings, StartError, Starter, Tls, check_prefix};
use throng_engine::{ChannelPattern, Relay, Remote, SettingError};

use crate::error::{Error, Result};
use crate::events::Events;
use crate::readiness::Readiness;
use relay::{ClusterRelay, ToShards};

/// Channels that span processes; see [`Server::cluster`](crate::Server::cluster).
#[derive(Clone)]
pub struct Cluster {
    url: String,
    prefix: String,
    unready_after: Duration,
    require_at_start: bool,
    rules: Vec<(ChannelPattern, ChannelRule)>,
    answer: Option<SurveyFn>,
    tls: Tls,
    mistake: Option<SettingError>,
}

/// Answers questions of the program on other servers.
type SurveyFn = Arc<dyn Fn(&[u8]) -> Vec<u8> + Send + Sync>;

/// Without the URL, which may have a password.
impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

/// Rule of a channel: whether the cluster has it, and how it is treated while the broker is away.
#[derive(Clone, Copy, Debug)]
enum ChannelRule {
    Local,
    WhileDown(WhileDown),
}

impl Cluster {
    /// Creates a cluster of the servers that use the Redis or Valkey server at `url`:
    /// `redis://[user[:password]@]host[:port][/database]`, or the server named by its sentinels:
    /// `redis-sentinel://[user[:password]@]host[:port][,host[:port]...]/master[/database]`. Several
    /// of these with commas between them are independent servers, each with a part of the channels:
    /// all servers of the cluster have the same list. A Redis Cluster of Redis 7.0 or later is
    /// `redis-cluster://[user[:password]@]host[:port][,host[:port]...]`, with some of its servers.
    ///
    /// With the feature `tls`, `rediss://`, `rediss-sentinel://` and `rediss-cluster://` use TLS on
    /// every connection, also to servers that a sentinel or the Redis Cluster names. Each
    /// certificate must contain the host of its connection: an address, if the sentinel or the
    /// Redis Cluster announces addresses, or the name of [`tls_name`](Self::tls_name).
    #[must_use]
    pub fn redis(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            prefix: "throng".to_owned(),
            unready_after: Duration::ZERO,
            require_at_start: false,
            rules: Vec::new(),
            answer: None,
            tls: Tls::default(),
            mistake: None,
        }
    }

    /// Sets the prefix of all names at the broker: applications that share a broker have different
    /// prefixes, of 1 to 64 letters, digits, `-` and `_`; any other prefix is an error of
    /// [`Server::check`](crate::Server::check) and at the start. Default: `throng`.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Sets the time after which `/readyz` answers 503 while the broker delivers nothing or accepts
    /// no publications. With zero the answer stays 200, with the reason ([`Readiness::Degraded`]).
    /// All servers of a cluster notice an absent broker at once, so a load balancer has no better
    /// server to send clients to. Default: zero.
    #[must_use]
    pub fn unready_after(mut self, time: Duration) -> Self {
        self.unready_after = time;
        self
    }

    /// Sets whether [`Bound::start`](crate::server::Bound::start) and
    /// [`Bound::run`](crate::server::Bound::run) fail while the broker cannot be reached. If false,
    /// a server starts, is [not ready](Readiness::NotReady) until it reaches a broker, and keeps
    /// trying. Permanent failures, such as a wrong password, a missing right, or a server of
    /// another kind, are errors in any case. Default: false.
    #[must_use]
    pub fn require_at_start(mut self, require: bool) -> Self {
        self.require_at_start = require;
        self
    }

    /// Keeps the channels that match `pattern` in their process, as without a cluster.
    #[must_use]
    pub fn local(self, pattern: &str) -> Self {
        self.rule(pattern, ChannelRule::Local)
    }

    /// Sets how publications to the channels that match `pattern` are treated while the broker is
    /// unavailable. For channels with history, [`WhileDown::Local`] acts as [`WhileDown::Refuse`].
    /// If several patterns match, patterns of [`local`](Self::local) included, the first one added
    /// applies; a pattern after another that matches all its channels is a mistake. Default:
    /// [`WhileDown::Refuse`].
    #[must_use]
    pub fn while_down(self, pattern: &str, while_down: WhileDown) -> Self {
        self.rule(pattern, ChannelRule::WhileDown(while_down))
    }

    /// Sets the function that answers questions which servers ask all others with
    /// [`ClusterHub::survey`]. The function is called on the thread of the cluster, which delivers
    /// nothing until the function returns, so it must not wait. An answer of more than 64 KiB is
    /// not sent. If it panics, no answer is sent, and
    /// [`ServerEvent::CallbackPanicked`](crate::server::ServerEvent::CallbackPanicked) follows.
    /// Default: no question is answered.
    ///
    /// ```
    /// # use throng::prelude::*;
    /// use throng::cluster::Cluster;
    ///
    /// let hub = Hub::new();
    /// let of_answers = hub.clone();
    /// let cluster = Cluster::redis("redis://10.0.0.5").answer(move |question| match question {
    ///     b"channels" => of_answers.channels().len().to_string().into(),
    ///     _ => Vec::new(),
    /// });
    /// let server = Server::new(App::new()).with_hub(&hub).cluster(cluster);
    /// ```
    #[must_use]
    pub fn answer(mut self, answer: impl Fn(&[u8]) -> Vec<u8> + Send + Sync + 'static) -> Self {
        self.answer = Some(Arc::new(answer));
        self
    }

    /// Sets the file with the authorities (PEM) whose certificates the broker may have. Default:
    /// the authorities that the system trusts. [`Server::bind`](crate::Server::bind) reads this and
    /// the other files, and later connections read them again if they have changed.
    #[must_use]
    pub fn tls_ca(mut self, authorities: impl Into<PathBuf>) -> Self {
        self.tls.ca = Some(authorities.into());
        self
    }

    /// Sets the files of the certificate chain and private key (PEM) for a broker that demands a
    /// certificate of its clients. Default: none.
    #[must_use]
    pub fn tls_certificate(mut self, chain: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.tls.certificate = Some((chain.into(), key.into()));
        self
    }

    /// Sets the name that the certificates of all servers of the broker must have, also sent as
    /// SNI. Default: the host of each connection.
    #[must_use]
    pub fn tls_name(mut self, name: impl Into<String>) -> Self {
        self.tls.name = Some(name.into());
        self
    }

    fn rule(mut self, pattern: &str, rule: ChannelRule) -> Self {
        let earlier = self.rules.iter().map(|(pattern, _)| pattern);
        match ChannelPattern::after(earlier, pattern) {
            Ok(pattern) => self.rules.push((pattern, rule)),
            Err(error) => drop(self.mistake.get_or_insert(error)),
        }
        self
    }
}

/// The cluster of a server, if it has one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Setting(pub(crate) Option<Cluster>);

/// A node that is not connected yet.
#[derive(Default)]
pub(crate) struct Unconnected(Option<Prepared>);

struct Prepared {
    relay: Arc<ClusterRelay>,
    starter: Starter,
    unready_after: Duration,
    require_at_start: bool,
    answer: Option<SurveyFn>,
}

impl Setting {
    pub(crate) fn check(&self) -> Result<()> {
        let Some(cluster) = &self.0 else { return Ok(()) };
        let mistake = cluster.mistake.clone();
        mistake.map_or(Ok(()), |mistake| Err(Error::Setting(mistake)))?;
        check_prefix(&cluster.prefix).map_err(|error| Error::setting("cluster.prefix", error))
    }

    /// Creates the node; `own_tables` if each shard has its own descriptor table.
    pub(crate) fn prepare(self, own_tables: bool) -> Result<Unconnected> {
        let Some(cluster) = self.0 else { return Ok(Unconnected::default()) };
        let Cluster { url, prefix, unready_after, require_at_start, rules, answer, tls, .. } =
            cluster;
        let node = relay::random_number();
        let settings = Settings { url, prefix, node, tls };
        let create = if own_tables { Bus::for_own_tables } else { Bus::new };
        let (bus, starter) = create(settings).map_err(|error| wrong(&error))?;
        let relay = Arc::new(ClusterRelay::new(bus, node, rules));
        let prepared = Prepared { relay, starter, unready_after, require_at_start, answer };
        Ok(Unconnected(Some(prepared)))
    }
}

fn wrong(error: &StartError) -> Error {
    let problem = SettingError::new("cluster.url", error.to_string());
    Error::Setting(problem.passing_if(!error.is_lasting()))
}

impl Unconnected {
    pub(crate) fn relay(&self) -> Option<Arc<dyn Relay>> {
        self.0.as_ref().map(|prepared| Arc::clone(&prepared.relay) as Arc<dyn Relay>)
    }

    /// Connects, or begins to try to connect.
    pub(crate) fn start(self, remote: &Remote, events: &Events) -> Result<Node> {
        let Some(prepared) = self.0 else { return Ok(Node::default()) };
        let Prepared { relay, starter, unready_after, require_at_start, answer } = prepared;
        relay.set_remote(remote);
        let members = ToShards::new(&relay, remote, answer, events.clone());
        let started = match require_at_start {
            true => starter.start(members),
            false => starter.start_or_wait(members),
        };
        started.map_err(|error| wrong(&error))?;
        Ok(Node(Some((relay, unready_after))))
    }
}

/// A server's node of a cluster, and the time without delivery after which the server is not ready.
#[derive(Clone, Debug, Default)]
pub(crate) struct Node(Option<(Arc<ClusterRelay>, Duration)>);

impl Node {
    /// Returns whether the server is ready for clients of channels. Any client may read the reason,
    /// so it omits the broker's address and error text: statistics have them.
    pub(crate) fn readiness(&self) -> Readiness {
        let Some((relay, unready_after)) = &self.0 else { return Readiness::Ready };
        let bus = &relay.bus;
        let (time, why) = match bus.status().health() {
            Health::Up => return Readiness::Ready,
            Health::Unlinked(..) => {
                let why = "the cluster has not been there since the start";
                return Readiness::NotReady(why.to_owned());
            }
            Health::Degraded(time, _) if bus.status().is_up() => {
                (time, "the cluster has not taken all messages")
            }
            Health::Degraded(time, _) => (
                time,
                match bus.status().parts() {
                    (1, _) => "the cluster has delivered nothing",
                    _ => "a part of the cluster has delivered nothing",
                },
            ),
        };
        let why = format!("{why} for {} s", time.as_secs());
        match !unready_after.is_zero() && time > *unready_after {
            true => Readiness::NotReady(why),
            false => Readiness::Degraded(why),
        }
    }
}

/// Ends the node with the server.
#[derive(Debug)]
pub(crate) struct Guard(pub(crate) Node);

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some((relay, _)) = &self.0.0 {
            relay.bus.stop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_that_could_be_part_of_another_one_is_a_mistake_that_names_a_remedy() {
        let check = |prefix: &str| {
            let cluster = Cluster::redis("redis://10.0.0.5").prefix(prefix);
            let server = crate::Server::new(crate::App::new()).cluster(cluster);
            server.check().map_err(|error| error.to_string())
        };
        for prefix in ["throng", "a", "Shop-2_b", &"x".repeat(64)] {
            assert_eq!(check(prefix), Ok(()), "{prefix}");
        }
        for prefix in ["throng.m", ".", "", "a b", "a{b}", "a*", "a:b", "gr\u{fc}n", "a\n"] {
            let error = check(prefix).unwrap_err();
            let parts = ["cluster.prefix", &format!("{prefix:?}"), "letters, digits"];
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
            let remedy = error.rsplit_once("use \"").unwrap().1.split('"').next().unwrap();
            assert_eq!(check(remedy), Ok(()), "{error}");
        }
        assert!(check(&"x".repeat(65)).is_err());
    }

    #[test]
    fn the_password_is_not_in_debug_output() {
        let cluster = Cluster::redis("redis://throng:hidden@10.0.0.5").prefix("chat");
        let text = format!("{cluster:?} {:?}", Setting(Some(cluster.clone())));
        assert!(text.contains("chat") && !text.contains("hidden"), "{text}");
        let (url, prefix) = ("redis://:hidden@10.0.0.5".to_owned(), "chat".to_owned());
        let settings = Settings { url, prefix, node: 1, tls: Tls::default() };
        let bus = format!("{settings:?} {:?}", Bus::new(settings.clone()).unwrap());
        assert!(!bus.contains("hidden"), "{bus}");
    }
}
