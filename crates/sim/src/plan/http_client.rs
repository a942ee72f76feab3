//! Clients of the service's HTTP: some keep to the rules, others do not.

use super::{Expect, MILLI, Part, SECOND, SimPlan};
use crate::ask::{Ask, ServiceStart, Take};
use crate::rng::Rng;
use crate::script::{Do, Pace};

/// Adds HTTP clients to a third of all plans; the other plans do not change.
pub(crate) fn gather(plan: &mut SimPlan, rng: &mut Rng) {
    if !rng.one_in(3) {
        return;
    }
    plan.limits.min_body_rate = rng.pick(&[None, Some(100), Some(1024)]);
    plan.limits.min_response_rate = rng.pick(&[None, Some(100), Some(256)]);
    let first = plan.parts.len();
    let busy = plan.parts.iter().map(|part| part.at).max().unwrap_or(0) + SECOND;
    for number in first..first + 1 + rng.below(6) {
        let mut part = Part::new(number as u32, rng);
        part.at = rng.between(0, busy);
        if plan.faults.cut_links > 0 && rng.one_in(plan.faults.cut_links) {
            part.link.cut_after = Some(rng.between(1, 20_000));
        }
        let finely_cut = plan.faults.receive_buffer < 1000
            || (1..1000).contains(&plan.faults.cut_receives)
            || part.link.capacity < 1000;
        let context =
            ScriptContext { number: number as u32, most: if finely_cut { 1000 } else { 40_000 } };
        match rng.below(3) {
            0 => adversary(&mut part, &context, rng),
            _ => conforming(&mut part, &context, rng),
        }
        plan.parts.push(part);
    }
}

struct ScriptContext {
    number: u32,
    /// Maximum bytes of a body.
    most: usize,
}

/// Returns a delay: usually short, sometimes long, rarely minutes.
fn delay(rng: &mut Rng) -> u64 {
    match rng.below(12) {
        0 => 0,
        1..8 => rng.between(0, 20),
        8..11 => rng.between(0, 3000),
        _ => rng.between(0, 200_000),
    }
}

fn size(rng: &mut Rng, most: usize) -> usize {
    match rng.below(6) {
        0 => 0,
        1..4 => rng.below(most.min(300) + 1),
        _ => rng.below(most + 1),
    }
}

fn ask(context: &ScriptContext, number: u32, rng: &mut Rng) -> Ask {
    let mut ask = Ask::new(context.number, number, size(rng, 2 * context.most));
    ask.chunked = rng.one_in(2);
    if rng.one_in(2) {
        ask.upload = size(rng, context.most);
        ask.take = rng.pick(&[Take::Drop, Take::Whole, Take::Pieces, Take::Pieces]);
        ask.expects = ask.upload > 0 && rng.one_in(5);
    }
    if ask.take == Take::Pieces {
        ask.stops = rng.pick(&[0, 1, 2, 5]);
        ask.room_after = delay(rng);
    }
    ask.start = match ask.take {
        Take::Pieces => {
            rng.pick(&[ServiceStart::AtOnce, ServiceStart::Later, ServiceStart::AfterHead])
        }
        Take::Drop => rng.pick(&[ServiceStart::AtOnce, ServiceStart::Later, ServiceStart::Parked]),
        Take::Whole => rng.pick(&[ServiceStart::AtOnce, ServiceStart::Later]),
    };
    ask.delay = delay(rng);
    if rng.one_in(2) {
        let most = ask.length.max(1);
        ask.chunk = (1 + rng.below(most)).max(most / 20);
        ask.waits = rng.pick(&[0, 0, 1, 3]);
        ask.wait = delay(rng);
        if ask.length > 0 && rng.one_in(10) {
            ask.fails_at = Some(rng.below(ask.length));
        }
    }
    // A panic in the callback of another connection would end that connection.
    ask.panics = ask.start != ServiceStart::Parked && rng.one_in(30);
    if ask.room_after + ask.wait > 5_000 {
        // Once is enough.
        (ask.stops, ask.waits) = (ask.stops.min(1) * 5, ask.waits.min(1) * 5);
    }
    ask
}

fn asks(context: &ScriptContext, rng: &mut Rng) -> Vec<Ask> {
    (0..1 + rng.below(6) as u32).map(|number| ask(context, number, rng)).collect()
}

fn chunk(ask: &Ask, rng: &mut Rng) -> usize {
    if rng.one_in(2) { 0 } else { (1 + rng.below(ask.upload + 1)).max(ask.upload / 30) }
}

fn conforming(part: &mut Part, context: &ScriptContext, rng: &mut Rng) {
    part.name = "http client";
    part.expect = Expect::Served;
    let mut asks = asks(context, rng);
    let last = asks.len() - 1;
    let ending = rng.below(4);
    asks[last].close = ending == 0;
    if rng.one_in(3) {
        let rest = rng.between(MILLI, 200 * MILLI);
        part.script.push(Do::Read(Pace::Slow(1000 + rng.below(5000), rest)));
    }
    let pipelined = rng.one_in(2);
    for (index, ask) in asks.iter().enumerate() {
        let mut request = ask.request(chunk(ask, rng));
        if rng.one_in(4) {
            let rest = request.split_off(rng.below(request.len()));
            part.script.push(Do::Write(request));
            part.script.push(Do::Pause(rng.between(0, 300 * MILLI)));
            request = rest;
        }
        part.script.push(Do::Write(request));
        if !pipelined && index < last {
            part.script.push(Do::UntilAnswered(index + 1));
            if rng.one_in(3) {
                part.script.push(Do::Pause(rng.between(0, SECOND)));
            }
        }
    }
    match ending {
        1 => part.script.push(Do::Finish),
        2 => part.script.extend([Do::UntilAnswered(last + 1), Do::Finish]),
        _ => {}
    }
    part.asks = asks;
}

fn adversary(part: &mut Part, context: &ScriptContext, rng: &mut Rng) {
    let asks = asks(context, rng);
    let mut bytes: Vec<u8> = asks.iter().flat_map(|ask| ask.request(chunk(ask, rng))).collect();
    part.asks = asks;
    if rng.one_in(3) {
        part.script.push(Do::Read(Pace::Slow(1 + rng.below(300), rng.between(MILLI, SECOND))));
    }
    let stays = [Do::Pause(300 * SECOND), Do::Reset];
    match rng.below(5) {
        0 => {
            part.name = "http client that stops";
            bytes.truncate(rng.below(bytes.len()));
            part.script.push(Do::Write(bytes));
            part.script.extend(stays);
        }
        1 => {
            part.name = "http client that reads nothing";
            part.link.capacity = rng.pick(&[200, 3000]);
            part.script.extend([Do::Write(bytes), Do::Read(Pace::Never)]);
            part.script.extend(stays);
        }
        2 => {
            part.name = "http client that leaves";
            bytes.truncate(1 + rng.below(bytes.len()));
            part.script.push(Do::Write(bytes));
            if rng.one_in(2) {
                part.script.push(Do::Pause(rng.between(0, 3 * SECOND)));
            }
            part.script.push([Do::Reset, Do::Finish, Do::Vanish][rng.below(3)].clone());
        }
        3 => {
            part.name = "http client that talks on";
            let mut ask = Ask::new(context.number, part.asks.len() as u32, 10);
            (ask.take, ask.upload) = (rng.pick(&[Take::Whole, Take::Pieces]), 5);
            let broken = [ask.head(true).as_slice(), b"xyz\r\n"].concat();
            let garbage: [&[u8]; 4] = [
                b"\0\x01\x02\r\n\r\n",
                b"GET / HTTP/1.1\r\n\r\n",
                b"GET / HTTP/9.9\r\nHost: sim\r\n\r\n",
                &broken,
            ];
            bytes.extend_from_slice(rng.pick(&garbage));
            part.asks.push(ask);
            part.script.push(Do::Write(bytes));
            part.script.extend(stays);
        }
        _ => {
            part.name = "http client with too much";
            let mut ask = Ask::new(context.number, part.asks.len() as u32, 10);
            ask.take = Take::Pieces;
            (ask.upload, ask.most) = (300, rng.below(300));
            bytes.extend(ask.request(chunk(&ask, rng)));
            part.asks.push(ask);
            part.script.push(Do::Write(bytes));
            part.script.extend(stays);
        }
    }
}
