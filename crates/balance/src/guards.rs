//! Guards of a backend's counts. Dropping one reverts its count, at any end of the connection.

use std::sync::Arc;

use crate::backend::{Backend, Wanted};

/// A permit for one handshake in progress.
#[derive(Debug)]
pub(crate) struct HandshakePermit(Arc<Backend>);

impl HandshakePermit {
    /// Takes a permit of `backend`, if fewer than `cap` are taken (0: no cap).
    pub(crate) fn take(backend: &Arc<Backend>, cap: u32) -> Option<Self> {
        backend.begin_handshake(cap).then(|| Self(Arc::clone(backend)))
    }
}

impl Drop for HandshakePermit {
    fn drop(&mut self) {
        self.0.end_handshake();
    }
}

/// Counts a request in progress.
#[derive(Debug)]
pub(crate) struct RequestGuard {
    backend: Arc<Backend>,
    wanted: Wanted,
    /// Its count is a tunnel's now.
    is_passed_on: bool,
}

impl RequestGuard {
    /// Begins a request, unless the backend has all that it may have at a time.
    pub(crate) fn begin(backend: &Arc<Backend>, wanted: Wanted) -> Option<Self> {
        let backend = backend.begin_request(wanted).then(|| Arc::clone(backend))?;
        Some(Self { backend, wanted, is_passed_on: false })
    }

    pub(crate) fn backend(&self) -> &Arc<Backend> {
        &self.backend
    }
}

/// The permits that a request needs to be sent to a backend.
#[derive(Debug)]
pub(crate) struct Permits {
    pub(crate) handshake: HandshakePermit,
    pub(crate) request: RequestGuard,
}

impl Permits {
    /// Takes both permits of `backend`, or neither. `cap`: of handshakes.
    pub(crate) fn take(backend: &Arc<Backend>, cap: u32, wanted: Wanted) -> Option<Self> {
        let handshake = HandshakePermit::take(backend, cap)?;
        Some(Self { request: RequestGuard::begin(backend, wanted)?, handshake })
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        if !self.is_passed_on {
            self.backend.end_request(self.wanted);
        }
    }
}

/// Counts a live tunnel.
#[derive(Debug)]
pub(crate) struct TunnelGuard(Arc<Backend>);

impl TunnelGuard {
    /// Goes on with the count of a request for a tunnel.
    pub(crate) fn of_request(mut request: RequestGuard) -> Self {
        debug_assert_eq!(request.wanted, Wanted::Tunnel);
        request.backend.turn_into_tunnel();
        request.is_passed_on = true;
        Self(Arc::clone(&request.backend))
    }

    /// Counts a tunnel that comes from the predecessor.
    pub(crate) fn adopt(backend: &Arc<Backend>) -> Self {
        backend.adopt_tunnel();
        Self(Arc::clone(backend))
    }

    pub(crate) fn backend(&self) -> &Arc<Backend> {
        &self.0
    }
}

impl Drop for TunnelGuard {
    fn drop(&mut self) {
        self.0.close_tunnel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_count_returns_to_zero() {
        let backend = Arc::new(Backend::new(([127, 0, 0, 1], 1), 1));
        let [one, other] = [(), ()].map(|()| Permits::take(&backend, 2, Wanted::Tunnel).unwrap());
        assert!(Permits::take(&backend, 2, Wanted::Tunnel).is_none());
        assert_eq!(backend.load(Wanted::Tunnel), 2);
        let tunnel = TunnelGuard::of_request(one.request);
        assert_eq!((backend.handshakes(), backend.requests(), backend.tunnels()), (2, 1, 1));
        assert_eq!(backend.load(Wanted::Tunnel), 2);
        drop((one.handshake, other, tunnel));
        assert_eq!(backend.load(Wanted::Tunnel), 0);
        assert_eq!((backend.handshakes(), backend.requests(), backend.tunnels()), (0, 0, 0));
        assert_eq!(Arc::strong_count(&backend), 1);
    }

    #[test]
    fn without_a_permit_for_the_request_its_handshake_has_none() {
        let backend = Arc::new(Backend::new(([127, 0, 0, 1], 1), 1));
        backend.set_max_connections(1);
        let permits = Permits::take(&backend, 0, Wanted::Request).unwrap();
        assert!(Permits::take(&backend, 0, Wanted::Request).is_none());
        assert_eq!((backend.handshakes(), backend.requests()), (1, 1));
        drop(permits);
        assert_eq!((backend.handshakes(), backend.requests()), (0, 0));
    }
}
