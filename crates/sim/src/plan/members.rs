//! Members of channels, quick and slow, by WebSocket and as streams of events; publishers inside
//! and outside; and rules of every kind for slow receivers.

use std::collections::BTreeSet;
use std::time::Duration;

use throng_engine::{Backpressure, SlowPolicy};

use super::conforming::command;
use super::{Expect, MILLI, Outside, Part, SECOND, SimPlan, events_request, upgrade_request};
use crate::record::Audience;
use crate::rng::Rng;
use crate::rules::Rules;
use crate::script::{Do, Pace};
use crate::service::{FEED, STREAMS};

/// Channels with publications.
const NAMES: [&str; 6] = ["red", "green", "blue", "sky.eu", "sky.us", "sky.us.ny"];

/// Additional patterns to subscribe to, if patterns are enabled.
const PATTERNS: [&str; 6] = ["sky.*", "sky.>", ">", "*", "*.us", "sky.*.ny"];

/// Adds members and publishers to half of all plans; the other plans do not change.
pub(crate) fn gather(plan: &mut SimPlan, rng: &mut Rng) {
    if rng.one_in(2) {
        return;
    }
    plan.wildcards = rng.one_in(2);
    plan.rules = rules(rng);
    if rng.one_in(3) {
        plan.limits.fragment_threshold = Some(rng.pick(&[100, 1000, 2000]));
        plan.limits.fragment_size = rng.pick(&[1, 40, 700, 4000]);
    }
    let first = plan.parts.len();
    let all = (first + 3 + rng.below(8)) as u32;
    let broadcasts = rng.one_in(2);
    let busy = plan.parts.iter().map(|part| part.at).max().unwrap_or(0) + SECOND;
    for number in first as u32..all {
        let mut part = Part::new(number, rng);
        part.at = rng.between(0, busy);
        if rng.one_in(2) {
            part.link.capacity = rng.pick(&[200, 3000, 20_000]);
        }
        let context = ScriptContext { number, all, broadcasts, wildcards: plan.wildcards };
        match rng.below(8) {
            0..3 => member(&mut part, &context, rng),
            3..5 => stream(&mut part, &context, rng),
            _ => publisher(&mut part, &context, plan, rng),
        }
        plan.parts.push(part);
    }
    for _ in 0..rng.below(30) {
        let at = rng.between(0, busy + 3 * SECOND);
        plan.outside.push((at, outside(first as u32, all, broadcasts, rng)));
    }
    // Any peer may receive any message, and be too slow for it.
    plan.parts.iter_mut().for_each(|part| part.echo_only = false);
}

struct ScriptContext {
    number: u32,
    all: u32,
    broadcasts: bool,
    wildcards: bool,
}

impl ScriptContext {
    fn request(&self, part: &Part, rng: &mut Rng) -> Do {
        let path = rng.pick(&["/ws", "/feed"]);
        Do::Write(upgrade_request(path, self.number, &part.key))
    }

    fn subscription(&self, rng: &mut Rng) -> &'static str {
        match self.wildcards && rng.one_in(2) {
            true => rng.pick(&PATTERNS),
            false => rng.pick(&NAMES),
        }
    }
}

/// Only the last pattern matches all channels of another pattern.
const PATTERNS_OF_RULES: [&str; 6] = ["red", "green", "blue", "sky.*", "sky.us.>", ">"];

fn rules(rng: &mut Rng) -> Rules {
    let mut rules = Rules::default();
    if rng.one_in(3) {
        rules.default = class(rng);
    }
    for _ in 0..rng.below(4) {
        let (pattern, class) = (rng.pick(&PATTERNS_OF_RULES), class(rng));
        // The engine refuses a rule that never applies.
        if !rules.channels.iter().any(|(earlier, _)| [">", pattern].contains(&earlier.as_str())) {
            rules = rules.channel(pattern, class);
        }
    }
    if rng.one_in(2) {
        rules = rules.route(FEED, class(rng));
    }
    if rng.one_in(2) {
        rules = rules.route(STREAMS, class(rng));
    }
    rules
}

fn class(rng: &mut Rng) -> Backpressure {
    let policy = rng.pick(&[
        SlowPolicy::Close,
        SlowPolicy::DropNewest,
        SlowPolicy::DropOldest,
        SlowPolicy::Latest,
        SlowPolicy::Latest,
    ]);
    let age = rng.pick(&[0, 0, 0, 1, 200, 2500]);
    Backpressure::new(policy)
        .max_backlog(rng.pick(&[None, Some(1), Some(300), Some(2000), Some(2000), Some(20_000)]))
        .max_age(Some(Duration::from_millis(age)).filter(|age| !age.is_zero()))
}

fn pace(rng: &mut Rng) -> Do {
    Do::Read(match rng.below(4) {
        0 => Pace::Prompt,
        1 => Pace::Never,
        _ => Pace::Slow(1 + rng.below(2000), rng.between(MILLI, 300 * MILLI)),
    })
}

/// Receives for a while at a changing pace, and ends in order when it has caught up.
fn member(part: &mut Part, context: &ScriptContext, rng: &mut Rng) {
    part.name = "listener";
    part.script = vec![context.request(part, rng), Do::UntilOpen];
    for _ in 0..1 + rng.below(4) {
        part.script.push(command(&format!("!sub {}", context.subscription(rng))));
    }
    for _ in 0..rng.below(4) {
        part.script.push(pace(rng));
        part.script.push(Do::Pause(rng.between(0, 2 * SECOND)));
        if rng.one_in(4) {
            part.script.push(command(&format!("!unsub {}", context.subscription(rng))));
        }
        if rng.one_in(4) {
            part.script.push(Do::Ping(rng.bytes(4)));
        }
    }
    part.script.push(Do::Read(Pace::Prompt));
    if rng.one_in(2) {
        part.script.push(Do::Pause(rng.between(0, SECOND)));
    }
    match rng.below(8) {
        0 => part.script.push(Do::Reset),
        1 => part.script.push(Do::Finish),
        _ => part.script.push(Do::Close(1000)),
    }
    part.expect = match part.script.last() {
        Some(Do::Close(_)) => Expect::Clean,
        _ => Expect::Anything,
    };
}

/// Opens a stream of events. Its client sends nothing after the request.
fn stream(part: &mut Part, context: &ScriptContext, rng: &mut Rng) {
    part.name = "stream";
    let channel = context.subscription(rng);
    part.script = vec![Do::Write(events_request(channel, context.number))];
    for _ in 0..rng.below(4) {
        part.script.push(pace(rng));
        part.script.push(Do::Pause(rng.between(0, 2 * SECOND)));
    }
    if rng.one_in(4) {
        part.script.push(Do::Reset);
        return;
    }
    part.script.push(Do::Read(Pace::Prompt));
    part.script.push(Do::Pause(rng.between(0, 10 * SECOND)));
    part.script.push(if rng.one_in(2) { Do::Finish } else { Do::Reset });
}

fn publisher(part: &mut Part, context: &ScriptContext, plan: &SimPlan, rng: &mut Rng) {
    part.name = "publisher";
    part.script = vec![context.request(part, rng), Do::UntilOpen];
    let limits = &plan.limits.ws;
    let most = (limits.max_message_size.min(limits.max_frame_size) - 60).min(3000);
    if rng.one_in(3) {
        part.script.push(command(&format!("!sub {}", context.subscription(rng))));
    }
    for _ in 0..5 + rng.below(60) {
        let longest = if rng.one_in(3) { most } else { most.min(200) };
        let fill = "x".repeat(rng.below(longest));
        let channel = rng.pick(&NAMES);
        let key = rng.below(3);
        let to = rng.below(context.all as usize);
        part.script.push(match rng.below(16) {
            0..4 => command(&format!("!pub {channel} {fill}")),
            4..8 => command(&format!("!set {channel} {key} {fill}")),
            8..10 => command(&format!("!post {channel} {key} {fill}")),
            10..12 => command(&format!("!to {to} {fill}")),
            12 => command(&format!("!end {to}")),
            13 if context.broadcasts => {
                let words = words(&audience(context.number, context.all, rng));
                command(&format!("!all {words} {}", &fill[..fill.len() / 2]))
            }
            _ => Do::Pause(rng.between(0, 300 * MILLI)),
        });
    }
    part.script.push(Do::Close(1000));
    part.expect = Expect::Clean;
}

fn audience(first: u32, all: u32, rng: &mut Rng) -> Audience {
    let mut some = |most: usize| -> BTreeSet<u32> {
        (0..rng.below(most)).map(|_| rng.below(all as usize) as u32).collect()
    };
    let (include, exclude) = (some(6), some(4));
    Audience {
        channel: rng.one_in(3).then(|| rng.pick(&NAMES).to_owned()),
        subprotocol: rng.one_in(4).then(|| "chat".to_owned()),
        include: rng.one_in(2).then(|| include.into_iter().chain([first]).collect()),
        exclude,
    }
}

fn words(audience: &Audience) -> String {
    let list = |peers: &BTreeSet<u32>| {
        let peers: Vec<String> = peers.iter().map(u32::to_string).collect();
        peers.join(",")
    };
    let mut words = vec![format!("x={}", list(&audience.exclude))];
    words.extend(audience.channel.as_ref().map(|name| format!("c={name}")));
    words.extend(audience.subprotocol.as_ref().map(|name| format!("s={name}")));
    words.extend(audience.include.as_ref().map(|peers| format!("i={}", list(peers))));
    words.join(";")
}

fn outside(first: u32, all: u32, broadcasts: bool, rng: &mut Rng) -> Outside {
    let longest = if rng.one_in(3) { 3000 } else { 200 };
    let fill = rng.below(longest);
    let someone = |rng: &mut Rng| rng.below(all as usize) as u32;
    match rng.below(8) {
        0 if broadcasts => Outside::Broadcast { audience: audience(first, all, rng), fill },
        1 => Outside::Send { to: someone(rng), fill },
        2 => Outside::Dismiss(someone(rng)),
        _ => {
            let key = rng.pick(&["", "0", "1", "2"]).to_owned();
            let except = rng.one_in(3).then(|| someone(rng));
            Outside::Publish { channel: rng.pick(&NAMES).to_owned(), key, except, fill }
        }
    }
}
