//! The clients of a world and the connections of its backends, for all protocols.

use throng_proto::proxy_protocol::{self, Decoded};

use super::backend::HttpBackend;
use super::client::HttpClient;
use super::plan::{BackendPlan, BackendProtocol, ClientPlan, ClientProtocol};
use super::through::{PassedBackend, PassedClient};
use super::wire::Wire;
use crate::rng::Rng;

/// A simulated client of the balancer.
pub(super) struct Client {
    pub(super) plan: ClientPlan,
    /// `None` before it comes, or if no balancer listened.
    pub(super) wire: Option<Wire>,
    came: bool,
    pub(super) session: SimTunnel,
}

/// The protocol state of a client.
pub(super) enum SimTunnel {
    Http(Box<HttpClient>),
    Passed(PassedClient),
}

impl Client {
    pub(super) fn new(plan: &ClientPlan, rng: Rng) -> Self {
        let session = match &plan.protocol {
            ClientProtocol::Http(session) => {
                SimTunnel::Http(Box::new(HttpClient::new(plan.id, session, rng)))
            }
            ClientProtocol::Passed(hello) => {
                SimTunnel::Passed(PassedClient::new(plan.id, *hello, rng))
            }
        };
        Self { plan: plan.clone(), wire: None, came: false, session }
    }

    pub(super) fn has_come(&self) -> bool {
        self.came
    }

    pub(super) fn is_gone(&self) -> bool {
        self.came && self.wire.as_ref().is_none_or(|wire| wire.gone)
    }

    /// Returns its state, for reports.
    pub(super) fn describe(&self) -> String {
        let id = self.plan.id;
        let Some(wire) = &self.wire else { return format!("client {id} has not come") };
        let (written, all, got) = (wire.written, wire.log.len(), wire.got.len());
        let (over, next, protocol) = (wire.over, self.next_at(), &self.plan.protocol);
        let state = match &self.session {
            SimTunnel::Http(session) => session.describe(),
            SimTunnel::Passed(_) => String::new(),
        };
        format!(
            "client {id}: {written} of {all} bytes written, {got} read, {over:?}, next {next:?}, \
             {state}{protocol:?}"
        )
    }

    pub(super) fn next_at(&self) -> Option<u64> {
        let wire = match &self.wire {
            None if self.came => return None,
            None => return Some(self.plan.at),
            Some(wire) if wire.gone => return None,
            Some(wire) => wire.next_at(),
        };
        let own = match &self.session {
            SimTunnel::Http(session) => session.next_at(),
            SimTunnel::Passed(_) => None,
        };
        wire.into_iter().chain(own).min()
    }

    /// Connects, and takes its end of a link; `None` if no balancer listens.
    pub(super) fn come(&mut self, wire: Option<Wire>) {
        (self.came, self.wire) = (true, wire);
        let Some(wire) = &mut self.wire else { return };
        match &mut self.session {
            SimTunnel::Http(session) => session.begin(wire),
            SimTunnel::Passed(session) => session.begin(wire),
        }
    }

    pub(super) fn step(&mut self, now: u64) {
        let Some(wire) = &mut self.wire else { return };
        wire.step();
        match &mut self.session {
            SimTunnel::Http(session) => session.step(now, wire),
            SimTunnel::Passed(session) => session.step(wire),
        }
        wire.write();
    }
}

/// A connection of a simulated backend.
pub(super) struct Conn {
    pub(super) backend_index: usize,
    pub(super) wire: Wire,
    /// The beginning of the client's bytes in [`Wire::got`]; `None` until the PROXY header before
    /// them has arrived.
    from: Option<usize>,
    pub(super) service: Service,
}

/// The protocol state of a backend.
pub(super) enum Service {
    Http(Box<HttpBackend>),
    Passed(PassedBackend),
}

impl BackendPlan {
    /// Draws the backend's behaviour on one connection; also returns the random numbers of the
    /// wire.
    pub(super) fn service(&self, rng: &mut Rng, finely: bool) -> (Rng, Service) {
        match &self.protocol {
            BackendProtocol::Http { behaviours, leavings } => {
                let (way, leaving) = (rng.pick(behaviours), rng.pick(leavings));
                let (of_wire, own) = (rng.fork(), rng.fork());
                let largest = if finely { 300 } else { 20_000 };
                (of_wire, Service::Http(Box::new(HttpBackend::new(way, leaving, largest, own))))
            }
            BackendProtocol::Passed(conducts) => {
                let conduct = rng.pick(conducts);
                (rng.fork(), Service::Passed(PassedBackend::new(conduct)))
            }
        }
    }
}

impl Conn {
    pub(super) fn new(
        backend_index: usize,
        wire: Wire,
        send_proxy: bool,
        service: Service,
    ) -> Self {
        Self { backend_index, wire, from: (!send_proxy).then_some(0), service }
    }

    pub(super) fn next_at(&self) -> Option<u64> {
        if self.wire.gone {
            return None;
        }
        let own = match &self.service {
            Service::Http(service) => service.next_at(),
            Service::Passed(_) => None,
        };
        self.wire.next_at().into_iter().chain(own).min()
    }

    /// Returns the received bytes of the client.
    pub(super) fn received(&self) -> &[u8] {
        self.from.map_or(&[], |from| &self.wire.got[from..])
    }

    /// Returns the HTTP side, if the backend speaks HTTP.
    pub(super) fn http(&self) -> Option<(&Wire, &HttpBackend)> {
        match &self.service {
            Service::Http(service) => Some((&self.wire, service)),
            Service::Passed(_) => None,
        }
    }

    pub(super) fn step(&mut self, now: u64) {
        let wire = &mut self.wire;
        wire.step();
        if wire.gone {
            return;
        }
        if self.from.is_none() {
            match proxy_protocol::decode(&wire.got) {
                Ok(Decoded::Header(header)) if header.addresses.is_some() => {
                    self.from = Some(header.len);
                }
                Ok(Decoded::Needs(_)) => {}
                other => {
                    let fault = format!("a PROXY header was due, and came: {other:?}");
                    wire.faults.push(fault);
                    return wire.leave(true);
                }
            }
        }
        match &mut self.service {
            Service::Http(service) => service.step(now, wire, self.from),
            Service::Passed(service) => service.step(wire, self.from),
        }
        wire.write();
    }
}
