//! Any `Sec-WebSocket-Extensions` to a server and to a client with any settings: no panic, and the
//! negotiated parameters are supported by a codec. A server's answer is accepted by a client that
//! made that offer.
#![no_main]

use libfuzzer_sys::fuzz_target;
use throng_proto::ws::deflate::{Agreed, Mode, Settings};

const NAME: &str = "Sec-WebSocket-Extensions";

fn check(agreed: Agreed) {
    assert!((9..=15).contains(&agreed.our_window_bits));
    assert!((8..=15).contains(&agreed.peer_window_bits));
    assert!(
        agreed.our_history_bits.is_none_or(|bits| (9..=agreed.our_window_bits).contains(&bits))
    );
    let least = agreed.peer_window_bits.max(9);
    assert!(agreed.peer_history_bits.is_none_or(|bits| bits == least));
}

fuzz_target!(|data: &[u8]| {
    let Some((plan, text)) = data.split_first_chunk::<4>() else { return };
    let [mode, server, client, switches] = *plan;
    let switch = |bit: u8| match switches >> bit & 3 {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    };
    let settings = Settings::default()
        .enabled(true)
        .mode(if mode % 8 == 7 { Mode::Shared } else { Mode::Window { bits: 8 + mode % 9 } })
        .server_max_window_bits(8 + server % 9)
        .client_max_window_bits(8 + client % 9)
        .server_no_context_takeover(switch(0))
        .client_no_context_takeover(switch(2));
    let Ok(Some(policy)) = settings.check() else { return };
    let text = String::from_utf8_lossy(text);
    let headers: Vec<_> = text.split('\n').map(|value| (NAME, value)).collect();
    if let Ok(Some(accepted)) = policy.accept(&headers[..]) {
        check(accepted.agreed);
        let answer = accepted.answer.to_string();
        // Only a client without requirements can accept any answer; at least it is well-formed.
        let all =
            Settings::default().mode(Mode::Window { bits: 15 }).enabled(true);
        let Ok(Some(any)) = all.check() else { unreachable!("good settings") };
        match any.check_answer(&[(NAME, &answer)][..]) {
            Ok(Some(agreed)) => check(agreed),
            other => assert!(answer.contains("client_max_window_bits=8"), "{answer}: {other:?}"),
        }
    }
    if let Ok(Some(agreed)) = policy.check_answer(&headers[..]) {
        check(agreed);
    }
});
