//! Any bytes, split anywhere, lead to the same position, and where the decoder reads whole frames
//! the position is at the same boundary.
#![no_main]

use libfuzzer_sys::fuzz_target;
use throng_proto::Input;
use throng_proto::ws::{Boundary, Decoder, Event, Limits, Role, encode_close};

/// Returns the state of the boundary.
fn state(boundary: &Boundary) -> (bool, bool, bool, bool) {
    (
        boundary.is_at_boundary(),
        boundary.saw_close(),
        boundary.is_inside_message(),
        boundary.is_lost(),
    )
}

/// Returns whether a decoder accepts all of `bytes` without an error or a Close, and then a Close
/// frame of the balancer.
fn takes_our_close(role: Role, bytes: &[u8]) -> Option<bool> {
    let mut lent = bytes.to_vec();
    let (mut decoder, mut input) = (Decoder::new(role), Input::new(&mut lent));
    loop {
        match decoder.next_event(&mut input, &Limits::default()) {
            Ok(Some(Event::Close(_))) | Err(_) => return None,
            Ok(Some(_)) => {}
            Ok(None) => break,
        }
    }
    let mut close = Vec::new();
    let key = (role == Role::Server).then_some([1, 2, 3, 4]);
    encode_close(1012, "", key, &mut close);
    let mut input = Input::new(&mut close);
    let event = decoder.next_event(&mut input, &Limits::default());
    Some(matches!(event, Ok(Some(Event::Close(Some(reason)))) if reason.code == 1012))
}

fuzz_target!(|data: &[u8]| {
    let Some((sizes, bytes)) = data.split_first_chunk::<4>() else { return };
    let mut whole = Boundary::new();
    whole.advance(bytes);
    let (mut cut, mut single, mut stopping) = (Boundary::new(), Boundary::new(), Boundary::new());
    let (mut rest, mut sizes) = (bytes, sizes.iter().cycle());
    while let Some(size) = sizes.next() {
        let size = usize::from(*size).clamp(1, rest.len().max(1));
        let Some((read, after)) = rest.split_at_checked(size) else { break };
        cut.advance(read);
        rest = after;
    }
    bytes.iter().for_each(|byte| single.advance(&[*byte]));
    let mut rest = bytes;
    while !rest.is_empty() {
        rest = &rest[stopping.advance_to_boundary(rest)..];
        let (one, after) = rest.split_at(rest.len().min(1));
        stopping.advance(one);
        rest = after;
    }
    for other in [cut, single, stopping] {
        assert_eq!(state(&other), state(&whole));
    }
    if whole.is_at_boundary() {
        for role in [Role::Server, Role::Client] {
            assert_ne!(takes_our_close(role, bytes), Some(false));
        }
    }
});
