//! Compares the answers that an HTTP client has read with its requests.

use super::World;
use crate::ask::{Ask, Take};
use crate::peer::{End, Peer};
use crate::plan::Part;
use crate::reader::Answered;

/// Checks, for any end of the peer, that the answers match its requests: in order, one each, and
/// without any bytes after the last.
pub(crate) fn reads_well(world: &World, peer: &Peer, part: &Part) -> Vec<String> {
    let mut faults = Vec::new();
    if part.asks.is_empty() {
        return faults;
    }
    let answers = &peer.reader.answers;
    for (index, answer) in answers.iter().enumerate() {
        let is_last = index + 1 == answers.len();
        if let Some(fault) = fault_of(world, peer, part, index, answer, is_last) {
            faults.push(format!("answer {index}, {answer:?}: {fault}"));
        }
    }
    faults
}

fn fault_of(
    world: &World,
    peer: &Peer,
    part: &Part,
    index: usize,
    answer: &Answered,
    is_last: bool,
) -> Option<&'static str> {
    if !is_last && (answer.close || !answer.whole) {
        return Some("another follows");
    }
    let Some((by, number)) = answer.ask else {
        let is_fault = matches!(answer.status, 400..=505) && answer.close && is_last;
        return (!is_fault).then_some("no request was asked for it");
    };
    let Some(ask) = part.asks.get(index) else { return Some("there is no such request") };
    if (by, number) != (ask.peer, ask.number) || by != peer.number || number != index as u32 {
        return Some("it is another's");
    }
    let drained = world.is_drained();
    match answer {
        Answered { status, .. } if *status != 200 => Some("the wrong status"),
        Answered { wrong: true, .. } => Some("the wrong bytes"),
        Answered { .. } if ask.panics => Some("it should have failed"),
        Answered { whole: true, .. } if ask.fails() => Some("it should have failed"),
        Answered { whole: true, got, .. } if *got != ask.length => Some("the wrong length"),
        Answered { close: false, .. } if ask.close => Some("it was to be the last"),
        Answered { close: true, .. } if !may_close(ask) && !drained => Some("it is the last"),
        _ => None,
    }
}

fn may_close(ask: &Ask) -> bool {
    ask.close || ask.is_early() || (ask.expects && ask.take == Take::Drop)
}

/// Checks that a conforming client got all its answers, unless a missing one has an excuse.
pub(crate) fn was_served(world: &World, peer: &Peer, part: &Part) -> Option<&'static str> {
    let (end, at) = peer.end?;
    let answers = &peer.reader.answers;
    let plan = &world.plan;
    let last = answers.last();
    if world.net.borrow().was_cut(peer.link) || plan.faults.clock_leaps > 0 {
        return None;
    }
    let refused = last.is_none_or(|last| matches!(last.status, 503 | 429 | 408));
    if refused && (plan.caps_connections() || plan.faults.adopt_fails > 0) && answers.len() < 2 {
        return None;
    }
    let ends_at = |ask: &Ask| ask.close || ask.fails() || ask.panics;
    let most = part.asks.iter().position(ends_at).map_or(part.asks.len(), |at| at + 1);
    let asked = &part.asks[..most];
    if let Some(ask) = asked.get(answers.len().saturating_sub(1))
        && last.is_some_and(|last| last.close && last.whole && last.ask.is_some())
        && may_close(ask)
    {
        return (end == End::Own).then_some("it ended itself");
    }
    if let Some(drain) = plan.drain
        && world.is_drained()
        && at >= drain.at
    {
        // An answer in progress is completed, unless it takes too long, or the client sends more
        // than is read: this turns the end of the stream into a reset.
        let forced = at >= drain.at + drain.plan.grace.as_nanos() as u64;
        let is_torn = last.is_some_and(|last| !last.whole);
        let is_early = asked.get(answers.len().saturating_sub(1)).is_some_and(Ask::is_early);
        return (is_torn && !forced && !is_early && end == End::Finished)
            .then_some("a torn answer");
    }
    if asked.last().is_some_and(Ask::fails) && end == End::Reset {
        let done = answers.iter().filter(|answer| answer.whole).count();
        // A reset may overtake the answers before it.
        return (done >= most).then_some("it should have failed");
    }
    if asked[..answers.len().min(most)].iter().any(Ask::is_early) && end == End::Reset {
        // The client continued to send bytes that the server did not read.
        return None;
    }
    if asked.last().is_some_and(|ask| ask.panics) {
        let well = last.is_some_and(|last| last.status == 500) && answers.len() == most;
        // The client may continue to send a body that the server does not read.
        let overtaken = end == End::Reset && asked[most - 1].upload > 0;
        return (!well && !overtaken).then_some("the service has failed, and it got no 500");
    }
    let whole = answers.iter().filter(|answer| answer.whole && answer.status == 200).count();
    if whole != most || answers.len() != most {
        return Some("answers are missing");
    }
    (end != End::Finished).then_some("a wrong end")
}
