//! Outcomes of upgrades that must move to another shard.

use std::collections::BTreeSet;

/// Upgrades that have moved, or could not.
#[derive(Debug, Default)]
pub struct Moves {
    /// Peers whose upgrade is moving. Each move must end once.
    pub under_way: BTreeSet<u32>,
    /// Upgrades that came to the shard of their peer.
    pub arrived: u64,
    /// Peers whose upgrade came back to the shard that it was on.
    pub returned: BTreeSet<u32>,
    /// Peers whose connection was lost before.
    pub lost: BTreeSet<u32>,
}
