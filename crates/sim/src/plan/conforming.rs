//! Clients that keep to the rules, whose data the network may cut anywhere.

use super::{Expect, MILLI, Part, SECOND, ScriptContext};
use crate::rng::Rng;
use crate::script::{Do, Pace};

/// Gives `part` a conforming role.
pub(crate) fn write(part: &mut Part, context: &ScriptContext<'_>, rng: &mut Rng) {
    match rng.below(12) {
        0..4 => echo(part, context, rng),
        4..6 => member(part, context, rng),
        6 => http(part, rng),
        7 => idle(part, context, rng),
        8 => slow(part, context, rng),
        9 => commands(part, context, rng),
        10 => half_close(part, context, rng),
        _ => correspondent(part, context, rng),
    }
}

fn open(context: &ScriptContext<'_>, rng: &mut Rng) -> Vec<Do> {
    let mut script = vec![Do::Write(context.request())];
    // The first frames of an eager client arrive in the same packet as its request.
    if rng.one_in(2) {
        script.push(Do::UntilOpen);
    }
    script
}

/// Returns a valid message of any size up to the limit, whole or in fragments.
pub(crate) fn message(context: &ScriptContext<'_>, rng: &mut Rng) -> Do {
    let most = context.limits.ws.max_message_size;
    let len = match rng.below(8) {
        0 => 0,
        1 => most,
        2 => most.saturating_sub(1),
        3 => rng.below(most + 1),
        _ => rng.below(most.min(300) + 1),
    };
    let text = rng.one_in(2);
    let payload = match text {
        true => rng.text(len).into_bytes(),
        false => rng.bytes(len),
    };
    let mut fragments = if rng.one_in(3) { 2 + rng.below(5) } else { 1 };
    if len > context.limits.ws.max_frame_size {
        // The message must fit for any cut; a message without fragments always fits.
        return message_of(rng.bytes(context.limits.ws.max_frame_size));
    }
    if text && payload.first() == Some(&b'!') {
        fragments = 1;
    }
    Do::Message { text, payload, fragments, pinging: rng.one_in(2) }
}

fn message_of(payload: Vec<u8>) -> Do {
    Do::Message { text: false, payload, fragments: 1, pinging: false }
}

pub(crate) fn command(text: &str) -> Do {
    Do::Message { text: true, payload: text.as_bytes().to_vec(), fragments: 1, pinging: false }
}

fn messages(script: &mut Vec<Do>, context: &ScriptContext<'_>, rng: &mut Rng) {
    for _ in 0..rng.below(10) {
        script.push(message(context, rng));
        match rng.below(6) {
            0 => script.push(Do::Ping(rng.bytes(rng.clone().below(126)))),
            1 => script.push(Do::Pause(rng.between(0, 300 * MILLI))),
            _ => {}
        }
    }
}

fn close(script: &mut Vec<Do>, rng: &mut Rng) {
    if rng.one_in(2) {
        script.push(Do::Pause(rng.between(0, 2 * SECOND)));
    }
    script.push(Do::Close(rng.pick(&[1000, 3000, 4999])));
}

fn echo(part: &mut Part, context: &ScriptContext<'_>, rng: &mut Rng) {
    part.name = "echo";
    part.script = open(context, rng);
    messages(&mut part.script, context, rng);
    close(&mut part.script, rng);
    part.expect = Expect::Clean;
    part.echo_only = true;
}

fn idle(part: &mut Part, context: &ScriptContext<'_>, rng: &mut Rng) {
    part.name = "idle";
    part.script = open(context, rng);
    part.script.push(Do::Pause(rng.between(0, 100 * SECOND)));
    messages(&mut part.script, context, rng);
    part.script.push(Do::Close(1000));
    part.expect = Expect::Clean;
    part.echo_only = true;
}

fn member(part: &mut Part, context: &ScriptContext<'_>, rng: &mut Rng) {
    part.name = "member";
    part.script = open(context, rng);
    let mut wrote = 0;
    for _ in 0..rng.below(14) {
        let channel = ["red", "green", "blue"][rng.below(3)];
        part.script.push(match rng.below(7) {
            0..3 => command(&format!("!sub {channel}")),
            3 => command(&format!("!unsub {channel}")),
            4 => Do::Pause(rng.between(0, 500 * MILLI)),
            _ => {
                wrote += 1;
                let limits = &context.limits.ws;
                let most = limits.max_message_size.min(limits.max_frame_size) - 20;
                let most = most.min(3000);
                let fill = "x".repeat(rng.below(most));
                command(&format!("!pub {channel} {fill}"))
            }
        });
    }
    if wrote == 0 {
        part.script.push(Do::Pause(rng.between(0, 3 * SECOND)));
    }
    close(&mut part.script, rng);
    part.expect = Expect::Clean;
}

/// Sends to connections by their ids. Nearly all of them have ended.
fn correspondent(part: &mut Part, context: &ScriptContext<'_>, rng: &mut Rng) {
    part.name = "correspondent";
    part.script = open(context, rng);
    for _ in 0..rng.below(10) {
        let to = rng.below(context.peers as usize);
        part.script.push(command(&format!("!to {to} hello")));
        if rng.one_in(2) {
            part.script.push(Do::Pause(rng.between(0, 800 * MILLI)));
        }
    }
    close(&mut part.script, rng);
    part.expect = Expect::Clean;
}

fn http(part: &mut Part, rng: &mut Rng) {
    part.name = "http";
    let (count, pipelined) = (1 + rng.below(8), rng.one_in(2));
    for index in 0..count {
        let path = rng.pick(&["/", "/large", "/a/b?c=d"]);
        let last = if index + 1 == count { "Connection: close\r\n" } else { "" };
        let request = match rng.below(3) {
            0 => {
                format!("POST {path} HTTP/1.1\r\nHost: sim\r\nContent-Length: 5\r\n{last}\r\nhello")
            }
            1 => format!(
                "POST {path} HTTP/1.1\r\nHost: sim\r\nTransfer-Encoding: chunked\r\n{last}\r\n\
                 3\r\nabc\r\n0\r\n\r\n"
            ),
            _ => format!("GET {path} HTTP/1.1\r\nHost: sim\r\n{last}\r\n"),
        };
        part.script.push(Do::Write(request.into_bytes()));
        if !pipelined && index + 1 < count {
            part.script.push(Do::UntilAnswered(index + 1));
        }
    }
    part.expect = Expect::Answers(count);
    part.echo_only = true;
}

fn slow(part: &mut Part, context: &ScriptContext<'_>, rng: &mut Rng) {
    part.name = "slow";
    part.script = open(context, rng);
    part.link.capacity = rng.pick(&[200, 3000]);
    let bytes = 1 + rng.below(2000);
    part.script.push(Do::Read(Pace::Slow(bytes, rng.between(MILLI, 200 * MILLI))));
    messages(&mut part.script, context, rng);
    part.script.push(Do::Read(Pace::Prompt));
    close(&mut part.script, rng);
    part.expect = Expect::Clean;
    part.echo_only = true;
}

/// Asks the server to end the session.
fn commands(part: &mut Part, context: &ScriptContext<'_>, rng: &mut Rng) {
    part.script = open(context, rng);
    messages(&mut part.script, context, rng);
    let (name, text, expect) = rng.pick(&[
        ("panicker", "!panic", Expect1::Code(1011)),
        ("dismissed", "!close 4001", Expect1::Code(4001)),
        ("dropped", "!abort", Expect1::Anything),
    ]);
    part.name = name;
    part.script.push(command(text));
    part.expect = match expect {
        Expect1::Code(code) => Expect::Code(code),
        Expect1::Anything => Expect::Anything,
    };
    part.echo_only = true;
    // The server discards all later input.
    messages(&mut part.script, context, rng);
    // Over a link that takes a byte at a time, the server reads the request to end late.
    part.script.push(Do::Pause(1000 * SECOND));
    part.script.push(Do::Reset);
}

#[derive(Clone, Copy)]
enum Expect1 {
    Code(u16),
    Anything,
}

/// Sends all its data including its Close, ends its stream, and continues to read.
fn half_close(part: &mut Part, context: &ScriptContext<'_>, rng: &mut Rng) {
    part.name = "half-closer";
    part.script = open(context, rng);
    messages(&mut part.script, context, rng);
    if rng.one_in(2) {
        part.script.push(Do::Close(1000));
    }
    part.script.push(Do::Finish);
    part.expect = Expect::Anything;
}
