//! Bugs of other implementations.

use super::super::BadAnswer;
use super::negotiation::policy;
use crate::ws::deflate::{Mode, Settings};

const NAME: &str = "Sec-WebSocket-Extensions";

/// undici CVE-2026-2229: a server's `server_max_window_bits` out of range reached zlib, which threw
/// past every handler; bun #38632: a window of 8 bits was negotiated, which no compressor
/// supported. Every possible value leads to an answer, to parameters that a codec supports, or to
/// an error.
#[test]
fn accident_no_value_of_window_bits_crashes() {
    for mode in [Mode::Shared, Mode::Window { bits: 9 }, Mode::Window { bits: 15 }] {
        let policy = policy(Settings { mode, ..Settings::default() });
        for bits in 0..=300 {
            for side in ["server", "client"] {
                let text = format!("permessage-deflate; {side}_max_window_bits={bits}");
                let accepted = policy.accept(&[(NAME, &text)][..]).unwrap();
                let possible = (8..=15).contains(&bits) && !(bits == 8 && side == "server");
                assert_eq!(accepted.is_some(), possible, "{text}");
                let opened = policy.check_answer(&[(NAME, &text)][..]);
                if !(8..=15).contains(&bits) {
                    assert_eq!(opened, Err(BadAnswer::Parameter), "{text}");
                }
                let agreements = [accepted.map(|accepted| accepted.agreed), opened.unwrap_or(None)];
                for agreed in agreements.into_iter().flatten() {
                    assert!((9..=15).contains(&agreed.our_window_bits));
                    assert!((8..=15).contains(&agreed.peer_window_bits));
                    for bits in [agreed.our_history_bits, agreed.peer_history_bits] {
                        assert!(bits.is_none_or(|bits| (9..=15).contains(&bits)));
                    }
                }
            }
        }
    }
}
