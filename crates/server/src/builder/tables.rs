//! Whether each shard gets its own descriptor table, and how many connections that makes possible.

use throng_io::table_plan::{TablePlan, TableSize, check_machine, machine_holds};
use throng_io::tables::{DescriptorTables, check_support};

use super::Server;
use super::capacity::RESERVED_DESCRIPTORS;
use crate::error::{Error, Result};
use crate::io_backend::IoBackend;

/// The maximum number of event loops; a number above any machine's CPU count is a mistake.
pub(super) const MAX_SHARDS: usize = 1024;

/// Bytes of memory that a connection takes, nearly all of them in the kernel: its socket, and its
/// entry in the poll.
const BYTES_PER_CONNECTION: u64 = 4096;

/// Descriptors of a shard besides its connections and its listeners: standard streams, its poll,
/// and [what is reserved](RESERVED_DESCRIPTORS). A wake-up descriptor for each shard comes on top.
const BESIDES: usize = 3 + 1 + RESERVED_DESCRIPTORS;

/// The decision on descriptor tables.
#[derive(Debug)]
pub(super) enum Decision {
    /// All threads share one table. The text is the reason if separate tables were requested.
    Shared(Option<String>),
    /// Each shard has its own table.
    PerShard(TablePlan),
}

impl Server {
    /// Decides on the tables, before anything is opened. Sockets that were passed on are
    /// `inherited`: only one shard accepts from each, so connections would not be spread.
    pub(super) fn plan_tables(&self, shards: usize, inherited: bool) -> Result<Decision> {
        let asked = self.limits.max_connections;
        let descriptors = self.descriptors();
        // They are not open yet, but will be where shards share a table.
        let addresses = 1 + self.more_addresses.len();
        let listeners = if inherited { 0 } else { shards * addresses };
        let fit = descriptors.free(shards).saturating_sub(listeners);
        match self.descriptor_tables {
            DescriptorTables::Shared => return Ok(Decision::Shared(None)),
            DescriptorTables::Auto if asked.is_none_or(|asked| asked <= fit) => {
                return Ok(Decision::Shared(None));
            }
            _ => {}
        }
        let refusal = match self.shards.io {
            IoBackend::Auto | IoBackend::Epoll if inherited => {
                Some("sockets that were passed on are accepted from by one shard each".to_owned())
            }
            IoBackend::Auto | IoBackend::Epoll => {
                check_support().err().map(|error| format!("this system refuses them: {error}"))
            }
            _ => Some("only io = epoll can have them".to_owned()),
        };
        if let Some(why) = refusal {
            return Ok(Decision::Shared(Some(why)));
        }
        let size = TableSize {
            limit: descriptors.limit,
            reserve: BESIDES + addresses + descriptors.for_files,
            each: 1,
        };
        let most = if self.shards.count.is_none() { MAX_SHARDS } else { shards };
        let wrong = |message: String| Error::setting("max_connections", message);
        let mut plan =
            TablePlan::new(size, asked, shards, most).map_err(|error| wrong(error.to_string()))?;
        match asked {
            Some(asked) => check_machine(asked as u64, BYTES_PER_CONNECTION, 1).map_err(wrong)?,
            None => {
                let most = machine_holds(BYTES_PER_CONNECTION, 1);
                plan.max_connections = plan.max_connections.min(most);
            }
        }
        Ok(Decision::PerShard(plan))
    }
}
