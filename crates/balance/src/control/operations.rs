//! Operations on pools and sites.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use throng_io::PeerAddress;
use throng_proto::http1::Request;

use super::{Balancer, Error};
use crate::blocks::Block;
use crate::config::{BackendConfig, server_names};
use crate::site::{Explanation, SiteSummary, SplitShare};
use crate::status::{PoolDraining, Rebalance};

impl Balancer {
    /// Does the same as [`add_passthrough`](Self::add_passthrough) for a backend of this pool. Only
    /// backends of the pool `default` have server names.
    ///
    /// # Errors
    /// As there, and [`Error::UnknownPool`].
    pub fn add_to(
        &self,
        pool: &str,
        address: impl Into<PeerAddress>,
        (weight, send_proxy): (u32, bool),
        names: Vec<String>,
    ) -> Result<(), Error> {
        let passthrough = server_names(names);
        let backend =
            BackendConfig { weight, send_proxy, passthrough, ..BackendConfig::new(address) };
        self.inner.change(|core, now| core.add_to(pool, backend, now))
    }

    /// Does the same as [`register`](Self::register) for a backend of this pool. A heartbeat and
    /// the end of a registration are for all pools in which the address is registered.
    ///
    /// # Errors
    /// As there, and [`Error::UnknownPool`].
    pub fn register_in(
        &self,
        pool: &str,
        address: impl Into<PeerAddress>,
        weight: u32,
        time_to_live: Option<Duration>,
    ) -> Result<Duration, Error> {
        self.inner.change(|core, now| core.register_in(pool, address, (weight, time_to_live), now))
    }

    /// [Drains](Self::drain) all backends of a pool, each within `window`. The pool may have left
    /// the file.
    ///
    /// # Errors
    /// [`Error::UnknownPool`].
    pub fn drain_pool(&self, pool: &str, window: Option<Duration>) -> Result<PoolDraining, Error> {
        self.inner.change(|core, _| core.drain_pool(pool, window))
    }

    /// Does the same as [`rebalance`](Self::rebalance) for the backends of one pool.
    ///
    /// # Errors
    /// As there, and [`Error::UnknownPool`].
    pub fn rebalance_pool(
        &self,
        pool: &str,
        dry_run: bool,
        rate: Option<u32>,
    ) -> Result<Rebalance, Error> {
        self.inner.change(|core, _| core.rebalance_of(Some(pool), dry_run, rate))
    }

    /// Sets the weights of pools in the split of a route, or of a site; other pools keep theirs.
    /// Returns the shares. Open tunnels stay where they are. The weights stay over reloads, as long
    /// as the file has the same split, and go on in a successor.
    ///
    /// # Errors
    /// [`Error::UnknownSplit`] or [`Error::Split`].
    pub fn set_split(
        &self,
        site: &str,
        route: Option<&str>,
        weights: &BTreeMap<String, u32>,
    ) -> Result<Vec<SplitShare>, Error> {
        self.inner.change(|core, _| core.set_split(site, route, weights))
    }

    /// Refuses new requests of clients in a network, past trusted proxies, with 403 for a time, and
    /// new connections to be passed through. Open tunnels stay. At most [`MAX_BLOCKS`] networks are
    /// blocked. Blocks are in memory only, and go on in a successor.
    ///
    /// # Errors
    /// [`Error::Block`].
    ///
    /// [`MAX_BLOCKS`]: crate::MAX_BLOCKS
    pub fn block(&self, network: &str, time: Duration, by: &str) -> Result<Block, Error> {
        let blocks = Arc::clone(self.inner.lock().blocks());
        blocks.add(network, time, by, SystemTime::now()).map_err(Error::Block)
    }

    /// Ends the block of a network. Returns whether it had one.
    ///
    /// # Errors
    /// [`Error::Block`].
    pub fn unblock(&self, network: &str) -> Result<bool, Error> {
        let blocks = Arc::clone(self.inner.lock().blocks());
        blocks.remove(network).map_err(Error::Block)
    }

    /// Returns the blocked networks, in order.
    #[must_use]
    pub fn blocks(&self) -> Vec<Block> {
        let blocks = Arc::clone(self.inner.lock().blocks());
        blocks.list(SystemTime::now())
    }

    /// Returns at most this many sites as they are configured, from this index of the file's list,
    /// and the number of all.
    #[must_use]
    pub fn sites(&self, from: usize, most: usize) -> (Vec<SiteSummary>, usize) {
        self.inner.lock().site_summaries(from, most)
    }

    /// Explains what would happen to a request now, as [`Config::explain`](crate::Config::explain)
    /// does for a configuration.
    ///
    /// # Errors
    /// As there.
    pub fn explain(
        &self,
        request: &Request<'_>,
        peer: (SocketAddr, bool),
        listener: Option<&str>,
    ) -> Result<Explanation, String> {
        self.inner.lock().explain(request, peer, listener)
    }
}
