//! Peers with messages that stop reading for a while.

use super::conforming::{command, message};
use super::{Expect, MILLI, Part, SECOND, ScriptContext, SimPlan};
use crate::rng::Rng;
use crate::script::{Do, Pace};

/// Adds some peers that are stopped, in half of all plans.
pub(crate) fn gather(plan: &mut SimPlan, rng: &mut Rng) {
    if rng.one_in(2) {
        return;
    }
    let first = plan.parts.len() as u32;
    let all = first + 1 + rng.below(3) as u32;
    let busy = plan.parts.iter().map(|part| part.at).max().unwrap_or(0) + SECOND;
    for number in first..all {
        let mut part = Part::new(number, rng);
        part.at = rng.between(0, busy);
        let context = ScriptContext { limits: &plan.limits, number, peers: all, key: part.key };
        write(&mut part, &context, rng);
        plan.parts.push(part);
    }
}

/// Writes messages; some of them stop reading of the later ones. All must be handled and answered
/// in the end.
fn write(part: &mut Part, context: &ScriptContext<'_>, rng: &mut Rng) {
    part.name = "stopped";
    part.script = vec![Do::Write(context.request())];
    if rng.one_in(2) {
        part.script.push(Do::UntilOpen);
    }
    if rng.one_in(4) {
        part.script
            .push(Do::Read(Pace::Slow(1 + rng.below(2000), rng.between(MILLI, 200 * MILLI))));
    }
    for _ in 0..2 + rng.below(12) {
        part.script.push(match rng.below(6) {
            0 => Do::Pause(rng.between(0, 300 * MILLI)),
            1..3 => {
                let millis = rng.pick(&[0, 0, 1, 30, 700, 4000, 20_000]);
                command(&format!("!stop {millis} {}", rng.pick(&["mail", "time"])))
            }
            _ => message(context, rng),
        });
    }
    part.script.push(Do::Read(Pace::Prompt));
    if rng.one_in(2) {
        part.script.push(Do::Pause(rng.between(0, 2 * SECOND)));
    }
    part.script.push(Do::Close(rng.pick(&[1000, 3000, 4999])));
    part.expect = Expect::Clean;
    part.echo_only = true;
}
