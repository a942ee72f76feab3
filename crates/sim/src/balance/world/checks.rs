//! Conditions that must hold after each turn, when the world is idle, and at the end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use throng_balance::{Backend, Settings};

use super::World;
use crate::balance::backend::HttpBackend;
use crate::balance::client::{HttpClient, SimAnswer};
use crate::balance::frames::{self, Scan};
use crate::balance::node::{Node, backend_address, still_counted};
use crate::balance::peers::{Client, Conn, SimTunnel};
use crate::balance::plan::{BackendPlace, Behaviour, ClientClose, ControlCommand, SessionPlan};
use crate::balance::through;
use crate::balance::wire::{Over, Wire};

/// Checks that no backend has more requests, tunnels and handshakes than its limits allow, by the
/// backend's view and by the balancer's count.
pub(super) fn caps_hold(world: &mut World) {
    let open = |backend: &Backend| backend.requests() + backend.tunnels();
    let is_above = |it: &&Arc<Backend>| it.max_connections() > 0 && open(it) > it.max_connections();
    if let Some(above) = world.backends.iter().find(is_above).cloned() {
        let (open, most) = (open(&above), above.max_connections());
        world.violation(format!("{open} are open at {}, where {most} may be", above.address()));
    }
    let Settings { max_handshakes: cap, .. } = world.plan.settings;
    if cap == 0 {
        return;
    }
    for backend_index in 0..world.plan.backends.len() {
        let of_backend = world.conns.iter().filter(|conn| conn.backend_index == backend_index);
        let shaking = of_backend
            .filter_map(Conn::http)
            .filter(|(wire, it)| it.is_shaking && !wire.gone && wire.is_wanted())
            .count();
        // A backend that was removed and added again has two counts.
        let address = backend_address(backend_index);
        let lives = world.backends.iter().filter(|it| it.address() == address).count().max(1);
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
    let nodes = world.nodes.iter().enumerate();
    let of_shard = |(shard, node): (usize, &Node)| {
        let held = node.still_held().into_iter();
        held.map(move |what| format!("shard {shard} {what}")).collect::<Vec<_>>()
    };
    let mut held: Vec<String> = nodes.flat_map(of_shard).collect();
    held.extend(still_counted(&world.backends));
    held.into_iter().for_each(|what| world.violation(what));
}

/// Checks a whole run.
pub(super) fn at_the_end(world: &mut World) {
    let mut faults = Vec::new();
    for conn in &world.conns {
        let of = |fault: &String| format!("backend {}: {fault}", conn.backend_index);
        faults.extend(conn.wire.faults.iter().map(of));
    }
    for (id, (method, times)) in arrivals(&world.conns) {
        if method == "POST" && times > 1 {
            faults.push(format!("POST {id} came to {times} backends"));
        }
    }
    for client in &world.clients {
        let own = match &client.session {
            SimTunnel::Http(http) => http_is_well(world, client, http),
            SimTunnel::Passed(passed) => through::client_is_well(world, client, passed),
        };
        let broken = client.wire.iter().flat_map(|wire| wire.faults.iter().cloned());
        let id = client.plan.id;
        faults.extend(broken.chain(own).map(|fault| format!("client {id}: {fault}")));
    }
    faults.extend(through::hellos_are_well(world));
    faults.extend(closings_are_paced(world));
    faults.extend(tunnels_outlive_reloads(world));
    faults.extend(little_is_held(world));
    faults.extend(none_serves_before_its_turn(world));
    faults.into_iter().for_each(|fault| world.violation(fault));
}

/// Returns how often each request has reached any backend.
fn arrivals(conns: &[Conn]) -> BTreeMap<u32, (String, usize)> {
    let mut all: BTreeMap<u32, (String, usize)> = BTreeMap::new();
    for (id, method) in conns.iter().filter_map(Conn::http).flat_map(|(_, it)| it.requests()) {
        all.entry(id).or_insert_with(|| (method.to_owned(), 0)).1 += 1;
    }
    all
}

fn little_is_held(world: &World) -> Vec<String> {
    let plan = &world.plan;
    let read = plan.secured.most_received(plan.faults.receive_buffer);
    // A connection begins with a head, or with a ClientHello, which may be longer than a head.
    let head = match plan.passes_through() {
        true => through::MAX_HELLO,
        false => plan.settings.max_header_bytes,
    };
    world.most().above_bounds(read, head)
}

fn http_is_well(world: &World, client: &Client, http: &HttpClient) -> Vec<String> {
    match (&client.wire, &http.plan) {
        (None, _) if world.plan.calm => vec!["was not let in".to_owned()],
        (None, _) => Vec::new(),
        (Some(wire), SessionPlan::Tunnel { parting, .. }) => {
            tunnel_is_well(world, client, http, wire, *parting)
        }
        (Some(wire), SessionPlan::Http { asks, .. }) => {
            answers_are_well(world, http, wire, asks.len())
        }
    }
}

fn answers_are_well(world: &World, client: &HttpClient, wire: &Wire, count: usize) -> Vec<String> {
    let mut faults = Vec::new();
    let whole = client.answers.iter().filter(|answer| answer.is_whole).count();
    if whole > count {
        faults.push(format!("{whole} answers to {count} requests"));
    }
    if world.plan.calm {
        let good =
            |answer: &&SimAnswer| answer.is_whole && answer.status == 200 && answer.id.is_some();
        let good = client.answers.iter().filter(good).count();
        if good != count {
            let (answers, over) = (&client.answers, wire.over);
            faults.push(format!("{good} of {count} requests were answered: {answers:?}, {over:?}"));
        }
    }
    faults
}

fn tunnel_is_well(
    world: &World,
    client: &Client,
    http: &HttpClient,
    wire: &Wire,
    parting: ClientClose,
) -> Vec<String> {
    let mut faults = Vec::new();
    let calm = world.plan.calm;
    let id = client.plan.id;
    let (said, received) = (http.said(wire), http.received(wire));
    let ours = |(_, side): &(&Wire, &HttpBackend)| {
        side.tunnel.as_ref().is_some_and(|tunnel| tunnel.id == id)
    };
    let sides: Vec<_> = world.conns.iter().filter_map(Conn::http).filter(ours).collect();
    for (side_wire, side) in &sides {
        let came = side.received(side_wire);
        if !said.starts_with(came) {
            faults.push(format!(
                "its backend received bytes that were not sent: {} of {} bytes agree",
                agreeing(said, came),
                came.len()
            ));
        }
    }
    if http.in_from.is_none() {
        if calm {
            let (answers, over) = (&http.answers, wire.over);
            faults.push(format!("its tunnel was never opened: {answers:?}, {over:?}"));
        }
        return faults;
    }
    let kind_of = |(wire, side): &(&Wire, &HttpBackend)| injected(side.said(wire), received);
    let Some((side_wire, side)) = sides.iter().rfind(|side| kind_of(side).is_some()) else {
        let agree = sides.iter().map(|(wire, side)| agreeing(side.said(wire), received)).max();
        faults.push(format!(
            "it received {} bytes, of which {agree:?} were sent to it, and no Close of ours in \
             its place",
            received.len()
        ));
        return faults;
    };
    let kind = injected(side.said(side_wire), received).unwrap_or(Injected::None);
    let is_cut = wire.was_cut() || side_wire.was_cut();
    let was_close = kind == Injected::Whole || Scan::of(received).close.is_some();
    let may_end_so = http.broke_off || parting == ClientClose::Silent || wire.vanished;
    match wire.over {
        _ if wire.vanished => {}
        Some(Over::Finished) if !was_close && !may_end_so => {
            faults.push("its stream ended without a Close frame and without a reset".to_owned());
        }
        Some(Over::Finished)
            if kind == Injected::None
                && side.said(side_wire).len() != received.len()
                && !may_end_so =>
        {
            let (received, said) = (received.len(), side.said(side_wire).len());
            faults.push(format!("{received} of {said} bytes came, then the end of the stream"));
        }
        Some(Over::Finished) if matches!(kind, Injected::Part) => {
            faults.push("half a Close frame of ours, and then the end of the stream".to_owned());
        }
        Some(Over::Reset) if calm => faults.push("it was reset".to_owned()),
        None if calm => faults.push("its stream never ended".to_owned()),
        _ => {}
    }
    // After the balancer's Close, all that the client sent before its own Close reaches a backend
    // that is still connected.
    let leaps = world.plan.faults.clock_leaps > 0 || world.plan.faults.starved_receives > 0;
    let backend_lives = side.way == Behaviour::Conforming
        && side.tunnel.as_ref().is_some_and(|tunnel| tunnel.leaving.is_none());
    let is_prompt = client.plan.behaviour.nap.is_none() && client.plan.behaviour.rest < 10_000;
    let may_have_read = kind == Injected::Whole
        && http.has_closed
        && wire.is_flushed()
        && !wire.vanished
        && !http.broke_off
        && matches!(parting, ClientClose::Close | ClientClose::Stay)
        && backend_lives
        && is_prompt
        && !leaps
        && world.shut_down_at.is_none_or(|at| at > wire.ended_at);
    if (calm || may_have_read) && !is_cut && side.received(side_wire) != said {
        let (received, said) = (side.received(side_wire).len(), said.len());
        faults.push(format!("its backend received {received} of its {said} bytes, {kind:?}"));
    }
    faults
}

fn agreeing(one: &[u8], other: &[u8]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

/// A Close frame of the balancer at the end of the data that a client received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Injected {
    None,
    Part,
    Whole,
}

/// Returns how much of the balancer's Close frame follows in `received` after whole frames of
/// `said`. Returns `None` if `received` has another form and is not a prefix of `said`.
fn injected(said: &[u8], received: &[u8]) -> Option<Injected> {
    if said.starts_with(received) {
        return Some(Injected::None);
    }
    let agree = agreeing(said, received);
    let ends = Scan::of(said).ends;
    let mut ends: Vec<usize> = ends.into_iter().chain([0]).filter(|end| *end <= agree).collect();
    ends.sort_unstable();
    for end in ends.into_iter().rev() {
        for (code, reason) in
            [(1001, "going away"), (1008, "too much at once"), (1012, "please connect again")]
        {
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

/// In a calm run no backend is down, so that primaries serve alone.
fn none_serves_before_its_turn(world: &World) -> Vec<String> {
    if !world.plan.calm {
        return Vec::new();
    }
    let is_primary = |it: &&Arc<Backend>| {
        let mut all = world.plan.backends.iter().enumerate();
        let of_address = |(at, _): &(usize, _)| it.address() == backend_address(*at);
        all.find(of_address).is_none_or(|(_, plan)| plan.place == BackendPlace::Primary)
    };
    let others = world.backends.iter().filter(|it| !is_primary(it));
    let used = others.filter(|it| it.totals().connects.load(Relaxed) > 0);
    used.map(|it| format!("{} served while others were up", it.address())).collect()
}

/// A change of the list, of weights or of settings does not close tunnels.
fn tunnels_outlive_reloads(world: &World) -> Vec<String> {
    if !world.plan.calm {
        // A timeout of silence also ends tunnels.
        return Vec::new();
    }
    let closed = |it: &&Arc<Backend>| it.totals().closed.load(Relaxed) > 0;
    let ordered = |it: &Arc<Backend>| world.closed.iter().any(|one| Arc::ptr_eq(one, it));
    let wrong = world.backends.iter().filter(closed).filter(|it| !ordered(it));
    wrong.map(|it| format!("tunnels of {} were closed without an order", it.address())).collect()
}

/// Tunnels do not end all at once: in any span of time at most as many end as the commands allow.
fn closings_are_paced(world: &World) -> Vec<String> {
    let mut faults = Vec::new();
    let has_deadline = world.orders.iter().any(|(_, _, has)| *has);
    let tunnel = world.plan.settings.timeouts.tunnel;
    let ends = |command: &ControlCommand| matches!(command, ControlCommand::ShutDown { .. });
    let is_shut_down = world.plan.commands.iter().any(|(_, command)| ends(command));
    if has_deadline || is_shut_down {
        return faults;
    }
    let shards = world.plan.shards as f64;
    // Clients whose backends were lost are closed at a rate of their own.
    let lost = world.nodes.iter().any(|node| node.metrics().lost > 0);
    let own = lost.then_some(world.plan.settings.close_rate);
    let (mut rate, mut burst) = (0.0, 0.0);
    for one in world.orders.iter().map(|(rate, _, _)| *rate).chain(own) {
        let part = f64::from(one) / shards;
        rate += part;
        burst += 1.0 + (part / 10.0).max(1.0);
    }
    if tunnel.as_secs() < 500 {
        // A timeout of silence also ends tunnels, at any rate.
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

/// Returns a span of time in which more tunnels ended than this rate and burst allow.
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
