//! Conditions that must hold after each turn, when all is quiet, and at the end.

use std::sync::Arc;

use throng_balance::shard_over_driver::Holdings;
use throng_balance::{Backend, Settings};

use super::backend::{Conn, arrivals};
use super::client::Client;
use super::frames::{self, Scan};
use super::plan::{Behaviour, ClientClose, SessionPlan};
use super::run::Run;
use super::wire::Over;
use super::world::{Look, World};

/// Checks that no backend has more handshakes than the cap allows: seen from the backend, and
/// counted by the balancer.
pub(super) fn caps_hold(world: &mut World) {
    let Settings { max_handshakes: cap, .. } = world.plan.settings;
    if cap == 0 {
        return;
    }
    for backend_index in 0..world.plan.backends.len() {
        let is_shaking = |conn: &&Conn| {
            conn.backend_index == backend_index
                && conn.is_shaking
                && !conn.wire.gone
                && conn.wire.is_wanted()
        };
        let shaking = world.conns.iter().filter(is_shaking).count();
        // A backend that was removed and added again has two counts.
        let lives = 1 + world
            .backends
            .iter()
            .filter(|backend| usize::from(backend.address().port()) == 9000 + backend_index)
            .count()
            .saturating_sub(1);
        if shaking > cap as usize * lives {
            world.violation(format!(
                "{shaking} handshakes at backend {backend_index}, where {cap} may be"
            ));
        }
    }
    let above = world.backends.iter().find(|backend| backend.handshakes() > cap);
    if let Some(count) = above.map(|backend| backend.handshakes()) {
        world.violation(format!("{count} places for handshakes are taken of {cap}"));
    }
}

/// Checks that nothing is held when no connection is left.
pub(super) fn nothing_is_held(world: &mut World) {
    for (shard, look) in world.looks().into_iter().enumerate() {
        for what in still_held(&look) {
            world.violation(format!("shard {shard} {what}"));
        }
    }
    for what in still_counted(&world.backends) {
        world.violation(what);
    }
}

/// Returns what a shard without clients still holds.
pub(super) fn still_held(Look { audit, connections, metrics, ended }: &Look) -> Vec<String> {
    let mut held = Vec::new();
    let left = audit.clients
        + audit.sides
        + audit.queued
        + audit.waiting
        + audit.closing
        + audit.new_clients
        + audit.addresses;
    if left > 0 || audit.upstreams != audit.idle {
        held.push(format!("still holds {audit:?}"));
    }
    if metrics.connections + metrics.tunnels + metrics.queued > 0 {
        held.push(format!("still counts {metrics:?}"));
    }
    // An ended shard leaves idle connections, and ends that were not reported, to its driver's end.
    if *connections != audit.upstreams && !ended {
        held.push(format!("has {connections} connections in its driver"));
    }
    held
}

/// Returns what backends without clients still count.
pub(super) fn still_counted(backends: &[Arc<Backend>]) -> Vec<String> {
    let counts = |backend: &Backend| (backend.tunnels(), backend.requests(), backend.handshakes());
    let wrong = backends.iter().filter(|backend| counts(backend) != (0, 0, 0));
    wrong.map(|it| format!("{} still counts {:?}", it.address(), counts(it))).collect()
}

/// Checks a whole run.
pub(super) fn at_the_end(world: &mut World) {
    let mut faults = Vec::new();
    for conn in &world.conns {
        faults.extend(
            conn.faults.iter().map(|fault| format!("backend {}: {fault}", conn.backend_index)),
        );
    }
    for (id, (method, times)) in arrivals(&world.conns) {
        if method == "POST" && times > 1 {
            faults.push(format!("POST {id} came to {times} backends"));
        }
    }
    for client in &world.clients {
        let (id, mut own) = (client.plan.id, client.faults.clone());
        match &client.plan.session {
            SessionPlan::Tunnel { parting, .. } => {
                own.extend(tunnel_is_well(world, client, *parting))
            }
            SessionPlan::Http { asks, .. } => {
                own.extend(answers_are_well(world, client, asks.len()))
            }
        }
        faults.extend(own.into_iter().map(|fault| format!("client {id}: {fault}")));
    }
    faults.extend(closings_are_paced(world));
    faults.extend(little_is_held(world));
    for fault in faults {
        world.violation(fault);
    }
}

/// Whatever peers do, no connection held more of anything than one read above the mark at which
/// reading stops.
fn little_is_held(world: &World) -> Vec<String> {
    let read = world.plan.secured.most_received(world.plan.faults.receive_buffer);
    held_too_much(world.most, world.most_in_flight, read, world.plan.settings.max_header_bytes)
}

/// Returns the bounds on held bytes that were exceeded, where `read` bytes are read at once and
/// heads have up to `head`.
pub(crate) fn held_too_much(
    most: Holdings,
    most_in_flight: usize,
    read: usize,
    head: usize,
) -> Vec<String> {
    const HIGH_WATER: usize = 64 << 10;
    // What comes in pieces may leave as chunks, each of which needs a few bytes more.
    let passed_on = HIGH_WATER + head + 2 * read;
    let Holdings { client_input, client_head, replay, client_output, backend_output, tunnel } =
        most;
    let table = [
        // The buffer's used part is never more than what was left of it when it last grew.
        ("of a client's input", client_input, 2 * HIGH_WATER + read),
        ("of a client's head", client_head, head),
        ("for another try", replay, passed_on),
        ("for a client", client_output, passed_on),
        ("for a backend", backend_output, passed_on),
        ("behind a tunnel's send", tunnel, passed_on),
        ("in a send", most_in_flight, passed_on),
    ];
    let above = table.into_iter().filter(|(_, held, bound)| held > bound);
    above
        .map(|(what, held, bound)| format!("{held} bytes were held {what}, above {bound}"))
        .collect()
}

fn answers_are_well(world: &World, client: &Client, count: usize) -> Vec<String> {
    let mut faults = Vec::new();
    let Some(wire) = &client.wire else {
        return if world.plan.calm { vec!["was not let in".to_owned()] } else { faults };
    };
    let whole = client.answers.iter().filter(|answer| answer.is_whole).count();
    if whole > count {
        faults.push(format!("{whole} answers to {count} requests"));
    }
    if world.plan.calm {
        let good = |answer: &&super::client::Answer| {
            answer.is_whole && answer.status == 200 && answer.id.is_some()
        };
        let good = client.answers.iter().filter(good).count();
        if good != count {
            let (answers, over) = (&client.answers, wire.over);
            faults.push(format!("{good} of {count} requests were answered: {answers:?}, {over:?}"));
        }
    }
    faults
}

fn tunnel_is_well(world: &World, client: &Client, parting: ClientClose) -> Vec<String> {
    let mut faults = Vec::new();
    let calm = world.plan.calm;
    let Some(wire) = &client.wire else {
        return if calm { vec!["was not let in".to_owned()] } else { faults };
    };
    let id = client.plan.id;
    let (said, received) = (client.said(), client.received());
    let ours = |conn: &&Conn| conn.tunnel.as_ref().is_some_and(|tunnel| tunnel.id == id);
    let sides: Vec<&Conn> = world.conns.iter().filter(ours).collect();
    for side in &sides {
        if !said.starts_with(side.received()) {
            faults.push(format!(
                "its backend received bytes that were not sent: {} of {} bytes agree",
                agreeing(said, side.received()),
                side.received().len()
            ));
        }
    }
    if client.in_from.is_none() {
        if calm {
            faults.push(format!(
                "its tunnel was never opened: {:?}, {:?}",
                client.answers, wire.over
            ));
        }
        return faults;
    }
    let Some(side) = sides.iter().rfind(|side| injected(side.said(), received).is_some()) else {
        let agree = sides.iter().map(|side| agreeing(side.said(), received)).max();
        faults.push(format!(
            "it received {} bytes, of which {agree:?} were sent to it, and no Close of ours in \
             its place",
            received.len()
        ));
        return faults;
    };
    let kind = injected(side.said(), received).unwrap_or(Injected::None);
    let is_cut = wire.was_cut() || side.wire.was_cut();
    let was_close = kind == Injected::Whole || Scan::of(received).close.is_some();
    let may_end_so = client.broke_off || parting == ClientClose::Silent || wire.vanished;
    match wire.over {
        _ if wire.vanished => {}
        Some(Over::Finished) if !was_close && !may_end_so => {
            faults.push("its stream ended without a Close frame and without a reset".to_owned());
        }
        Some(Over::Finished)
            if kind == Injected::None && side.said().len() != received.len() && !may_end_so =>
        {
            let (received, said) = (received.len(), side.said().len());
            faults.push(format!("{received} of {said} bytes came, then the end of the stream"));
        }
        Some(Over::Finished) if matches!(kind, Injected::Part) => {
            faults.push("half a Close frame of ours, and then the end of the stream".to_owned());
        }
        Some(Over::Reset) if calm => faults.push("it was reset".to_owned()),
        None if calm => faults.push("its stream never ended".to_owned()),
        _ => {}
    }
    // After our Close, everything that the client said before its own reaches a backend that lives.
    let leaps = world.plan.faults.clock_leaps > 0 || world.plan.faults.starved_receives > 0;
    let backend_lives = side.way == Behaviour::Conforming
        && side.tunnel.as_ref().is_some_and(|tunnel| tunnel.leaving.is_none());
    let is_prompt = client.plan.behaviour.nap.is_none() && client.plan.behaviour.rest < 10_000;
    let may_have_read = kind == Injected::Whole
        && client.has_closed
        && wire.is_flushed()
        && !wire.vanished
        && !client.broke_off
        && matches!(parting, ClientClose::Close | ClientClose::Stay)
        && backend_lives
        && is_prompt
        && !leaps
        && world.shut_down_at.is_none_or(|at| at > wire.ended_at);
    if (calm || may_have_read) && !is_cut && side.received() != said {
        let (received, said) = (side.received().len(), said.len());
        faults.push(format!("its backend received {received} of its {said} bytes, {kind:?}"));
    }
    faults
}

fn agreeing(one: &[u8], other: &[u8]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

/// A Close frame of the balancer's at the end of what a client received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Injected {
    None,
    Part,
    Whole,
}

/// Returns how much of a Close frame of ours follows in `received` after the bytes of `said` up to
/// the end of one of its frames; `None` if `received` is neither that nor a beginning of `said`.
fn injected(said: &[u8], received: &[u8]) -> Option<Injected> {
    if said.starts_with(received) {
        return Some(Injected::None);
    }
    let agree = agreeing(said, received);
    let ends = Scan::of(said).ends;
    let mut ends: Vec<usize> = ends.into_iter().chain([0]).filter(|end| *end <= agree).collect();
    ends.sort_unstable();
    for end in ends.into_iter().rev() {
        for (code, reason) in [(1001, "going away"), (1012, "please connect again")] {
            let close = frames::close(code, reason, None);
            if received[end..] == close[..] {
                return Some(Injected::Whole);
            }
            if close.starts_with(&received[end..]) {
                return Some(Injected::Part);
            }
        }
    }
    None
}

/// Ends of tunnels are spread: at most what the orders allow in any span of time.
fn closings_are_paced(world: &World) -> Vec<String> {
    let mut faults = Vec::new();
    let has_deadline = world.orders.iter().any(|(_, _, has)| *has);
    let tunnel = world.plan.settings.timeouts.tunnel;
    let is_shut_down = world
        .plan
        .commands
        .iter()
        .any(|(_, tell)| matches!(tell, super::plan::ControlCommand::ShutDown { .. }));
    if has_deadline || is_shut_down {
        return faults;
    }
    let shards = world.plan.shards as f64;
    // Clients whose backends were lost are closed at a rate of their own.
    let lost = world.looks().iter().any(|look| look.metrics.lost > 0);
    let own = lost.then_some(world.plan.settings.close_rate);
    let (mut rate, mut burst) = (0.0, 0.0);
    for one in world.orders.iter().map(|(rate, _, _)| *rate).chain(own) {
        let part = f64::from(one) / shards;
        rate += part;
        burst += 1.0 + (part / 10.0).max(1.0);
    }
    if tunnel.as_secs() < 500 {
        // Silence ends tunnels, too, and at no rate.
        return faults;
    }
    let mut all: Vec<_> = world.nodes.iter().flat_map(|node| node.begun.iter().copied()).collect();
    all.sort_unstable();
    for (shard, node) in world.nodes.iter().enumerate() {
        if let Some(fault) = above(&node.begun, rate, burst) {
            faults.push(format!("shard {shard}: {fault}"));
        }
    }
    if let Some(fault) = above(&all, rate * shards, burst * shards) {
        faults.push(format!("all shards: {fault}"));
    }
    faults
}

/// A span of time in which more tunnels ended than at that rate, and with that burst, may.
fn above(begun: &[(u64, u64)], rate: f64, burst: f64) -> Option<String> {
    for first in 0..begun.len() {
        let mut sum = 0;
        for (at, count) in &begun[first..] {
            sum += count;
            let seconds = (at - begun[first].0) as f64 / 1e9;
            if sum as f64 > rate * seconds + burst {
                return Some(format!("{sum} tunnels ended in {seconds} s"));
            }
        }
    }
    None
}
