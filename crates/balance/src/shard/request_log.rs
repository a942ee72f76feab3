//! The log of requests and tunnels: the data of each, and the time of its record.

use std::net::IpAddr;
use std::sync::Arc;

use throng_engine::ConnMap;
use throng_http::RequestIdSource;
use throng_io::{ConnId, Driver, Instant, PeerAddress, SessionFailure};
use throng_proto::http1::Request;

use super::records::{
    BalanceRecords, ClientRecord, Exchange, LogEntry, MovedEntry, Origin, Tunnel,
};
use super::rules::BalanceRules;
use crate::access::{Access, AccessDetail, AccessLog, EndReason, Subject};
use crate::site::RuleNames;
use crate::unix_peer::known;

/// The log, the entries of tunnels, and the ids of requests.
pub(super) struct RequestLog {
    access: Option<Arc<dyn AccessLog>>,
    /// The entries of tunnels, by their clients.
    tunnels: ConnMap<Box<LogEntry>>,
    /// Ids of requests without one, if they are enabled.
    ids: RequestIdSource,
}

/// A request that begins.
#[derive(Clone, Copy)]
pub(super) struct Beginning<'r> {
    request: &'r Request<'r>,
    /// Its client, past trusted proxies.
    client: IpAddr,
    /// The connection that it came on.
    origin: &'r Origin,
    /// The names of its route.
    names: Option<&'r Arc<RuleNames>>,
    /// The client's point in the split that chose its pool.
    split: Option<u16>,
}

impl<'r> Beginning<'r> {
    pub(super) fn new(request: &'r Request<'r>, client: IpAddr, origin: &'r Origin) -> Self {
        Self { request, client, origin, names: None, split: None }
    }

    /// Returns it with the names of its route and the client's point in a split.
    pub(super) fn with_route(self, names: Option<&'r Arc<RuleNames>>, split: Option<u16>) -> Self {
        Self { names, split, ..self }
    }

    /// Returns the names of its route.
    pub(super) fn names(&self) -> Option<&'r Arc<RuleNames>> {
        self.names
    }
}

impl RequestLog {
    pub(super) fn new(access: Option<Arc<dyn AccessLog>>) -> Self {
        Self { access, tunnels: ConnMap::default(), ids: RequestIdSource::default() }
    }

    /// Returns the id of a request without one.
    pub(super) fn create_id(&self) -> String {
        self.ids.create()
    }

    /// Returns the entry of a request that begins; `id` is the id that the balancer assigned.
    pub(super) fn begin(
        &self,
        begins: &Beginning<'_>,
        id: Option<String>,
        now: Instant,
    ) -> Option<Box<LogEntry>> {
        let Beginning { request, client, origin, names, split } = *begins;
        let subject = Subject { client: known(client), ..origin.subject() };
        let of_route = names.and_then(|names| names.access);
        let mut entry = self.blank_entry(of_route, subject, now)?;
        entry.set_request(request, id);
        entry.set_tls(origin);
        entry.set_names(names.cloned(), split);
        Some(entry)
    }

    /// Returns the entry of a passed-through connection.
    pub(super) fn begin_passthrough(
        &self,
        server_name: Option<Box<str>>,
        subject: Subject,
        now: Instant,
    ) -> Option<Box<LogEntry>> {
        let mut entry = self.blank_entry(None, subject, now)?;
        entry.set_server_name(server_name);
        Some(entry)
    }

    /// `of_route`: the requests of its route that are logged, if that says so.
    fn blank_entry(
        &self,
        of_route: Option<AccessDetail>,
        subject: Subject,
        now: Instant,
    ) -> Option<Box<LogEntry>> {
        let access = self.access.as_ref()?;
        let always = match of_route.unwrap_or_else(|| access.detail()) {
            AccessDetail::Off => return None,
            AccessDetail::Errors => false,
            AccessDetail::All => true,
        };
        Some(Box::new(LogEntry::new(subject, now, always)))
    }

    /// Records a connection to pass through that no backend accepted.
    pub(super) fn unconnected(&self, client: &ClientRecord, reason: &str, now: Instant) {
        let entry = client.exchange.as_ref().and_then(|exchange| exchange.entry());
        let (Some(log), Some(entry)) = (&self.access, entry) else { return };
        log.record(&Access {
            is_failure: true,
            bytes_in: None,
            bytes_out: None,
            reason,
            ..entry.access(now)
        });
    }

    /// Records a request that a backend has answered.
    pub(super) fn answered(&self, exchange: &Exchange, now: Instant) {
        let (Some(log), Some(entry)) = (&self.access, exchange.entry()) else { return };
        let access = entry.access(now);
        if entry.is_always_recorded() || access.is_failure {
            log.record(&access);
        }
    }

    /// Records a request that the balancer answers itself, or whose response it cuts.
    pub(super) fn refused(&self, client: &ClientRecord, status: u16, reason: &str, now: Instant) {
        let Some(log) = &self.access else { return };
        let entry = match &client.exchange {
            Some(exchange) => exchange.entry(),
            None if log.detail() == AccessDetail::Off => return,
            None => None,
        };
        let access = match entry {
            Some(entry) => {
                let access = entry.access(now);
                Access {
                    is_failure: status >= 500 || access.status.is_some(),
                    status: access.status.or(Some(status)),
                    reason,
                    ..access
                }
            }
            None if client.exchange.is_some() => return,
            None => Access {
                subject: client.origin.subject(),
                method: None,
                path: None,
                server_name: None,
                is_tunnel: false,
                is_failure: status >= 500,
                status: Some(status),
                code: None,
                site: None,
                route: None,
                pool: None,
                split: None,
                limit: None,
                backend: None,
                attempts: 0,
                queue_length: None,
                bytes_in: None,
                bytes_out: None,
                duration: None,
                queued: None,
                tls: None,
                host: None,
                user_agent: None,
                reason,
                request_id: None,
                traceparent: None,
            },
        };
        log.record(&access);
    }

    /// Records a request that the balancer answers by a route, or because it has none. Failures are
    /// recorded, refused paths, and refusals of limits; 404 is the answer to every scanner.
    pub(super) fn answered_itself(
        &self,
        entry: &LogEntry,
        status: u16,
        reason: &str,
        now: Instant,
    ) {
        let Some(log) = &self.access else { return };
        if entry.is_always_recorded() || entry.is_beyond_limit() || status == 400 || status >= 500 {
            let access = entry.access(now);
            log.record(&Access {
                status: Some(status),
                is_failure: status >= 500,
                reason,
                ..access
            });
        }
    }

    /// Records a request whose client has left before the end of its response.
    pub(super) fn left(&self, exchange: &Exchange, now: Instant) {
        let (Some(log), Some(entry)) = (&self.access, exchange.entry()) else { return };
        if entry.is_always_recorded() {
            log.record(&Access {
                reason: "the client left, or did not read in time",
                ..entry.access(now)
            });
        }
    }

    /// Reports a connection that the balancer ends by a rule.
    #[cold]
    pub(super) fn ended(&self, subject: &Subject, backend: Option<PeerAddress>, reason: EndReason) {
        if let Some(log) = &self.access {
            log.ended(subject, backend, reason);
        }
    }

    /// Keeps the entry of a request that became a tunnel.
    pub(super) fn keep(&mut self, client: ConnId, exchange: &mut Exchange) {
        if let Some(entry) = exchange.take_entry()
            && entry.is_always_recorded()
        {
            self.tunnels.insert(client, entry);
        }
    }

    /// Takes the entry of a tunnel that moves.
    pub(super) fn take_tunnel(&mut self, client: ConnId, now: Instant) -> Option<MovedEntry> {
        self.tunnels.remove(&client).map(|entry| entry.freeze(now))
    }

    /// Keeps the entry of a tunnel that has moved here, or has come back; `now` is the time when it
    /// was frozen.
    pub(super) fn put_tunnel(
        &mut self,
        client: ConnId,
        backend: PeerAddress,
        entry: MovedEntry,
        now: Instant,
    ) {
        if self.access.is_some() {
            let entry = LogEntry::thaw(entry, client.to_bits(), backend, now);
            self.tunnels.insert(client, Box::new(entry));
        }
    }

    /// Returns the subject of a tunnel's client, from its socket and its entry.
    #[cold]
    pub(super) fn tunnel_subject<D: Driver>(
        &self,
        driver: &D,
        rules: &BalanceRules,
        client: ConnId,
    ) -> Subject {
        if let Some(entry) = self.tunnels.get(&client) {
            return entry.subject();
        }
        let peer = driver.peer(client);
        let address = peer.map(|peer| peer.ip().to_canonical()).filter(|ip| !rules.may_trust(*ip));
        Subject { session: Some(client.to_bits()), peer, client: address }
    }

    /// Records a tunnel whose backend was lost: when it ends, if it has an entry, otherwise now,
    /// with `subject`.
    #[cold]
    pub(super) fn lost(
        &mut self,
        client: ConnId,
        backend: Option<PeerAddress>,
        failure: Option<SessionFailure>,
        now: Instant,
        subject: impl FnOnce(&Self) -> Subject,
    ) {
        if let Some(entry) = self.tunnels.get_mut(&client) {
            return entry.note_loss(failure);
        }
        let Some(log) = self.access.as_ref().filter(|log| log.detail() != AccessDetail::Off) else {
            return;
        };
        let mut entry = LogEntry::new(subject(self), now, false);
        entry.set_backend(backend);
        entry.note_loss(failure);
        log.record(&Access {
            is_tunnel: true,
            is_failure: true,
            bytes_in: None,
            bytes_out: None,
            duration: None,
            attempts: 0,
            reason: &entry.loss(),
            ..entry.access(now)
        });
    }

    /// Records a tunnel that ends, if it has an entry; both its connections are still open, unless
    /// one was reset. `tunnel` is the record of `id`, which may be taken out.
    #[inline]
    pub(super) fn tunnel_ended<D: Driver>(
        &mut self,
        driver: &D,
        records: &BalanceRecords,
        (id, tunnel): (ConnId, &Tunnel),
        now: Instant,
    ) {
        if !self.tunnels.is_empty() {
            self.record_tunnel(driver, records, (id, tunnel), now);
        }
    }

    #[cold]
    fn record_tunnel<D: Driver>(
        &mut self,
        driver: &D,
        records: &BalanceRecords,
        (id, tunnel): (ConnId, &Tunnel),
        now: Instant,
    ) {
        let (client, backend) =
            if tunnel.is_backend() { (tunnel.peer(), id) } else { (id, tunnel.peer()) };
        let Some(entry) = self.tunnels.remove(&client) else { return };
        let Some(log) = &self.access else { return };
        // Bytes received from one side were sent to the other.
        let traffic = driver.traffic(client).map(|it| (it.received, it.sent));
        let traffic = traffic.or_else(|| match backend {
            same if same == client => None,
            backend => driver.traffic(backend).map(|it| (it.sent, it.received)),
        });
        log.record(&Access {
            is_tunnel: true,
            is_failure: entry.is_lost(),
            code: records.close_code_sent(id, tunnel),
            bytes_in: traffic.map(|(bytes_in, _)| bytes_in),
            bytes_out: traffic.map(|(_, bytes_out)| bytes_out),
            reason: &entry.loss(),
            ..entry.access(now)
        });
    }
}
