//! Whether each shard gets its own descriptor table, and how many connections that makes possible.

use throng_io::capacity::{Demand, Division, Needs};
use throng_io::table_plan::{check_machine, machine_holds};
use throng_io::tables::check_support;

use super::Server;
use crate::error::{Error, Result};
use crate::io_backend::IoBackend;

/// The maximum number of event loops; a number above any machine's CPU count is a mistake.
pub(super) const MAX_SHARDS: usize = 1024;

impl Server {
    /// Decides on the tables, before anything is opened. Sockets that were passed on are
    /// `inherited`: only one shard accepts from each, so connections would not be spread.
    pub(super) fn plan_tables(&self, shards: usize, inherited: bool) -> Result<Division> {
        // The listeners are not open yet, but will be where shards share a table.
        let addresses = 1 + self.more_addresses.len();
        let listeners = if inherited { 0 } else { self.listener_descriptors(shards * addresses) };
        let descriptors = self.descriptors(listeners, addresses);
        let demanded = self.limits.max_connections;
        let demand = Demand {
            tables: self.descriptor_tables,
            connections: demanded,
            shards,
            max_shards: if self.shards.count.is_none() { MAX_SHARDS } else { shards },
        };
        let refusal = || match self.shards.io {
            IoBackend::Auto | IoBackend::Epoll if inherited => {
                Some("sockets that were passed on are accepted from by one shard each".to_owned())
            }
            IoBackend::Auto | IoBackend::Epoll => {
                check_support().err().map(|error| format!("this system refuses them: {error}"))
            }
            _ => Some("only io = epoll can have them".to_owned()),
        };
        let wrong = |message: String| Error::setting("max_connections", message);
        let mut division = Needs::SERVER
            .divide(&descriptors, &demand, refusal)
            .map_err(|error| wrong(error.to_string()))?;
        if let Division::PerShard(plan) = &mut division {
            let Needs { bytes, each, .. } = Needs::SERVER;
            match demanded {
                Some(demanded) => {
                    check_machine(demanded as u64, bytes, each as u64).map_err(wrong)?;
                }
                None => {
                    let most = machine_holds(bytes, each as u64);
                    plan.max_connections = plan.max_connections.min(most);
                }
            }
        }
        Ok(division)
    }
}
