//! The cost of compression: nanoseconds per message and compressed size, by level, memory level and
//! window, with and without history; and the cost per byte of hostile input. Run it with
//! `--release`.

use std::hint::black_box;
use std::time::Instant;

use throng_proto::ws::Deflated;
use throng_proto::ws::deflate::{Deflater, History, Inflater, Mode, Settings};

/// Messages of one kind, each different from the others.
struct Kind {
    name: &'static str,
    messages: Vec<Vec<u8>>,
}

fn main() {
    let kinds = [
        Kind { name: "100 B", messages: (0..MESSAGES).map(status).collect() },
        Kind { name: "136 B", messages: (0..MESSAGES).map(trade).collect() },
        Kind { name: "1 KB", messages: (0..MESSAGES).map(list).collect() },
    ];
    println!("JSON    level mem  window history |  deflate  inflate      sum | size");
    for kind in &kinds {
        for level in [1, 2, 3, 4, 6, 9] {
            without_history(kind, level, 5, 15);
        }
        for mem_level in [1, 3, 7, 8, 9] {
            for level in [1, 6] {
                without_history(kind, level, mem_level, 15);
            }
        }
        for window in [9, 10, 12] {
            without_history(kind, 1, 5, window);
        }
        for level in [1, 2, 6] {
            for history in 9..=15 {
                with_history(kind, level, history);
            }
        }
        println!();
    }
    hostile();
}

const MESSAGES: u64 = 512;
/// Number of rounds; the best one counts, so that other programs disturb the result little.
const ROUNDS: usize = 25;

fn deflater(level: u8, mem_level: u8) -> Deflater {
    let mode = Mode::Window { bits: 15 };
    let settings = Settings::new(mode).level(level).mem_level(mem_level);
    match settings.check() {
        Ok(Some(policy)) => Deflater::new(&policy),
        _ => unreachable!("these settings are good"),
    }
}

/// Returns the best time of `work` over all messages, in nanoseconds per message.
fn best(mut work: impl FnMut()) -> f64 {
    let times = (0..ROUNDS).map(|_| {
        let begin = Instant::now();
        work();
        begin.elapsed().as_nanos() as f64 / MESSAGES as f64
    });
    times.fold(f64::MAX, f64::min)
}

fn without_history(kind: &Kind, level: u8, mem_level: u8, window: u8) {
    let mut deflater = deflater(level, mem_level);
    let mut inflater = Inflater::new();
    let mut out = Vec::new();
    let deflate = best(|| {
        for message in &kind.messages {
            out.clear();
            black_box(deflater.deflate(message, window, None, &mut out));
        }
    });
    let mut compressed = Vec::new();
    for message in &kind.messages {
        let mut out = Vec::new();
        if !deflater.deflate(message, window, None, &mut out) {
            out.clone_from(message);
        }
        compressed.push(out);
    }
    let inflate = best(|| {
        for payload in &compressed {
            let _ = black_box(inflater.inflate(Deflated { text: true, payload }, None, 1 << 20));
        }
    });
    print_row(kind, level, mem_level, window, 0, deflate, inflate, &compressed);
}

fn with_history(kind: &Kind, level: u8, bits: u8) {
    let mut deflater = deflater(level, 5);
    let mut inflater = Inflater::new();
    let mut history = History::new(bits);
    let mut compressed = Vec::new();
    // In the second pass the history is full from the beginning.
    for _ in 0..2 {
        compressed.clear();
        for message in &kind.messages {
            let mut out = Vec::new();
            deflater.deflate(message, 15, Some(&history), &mut out);
            history.append(message);
            compressed.push(out);
        }
    }
    let mut out = Vec::new();
    let deflate = best(|| {
        for message in &kind.messages {
            out.clear();
            black_box(deflater.deflate(message, 15, Some(&history), &mut out));
            history.append(message);
        }
    });
    let inflate = best(|| {
        for payload in &compressed {
            let message = Deflated { text: true, payload };
            let _ = black_box(inflater.inflate(message, Some(&mut history), 1 << 20));
        }
    });
    print_row(kind, level, 5, 15, 1 << bits, deflate, inflate, &compressed);
}

#[expect(clippy::too_many_arguments, reason = "a row has that many columns")]
fn print_row(
    kind: &Kind,
    level: u8,
    mem_level: u8,
    window: u8,
    history: usize,
    deflate: f64,
    inflate: f64,
    compressed: &[Vec<u8>],
) {
    let total = |messages: &[Vec<u8>]| messages.iter().map(Vec::len).sum::<usize>() as f64;
    println!(
        "{:<7} {level:>5} {mem_level:>3} {window:>7} {history:>7} | \
            {deflate:>5.0} ns {inflate:>5.0} ns {:>5.0} ns | {:>4.1} %",
        kind.name,
        deflate + inflate,
        100.0 * total(compressed) / total(&kind.messages)
    );
}

/// Measures the cost per compressed byte of messages that produce as little output as possible, and
/// of a message that inflates as much as possible.
fn hostile() {
    let mut fixed = Bits::default();
    fixed.put(0b010, 3).put(0, 7);
    let mut small = Bits::default();
    small.dynamic_block(&[(18, 1), (1, 2), (0, 2)], |bits| {
        // 256 zeros, a code of one bit for the end, no distance.
        bits.put(0, 1).put(127, 7).put(0, 1).put(107, 7).put(0b11, 2).put(0b01, 2);
        bits.put(0, 1);
    });
    let mut large = Bits::default();
    large.dynamic_block(&[(16, 1), (8, 2), (0, 3), (9, 3)], |bits| {
        // 255 codes of 8 bits in runs of six, and two of 9. No distance.
        bits.put(0b01, 2);
        for _ in 0..42 {
            bits.put(0, 1).put(3, 2);
        }
        bits.put(0b01, 2).put(0b01, 2).put(0b111, 3).put(0b111, 3).put(0b011, 3);
        bits.put(0x1ff, 9);
    });
    let fill = |unit: Vec<u8>| [unit.repeat((64 << 10) / unit.len()), vec![0]].concat();
    let mut zeros = Vec::new();
    deflater(9, 9).deflate(&vec![0; LIMIT], 15, None, &mut zeros);
    for (name, payload) in [
        ("empty stored blocks", fill(vec![0, 0, 0, 0xff, 0xff])),
        ("empty fixed blocks", fill(fixed.repeated())),
        ("small tables", fill(small.repeated())),
        ("large tables", fill(large.repeated())),
        ("last blocks", fill(b"\x03\x00".to_vec())),
        ("4 MiB of zeros", zeros),
    ] {
        let mut inflater = Inflater::new();
        let mut outcome = String::new();
        let mut nanoseconds = f64::MAX;
        for _ in 0..ROUNDS {
            let begin = Instant::now();
            let event = inflater.inflate(Deflated { text: false, payload: &payload }, None, LIMIT);
            nanoseconds = nanoseconds.min(begin.elapsed().as_nanos() as f64);
            outcome = match event {
                Ok(_) => "a message".to_owned(),
                Err(error) => error.to_string(),
            };
        }
        let (bytes, each) = (payload.len(), nanoseconds / payload.len() as f64);
        println!("{name:<20} {bytes:>6} bytes, {each:>6.1} ns a byte: {outcome}");
    }
}

/// The inflated size allowed for hostile messages.
const LIMIT: usize = 4 << 20;

/// Bits packed as in DEFLATE, lowest first.
#[derive(Default)]
struct Bits(Vec<bool>);

impl Bits {
    fn put(&mut self, value: usize, count: usize) -> &mut Self {
        self.0.extend((0..count).map(|bit| value >> bit & 1 == 1));
        self
    }

    /// Writes a block with this code of code lengths, 257 literals and one distance.
    fn dynamic_block(&mut self, code: &[(usize, usize)], content: impl FnOnce(&mut Self)) {
        const ORDER: [usize; 19] =
            [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];
        self.put(0b100, 3).put(0, 5).put(0, 5).put(14, 4);
        for symbol in &ORDER[..18] {
            let len = code.iter().find(|(known, _)| known == symbol).map_or(0, |(_, len)| *len);
            self.put(len, 3);
        }
        content(self);
    }

    /// Repeats the bits until they end on a byte boundary.
    fn repeated(&self) -> Vec<u8> {
        let bits: Vec<bool> = self.0.repeat(8);
        let byte =
            |bits: &[bool]| bits.iter().rev().fold(0, |byte, bit| byte << 1 | u8::from(*bit));
        bits.chunks(8).map(byte).collect()
    }
}

fn random(n: u64, salt: u64) -> u64 {
    let mut state = (n << 8 | salt).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    state ^= state >> 29;
    state = state.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state ^ state >> 32
}

/// About 100 bytes.
fn status(n: u64) -> Vec<u8> {
    let (id, load, free) = (random(n, 1) % 1000, random(n, 2) % 100, random(n, 3) % 1_000_000);
    format!(
        "{{\"event\":\"status\",\"node\":\"eu-west-{id}\",\"load\":0.{load:02},\"free\":{free},\
        \"up\":true,\"seq\":{}}}",
        700_000 + n
    )
    .into_bytes()
}

/// About 136 bytes.
fn trade(n: u64) -> Vec<u8> {
    format!(
        "{{\"type\":\"trade\",\"symbol\":\"BTC-USD\",\"price\":\"{}.{:02}\",\"size\":\"0.{:06}\",\
         \"side\":\"{}\",\"time\":\"2026-11-20T12:{:02}:{:02}.{:06}Z\",\"seq\":{}}}",
        60_000 + random(n, 1) % 999,
        random(n, 2) % 100,
        random(n, 3) % 1_000_000,
        if random(n, 4).is_multiple_of(2) { "buy" } else { "sell" },
        random(n, 5) % 60,
        random(n, 6) % 60,
        random(n, 7) % 1_000_000,
        80_000_000 + n
    )
    .into_bytes()
}

/// About 1,000 bytes: a list of small objects.
fn list(n: u64) -> Vec<u8> {
    const NAMES: [&str; 8] = ["alice", "bob", "carol", "dave", "erin", "frank", "grace", "heidi"];
    let mut text = format!("{{\"type\":\"update\",\"seq\":{n},\"items\":[");
    for item in 0..15u64 {
        let salt = |field| item * 8 + field;
        text.push_str(&format!(
            "{{\"id\":{},\"user\":\"{}\",\"price\":{}.{:02},\"qty\":{},\"ok\":{}}},",
            random(n, salt(0)) % 1_000_000,
            NAMES[(random(n, salt(1)) % 8) as usize],
            random(n, salt(2)) % 1000,
            random(n, salt(3)) % 100,
            random(n, salt(4)) % 500,
            random(n, salt(5)).is_multiple_of(2)
        ));
    }
    text.pop();
    text.push_str("]}");
    text.into_bytes()
}
