//! Changes of limits and rules while shards run: each shard gets them as a `Command::Configure`.

use std::sync::{Arc, Mutex, PoisonError};

use throng_proto::SettingError;

use crate::admission::Admission;
use crate::backpressure::Classes;
use crate::configuration::Configuration;
use crate::connections::memory::MemoryAccount;
use crate::limits::Limits;
use crate::pubsub::delivery::Receipt;
use crate::remote::Remote;
use crate::route_options::RouteOptions;
use crate::stats::Snapshot;

/// Handle that changes the limits and rules of shards while they run.
#[derive(Clone, Debug)]
pub struct Configurator {
    pub(crate) current: Arc<Mutex<Arc<Configuration>>>,
    pub(crate) remote: Remote,
    pub(crate) admission: Arc<Admission>,
    pub(crate) account: Arc<MemoryAccount>,
    pub(crate) snapshots: Arc<[Arc<Snapshot>]>,
    /// Shards that divide the memory of request bodies.
    pub(crate) parts: usize,
    /// Whether each connection has a thread of its own.
    pub(crate) is_threaded: bool,
}

impl Configurator {
    /// Applies limits, rules and the options of routes on each shard separately; the receipt is
    /// complete when all shards have applied them. `max_connections` and the kernel's part of
    /// `write_timeout` do not change. A new lifetime applies to sessions that begin later;
    /// deadlines that are already set stay.
    ///
    /// # Errors
    /// The limits or rules contradict themselves, or are for other routes. Nothing is changed then.
    pub fn apply(
        &self,
        limits: &Limits,
        classes: &Classes,
        routes: &Arc<[RouteOptions]>,
    ) -> Result<Receipt, SettingError> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if routes.len() != current.limits.routes.len() {
            let message = "the routes differ, and those of a running server cannot change; restart";
            return Err(SettingError::new("routes", message));
        }
        let mut configuration = Configuration::new(limits, classes, routes, self.parts)?;
        configuration.rules = Arc::new(configuration.rules.replacing(&current.rules)?);
        if current.rules.histories().most_bytes() > configuration.limits.max_backlog / 2 {
            let message = "max_backlog is less than twice what a channel's history keeps: raise \
                           it, or restart";
            return Err(SettingError::new("max_backlog", message));
        }
        self.account.check(limits.max_memory)?;
        *current = Arc::new(configuration);
        self.snapshots.iter().for_each(|snapshot| snapshot.add_classes(&current.rules));
        self.account.configure(limits.max_memory);
        match self.is_threaded {
            true => self.admission.configure(&limits.with_threads()),
            false => self.admission.configure(limits),
        }
        Ok(self.remote.configure(&current))
    }
}
