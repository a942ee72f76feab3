//! The parts of a server that exist from its listening to its end.

use std::sync::Arc;

use throng_engine::{Admission, Snapshot};

use super::capacity::{Addresses, Capacity};
use crate::hub::Hub;
use crate::live::Live;
#[cfg(feature = "metrics")]
use crate::observe::Observer;
use crate::stalls::Stalls;
use crate::tls::Security;
use crate::workers::WorkerPool;
use throng_io::placement::Placement;

/// The parts that [`Bound`](super::Bound) and [`Running`](super::Running) share.
pub(crate) struct Serving {
    pub(crate) addresses: Addresses,
    pub(crate) hub: Hub,
    pub(crate) snapshots: Arc<[Arc<Snapshot>]>,
    pub(crate) admission: Arc<Admission>,
    pub(crate) placement: Option<Placement>,
    pub(crate) stalls: Arc<Stalls>,
    pub(crate) pool: WorkerPool,
    pub(crate) security: Security,
    pub(crate) live: Live,
    pub(crate) capacity: Capacity,
    #[cfg(feature = "metrics")]
    pub(crate) observer: Observer,
}

/// Defines the getters that a server has before and while it runs.
macro_rules! getters {
    ($type:ident) => {
        impl $type {
            /// Returns the metrics of this server, for a separate server that only operators reach.
            #[cfg(feature = "metrics")]
            #[must_use]
            pub fn observer(&self) -> crate::observe::Observer {
                self.serving.observer.clone()
            }

            /// Returns the CPU of each shard; `None` without
            /// [`CpuAffinity::Cores`](crate::server::CpuAffinity::Cores). Once the server runs, the
            /// placement also has the CPUs that the kernel refused.
            #[must_use]
            pub fn placement(&self) -> Option<&throng_io::placement::Placement> {
                self.serving.placement.as_ref()
            }

            /// Returns the first address that the server listens on. If port 0 was requested, this
            /// has the real port. The address is `0.0.0.0:0` if the server listens only on Unix
            /// sockets: see [`unix_paths`](Self::unix_paths).
            #[must_use]
            pub fn local_addr(&self) -> std::net::SocketAddr {
                self.serving.addresses.first()
            }

            /// Returns all addresses that the server listens on: [`local_addr`](Self::local_addr),
            /// then the addresses of [`Server::bind_also`](crate::Server::bind_also). Unix sockets
            /// have no address.
            #[must_use]
            pub fn local_addrs(&self) -> &[std::net::SocketAddr] {
                &self.serving.addresses.tcp
            }

            /// Returns the paths of the Unix sockets that the server listens on; a socket without a
            /// path has an empty one.
            #[must_use]
            pub fn unix_paths(&self) -> &[std::path::PathBuf] {
                &self.serving.addresses.unix
            }

            /// Returns whether the server serves `https` and `wss`.
            #[must_use]
            pub fn has_tls(&self) -> bool {
                self.serving.security.is_on()
            }

            /// Returns the [`Hub`](crate::Hub), which reaches the server's connections and channels
            /// from any thread.
            #[must_use]
            pub fn hub(&self) -> crate::hub::Hub {
                self.serving.hub.clone()
            }

            /// Returns the server's maximum number of connections: the setting, or the number that
            /// the descriptor limit allows.
            #[must_use]
            pub fn max_connections(&self) -> usize {
                self.serving.admission.max_connections()
            }

            /// Returns the server's maximum number of connections, and the reason for it.
            #[must_use]
            pub fn capacity(&self) -> &crate::running::Capacity {
                &self.serving.capacity
            }
        }
    };
}

pub(super) use getters;
