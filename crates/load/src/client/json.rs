//! JSON documents as applications send them: quotes and chat lines that resemble each other and
//! differ in every message. The same seed makes the same documents on every machine.

use std::fmt::Write;

use throng_engine::random::Random;

/// The smallest document.
pub const JSON_SMALLEST: usize = 72;
/// The offset of the stamp in every document.
pub(super) const STAMP_AT: usize = r#"{"id":""#.len();

const STAMP: &str = "aaaaaaaa";
/// Size of all documents together: far more than a compressor's window of 32 KiB, so that a
/// document does not find its earlier copy there.
const POOL_BYTES: usize = 1 << 20;
/// Minimum and maximum number of documents.
const POOL: std::ops::RangeInclusive<usize> = 16..=4096;

const SYMBOLS: [&str; 12] = [
    "EURUSD", "USDJPY", "GBPUSD", "AUDUSD", "USDCHF", "NZDUSD", "EURJPY", "EURGBP", "USDCAD",
    "XAUUSD", "BTCUSD", "ETHUSD",
];
const VENUES: [&str; 4] = ["XETR", "XLON", "XNYS", "XTKS"];
const NAMES: [&str; 12] = [
    "ada", "alan", "barbara", "dennis", "edsger", "frances", "grace", "hedy", "joan", "ken",
    "leslie", "radia",
];
const WORDS: [&str; 40] = [
    "the", "a", "we", "it", "is", "that", "build", "green", "lunch", "ready", "again", "server",
    "release", "today", "tomorrow", "graph", "looks", "good", "who", "can", "review", "this",
    "please", "thanks", "works", "on", "my", "machine", "latency", "went", "down", "by", "half",
    "now", "shipping", "after", "test", "meeting", "minutes", "question",
];

/// Documents of `size` bytes each, at least [`JSON_SMALLEST`].
pub(super) fn documents(size: usize, seed: u64) -> Vec<String> {
    let size = size.max(JSON_SMALLEST);
    let count = (POOL_BYTES / size).clamp(*POOL.start(), *POOL.end());
    let mut random = Choices(Random::new(seed));
    (0..count as u64).map(|at| document(size, at, &mut random)).collect()
}

fn document(size: usize, at: u64, random: &mut Choices) -> String {
    let mut text = String::with_capacity(size);
    let time_ms = 1_790_000_000_000 + at * 17 + random.below(17);
    // Writing to a string cannot fail.
    let _ = if random.below(4) == 0 {
        let from = random.of(&NAMES);
        write!(text, r#"{{"id":"{STAMP}","type":"chat","ts":{time_ms},"from":"{from}""#)
    } else {
        let _ = write!(text, r#"{{"id":"{STAMP}","type":"tick","ts":{time_ms}"#);
        quotes(&mut text, size, random);
        Ok(())
    };
    note(&mut text, size, random);
    text
}

/// As many quotes as leave room for a note.
fn quotes(text: &mut String, size: usize, random: &mut Choices) {
    const ROOM: usize = r#"],"text":""}"#.len() + 8;
    let mut quote = String::new();
    let mut lead = r#","quotes":["#;
    loop {
        quote.clear();
        let (symbol, venue) = (random.of(&SYMBOLS), random.of(&VENUES));
        let (bid, spread) = (50_000 + random.below(200_000), 1 + random.below(30));
        let (volume, sign) =
            (random.below(90_000) * 10, if random.below(2) == 0 { "" } else { "-" });
        let change = random.below(300);
        let (ask, whole) = (bid + spread, 10_000);
        let _ = write!(
            quote,
            r#"{lead}{{"symbol":"{symbol}","bid":{}.{:04},"ask":{}.{:04},"#,
            bid / whole,
            bid % whole,
            ask / whole,
            ask % whole,
        );
        let _ = write!(
            quote,
            r#""volume":{volume},"change":{sign}{}.{:02},"venue":"{venue}"}}"#,
            change / 100,
            change % 100,
        );
        if text.len() + quote.len() + ROOM > size {
            break;
        }
        text.push_str(&quote);
        lead = ",";
    }
    if lead == "," {
        text.push(']');
    }
}

/// Fills the rest with words, up to the last byte.
fn note(text: &mut String, size: usize, random: &mut Choices) {
    const HEAD: &str = r#","text":""#;
    const END: &str = r#""}"#;
    if text.len() + HEAD.len() + END.len() <= size {
        text.push_str(HEAD);
        while text.len() + END.len() < size {
            text.push_str(random.of(&WORDS));
            text.push(' ');
        }
        text.truncate(size - END.len());
        text.push_str(END);
        return;
    }
    // Trailing white space is valid JSON.
    text.push('}');
    text.extend(std::iter::repeat_n(' ', size.saturating_sub(text.len())));
}

/// Random choices that are the same on every machine.
struct Choices(Random);

impl Choices {
    fn below(&mut self, bound: u64) -> u64 {
        self.0.bits() % bound
    }

    fn of<'w>(&mut self, words: &[&'w str]) -> &'w str {
        words[self.below(words.len() as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_document_is_json_of_the_size_asked_for_and_no_two_are_alike() {
        for size in [JSON_SMALLEST, 73, 80, 100, 136, 200, 255, 1024, 5000, 70_000] {
            let all = documents(size, 7);
            assert!(all.len() * size > 128 << 10, "{size}: more than any window, twice");
            for text in &all {
                assert_eq!(text.len(), size, "{text}");
                assert_eq!(&text[STAMP_AT..STAMP_AT + 8], STAMP);
                let value: serde_json::Value =
                    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
                assert!(value["ts"].is_number(), "{text}");
            }
            assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
        }
    }

    #[test]
    fn the_seed_decides() {
        assert_eq!(documents(136, 1), documents(136, 1));
        assert_ne!(documents(136, 1), documents(136, 2));
    }

    #[test]
    fn both_kinds_come_up_and_long_ones_have_many_quotes() {
        let all = documents(1024, 0);
        let ticks = all.iter().filter(|text| text.contains(r#""type":"tick""#)).count();
        assert!(all.len() / 2 < ticks && ticks < all.len());
        assert!(all.iter().any(|text| text.matches("symbol").count() >= 8));
    }
}
