//! Listeners: their rules, and how many clients they have.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use serde::Serialize;
use throng_http::{Network, PlainHttp};
use throng_io::{ListenerId, PeerAddress};

/// The name of the listener with the addresses of `listen`.
pub(crate) const LISTEN: &str = "listen";
/// The name of the listener with the addresses of `tls.listen`.
pub(crate) const TLS_LISTEN: &str = "tls.listen";

/// The rules of a listener. They do not change while it listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerRules {
    /// Its name.
    pub name: Arc<str>,
    /// Whether connections begin with a PROXY header. Default:
    /// [`Settings::accept_proxy`](crate::Settings::accept_proxy).
    pub accept_proxy: Option<bool>,
    /// The proxies whose headers are trusted there. Default:
    /// [`Settings::trusted_proxies`](crate::Settings::trusted_proxies).
    pub trusted_proxies: Option<Arc<[Network]>>,
    /// The answer to HTTP without TLS, if clients have TLS there. Default:
    /// [`ClientSide::plain`](crate::ClientSide::plain).
    pub plain: Option<PlainHttp>,
    /// Its clients at a time; 0, the default: no limit of its own.
    pub max_connections: usize,
    /// Whether its clients are counted: it has a table of its own.
    pub is_counted: bool,
}

impl ListenerRules {
    /// Creates the rules of a listener that follows the settings of all.
    pub(crate) fn named(name: &str) -> Self {
        Self {
            name: name.into(),
            accept_proxy: None,
            trusted_proxies: None,
            plain: None,
            max_connections: 0,
            is_counted: false,
        }
    }

    /// Returns whether HTTP without TLS is more than refused, by a rule of its own.
    pub(crate) fn accepts_plain(&self) -> bool {
        self.plain.is_some_and(|plain| plain != PlainHttp::Refuse)
    }
}

/// An address, or a Unix socket, where clients connect.
#[derive(Clone, Debug)]
pub struct ListenAt {
    /// The address; with port 0 the system chooses one.
    pub address: PeerAddress,
    /// Whether clients use TLS.
    pub has_tls: bool,
    /// The permissions of the file of a Unix socket.
    pub unix_mode: u32,
    /// Whether other processes may also listen on the port.
    pub share_port: bool,
    /// Its name and rules.
    pub rules: ListenerRules,
}

impl ListenAt {
    /// Returns where clients connect without TLS.
    #[must_use]
    pub fn plain(address: SocketAddr) -> Self {
        let (share_port, rules) = (false, ListenerRules::named(LISTEN));
        Self { address: address.into(), has_tls: false, unix_mode: 0o660, share_port, rules }
    }
}

/// A listener that is open, with its counts over all shards.
#[derive(Debug)]
struct OpenListener {
    rules: ListenerRules,
    open: AtomicUsize,
    accepted: AtomicU64,
    refused: AtomicU64,
}

/// The listeners of a balancer, by the numbers of its sockets in each shard. Sockets without a
/// listener follow the settings of all.
#[derive(Clone, Debug, Default)]
pub struct Listeners(Arc<[Arc<OpenListener>]>);

/// A listener in [`Status`](crate::Status).
#[derive(Clone, Debug, Serialize)]
pub struct ListenerRow {
    /// Its name.
    pub name: String,
    /// Its clients.
    pub connections: usize,
    /// The most clients at a time; 0: no limit of its own.
    pub max_connections: usize,
    /// Clients that it has accepted.
    pub accepted: u64,
    /// Clients beyond `max_connections`.
    pub refused: u64,
}

impl Listeners {
    /// Creates them without clients. Each has its rules and its number of sockets; listeners of one
    /// name are one.
    pub(crate) fn new(all: impl IntoIterator<Item = (ListenerRules, usize)>) -> Self {
        let mut sockets: Vec<Arc<OpenListener>> = Vec::new();
        for (rules, count) in all {
            let known = sockets.iter().find(|other| other.rules.name == rules.name).cloned();
            let counts = (AtomicUsize::new(0), AtomicU64::new(0), AtomicU64::new(0));
            let (open, accepted, refused) = counts;
            let new = || Arc::new(OpenListener { rules, open, accepted, refused });
            let listener = known.unwrap_or_else(new);
            sockets.extend(std::iter::repeat_n(listener, count));
        }
        Self(sockets.into())
    }

    fn at(&self, listener: ListenerId) -> Option<&OpenListener> {
        self.0.get(usize::from(listener.0)).map(|listener| &**listener)
    }

    /// Returns the rules of a listener.
    pub(crate) fn rules(&self, listener: ListenerId) -> Option<&ListenerRules> {
        self.at(listener).map(|listener| &listener.rules)
    }

    /// Returns the rules by the numbers of sockets.
    pub(crate) fn all_rules(&self) -> impl Iterator<Item = &ListenerRules> {
        self.0.iter().map(|listener| &listener.rules)
    }

    /// Returns whether the clients of a listener are counted.
    pub(crate) fn counts(&self, listener: ListenerId) -> bool {
        self.rules(listener).is_some_and(|rules| rules.is_counted)
    }

    /// Returns the first socket of the listener with this name, if its clients are counted.
    pub(crate) fn counted(&self, name: &str) -> Option<ListenerId> {
        let at = self.all_rules().position(|rules| rules.is_counted && *rules.name == *name)?;
        u16::try_from(at).ok().map(ListenerId)
    }

    /// Counts one more client of a listener whose clients are counted, unless it has its most.
    pub(crate) fn enter(&self, listener: ListenerId) -> bool {
        let Some(listener) = self.at(listener).filter(|it| it.rules.is_counted) else {
            return true;
        };
        let most = match listener.rules.max_connections {
            0 => usize::MAX,
            most => most,
        };
        let enter = |open: usize| (open < most).then_some(open + 1);
        let entered = listener.open.fetch_update(Relaxed, Relaxed, enter).is_ok();
        let counter = if entered { &listener.accepted } else { &listener.refused };
        counter.fetch_add(1, Relaxed);
        entered
    }

    /// Counts a client that comes from the predecessor, which has admitted it.
    pub(crate) fn adopt(&self, listener: ListenerId) {
        self.at(listener).inspect(|listener| {
            listener.open.fetch_add(1, Relaxed);
        });
    }

    /// Uncounts a client.
    pub(crate) fn leave(&self, listener: ListenerId) {
        self.at(listener).filter(|it| it.rules.is_counted).inspect(|listener| {
            listener.open.fetch_sub(1, Relaxed);
        });
    }

    /// Returns the listeners with a table of their own.
    pub(crate) fn rows(&self) -> Vec<ListenerRow> {
        let mut rows: Vec<ListenerRow> = Vec::new();
        for OpenListener { rules, open, accepted, refused } in self.0.iter().map(|it| &**it) {
            if !rules.is_counted || rows.iter().any(|row| *row.name == *rules.name) {
                continue;
            }
            rows.push(ListenerRow {
                name: rules.name.to_string(),
                connections: open.load(Relaxed),
                max_connections: rules.max_connections,
                accepted: accepted.load(Relaxed),
                refused: refused.load(Relaxed),
            });
        }
        rows
    }
}

/// The listeners of clients that are counted by listener, by their slots.
#[derive(Debug, Default)]
pub(crate) struct ListenerBySlot(Vec<u16>);

impl ListenerBySlot {
    /// Enters the listener of the client with a slot.
    pub(crate) fn insert(&mut self, slot: usize, listener: ListenerId) {
        if self.0.len() <= slot {
            self.0.resize(slot + 1, 0);
        }
        self.0[slot] = listener.0.saturating_add(1);
    }

    /// Returns the listener of the client with a slot.
    pub(crate) fn get(&self, slot: usize) -> Option<ListenerId> {
        let number = self.0.get(slot)?.checked_sub(1)?;
        Some(ListenerId(number))
    }

    /// Removes and returns the listener of the client with a slot.
    pub(crate) fn take(&mut self, slot: usize) -> Option<ListenerId> {
        let listener = self.get(slot)?;
        self.0[slot] = 0;
        Some(listener)
    }
}
