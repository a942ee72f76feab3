//! Conditions that must hold when all is quiet, and at the end.

use std::time::Duration;

use super::backend::Conn;
use super::client::Client;
use super::plan::Beginning;
use super::world::World;
use crate::balance::checks::{held_too_much, still_counted, still_held};
use crate::balance::run::Run;
use crate::balance::wire::Over;

/// The alert of a client whose name nothing is for, and of one that sent none (RFC 8446 section 6).
const UNRECOGNIZED_NAME: [u8; 7] = [21, 3, 3, 0, 2, 2, 112];
const MISSING_EXTENSION: [u8; 7] = [21, 3, 3, 0, 2, 2, 109];
/// That of one whose ClientHello announces too much.
const ILLEGAL_PARAMETER: [u8; 7] = [21, 3, 3, 0, 2, 2, 47];

/// Bytes of a ClientHello that are kept, at most, before the last read.
const MOST_OF_HELLO: usize = 64 << 10;

/// Checks that nothing is held once all clients and backends are gone.
pub(super) fn nothing_is_held(world: &mut World) {
    let look = world.look();
    let mut held = still_held(&look);
    held.extend(still_counted(&world.backends));
    let of_tls = world.held_by_tls();
    if of_tls > 0 && !look.ended {
        held.push(format!("the TLS driver still has {of_tls} connections"));
    }
    held.into_iter().for_each(|what| world.violation(what));
}

/// Checks a whole run.
pub(super) fn at_the_end(world: &mut World) {
    let mut faults = Vec::new();
    for conn in &world.conns {
        let of = |fault: &String| format!("backend {}: {fault}", conn.backend_index);
        faults.extend(conn.faults.iter().map(of));
        // The number of its client is in the first bytes, however small their records are.
        if conn.client().is_none() && conn.received().len() >= 100 {
            faults.push(of(&"bytes came that no client had sent".to_owned()));
        }
    }
    for client in &world.clients {
        let id = client.plan.id;
        let own = client_is_well(world, client);
        faults.extend(own.into_iter().map(|fault| format!("client {id}: {fault}")));
    }
    let read = world.plan.faults.receive_buffer;
    // What is sent on first is a ClientHello, which is longer than a head may be.
    faults.extend(held_too_much(world.most, world.most_in_flight, read, MOST_OF_HELLO));
    let bound = 2 * (MOST_OF_HELLO + read);
    if world.most_of_hello > bound {
        let most = world.most_of_hello;
        faults.push(format!("{most} bytes were held of a ClientHello, above {bound}"));
    }
    faults.into_iter().for_each(|fault| world.violation(fault));
}

fn client_is_well(world: &World, client: &Client) -> Vec<String> {
    let id = client.plan.id;
    let ours = |conn: &&Conn| conn.client() == Some(id);
    let conns: Vec<&Conn> = world.conns.iter().filter(ours).collect();
    let mut faults = Vec::new();
    if client.wire.is_none() {
        if world.plan.calm {
            faults.push("was not let in".to_owned());
        }
        return faults;
    }
    if !client.said_hello() {
        if !conns.is_empty() {
            faults.push("it is passed through without a whole ClientHello".to_owned());
        }
        faults.extend(ends_in_time(world, client));
    }
    match conns[..] {
        [] => faults.extend(refusal_is_well(world, client)),
        [conn] => faults.extend(tunnel_is_well(world, client, conn)),
        _ => faults.push(format!("its ClientHello came to {} backends", conns.len())),
    }
    faults
}

/// Checks a client of which no backend has received anything.
fn refusal_is_well(world: &World, client: &Client) -> Vec<String> {
    let (received, plan) = (client.received(), &client.plan);
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
        Beginning::Hello if is_kept && (has_backend || !client.said_hello()) => &[],
        Beginning::Hello => &none_sent,
    };
    let is_right = match plan.beginning {
        Beginning::Plain => received.starts_with(expected) || expected.starts_with(received),
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
        // What is unread when a connection is closed makes a reset, which overtakes an answer; and
        // of one that the kernel takes in part, the rest is dropped.
        let may_lose = plan.surplus > 0 || world.plan.faults.partial_sends > 0;
        if received.len() < expected.len() && !may_lose {
            faults.push(format!("it received {received:?}, not {expected:?}"));
        }
        let head = world.plan.settings.timeouts.head;
        let took = client.wire.as_ref().map_or(0, |wire| wire.ended_at.saturating_sub(plan.at));
        if client.said_hello() && Duration::from_nanos(took) >= head {
            faults.push("it was left waiting although its ClientHello is whole".to_owned());
        }
        if plan.beginning == Beginning::Hello && has_backend {
            faults.push("it was passed through, and no backend got it".to_owned());
        }
    }
    faults
}

/// Checks a client whose ClientHello does not come whole: it is closed at the deadline, whatever
/// comes meanwhile.
fn ends_in_time(world: &World, client: &Client) -> Option<String> {
    let Some(wire) = &client.wire else { return None };
    let (plan, all) = (&client.plan, &world.plan);
    let is_hello = matches!(plan.beginning, Beginning::Part(_) | Beginning::Hello);
    let faults = &all.faults;
    let is_late = faults.clock_leaps + faults.accept_fails + faults.starved_receives > 0;
    if !is_hello || is_late || wire.vanished || wire.was_cut() || plan.behaviour.nap.is_some() {
        return None;
    }
    let took = Duration::from_nanos(wire.ended_at.saturating_sub(plan.at));
    let head = all.settings.timeouts.head;
    // A sweep comes each quarter of a second, and each second where nothing is under way; then the
    // end is on its way.
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

/// Checks a client and the backend that it was passed through to.
fn tunnel_is_well(world: &World, client: &Client, conn: &Conn) -> Vec<String> {
    let Some(wire) = &client.wire else { return Vec::new() };
    let mut faults = Vec::new();
    let backend = &world.plan.backends[conn.backend_index];
    let is_fixed = world.plan.commands.is_empty();
    if is_fixed && !world.plan.backends_for(client.plan.name).contains(&conn.backend_index) {
        let (name, patterns) = (client.plan.name, &backend.patterns);
        faults.push(format!("{name:?} was passed through to a backend of {patterns:?}"));
    }
    for (who, said, received) in
        [("backend", client.said(), conn.received()), ("client", conn.said(), client.received())]
    {
        if !said.starts_with(received) {
            let agree = said.iter().zip(received).take_while(|(one, other)| one == other).count();
            let (received, said) = (received.len(), said.len());
            faults.push(format!(
                "the {who} received {received} of {said} bytes, of which {agree} agree"
            ));
        }
    }
    // The end of a stream says that all of it has come.
    let client_ended = wire.finish_sent || wire.gone;
    let ends = [
        ("backend", conn.wire.over, client_ended, conn.received().len() == client.said().len()),
        ("client", wire.over, conn.has_finished(), client.received().len() == conn.said().len()),
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
