//! Conditions that must hold when all peers are gone.

use std::collections::{BTreeMap, BTreeSet};

use throng_engine::{ClassCounters, SlowPolicy, Stats};

use super::{World, transcript};
use crate::peer::{End, Peer};
use crate::plan::{Expect, Part, SECOND};
use crate::reader::Received;
use crate::record::{Expected, Offer, Record, SimSession};
use crate::rules::Rules;
use crate::script::{Do, Pace};

/// Checks a whole run.
pub(crate) fn at_the_end(world: &World, stats: &Stats) {
    let mut faults = Vec::new();
    let record = world.record.borrow();
    for (peer, session) in &record.sessions {
        if session.closed.is_none() {
            faults.push(format!("on_close of peer {peer} is missing"));
        }
    }
    for peer in &record.moves.under_way {
        faults.push(format!("the upgrade of peer {peer} is lost between two shards"));
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
        if world.plan.limits.heartbeat_interval.is_none() && stats.pings > 0 {
            faults.push(format!("{} pings where heartbeats are off", stats.pings));
        }
    }
    let figures = world.figures();
    let mut counts = vec![Counts::default(); figures.len()];
    for (peer, part) in world.peers.iter().zip(&world.plan.parts) {
        let Some(peer) = peer else { continue };
        let mut peer_faults = heard_well(world, peer, part, &record, &figures, &mut counts);
        peer_faults.extend(transcript::reads_well(world, peer, part));
        peer_faults.extend(pinged_well(world, peer, part));
        peer_faults.extend(ended_well(world, peer, part, &record));
        let (number, name) = (peer.number, part.name);
        faults.extend(
            peer_faults.into_iter().map(|fault| format!("peer {number} ({name}): {fault}")),
        );
    }
    faults.extend(counted_well(world, stats, &record, &counts));
    drop(record);
    for fault in faults {
        world.violation(fault);
    }
}

/// Checks, for any end of the peer, that it received the right messages in order, once, and no
/// others.
fn heard_well(
    world: &World,
    peer: &Peer,
    part: &Part,
    record: &Record,
    figures: &[ClassCounters],
    counts: &mut [Counts],
) -> Vec<String> {
    let mut faults = peer.reader.violations.clone();
    let Some(session) = record.sessions.get(&peer.number) else {
        if !peer.reader.received.is_empty() {
            faults.push("it received messages and had no session".to_owned());
        }
        return faults;
    };
    if !part.raw && !peer.said.starts_with(&session.handled) {
        faults.push("on_message is not what was said, in order, once".to_owned());
    }
    let received = match follow(&peer.reader.received, &session.offers, &world.plan.rules) {
        Ok(received) => received,
        Err(fault) => {
            faults.push(fault);
            return faults;
        }
    };
    if is_clean(peer) && session.handled.len() != peer.said.len() {
        let (handled, said) = (session.handled.len(), peer.said.len());
        faults.push(format!("a clean end, and {handled} of {said} messages were handled"));
    }
    let caught_up = has_caught_up(world, peer, session);
    let mut last: BTreeMap<(usize, &str), (usize, bool)> = BTreeMap::new();
    for (at, offer) in session.offers.iter().enumerate() {
        let got = received.contains(&at);
        let counts = &mut counts[offer.class];
        counts.missing += u64::from(!got);
        counts.missing_of_good += u64::from(caught_up && !got);
        let rules = world.plan.rules.of(offer.class);
        let is_too_large = session.stream && record.is_too_large(&offer.what);
        if caught_up
            && !got
            && !is_too_large
            && rules.policy == SlowPolicy::Close
            && rules.max_age.is_none()
        {
            faults.push(format!("{:?} never came", offer.what));
        }
        let key = if rules.policy == SlowPolicy::Latest { &*offer.key } else { "" };
        last.insert((offer.class, key), (at, got));
    }
    // Two messages always arrive: the newest of a class that drops old ones, and the newest of each
    // key of a class that keeps the newest.
    for ((class, key), (at, got)) in last {
        let rules = world.plan.rules.of(class);
        let kept = match rules.policy {
            SlowPolicy::DropOldest => true,
            SlowPolicy::Latest => {
                let later = &session.offers[at + 1..];
                figures[class].dropped_oldest == 0 || later.iter().all(|o| o.class != class)
            }
            _ => false,
        };
        let what = &session.offers[at].what;
        // If several answers are equal, any of them may have arrived.
        let got = got || matches!(what, Received::Direct(_)) && peer.reader.received.contains(what);
        if caught_up && kept && rules.max_age.is_none() && !got {
            faults.push(format!("{what:?}, the newest of class {class} and key {key:?}, is lost"));
        }
    }
    faults
}

/// Returns the received offers, if their order is valid: each once, in the order of the offers,
/// except that a newer value may replace an older value of its key that was not received.
pub(crate) fn follow(
    received: &[Received],
    offers: &[Offer],
    rules: &Rules,
) -> Result<BTreeSet<usize>, String> {
    // Both pointers advance as little as possible, which leaves the most choices for later.
    let mut place = 0;
    let mut newest: BTreeMap<(usize, &str), usize> = BTreeMap::new();
    let mut found = BTreeSet::new();
    for what in received {
        let mine = |offer: &Offer| offer.what == *what;
        let own = offers.iter().enumerate().skip(place).find(|(at, offer)| {
            let after = newest.get(&(offer.class, &offer.key)).copied().unwrap_or(0);
            mine(offer) && *at >= after
        });
        let Some((own, offer)) = own else {
            return Err(match offers.iter().any(mine) {
                true => format!("{what:?} came twice, or too late"),
                false => format!("{what:?} was not meant for it"),
            });
        };
        found.insert(own);
        if rules.of(offer.class).policy != SlowPolicy::Latest {
            place = own + 1;
            continue;
        }
        let key = (offer.class, &*offer.key);
        let from = place.max(newest.get(&key).copied().unwrap_or(0));
        let same = |other: &Offer| (other.class, &*other.key) == key;
        place = from + 1 + offers[from..].iter().position(same).unwrap_or(0);
        newest.insert(key, own + 1);
    }
    Ok(found)
}

/// Counts of a class's offers that were not received.
#[derive(Clone, Copy, Default)]
struct Counts {
    missing: u64,
    /// Counts only peers that have read to the end.
    missing_of_good: u64,
}

/// Returns whether the peer has received everything ever sent to it.
fn has_caught_up(world: &World, peer: &Peer, session: &SimSession) -> bool {
    match session.stream {
        false => is_clean(peer),
        // A stream ends without a reason, so no other reason may be possible.
        true => {
            session.dismissed
                && peer.end.is_some_and(|(end, _)| end == End::Finished)
                && !peer.has_finished()
                && !world.net.borrow().was_cut(peer.link)
                && !world.is_drained()
                && world.figures().iter().all(|figures| figures.slow_consumers == 0)
        }
    }
}

/// Checks that the missing messages are those counted as lost.
fn counted_well(world: &World, stats: &Stats, record: &Record, counts: &[Counts]) -> Vec<String> {
    let mut faults = Vec::new();
    let figures = world.figures();
    let from_outside = record.outcomes;
    let mut sums = [0; 4];
    for (class, (figures, counts)) in figures.iter().zip(counts).enumerate() {
        let attempts = record.attempts[class];
        let refused = figures.slow_consumers + figures.dropped_newest + figures.too_large;
        let lost = figures.dropped_oldest
            + figures.conflated
            + figures.expired
            + figures.discarded
            + figures.lost;
        let counted = (refused + lost).saturating_sub(attempts.refused);
        if counts.missing_of_good > counted {
            let missing = counts.missing_of_good;
            faults.push(format!("class {class}: {missing} are missing, {counted} are counted"));
        }
        if counts.missing < counted {
            let missing = counts.missing;
            faults.push(format!("class {class}: {counted} are counted, {missing} are missing"));
        }
        let accepted = figures.delivered + figures.queued + figures.closed;
        let most = accepted + refused - attempts.refused.min(refused);
        let least = most.saturating_sub(attempts.unreported);
        if attempts.least > most || attempts.most < least {
            faults.push(format!(
                "class {class}: published to {attempts:?} receivers, counted {figures:?}"
            ));
        }
        sums[0] += figures.delivered;
        sums[1] += figures.queued;
        sums[2] += refused;
        sums[3] += figures.closed;
        let rules = world.plan.rules.of(class);
        let never = match rules.policy {
            SlowPolicy::DropNewest => {
                figures.slow_consumers + figures.dropped_oldest + figures.conflated
            }
            SlowPolicy::DropOldest => {
                figures.slow_consumers + figures.dropped_newest + figures.conflated
            }
            SlowPolicy::Latest => figures.slow_consumers + figures.dropped_newest,
            _ => figures.dropped_newest + figures.dropped_oldest + figures.conflated,
        };
        if never > 0 || rules.max_age.is_none() && figures.expired > 0 {
            faults.push(format!("class {class}, {:?}, counted {figures:?}", rules.policy));
        }
    }
    let outcomes =
        [from_outside.delivered, from_outside.queued, from_outside.dropped, from_outside.closed];
    if outcomes.iter().zip(sums).any(|(outcome, sum)| *outcome > sum) {
        faults.push(format!("publishers got {from_outside:?}, the figures say {sums:?}"));
    }
    let slow: u64 = figures.iter().map(|figures| figures.slow_consumers).sum();
    if !world.shards.is_empty() && (stats.messages_dropped, stats.slow_consumers) != (sums[2], slow)
    {
        faults.push(format!("{figures:?} where all shards have {stats:?}"));
    }
    for Expected { receipt, receivers } in &record.receipts {
        match receipt.total() {
            // Commands that a stopped shard has not taken are dropped with it.
            None if world.is_drained() => {}
            None => faults.push("a receipt is never complete".to_owned()),
            Some(total) if total.unreached > 0 && world.is_drained() => {}
            Some(total) => {
                let sum = total.receivers();
                if sum < receivers.0 || sum > receivers.1 || total.unreached > 0 {
                    faults.push(format!("a receipt for {receivers:?} receivers says {total:?}"));
                }
            }
        }
    }
    faults
}

/// Checks that only silent peers that read get pings.
fn pinged_well(world: &World, peer: &Peer, part: &Part) -> Option<String> {
    let plan = &world.plan;
    let limits = &plan.limits;
    let reads = !part.script.iter().any(|line| matches!(line, Do::Read(_)));
    if limits.heartbeat_always || plan.faults.clock_leaps > 0 || !reads {
        return None;
    }
    // Up to a quarter early and one second more, so that not all are pinged at once; ticks are
    // whole seconds.
    let interval = limits.heartbeat_interval.unwrap_or_default().as_nanos() as u64;
    let silence = (interval / 4 * 3).saturating_sub(3 * SECOND);
    // Data written while the ping was in flight does not count.
    let on_the_way = 2 * part.link.latency + SECOND / 10;
    for ping in &peer.reader.pings {
        let wrote = peer.wrote_at.iter().rev().find(|at| **at + on_the_way <= *ping)?;
        if ping - wrote < silence {
            return Some(format!("pinged {} ms after it spoke", (ping - wrote) / 1_000_000));
        }
    }
    None
}

/// Returns whether the peer closed first and was answered with its own code.
fn is_clean(peer: &Peer) -> bool {
    let answer = peer.reader.closed.as_ref().map(|(code, _)| *code);
    peer.closed_first_with.is_some() && answer == peer.closed_first_with
}

/// Checks that the peer's end is the expected one, or has an excuse.
fn ended_well(world: &World, peer: &Peer, part: &Part, record: &Record) -> Vec<String> {
    let Some((end, at)) = peer.end else { return vec!["it never ended".to_owned()] };
    if end == End::Finished && !peer.reader.is_between_frames() && part.expect == Expect::Clean {
        return vec!["the stream ended inside a frame".to_owned()];
    }
    let reader = &peer.reader;
    let code = reader.closed.as_ref().map(|(code, _)| *code);
    let end_of_peer =
        || format!("{end:?}, close {:?}, statuses {:?}", reader.closed, reader.statuses);
    if part.expect != Expect::Served && excuse(world, peer, part, record, code) {
        return Vec::new();
    }
    let fault = match &part.expect {
        Expect::Anything => None,
        Expect::Clean if is_clean(peer) && end == End::Finished => None,
        Expect::Clean => Some("it did not end in good order"),
        Expect::Code(expected) if code == Some(*expected) => {
            // A panic or a broken rule ends only one connection. The checks of the other
            // connections verify this.
            let closed = record.sessions.get(&peer.number).and_then(|session| session.closed);
            (closed != Some(*expected) && closed != Some(1006))
                .then_some("on_close reported another code")
        }
        Expect::Code(_) => Some("it was not closed with the right code"),
        Expect::Served => transcript::was_served(world, peer, part),
        Expect::Admitted => {
            (reader.statuses != [200]).then_some("it was not served, whatever its address has open")
        }
        Expect::Streamed if end != End::Own => Some("the stream has ended"),
        Expect::Streamed => {
            let session = record.sessions.get(&peer.number);
            let offers = session.into_iter().flat_map(|session| &session.offers);
            let due = offers.filter(|offer| record.is_too_large(&offer.what)).count();
            (due != reader.lost).then_some("it did not get a report of each loss once")
        }
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
        .map(|fault| format!("{fault} (expected {:?}): {}", part.expect, end_of_peer()))
        .into_iter()
        .collect()
}

/// Returns whether a fault, a limit or a drain may have caused this end.
fn excuse(world: &World, peer: &Peer, part: &Part, record: &Record, code: Option<u16>) -> bool {
    let plan = &world.plan;
    let limits = &plan.limits;
    let refused =
        peer.reader.statuses.last().is_some_and(|status| matches!(status, 503 | 429 | 408));
    let silent = peer.reader.statuses.is_empty();
    let is_capped = plan.caps_connections();
    if world.net.borrow().was_cut(peer.link) || plan.faults.clock_leaps > 0 {
        return true;
    }
    if (silent || record.moves.lost.contains(&peer.number)) && plan.faults.adopt_fails > 0 {
        return true;
    }
    // The cap of its address does not excuse a client whose neighbours are silent.
    let is_capped = is_capped && part.expect != Expect::Admitted;
    if (refused || silent) && (is_capped || world.is_drained()) {
        return true;
    }
    // A drain ends all peers, with a Close frame if they read.
    if world.is_drained()
        && (code.is_some_and(|code| plan.drain.is_some_and(|drain| drain.plan.code == code))
            || peer.reader.closed.is_none())
    {
        return true;
    }
    // The peer reads too slowly for the messages that others send to it.
    if code == Some(1008) && !(part.echo_only && plan.back_pressure_suffices()) {
        return true;
    }
    // While the peer does not read its answers, the server does not read from it. The server waits
    // neither for the rest of a partial message forever, nor for the peer to read the reason.
    let slow =
        part.script.iter().any(|line| matches!(line, Do::Read(Pace::Slow(..) | Pace::Never)));
    let session = record.sessions.get(&peer.number);
    if slow && session.is_some_and(|session| session.closed == Some(1008)) {
        return true;
    }
    // The server also does not wait if the peer reads nothing for longer than the timeout of output
    // or of a ping.
    let reads_nothing = part.script.contains(&Do::Read(Pace::Never));
    if reads_nothing && session.is_some_and(|session| session.closed == Some(1006)) {
        return true;
    }
    // The peer has pipelined more answers than may wait.
    if matches!(part.expect, Expect::Answers(count) if count * 2200 > limits.max_backlog) {
        return true;
    }
    false
}
