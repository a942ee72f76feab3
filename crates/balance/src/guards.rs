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
pub(crate) struct RequestGuard(Arc<Backend>, Wanted);

impl RequestGuard {
    pub(crate) fn begin(backend: &Arc<Backend>, wanted: Wanted) -> Self {
        backend.begin_request(wanted);
        Self(Arc::clone(backend), wanted)
    }

    pub(crate) fn backend(&self) -> &Arc<Backend> {
        &self.0
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.0.end_request(self.1);
    }
}

/// Counts a live tunnel.
#[derive(Debug)]
pub(crate) struct TunnelGuard(Arc<Backend>);

impl TunnelGuard {
    pub(crate) fn open(backend: &Arc<Backend>) -> Self {
        backend.open_tunnel();
        Self(Arc::clone(backend))
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
        let held = (
            HandshakePermit::take(&backend, 1).unwrap(),
            RequestGuard::begin(&backend, Wanted::Tunnel),
            TunnelGuard::open(&backend),
        );
        assert!(HandshakePermit::take(&backend, 1).is_none());
        assert_eq!(backend.load(Wanted::Tunnel), 2);
        assert_eq!((backend.handshakes(), backend.requests(), backend.tunnels()), (1, 1, 1));
        drop(held);
        assert_eq!(backend.load(Wanted::Tunnel), 0);
        assert_eq!((backend.handshakes(), backend.requests(), backend.tunnels()), (0, 0, 0));
    }
}
