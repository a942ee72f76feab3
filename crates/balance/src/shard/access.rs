//! Records of requests and tunnels for the log.

use std::net::SocketAddr;

use throng_http::RequestSummary;
use throng_io::{ConnId, Driver, SessionFailure};
use throng_proto::http1::Request;
use throng_proto::ws::CloseCode;

use super::BalanceParts;
use super::records::{ClientRecord, Tunnel, flag, Exchange};
use super::LogEntry;
use crate::access::{Access, AccessDetail, EndReason, Subject};

impl BalanceParts {
    /// Returns what to keep of a request that begins.
    pub(super) fn new_entry(&self, request: &Request<'_>, of: Subject) -> Option<Box<LogEntry>> {
        let mut entry = self.blank_entry(of)?;
        entry.request = Some(RequestSummary::new(request));
        Some(entry)
    }

    /// Returns what to keep of a connection that is passed through.
    pub(super) fn new_passthrough_entry(
        &self,
        server_name: Option<Box<str>>,
        of: Subject,
    ) -> Option<Box<LogEntry>> {
        let mut entry = self.blank_entry(of)?;
        entry.server_name = server_name;
        Some(entry)
    }

    fn blank_entry(&self, subject: Subject) -> Option<Box<LogEntry>> {
        let always = match self.access.as_ref()?.detail() {
            AccessDetail::Off => return None,
            AccessDetail::Errors => false,
            AccessDetail::All => true,
        };
        Some(Box::new(LogEntry::new(subject, self.time.now(), always)))
    }

    /// Records a connection that was to be passed through, and that no backend accepted.
    pub(super) fn record_unconnected(&self, client: &ClientRecord, reason: &str) {
        let entry = client.exchange.as_ref().and_then(|exchange| exchange.access.as_deref());
        let (Some(log), Some(entry)) = (&self.access, entry) else { return };
        log.record(&Access {
            is_failure: true,
            bytes_in: None,
            bytes_out: None,
            reason,
            ..entry.access(self.time.now())
        });
    }

    /// Records a request that a backend has answered.
    pub(super) fn record_answer(&self, exchange: &Exchange) {
        let (Some(log), Some(entry)) = (&self.access, &exchange.access) else { return };
        let access = entry.access(self.time.now());
        if entry.always || access.is_failure {
            log.record(&access);
        }
    }

    /// Records a request that the balancer answers itself, or whose response it cuts.
    pub(super) fn record_refusal(&self, client: &ClientRecord, status: u16, reason: &str) {
        let Some(log) = &self.access else { return };
        let entry = match &client.exchange {
            Some(exchange) => exchange.access.as_deref(),
            None if log.detail() == AccessDetail::Off => return,
            None => None,
        };
        let access = match entry {
            Some(entry) => Access {
                is_failure: status >= 500 || entry.status.is_some(),
                status: entry.status.or(Some(status)),
                reason,
                ..entry.access(self.time.now())
            },
            None if client.exchange.is_some() => return,
            None => Access {
                subject: client.subject(),
                method: None,
                path: None,
                server_name: None,
                is_tunnel: false,
                is_failure: status >= 500,
                status: Some(status),
                code: None,
                backend: None,
                attempts: 0,
                bytes_in: None,
                bytes_out: None,
                duration: None,
                host: None,
                user_agent: None,
                reason,
                request_id: None,
                traceparent: None,
            },
        };
        log.record(&access);
    }

    /// Records a request whose client has left before the end of its response.
    pub(super) fn record_leaving(&self, exchange: &Exchange) {
        let (Some(log), Some(entry)) = (&self.access, &exchange.access) else { return };
        if entry.always {
            log.record(&Access {
                reason: "the client left, or did not read in time",
                ..entry.access(self.time.now())
            });
        }
    }

    /// Records a response that was cut because its client does not read it.
    pub(super) fn record_unread(&mut self, id: ConnId) {
        self.metrics.unread_ended += 1;
        let Some(client) = self.records.client(id) else { return };
        let (subject, exchange) = (client.subject(), client.exchange.as_ref());
        let backend = exchange.and_then(|exchange| exchange.access.as_ref()?.backend);
        self.report_end(&subject, backend, EndReason::Unread);
    }

    /// Reports a connection that the balancer ends by a rule of its own.
    #[cold]
    pub(super) fn report_end(
        &self,
        subject: &Subject,
        backend: Option<SocketAddr>,
        reason: EndReason,
    ) {
        if let Some(log) = &self.access {
            log.ended(subject, backend, reason);
        }
    }

    /// Returns who the client of a tunnel is, as its socket and its record know.
    #[cold]
    pub(super) fn tunnel_subject<D: Driver>(&self, driver: &D, client: ConnId) -> Subject {
        if let Some(entry) = self.entries.get(&client) {
            return entry.subject;
        }
        let peer = driver.peer(client);
        let own = peer.map(|peer| peer.ip().to_canonical()).filter(|ip| !self.trusts(*ip));
        Subject { session: Some(client.to_bits()), peer, client: own }
    }

    /// Records a tunnel whose backend was lost, if it has no entry that will.
    #[cold]
    pub(super) fn record_loss<D: Driver>(
        &self,
        driver: &D,
        client: ConnId,
        backend: Option<SocketAddr>,
        failure: Option<SessionFailure>,
    ) {
        let Some(log) = &self.access else { return };
        if self.entries.contains_key(&client) || log.detail() == AccessDetail::Off {
            return;
        }
        let entry = LogEntry {
            is_lost: true,
            tls_failure: failure,
            backend,
            ..LogEntry::new(self.tunnel_subject(driver, client), self.time.now(), false)
        };
        log.record(&Access {
            is_tunnel: true,
            is_failure: true,
            bytes_in: None,
            bytes_out: None,
            duration: None,
            attempts: 0,
            reason: &entry.loss(),
            ..entry.access(self.time.now())
        });
    }

    /// Keeps the entry of a request that became a tunnel.
    pub(super) fn keep_entry(&mut self, client: ConnId, exchange: &mut Exchange) {
        if let Some(entry) = exchange.access.take()
            && entry.always
        {
            self.entries.insert(client, entry);
        }
    }

    /// Records a tunnel that ends; both its connections are still open, unless one was reset.
    #[cold]
    pub(super) fn record_tunnel<D: Driver>(&mut self, driver: &D, id: ConnId, tunnel: &Tunnel) {
        let is_client = tunnel.count.is_none();
        let client_id = if is_client { id } else { tunnel.peer };
        let Some(entry) = self.entries.remove(&client_id) else { return };
        let Some(log) = &self.access else { return };
        let peer = self.records.at(tunnel.peer.slot()).and_then(|(at, conn)| match conn {
            super::records::BalanceRecord::Tunnel(peer) if at == tunnel.peer && at != id => Some(peer),
            _ => None,
        });
        let (client, backend) = if is_client { (Some(tunnel), peer) } else { (peer, Some(tunnel)) };
        let is_closed = client.is_some_and(|client| client.flags & flag::CLOSED != 0);
        let code = match backend {
            _ if !is_closed => None,
            Some(backend) => Some(backend.close_code()),
            None => Some(CloseCode::SERVICE_RESTART.get()),
        };
        // What one side received, the other was sent.
        let backend_id = if is_client { tunnel.peer } else { id };
        let traffic = driver.traffic(client_id).map(|it| (it.received, it.sent));
        let traffic = traffic.or_else(|| match backend_id {
            same if same == client_id => None,
            backend => driver.traffic(backend).map(|it| (it.sent, it.received)),
        });
        log.record(&Access {
            is_tunnel: true,
            is_failure: entry.is_lost,
            code,
            bytes_in: traffic.map(|(bytes_in, _)| bytes_in),
            bytes_out: traffic.map(|(_, bytes_out)| bytes_out),
            reason: &entry.loss(),
            ..entry.access(self.time.now())
        });
    }
}
