//! Connections in transit from one shard to another.

use std::net::SocketAddr;
use std::sync::Arc;

use throng_io::TlsInfo;

use crate::conn::by_address::AddressKey;
use crate::conn::held::HeldInput;
use crate::connections::memory::InTransit;
use crate::message::UserEvent;

/// A socket in transit to the shard that will serve it, with the key that counts its address.
pub(crate) struct Handover<S> {
    pub(crate) socket: S,
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) key: Option<AddressKey>,
    /// The upgrade that was accepted elsewhere; `None` for a new connection.
    pub(crate) upgrade: Option<Box<MovedUpgrade>>,
}

/// An upgrade that the service of one shard has passed to the service of another.
pub(crate) struct MovedUpgrade {
    pub(crate) event: UserEvent,
    /// Input that was received after the request.
    pub(crate) input: HeldInput,
    /// Its client has got the response.
    pub(crate) is_answered: bool,
    pub(crate) tls: Option<Arc<TlsInfo>>,
    /// Counts the memory of `input` on the way.
    pub(crate) memory: InTransit,
}
