//! The server that a part of a node connects to, and its connections there.

use std::fmt;
use std::sync::Arc;

use redis::RedisError;
use redis::aio::MultiplexedConnection;

use super::address::Address;
use super::masters::Masters;
use super::names::Names;
use super::open::{Connection, Opened, open_subscribed};
use super::scripts::Scripts;
use super::sentinel::Watch;
use super::shared::Membership;
use super::signals::Signals;
use super::{Settings, StartError, check_prefix};
use crate::interest::Verb;

/// A server, the sentinels that know it, or the masters of a partition, and the names in use there.
#[derive(Clone)]
pub(super) struct RedisTarget {
    place: ServerPlace,
    /// Without the password.
    shown: String,
    pub(super) names: Names,
}

#[derive(Clone)]
enum ServerPlace {
    Server(Address),
    Partition(u16, Arc<Masters>),
}

/// Without the password.
impl fmt::Debug for RedisTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisTarget({})", self.shown)
    }
}

/// The connections.
#[derive(Clone, Debug)]
pub(super) struct Link {
    pub(super) commands: MultiplexedConnection,
    pub(super) subscriptions: MultiplexedConnection,
    pub(super) scripts: Scripts,
    pub(super) connection: Connection,
    /// The name of the server in errors.
    pub(super) shown: String,
    /// Watches for another master as long as this link exists, if there are sentinels.
    _watch: Option<Arc<Watch>>,
    /// The membership of a partition.
    pub(super) membership: Option<Arc<Membership>>,
}

impl Link {
    /// Subscribes to messages, or unsubscribes.
    pub(super) async fn subscribe(
        &mut self,
        verb: Verb,
        names: &[String],
    ) -> Result<(), RedisError> {
        match (verb, &self.membership) {
            (Verb::Subscribe, None) => self.subscriptions.subscribe(names).await,
            (Verb::Unsubscribe, None) => self.subscriptions.unsubscribe(names).await,
            (Verb::Subscribe, Some(membership)) => membership.send("SSUBSCRIBE", names).await,
            (Verb::Unsubscribe, Some(membership)) => membership.send("SUNSUBSCRIBE", names).await,
        }
    }

    /// Waits until the server has confirmed the subscription.
    pub(super) async fn confirmed(&self) -> Result<(), RedisError> {
        match &self.membership {
            Some(membership) => membership.confirmed().await,
            None => Ok(()),
        }
    }

    /// Closes the connections if one is lost or does not deliver. Other parts that share them also
    /// reconnect.
    pub(super) fn close(&self) {
        if let Some(membership) = &self.membership {
            membership.close();
        }
    }

    fn new(opened: Opened, shown: String) -> Self {
        let Opened { commands, subscriptions, scripts, connection } = opened;
        let (_watch, membership) = (None, None);
        Self { commands, subscriptions, scripts, connection, shown, _watch, membership }
    }
}

impl RedisTarget {
    /// Returns the servers of a URL, or the partitions of a Redis Cluster.
    pub(super) fn all(settings: Settings) -> Result<Vec<Self>, StartError> {
        let Settings { url, prefix, node, tls } = settings;
        check_prefix(&prefix).map_err(StartError::lasting)?;
        let mut addresses = Address::parse_all(&url, &tls)?;
        if let [(Address::Cluster(_), _)] = &addresses[..]
            && let Some((Address::Cluster(masters), shown)) = addresses.pop()
        {
            let of = |(partition, tag): (u16, &String)| Self {
                place: ServerPlace::Partition(partition, Arc::clone(&masters)),
                shown: shown.clone(),
                names: Names { prefix: format!("{prefix}.{{{tag}}}"), node, is_partition: true },
            };
            return Ok((0..).zip(masters.tags.iter()).map(of).collect());
        }
        let of = |(address, shown)| Self {
            place: ServerPlace::Server(address),
            shown,
            names: Names { prefix: prefix.clone(), node, is_partition: false },
        };
        Ok(addresses.into_iter().map(of).collect())
    }

    /// Returns the masters, if this is a partition.
    pub(super) fn masters(&self) -> Option<&Masters> {
        match &self.place {
            ServerPlace::Partition(_, masters) => Some(masters),
            ServerPlace::Server(_) => None,
        }
    }

    /// Records that another master has this partition, as an error reports.
    pub(super) fn moved(&self, error: &RedisError, link: &Link) {
        if let (ServerPlace::Partition(partition, masters), Some(membership)) =
            (&self.place, &link.membership)
        {
            masters.moved(*partition, error, membership.server());
        }
    }

    /// Returns the name of the server in errors.
    pub(super) fn shown(&self) -> &str {
        &self.shown
    }

    /// Connects. Messages from the server come as signals. `before` is the connection that the new
    /// one replaces: a server that has not noticed its end could execute its commands after
    /// commands of the new connection.
    pub(super) async fn link(
        &self,
        before: Option<Connection>,
        signals: Signals,
    ) -> Result<Link, StartError> {
        let names = &self.names;
        match &self.place {
            ServerPlace::Server(Address::Server(server)) => {
                let server = (server, &*self.shown);
                let opened = open_subscribed(names, server, before, signals).await?;
                Ok(Link::new(opened, self.shown.clone()))
            }
            ServerPlace::Server(Address::Sentinels(sentinels)) => {
                let (opened, shown, watch) = sentinels.connect(names, before, signals).await?;
                let link = Link::new(opened, shown);
                Ok(Link { _watch: Some(Arc::new(watch)), ..link })
            }
            ServerPlace::Partition(partition, masters) => {
                let membership = masters.join(names, *partition, &signals).await?;
                let (opened, shown) = (membership.opened().clone(), membership.shown());
                let link = Link::new(opened, shown);
                Ok(Link { membership: Some(Arc::new(membership)), ..link })
            }
            ServerPlace::Server(Address::Cluster(_)) => unreachable!("its partitions are targets"),
        }
    }
}
