//! The pace of slow peers when a component between them and the server moves bytes in large
//! portions.

use super::{Expect, MILLI, Part, SimPlan};
use crate::script::{Do, Pace};

/// Bytes that a link between a balancer and a server always takes, including the overhead of TLS.
const ON_THE_LINK: usize = 32 << 10;

/// Makes slow peers that have an expected end read at least one such portion within half the write
/// timeout.
///
/// A balancer reads the next bytes when the earlier ones have left, and TLS opens whole records.
/// Until the peer has read such a portion, none of the server's output moves. A server is right to
/// end a peer that takes longer than the write timeout.
pub(super) fn keep_up(plan: &mut SimPlan) {
    let read = plan.balancer.as_ref().map(|balancer| balancer.faults.receive_buffer);
    let gulp = plan.secured.most_received(read.unwrap_or(0)) as u64;
    let timeout = plan.limits.write_timeout.as_nanos() as u64;
    for part in &mut plan.parts {
        let waits_on_the_link = read.is_some() && part.echo_only && echoed(part) <= ON_THE_LINK;
        if gulp == 0 || waits_on_the_link || part.expect == Expect::Anything {
            continue;
        }
        let latency = part.link.latency;
        for line in &mut part.script {
            let Do::Read(Pace::Slow(bytes, rest)) = line else { continue };
            // The pause is over when the link has space again and an idle driver has filled it.
            let period = *rest + 2 * latency + 6 * MILLI;
            let least = (2 * gulp * period / timeout) as usize + 1;
            *bytes = least.max(*bytes);
            part.link.capacity = least.max(part.link.capacity);
        }
    }
}

/// Returns the maximum bytes of the answers to all messages of a peer.
fn echoed(part: &Part) -> usize {
    const LONGEST_PONG: usize = 127;
    let answer = |line: &Do| match line {
        Do::Message { payload, fragments, .. } => payload.len() + 10 + fragments * LONGEST_PONG,
        Do::Ping(_) => LONGEST_PONG,
        _ => 0,
    };
    part.script.iter().map(answer).sum()
}
