//! Clients that break rules or just leave: the server must end each with the right code, in bounded
//! time and memory.

use throng_proto::ws::{Opcode, encode_header, encode_masked};

use super::conforming::{command, message};
use super::{Expect, Part, SECOND, ScriptContext};
use crate::rng::Rng;
use crate::script::{Do, Pace};

/// Gives `part` an adversarial role.
pub(crate) fn write(part: &mut Part, context: &ScriptContext<'_>, rng: &mut Rng) {
    match rng.below(16) {
        0..6 => breaks_a_rule(part, context, rng),
        6 => junk(part, rng),
        7 => endless_headers(part, context, rng),
        8 => slow_loris(part, context, rng),
        9 => pings_without_reading(part, context, rng),
        10 => floods_without_reading(part, context, rng),
        11 => http_without_reading(part, rng),
        12 => tiny_fragments(part, context, rng),
        13 => leaves_in_the_middle(part, context, rng),
        14 => ignores_closes(part, context, rng),
        _ => talks_after_close(part, context, rng),
    }
}

const KEY: [u8; 4] = [0x11, 0x22, 0x33, 0x44];

fn header(first: u8, second: u8, rest: &[u8]) -> Vec<u8> {
    let mut bytes = vec![first, second];
    bytes.extend_from_slice(rest);
    bytes
}

fn frame(opcode: Opcode, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    encode_masked(opcode, payload, KEY, &mut out);
    out
}

fn fragment(opcode: Opcode, fin: bool, payload: &[u8]) -> Vec<u8> {
    let mut out = encode_header(opcode, fin, payload.len() as u64, Some(KEY)).to_vec();
    out.extend(payload.iter().enumerate().map(|(i, byte)| byte ^ KEY[i & 3]));
    out
}

/// Returns every violation of RFC 6455 that the decoder distinguishes, with the close code for it.
#[must_use]
pub fn violations(max_frame: usize, max_message: usize) -> Vec<(&'static str, u16, Vec<u8>)> {
    let masked = |first: u8, len: u8| header(first, 0x80 | len, &KEY);
    let joined = |a: Vec<u8>, b: Vec<u8>| [a, b].concat();
    let half = (max_message / 2 + 1).min(max_frame);
    let mut too_big_joined = fragment(Opcode::Binary, false, &vec![0; half]);
    let mut total = half;
    while total <= max_message {
        too_big_joined.extend(fragment(Opcode::Continuation, false, &vec![0; half]));
        total += half;
    }
    vec![
        ("unmasked", 1002, header(0x81, 2, b"hi")),
        ("reserved bit", 1002, masked(0xc1, 0)),
        ("reserved opcode", 1002, masked(0x83, 0)),
        ("reserved control", 1002, masked(0x8f, 0)),
        ("fragmented ping", 1002, masked(0x09, 0)),
        ("long ping", 1002, header(0x89, 0xfe, &[0, 126, 1, 2, 3, 4])),
        ("continuation of nothing", 1002, masked(0x80, 0)),
        (
            "message in a message",
            1002,
            joined(fragment(Opcode::Text, false, b"a"), fragment(Opcode::Text, true, b"b")),
        ),
        // 15 such bytes once killed servers (NATS, swift-nio, undici).
        ("top bit", 1002, header(0x82, 0xff, &[0x80, 0, 0, 0, 0, 0, 0, 1, 1, 2, 3, 4, 5])),
        ("long length", 1002, header(0x82, 0xfe, &[0, 5, 1, 2, 3, 4, 5, 6, 7, 8, 9])),
        (
            "huge length",
            1009,
            header(0x82, 0xff, &[0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 1, 1, 2, 3, 4]),
        ),
        (
            "frame over the limit",
            1009,
            fragment(Opcode::Binary, true, &vec![7; max_frame.min(max_message) + 1]),
        ),
        ("message over the limit", 1009, too_big_joined),
        ("bad text", 1007, frame(Opcode::Text, b"caf\xc3")),
        ("bad text, early", 1007, fragment(Opcode::Text, false, b"\xff and more to come")),
        ("surrogate", 1007, frame(Opcode::Text, b"\xed\xa0\x80")),
        ("short close", 1002, frame(Opcode::Close, b"\x03")),
        ("close code", 1002, frame(Opcode::Close, &1006u16.to_be_bytes())),
        ("close reason", 1007, frame(Opcode::Close, b"\x03\xe8\xff")),
    ]
}

fn breaks_a_rule(part: &mut Part, context: &ScriptContext<'_>, rng: &mut Rng) {
    let limits = &context.limits.ws;
    let all = violations(limits.max_frame_size, limits.max_message_size);
    let (name, code, bytes) = all[rng.below(all.len())].clone();
    part.name = name;
    part.script = vec![Do::Write(context.request())];
    if rng.one_in(2) {
        part.script.push(Do::UntilOpen);
    }
    for _ in 0..rng.below(3) {
        part.script.push(message(context, rng));
    }
    part.script.push(Do::Write(bytes));
    if rng.one_in(3) {
        // The client continues in spite of its violation.
        part.script.push(Do::Write(rng.bytes(rng.clone().below(2000))));
    }
    part.script.push(Do::Pause(200 * SECOND));
    part.script.push(Do::Reset);
    part.polite = rng.one_in(2);
    part.echo_only = true;
    part.expect = Expect::Code(code);
}

fn junk(part: &mut Part, rng: &mut Rng) {
    part.name = "junk";
    part.script = vec![match rng.below(4) {
        0 => Do::Write(rng.bytes(rng.clone().below(3000))),
        1 => Do::Write(b"GET / HTTP/1.1\nHost: sim\n\n".to_vec()),
        2 => Do::Write(
            b"GET / HTTP/1.1\r\nHost: sim\r\nContent-Length: 3\r\n\
              Transfer-Encoding: chunked\r\n\r\n"
                .to_vec(),
        ),
        _ => Do::Write(b"GET /panic HTTP/1.1\r\nHost: sim\r\n\r\n".to_vec()),
    }];
    part.script.push(Do::Pause(100 * SECOND));
    part.script.push(Do::Reset);
}

fn endless_headers(part: &mut Part, context: &ScriptContext<'_>, rng: &mut Rng) {
    part.name = "endless headers";
    let mut request = b"GET / HTTP/1.1\r\nHost: sim\r\n".to_vec();
    let many = rng.one_in(2);
    let limits = &context.limits.http;
    if many {
        for index in 0..=limits.max_headers {
            request.extend_from_slice(format!("x{index}: y\r\n").as_bytes());
        }
    } else {
        request.extend_from_slice(b"x: ");
        request.resize(limits.max_header_bytes + 100, b'y');
    }
    part.script = vec![Do::Write(request), Do::Pause(100 * SECOND), Do::Reset];
    part.expect = Expect::Status(&[431]);
}

fn slow_loris(part: &mut Part, context: &ScriptContext<'_>, rng: &mut Rng) {
    part.name = "slow loris";
    let timeout = context.limits.handshake_timeout.as_nanos() as u64;
    part.script = vec![Do::Write(b"GET / HTTP/1.1\r\nHost: sim\r\nx: ".to_vec())];
    for _ in 0..40 {
        part.script.push(Do::Pause(rng.between(timeout / 30, timeout / 10)));
        part.script.push(Do::Write(b"y".to_vec()));
    }
    part.script.push(Do::Pause(100 * SECOND));
    part.script.push(Do::Reset);
    part.expect = Expect::Within(timeout + 5 * SECOND);
}

fn pings_without_reading(part: &mut Part, context: &ScriptContext<'_>, rng: &mut Rng) {
    part.name = "pings without reading";
    part.link.capacity = 3000;
    part.script = vec![Do::Write(context.request()), Do::UntilOpen, Do::Read(Pace::Never)];
    for index in 0..200u32 {
        part.script.push(Do::Ping(index.to_le_bytes().repeat(1 + rng.below(31))));
    }
    part.polite = false;
    gone(part, rng);
}

fn floods_without_reading(part: &mut Part, context: &ScriptContext<'_>, rng: &mut Rng) {
    part.name = "floods without reading";
    part.link.capacity = 3000;
    part.script = vec![Do::Write(context.request()), Do::UntilOpen, Do::Read(Pace::Never)];
    let channel = ["red", "green", "blue"][rng.below(3)];
    part.script.push(command(&format!("!sub {channel}")));
    for _ in 0..rng.below(4) {
        let len = 1 + rng.below(context.limits.max_backlog.min(20_000));
        let count = (context.limits.max_backlog / len).min(200) + 2;
        part.script.push(command(&format!("!flood {count} {len}")));
        part.script.push(Do::Pause(rng.between(0, SECOND)));
        for _ in 0..rng.below(5) {
            part.script.push(message(context, rng));
        }
    }
    part.polite = false;
    gone(part, rng);
}

fn http_without_reading(part: &mut Part, rng: &mut Rng) {
    part.name = "requests without reading";
    part.link.capacity = rng.pick(&[500, 3000, 60_000]);
    part.script = vec![Do::Read(Pace::Never)];
    for _ in 0..40 {
        part.script.push(Do::Write(b"GET /large HTTP/1.1\r\nHost: sim\r\n\r\n".repeat(5)));
    }
    part.polite = false;
    gone(part, rng);
}

fn tiny_fragments(part: &mut Part, context: &ScriptContext<'_>, rng: &mut Rng) {
    part.name = "tiny fragments";
    let mut bytes = fragment(Opcode::Binary, false, b"x");
    for _ in 0..2000 {
        bytes.extend(fragment(Opcode::Continuation, false, &b"x"[..rng.below(2)]));
    }
    part.script = vec![Do::Write(context.request()), Do::UntilOpen, Do::Write(bytes)];
    gone(part, rng);
}

fn leaves_in_the_middle(part: &mut Part, context: &ScriptContext<'_>, rng: &mut Rng) {
    part.name = "leaves in the middle";
    part.raw = true;
    let mut bytes = context.request();
    bytes.extend(frame(Opcode::Binary, &rng.bytes(context.limits.ws.max_frame_size.min(100))));
    bytes.extend(fragment(Opcode::Text, false, b"to be contin"));
    bytes.extend(frame(Opcode::Ping, b"still here"));
    bytes.extend(frame(Opcode::Ping, b"and here"));
    bytes.truncate(rng.below(bytes.len() + 1));
    part.script = vec![Do::Write(bytes)];
    gone(part, rng);
}

fn ignores_closes(part: &mut Part, context: &ScriptContext<'_>, rng: &mut Rng) {
    part.name = "ignores closes";
    part.script = vec![Do::Write(context.request()), Do::UntilOpen, command("!close 4001")];
    part.polite = false;
    if rng.one_in(2) {
        part.script.push(Do::Read(Pace::Never));
    }
    for _ in 0..rng.below(5) {
        part.script.push(message(context, rng));
        part.script.push(Do::Pause(rng.between(0, SECOND)));
    }
    gone(part, rng);
}

fn talks_after_close(part: &mut Part, context: &ScriptContext<'_>, rng: &mut Rng) {
    part.name = "talks after its close";
    let mut bytes = frame(Opcode::Close, &1000u16.to_be_bytes());
    bytes.extend(frame(Opcode::Text, b"one more thing"));
    bytes.extend(rng.bytes(rng.clone().below(300)));
    part.script = vec![Do::Write(context.request()), Do::UntilOpen, Do::Write(bytes)];
    part.polite = false;
    gone(part, rng);
}

/// Leaves with a reset or silently, or stays and sends nothing more.
fn gone(part: &mut Part, rng: &mut Rng) {
    match rng.below(4) {
        0 => part.script.push(Do::Reset),
        1 => part.script.push(Do::Finish),
        2 => part.script.push(Do::Vanish),
        _ => part.script.extend([Do::Read(Pace::Never), Do::Pause(0)]),
    }
    if rng.one_in(2) {
        let last = part.script.len() - 1;
        part.script.insert(last, Do::Pause(rng.between(0, 3 * SECOND)));
    }
}
