//! Shards that are built and wait for their threads.

use std::sync::Arc;

use throng_engine::{Admission, BuildOptions, Built, Configurator, Remote, Service, Snapshot};
use throng_io::Driver;
use throng_io::tables::Tables;

use crate::error::{Error, Result};
use crate::hub::Hub;

/// Runs a shard on the thread that calls it.
pub(crate) type StartShard = Box<dyn FnOnce() -> std::io::Result<usize> + Send>;

/// Shards ready to run, with their driver's type erased.
pub(crate) struct ShardThreads {
    pub(crate) starts: Vec<StartShard>,
    /// The descriptor tables of the shards, where each has its own.
    pub(crate) tables: Option<Tables>,
    pub(crate) hub: Hub,
    pub(crate) snapshots: Arc<[Arc<Snapshot>]>,
    pub(crate) admission: Arc<Admission>,
    pub(crate) configurator: Configurator,
}

impl ShardThreads {
    pub(crate) fn build<D, S>(
        drivers: Vec<D>,
        options: &BuildOptions,
        service: impl Fn(&Arc<Admission>) -> S,
    ) -> Result<Self>
    where
        D: Driver + Send + 'static,
        S: Service + Send + 'static,
    {
        throng_engine::build(drivers, options, |_, admission, _| service(admission))
            .map(Self::new)
            .map_err(Error::from)
    }

    /// Builds a server with one thread per connection. It has one shard to start, the acceptor's.
    pub(crate) fn build_threads<D, S>(
        acceptor: D,
        options: &BuildOptions,
        threads: throng_engine::ThreadOptions<D>,
        service: impl Fn(&Arc<Admission>) -> S + Send + Sync + 'static,
    ) -> Result<Self>
    where
        D: Driver + Send + 'static,
        S: Service + Send + 'static,
    {
        throng_engine::build_threads(acceptor, options, threads, service)
            .map(Self::new)
            .map_err(Error::from)
    }

    fn new<D, S>(built: Built<D, S>) -> Self
    where
        D: Driver + Send + 'static,
        S: Service + Send + 'static,
    {
        let Built { shards, remote, snapshots, admission, configurator, .. } = built;
        let starts = shards
            .into_iter()
            .map(|mut shard| Box::new(move || shard.run()) as StartShard)
            .collect();
        let hub = Hub::of(remote);
        Self { starts, tables: None, hub, snapshots, admission, configurator }
    }

    /// Makes each shard enter its descriptor table when it starts.
    #[cfg(target_os = "linux")]
    pub(crate) fn in_tables(self, tables: Option<Tables>) -> Self {
        Self { tables, ..self }
    }

    pub(crate) fn remote(&self) -> &Remote {
        self.hub.remote()
    }

    pub(crate) fn admission(&self) -> &Arc<Admission> {
        &self.admission
    }

    pub(crate) fn snapshots(&self) -> &Arc<[Arc<Snapshot>]> {
        &self.snapshots
    }
}
