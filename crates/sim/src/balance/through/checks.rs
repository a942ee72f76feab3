//! Conditions that must hold at the end if connections are passed through.

use std::time::Duration;

use super::client::PassedClient;
use super::conduct::{Beginning, HelloPlan};
use super::hello::id_of;
use crate::balance::peers::{Client, Conn};
use crate::balance::plan::ClientPlan;
use crate::balance::wire::{Over, Wire};
use crate::balance::world::World;

/// The alert for a client that sent no server name, or a name that matches no backend (RFC 8446
/// section 6).
const UNRECOGNIZED_NAME: [u8; 7] = [21, 3, 3, 0, 2, 2, 112];
const MISSING_EXTENSION: [u8; 7] = [21, 3, 3, 0, 2, 2, 109];
/// The alert for a client whose ClientHello announces too many bytes.
const ILLEGAL_PARAMETER: [u8; 7] = [21, 3, 3, 0, 2, 2, 47];

/// Maximum bytes of a ClientHello kept before its last read.
pub(in crate::balance) const MAX_HELLO: usize = 64 << 10;

/// Checks the data received by backends that terminate TLS themselves, and the memory held for
/// ClientHellos.
pub(in crate::balance) fn hellos_are_well(world: &World) -> Vec<String> {
    let mut faults = Vec::new();
    if !world.plan.passes_through() {
        return faults;
    }
    for conn in &world.conns {
        // The first bytes contain the client's number, even with very small records.
        if id_of(conn.received()).is_none() && conn.received().len() >= 100 {
            let backend_index = conn.backend_index;
            faults.push(format!("backend {backend_index}: bytes came that no client had sent"));
        }
    }
    let (held, bound) =
        (world.most().tls_input, 2 * (MAX_HELLO + world.plan.faults.receive_buffer));
    if held > bound {
        faults.push(format!("{held} bytes were held of a ClientHello, above {bound}"));
    }
    faults
}

/// Checks a client whose connection should be passed through.
pub(in crate::balance) fn client_is_well(
    world: &World,
    client: &Client,
    passed: &PassedClient,
) -> Vec<String> {
    let mut faults = Vec::new();
    let Some(wire) = &client.wire else {
        return if world.plan.calm { vec!["was not let in".to_owned()] } else { faults };
    };
    let ours = |conn: &&Conn| id_of(conn.received()) == Some(client.plan.id);
    let conns: Vec<&Conn> = world.conns.iter().filter(ours).collect();
    let visit = Visit {
        world,
        plan: &client.plan,
        hello: &passed.plan,
        wire,
        said_hello: passed.said_hello(wire),
    };
    if !visit.said_hello {
        if !conns.is_empty() {
            faults.push("it is passed through without a whole ClientHello".to_owned());
        }
        faults.extend(ends_in_time(&visit));
    }
    match conns[..] {
        [] => faults.extend(refusal_is_well(&visit)),
        [conn] => faults.extend(tunnel_is_well(&visit, conn)),
        _ => faults.push(format!("its ClientHello came to {} backends", conns.len())),
    }
    faults
}

/// A client whose connection should be passed through.
struct Visit<'a> {
    world: &'a World,
    plan: &'a ClientPlan,
    hello: &'a HelloPlan,
    wire: &'a Wire,
    /// Its whole ClientHello was written.
    said_hello: bool,
}

fn agree(received: &[u8], expected: &[u8]) -> bool {
    received.starts_with(expected) || expected.starts_with(received)
}

/// Returns whether the balancer has reported the limit to a client beyond it, and has counted that
/// client.
fn says_what_is_full(world: &World, received: &[u8]) -> bool {
    let metrics = world.metrics();
    metrics.answered_full > 0 && agree(received, b"HTTP/1.1 503")
        || metrics.answered_full_address > 0 && agree(received, b"HTTP/1.1 429")
}

/// Checks a client whose data has not reached any backend.
fn refusal_is_well(visit: &Visit) -> Vec<String> {
    let Visit { world, wire, said_hello, hello: plan, .. } = *visit;
    let received = &wire.got[..];
    let mut faults = Vec::new();
    let none_sent = match plan.name {
        Some(_) => UNRECOGNIZED_NAME,
        None => MISSING_EXTENSION,
    };
    let has_backend = !world.plan.backends_for(plan.name).is_empty();
    let is_kept = world.plan.keeps_backends();
    let expected: &[u8] = match plan.beginning {
        // Refused, or too late.
        Beginning::Plain => b"HTTP/1.1 40",
        Beginning::Oversized => &ILLEGAL_PARAMETER,
        Beginning::Part(_) => &[],
        Beginning::Hello if is_kept && (has_backend || !said_hello) => &[],
        Beginning::Hello => &none_sent,
    };
    let is_right = match plan.beginning {
        Beginning::Plain => agree(received, expected) || says_what_is_full(world, received),
        _ => expected.starts_with(received),
    };
    if !is_right {
        let text = String::from_utf8_lossy(&received[..received.len().min(60)]);
        faults.push(format!(
            "it received {text:?} ({:?}), not {expected:?}",
            received.first_chunk::<7>()
        ));
    }
    if world.plan.calm {
        // Closing a connection with unread input causes a reset, which overtakes an answer. If the
        // kernel takes only a part of an answer, the rest is dropped.
        let may_lose = plan.surplus > 0 || world.plan.faults.partial_sends > 0;
        if received.len() < expected.len() && !may_lose {
            faults.push(format!("it received {received:?}, not {expected:?}"));
        }
        let head = world.plan.settings.timeouts.head;
        let took = wire.ended_at.saturating_sub(visit.plan.at);
        if said_hello && Duration::from_nanos(took) >= head {
            faults.push("it was left waiting although its ClientHello is whole".to_owned());
        }
        if plan.beginning == Beginning::Hello && has_backend {
            faults.push("it was passed through, and no backend got it".to_owned());
        }
    }
    faults
}

/// Checks a client whose ClientHello never arrives completely: the balancer closes it at the
/// deadline, even if some bytes arrive before.
fn ends_in_time(visit: &Visit) -> Option<String> {
    let Visit { plan, wire, .. } = *visit;
    let all = &visit.world.plan;
    let is_hello = matches!(visit.hello.beginning, Beginning::Part(_) | Beginning::Hello);
    let faults = &all.faults;
    let is_late = faults.clock_leaps + faults.accept_fails + faults.starved_receives > 0;
    if !is_hello || is_late || wire.vanished || wire.was_cut() || plan.behaviour.nap.is_some() {
        return None;
    }
    let took = Duration::from_nanos(wire.ended_at.saturating_sub(plan.at));
    let head = all.settings.timeouts.head;
    // Sweeps run every quarter of a second, or every second when nothing is in progress. The end is
    // then in flight.
    if took > head + Duration::from_millis(1500) {
        return Some(format!("it was closed after {took:?}, not {head:?}"));
    }
    let may_be_early = all.most_connections < 1000
        || all.settings.max_connections_per_address.is_some()
        || faults.adopt_fails > 0
        || !all.keeps_backends();
    let is_early = took + Duration::from_millis(250) < head;
    (is_early && !may_be_early).then(|| format!("it was closed after {took:?} of {head:?}"))
}

/// Checks a client and the backend to which its connection was passed through.
fn tunnel_is_well(visit: &Visit, conn: &Conn) -> Vec<String> {
    let Visit { world, wire, hello, .. } = *visit;
    let mut faults = Vec::new();
    let backend = &world.plan.backends[conn.backend_index];
    let is_fixed = world.plan.commands.is_empty();
    if is_fixed && !world.plan.backends_for(hello.name).contains(&conn.backend_index) {
        let (name, patterns) = (hello.name, &backend.patterns);
        faults.push(format!("{name:?} was passed through to a backend of {patterns:?}"));
    }
    let (sent, answered) = (wire.said(), conn.wire.said());
    for (who, said, received) in
        [("backend", sent, conn.received()), ("client", answered, &wire.got[..])]
    {
        if !said.starts_with(received) {
            let agree = said.iter().zip(received).take_while(|(one, other)| one == other).count();
            let (received, said) = (received.len(), said.len());
            faults.push(format!(
                "the {who} received {received} of {said} bytes, of which {agree} agree"
            ));
        }
    }
    // The end of a stream confirms that all data has arrived.
    let has_ended = |wire: &Wire| wire.finish_sent || wire.gone;
    let ends = [
        ("backend", conn.wire.over, has_ended(wire), conn.received().len() == sent.len()),
        ("client", wire.over, has_ended(&conn.wire), wire.got.len() == answered.len()),
    ];
    for (who, over, has_ended, is_all) in ends {
        if over == Some(Over::Finished) && !(has_ended && is_all) {
            faults.push(format!(
                "the {who}'s stream ended: the other's had, {has_ended}, all had come, {is_all}"
            ));
        }
        if world.plan.calm && over != Some(Over::Finished) {
            faults.push(format!("the {who}'s stream never ended, but {over:?}"));
        }
    }
    if world.plan.calm && !wire.is_flushed() {
        faults.push("not all that it had to say was taken".to_owned());
    }
    faults
}
