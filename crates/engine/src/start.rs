//! The parameters of a shard.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use throng_io::Driver;

use crate::admission::Admission;
use crate::conn::proxy_protocol::ProxyProtocol;
use crate::context::Core;
use crate::remote::handover::Handover;
use crate::remote::mailbox::{Inbox, Mailbox};
use crate::stats::Snapshot;

/// The parameters of a shard, assembled by [`crate::build()`].
pub(crate) struct EngineStart<D: Driver, S> {
    pub(crate) driver: D,
    pub(crate) core: Core,
    pub(crate) service: S,
    pub(crate) admission: Arc<Admission>,
    pub(crate) handovers: Inbox<Handover<D::Socket>>,
    pub(crate) neighbours: Vec<Mailbox<Handover<D::Socket>>>,
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) capacity: usize,
    pub(crate) seed: u64,
    pub(crate) proxy_protocol: Option<ProxyProtocol>,
    /// The bytes of request bodies that are counted with others', for the thread of one connection.
    pub(crate) buffered: Option<Arc<AtomicUsize>>,
}
