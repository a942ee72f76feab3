//! Turns of several shards in random order.

use throng_engine::{Service, Shard};

use crate::driver::SimDriver;
use crate::net::SharedNet;
use crate::rng::Rng;

/// Turns one shard that has something to do, picked at random; returns false if none has.
///
/// # Panics
/// A shard has stopped.
pub fn turn_any<S: Service>(
    net: &SharedNet,
    shards: &mut [Shard<SimDriver, S>],
    rng: &mut Rng,
) -> bool {
    let now = net.borrow().now();
    for shard in &mut *shards {
        shard.driver().progress();
    }
    let is_ready = |shard: &mut Shard<SimDriver, S>| {
        let is_due = shard.next_deadline().is_some_and(|at| at.0 <= now);
        shard.driver().is_ready() || is_due
    };
    let ready: Vec<_> = (0..shards.len()).filter(|n| is_ready(&mut shards[*n])).collect();
    if ready.is_empty() {
        return false;
    }
    let number = rng.pick(&ready);
    assert_eq!(shards[number].turn().expect("a wait does not fail"), None);
    true
}
