//! Independent clients whose behaviour once ended or refused other clients: messages that are much
//! larger as events than as messages, and silent connections from another client's address.

use throng_engine::Limit;

use super::conforming::command;
use super::{Expect, Part, SECOND, SimPlan, events_request, upgrade_request};
use crate::ask::Ask;
use crate::rng::Rng;
use crate::script::Do;

/// The address of these clients, which no other peers have.
const ADDRESS: u8 = 9;

/// Adds such clients to a quarter of all plans; the other plans do not change.
pub(crate) fn gather(plan: &mut SimPlan, rng: &mut Rng) {
    match rng.below(8) {
        0 => line_breaks(plan, rng),
        1 => silent_neighbours(plan, rng),
        _ => {}
    }
}

/// Adds a part that comes at `at`, over a link that is never cut.
fn add<'a>(plan: &'a mut SimPlan, name: &'static str, at: u64, rng: &mut Rng) -> &'a mut Part {
    let mut part = Part::new(plan.parts.len() as u32, rng);
    part.link.capacity = part.link.capacity.max(3000);
    (part.name, part.at) = (name, at);
    plan.parts.push(part);
    plan.parts.last_mut().expect("just added")
}

/// Streams of events, and a client that publishes nothing but line breaks to their channel.
fn line_breaks(plan: &mut SimPlan, rng: &mut Rng) {
    // Plans with publishers may publish to all clients, or have their own rules for streams.
    if plan.parts.iter().any(|part| part.name == "publisher") || plan.rules.count() > 1 {
        return;
    }
    let at = rng.between(0, 3 * SECOND);
    for _ in 0..1 + rng.below(3) {
        let request = events_request("lines", plan.parts.len() as u32);
        let part = add(plan, "stream", at, rng);
        part.script = vec![Do::Write(request), Do::Pause(20 * SECOND), Do::Reset];
        part.expect = Expect::Streamed;
    }
    let most = plan.limits.ws.max_message_size;
    let number = plan.parts.len() as u32;
    let part = add(plan, "publisher of line breaks", at + 2 * SECOND, rng);
    let request = upgrade_request("/ws", number, &part.key);
    part.script = vec![Do::Write(request), Do::UntilOpen];
    for _ in 0..1 + rng.below(3) {
        let count = rng.between(most as u64 / 2, most as u64);
        part.script.extend([command(&format!("!breaks lines {count}")), Do::Pause(2 * SECOND)]);
    }
    part.script.push(Do::Close(1000));
    part.expect = Expect::Clean;
}

/// As many silent connections of one address as allowed, then another client of this address.
fn silent_neighbours(plan: &mut SimPlan, rng: &mut Rng) {
    let is_capped =
        plan.max_connections > 0 || matches!(plan.limits.max_pending_handshakes, Limit::AtMost(_));
    // They would come late, or not at all.
    if is_capped || plan.faults.accept_fails + plan.faults.adopt_fails > 0 {
        return;
    }
    // Each event loop decides on its own which connection ends in favour of a new one.
    plan.shards = 1;
    let cap = 1 + rng.below(4);
    plan.limits.max_connections_per_address = Limit::AtMost(cap);
    let at = rng.between(0, 3 * SECOND);
    let timeout = plan.limits.handshake_timeout.as_nanos() as u64;
    for _ in 0..cap {
        let part = add(plan, "silent neighbour", at, rng);
        part.address = ADDRESS;
        let start: &[u8] = rng.pick(&[b"".as_slice(), b"GET / HT"]);
        part.script = vec![Do::Write(start.to_vec()), Do::Pause(100 * SECOND), Do::Reset];
        part.expect = Expect::Within(timeout + 5 * SECOND);
    }
    // A new client that arrives before the minimum age is refused.
    client(plan, at + SECOND * 9 / 10, Expect::Status(&[429]), rng);
    for number in 0..cap as u64 {
        client(plan, at + SECOND * 13 / 10 + number * SECOND / 10, Expect::Admitted, rng);
    }
}

fn client(plan: &mut SimPlan, at: u64, expect: Expect, rng: &mut Rng) {
    let ask = Ask { close: true, ..Ask::new(plan.parts.len() as u32, 0, 50) };
    let part = add(plan, "newcomer", at, rng);
    part.address = ADDRESS;
    part.script = vec![Do::Write(ask.request(0))];
    part.asks = vec![ask];
    part.expect = expect;
}
