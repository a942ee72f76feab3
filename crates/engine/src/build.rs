//! Puts shards together: drivers in, shards and the ways to them out.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use throng_io::Driver;

use crate::admission::Admission;
use crate::channels::Channels;
use crate::connections::Connections;
use crate::core::{Core, MAILBOX_CAPACITY, Remote};
use crate::limits::{LimitError, Limits};
use crate::mailbox::mailbox;
use crate::service::Service;
use crate::shard::{Parts, Shard};
use crate::stats::Snapshot;

/// Sockets that may be on their way to another shard at a time; beyond that a shard keeps what it accepted.
const HANDOVER_CAPACITY: usize = 4096;

/// What [`build`] gives.
pub struct Built<D: Driver, S: Service> {
    /// One shard a driver, in order; each runs on a thread of its own.
    pub shards: Vec<Shard<D, S>>,
    /// The way to all of them from any thread.
    pub remote: Remote,
    /// Their figures, by shard.
    pub snapshots: Arc<[Arc<Snapshot>]>,
    /// Counts and caps of the process.
    pub admission: Arc<Admission>,
}

/// Makes one shard of each driver. `max_connections` is the limit in force (0 = none), `seed` drives what is
/// random (masks, the order of draining): `None` outside of simulations.
///
/// # Errors
/// `limits` contradict themselves.
pub fn build<D: Driver, S: Service>(
    drivers: Vec<D>,
    limits: &Limits,
    max_connections: usize,
    seed: Option<u64>,
    mut service: impl FnMut(usize, &Arc<Admission>, &Remote) -> S,
) -> Result<Built<D, S>, LimitError> {
    let checked = limits.checked()?;
    let admission = Arc::new(Admission::new(limits, max_connections, drivers.len()));
    let (mut mail, mut letters, mut handover, mut handovers) = (vec![], vec![], vec![], vec![]);
    for driver in &drivers {
        let (sender, receiver) = mailbox(MAILBOX_CAPACITY, driver.waker());
        mail.push(sender);
        letters.push(receiver);
        let (sender, receiver) = mailbox(HANDOVER_CAPACITY, driver.waker());
        handover.push(sender);
        handovers.push(receiver);
    }
    let remote = Remote::new(mail);
    // Address space only; a page is touched when its first connection comes.
    let capacity = max_connections.clamp(1024, 1 << 20) + 1024;
    let snapshots: Arc<[Arc<Snapshot>]> = drivers.iter().map(|_| Arc::default()).collect();
    let seed = seed.unwrap_or_else(|| RandomState::new().hash_one(0u8));
    let shards = drivers
        .into_iter()
        .zip(letters)
        .zip(handovers)
        .enumerate()
        .map(|(shard, ((driver, letters), handovers))| {
            let seed = seed.wrapping_add((shard as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            Shard::new(Parts {
                core: Core {
                    connections: Connections::new(checked.clone(), capacity, seed),
                    channels: Channels::default(),
                    remote: remote.clone(),
                    shard,
                    now: driver.now(),
                    published: 0,
                },
                service: service(shard, &admission, &remote),
                admission: Arc::clone(&admission),
                letters,
                handovers,
                neighbours: handover.clone(),
                snapshot: Arc::clone(&snapshots[shard]),
                capacity,
                seed,
                driver,
            })
        })
        .collect();
    Ok(Built { shards, remote, snapshots, admission })
}
