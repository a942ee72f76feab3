//! What must hold when everybody is gone.

use std::collections::BTreeSet;

use throng_engine::Stats;

use crate::peer::{Do, End, Pace, Peer};
use crate::plan::{Expect, Part, SECOND};
use crate::reader::Heard;
use crate::record::{Record, Session};
use crate::world::World;

/// Checks a whole run.
pub(crate) fn at_the_end(world: &World, stats: &Stats) {
    let mut faults = Vec::new();
    let record = world.record.borrow();
    for (peer, session) in &record.sessions {
        if session.closed.is_none() {
            faults.push(format!("on_close of peer {peer} is missing"));
        }
    }
    if record.opened != record.closed {
        faults.push(format!("{} times on_open, {} times on_close", record.opened, record.closed));
    }
    if !world.shards.is_empty() {
        let ended = stats.closed_clean + stats.closed_abnormally;
        if stats.opened != ended || stats.opened != record.opened {
            faults.push(format!("{} opened, {ended} closed in the figures", stats.opened));
        }
        if stats.handler_panics != record.planned_panics {
            let (panics, planned) = (stats.handler_panics, record.planned_panics);
            faults.push(format!("{panics} panics where {planned} were planned"));
        }
        if world.plan.limits.heartbeat_interval.is_zero() && stats.pings > 0 {
            faults.push(format!("{} pings where heartbeats are off", stats.pings));
        }
    }
    for (peer, part) in world.peers.iter().zip(&world.plan.parts) {
        let Some(peer) = peer else { continue };
        let session = record.sessions.get(&peer.number);
        let mut peer_faults = heard_well(peer, part, session);
        peer_faults.extend(pinged_well(world, peer, part));
        peer_faults.extend(ended_well(world, peer, part, &record));
        let (number, name) = (peer.number, part.name);
        faults.extend(
            peer_faults.into_iter().map(|fault| format!("peer {number} ({name}): {fault}")),
        );
    }
    drop(record);
    for fault in faults {
        world.violation(fault);
    }
}

/// Whatever its end: what came is right, in order, once, and its own.
fn heard_well(peer: &Peer, part: &Part, session: Option<&Session>) -> Vec<String> {
    let mut faults = peer.reader.violations.clone();
    let Some(session) = session else {
        if !peer.reader.heard.is_empty() {
            faults.push("it heard messages and had no session".to_owned());
        }
        return faults;
    };
    if !part.raw && !peer.said.starts_with(&session.handled) {
        faults.push("on_message is not what was said, in order, once".to_owned());
    }
    let direct: Vec<u64> = peer
        .reader
        .heard
        .iter()
        .filter_map(|heard| match heard {
            Heard::Direct(hash) => Some(*hash),
            _ => None,
        })
        .collect();
    if !session.answered.starts_with(&direct) {
        let (got, sent) = (direct.len(), session.answered.len());
        faults.push(format!("the {got} answers are not the first of the {sent} that were sent"));
    }
    let mut last = std::collections::BTreeMap::new();
    for heard in &peer.reader.heard {
        match heard {
            Heard::Direct(_) => {}
            Heard::Published { channel, by, sequence } => {
                let what = (channel.clone(), *by, *sequence);
                if !session.possible.contains(&what) {
                    faults.push(format!("{what:?} was not meant for it"));
                }
                // One publisher's publications keep their order, whatever their channels.
                if last.insert(*by, *sequence).is_some_and(|before| before >= *sequence) {
                    faults.push(format!("{what:?} came twice, or too late"));
                }
            }
            Heard::Private { to, by, sequence } => {
                if *to != peer.number || !session.private.contains(&(*by, *sequence)) {
                    faults.push(format!("it got a message from {by} to {to}"));
                }
            }
        }
    }
    if is_clean(peer) {
        if direct.len() != session.answered.len() {
            let (got, sent) = (direct.len(), session.answered.len());
            faults.push(format!("a clean end after {got} of {sent} answers"));
        }
        if session.handled.len() != peer.said.len() {
            let (handled, said) = (session.handled.len(), peer.said.len());
            faults.push(format!("a clean end, and {handled} of {said} messages were handled"));
        }
        let heard: BTreeSet<_> = peer
            .reader
            .heard
            .iter()
            .filter_map(|heard| match heard {
                Heard::Published { channel, by, sequence } => {
                    Some((channel.clone(), *by, *sequence))
                }
                _ => None,
            })
            .collect();
        for due in &session.due {
            if !heard.contains(due) {
                faults.push(format!("{due:?} never came"));
            }
        }
    }
    faults
}

/// Pings come only to who was silent, and reads.
fn pinged_well(world: &World, peer: &Peer, part: &Part) -> Option<String> {
    let plan = &world.plan;
    let limits = &plan.limits;
    let reads = !part.script.iter().any(|line| matches!(line, Do::Read(_)));
    if limits.heartbeat_always || plan.faults.clock_leaps > 0 || !reads {
        return None;
    }
    // Up to a quarter early and one second more, so that not all are pinged at once; ticks are whole seconds.
    let interval = limits.heartbeat_interval.as_nanos() as u64;
    let silence = (interval / 4 * 3).saturating_sub(3 * SECOND);
    // What it wrote while the ping was on its way does not count.
    let on_the_way = 2 * part.link.latency + SECOND / 10;
    for ping in &peer.reader.pings {
        let wrote = peer.wrote_at.iter().rev().find(|at| **at + on_the_way <= *ping)?;
        if ping - wrote < silence {
            return Some(format!("pinged {} ms after it spoke", (ping - wrote) / 1_000_000));
        }
    }
    None
}

/// It closed first and was answered with its own code.
fn is_clean(peer: &Peer) -> bool {
    let answer = peer.reader.closed.as_ref().map(|(code, _)| *code);
    peer.closed_first_with.is_some() && answer == peer.closed_first_with
}

/// Its end is the one that was expected, or there is an excuse.
fn ended_well(world: &World, peer: &Peer, part: &Part, record: &Record) -> Vec<String> {
    let Some((end, at)) = peer.end else { return vec!["it never ended".to_owned()] };
    if end == End::Finished && !peer.reader.is_between_frames() && part.expect == Expect::Clean {
        return vec!["the stream ended inside a frame".to_owned()];
    }
    let reader = &peer.reader;
    let code = reader.closed.as_ref().map(|(code, _)| *code);
    let told = || format!("{end:?}, close {:?}, statuses {:?}", reader.closed, reader.statuses);
    if excuse(world, peer, part, record, code) {
        return Vec::new();
    }
    let fault = match &part.expect {
        Expect::Anything => None,
        Expect::Clean if is_clean(peer) && end == End::Finished => None,
        Expect::Clean => Some("it did not end in good order"),
        Expect::Code(expected) if code == Some(*expected) => {
            // FACTS: a panic, or a broken rule, ends one connection only; the others' checks see to that.
            let closed = record.sessions.get(&peer.number).and_then(|session| session.closed);
            (closed != Some(*expected) && closed != Some(1006))
                .then_some("on_close told another code")
        }
        Expect::Code(_) => Some("it was not closed with the right code"),
        Expect::Answers(count) => {
            let all = reader.statuses.iter().filter(|status| **status == 200).count() == *count;
            (!all || reader.answered != *count || end != End::Finished)
                .then_some("answers are missing")
        }
        Expect::Status(statuses) => {
            let last = reader.statuses.last();
            (!last.is_some_and(|last| statuses.contains(last))).then_some("the wrong status")
        }
        Expect::Within(nanos) => {
            (at - peer.began > *nanos || end == End::Own).then_some("it was not ended in time")
        }
    };
    fault
        .map(|fault| format!("{fault} (expected {:?}): {}", part.expect, told()))
        .into_iter()
        .collect()
}

/// What a fault, a limit or a drain may do to anybody.
fn excuse(world: &World, peer: &Peer, part: &Part, record: &Record, code: Option<u16>) -> bool {
    let plan = &world.plan;
    let limits = &plan.limits;
    let refused = peer.reader.statuses.last().is_some_and(|status| matches!(status, 503 | 429));
    let silent = peer.reader.statuses.is_empty();
    let admission =
        plan.max_connections + limits.max_pending_handshakes + limits.max_connections_per_ip;
    if world.net.borrow().was_cut(peer.link) || plan.faults.clock_leaps > 0 {
        return true;
    }
    if silent && plan.faults.adopt_fails > 0 {
        return true;
    }
    if (refused || silent) && (admission > 0 || world.is_drained()) {
        return true;
    }
    // A drain ends everybody, politely if they listen.
    if world.is_drained()
        && (code.is_some_and(|code| plan.drain.is_some_and(|drain| drain.plan.code == code))
            || peer.reader.closed.is_none())
    {
        return true;
    }
    // One that reads too slowly what others make it get.
    if code == Some(1008) && !(part.echo_only && plan.back_pressure_suffices()) {
        return true;
    }
    // While it does not read its answers it is not read, and a message of its that is partly here is not
    // waited for without end; nor is it waited for until it has read why.
    let slow = part.script.iter().any(|line| matches!(line, Do::Read(Pace::Slow(..))));
    let session = record.sessions.get(&peer.number);
    if slow && session.is_some_and(|session| session.closed == Some(1008)) {
        return true;
    }
    // It pipelined more answers than may pile up.
    if matches!(part.expect, Expect::Answers(count) if count * 2200 > limits.max_backlog) {
        return true;
    }
    false
}
