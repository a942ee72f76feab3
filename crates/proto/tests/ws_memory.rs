//! Memory use of the decoder, counted by the allocator.
#![allow(missing_docs)]

use allocation_counter::measure;
use throng_proto::Input;
use throng_proto::ws::{Decoder, Event, Limits, Opcode, Role, Spare, encode_header, encode_masked};

/// Counts the allocations of `work` on this thread: calls, and bytes at the peak and at the end in
/// addition to those before.
fn count(work: impl FnOnce()) -> (u64, usize, usize) {
    let counted = measure(work);
    (counted.count_total, counted.bytes_max as usize, counted.bytes_current.max(0) as usize)
}

const KEY: [u8; 4] = [1, 2, 3, 4];

fn frames(count: usize, opcode: Opcode, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..count {
        encode_masked(opcode, payload, KEY, &mut bytes);
    }
    bytes
}

/// Decodes the events in these lent bytes.
fn pull(decoder: &mut Decoder, lent: &mut [u8], spare: &mut Spare) -> usize {
    let mut input = Input::new(lent);
    let mut events = 0;
    while let Some(event) = decoder.next_event_with(&mut input, &Limits::default(), spare).unwrap()
    {
        assert!(!matches!(event, Event::Close(_)));
        events += 1;
    }
    events
}

#[test]
fn idle_decoder_is_32_bytes_and_holds_nothing() {
    assert!(size_of::<Decoder>() <= 32, "{}", size_of::<Decoder>());
    let (calls, _, _) = count(|| drop(Decoder::new(Role::Server)));
    assert_eq!(calls, 0);
}

#[test]
fn frames_that_arrive_whole_allocate_nothing() {
    for (opcode, payload) in [
        (Opcode::Text, "κόσμε".repeat(10).into_bytes()),
        (Opcode::Binary, vec![7; 100]),
        (Opcode::Binary, vec![7; 70_000]),
        (Opcode::Ping, vec![7; 125]),
    ] {
        let mut bytes = frames(10, opcode, &payload);
        let mut decoder = Decoder::new(Role::Server);
        let mut spare = Spare::new();
        let (calls, _, _) = count(|| assert_eq!(pull(&mut decoder, &mut bytes, &mut spare), 10));
        assert_eq!(calls, 0, "{opcode:?} of {}", payload.len());
    }
}

#[test]
fn a_split_header_allocates_nothing() {
    let mut bytes = frames(1, Opcode::Binary, &[7; 300]);
    let mut decoder = Decoder::new(Role::Server);
    let (first, second) = bytes.split_at_mut(7);
    let mut spare = Spare::new();
    let (calls, _, _) = count(|| {
        assert_eq!(pull(&mut decoder, first, &mut spare), 0);
        assert_eq!(pull(&mut decoder, second, &mut spare), 1);
    });
    assert_eq!(calls, 0);
}

/// fastwebsockets reserves what a header declares: a few bytes from each of many peers use all
/// memory.
#[test]
fn accident_declared_length_is_not_reserved() {
    let head = encode_header(Opcode::Binary, true, 4 << 20, Some(KEY));
    let mut decoder = Decoder::new(Role::Server);
    let mut spare = Spare::new();
    let mut lent = [&head[..], &[0; 10]].concat();
    let (_, peak, _) = count(|| assert_eq!(pull(&mut decoder, &mut lent, &mut spare), 0));
    assert!(peak < 1024, "{peak} bytes for 10 received");
    let mut received = 10;
    let mut lent = [0; 1000];
    let (_, peak, _) = count(|| {
        while received + lent.len() < 2 << 20 {
            assert_eq!(pull(&mut decoder, &mut lent, &mut spare), 0);
            received += lent.len();
            assert_eq!(decoder.buffered(), received);
        }
    });
    // While growing, the old buffer and the new one exist for a moment.
    assert!(peak <= 3 * received, "{peak} bytes for {received}");
}

/// ws CVE-2026-48779.
#[test]
fn accident_131072_fragments_hold_one_buffer() {
    const COUNT: usize = 131_072;
    let mut bytes = encode_header(Opcode::Binary, false, 1, Some(KEY)).to_vec();
    bytes.push(0);
    for _ in 1..COUNT {
        bytes.extend_from_slice(&encode_header(Opcode::Continuation, false, 1, Some(KEY)));
        bytes.push(0);
    }
    let mut decoder = Decoder::new(Role::Server);
    let (calls, _, held) = count(|| {
        assert_eq!(pull(&mut decoder, &mut bytes, &mut Spare::new()), 0);
    });
    assert_eq!(decoder.buffered(), COUNT);
    assert!(decoder.memory() >= COUNT && held.abs_diff(decoder.memory()) < 1024, "{held} bytes");
    assert!(held < 2 * COUNT + 1024, "{held} bytes");
    assert!(calls < 20, "{calls} allocations");
}

#[test]
fn memory_of_a_message_is_freed_after_it() {
    let mut bytes = frames(1, Opcode::Binary, &[7; 100_000]);
    let mut decoder = Decoder::new(Role::Server);
    let (first, second) = bytes.split_at_mut(60_000);
    let (calls, _, held) = count(|| {
        assert_eq!(pull(&mut decoder, first, &mut Spare::new()), 0);
        assert_eq!(pull(&mut decoder, second, &mut Spare::new()), 1);
    });
    assert!(calls > 0);
    assert_eq!(held, 0);
}

#[test]
fn memory_of_a_message_is_freed_by_an_error_and_by_a_close() {
    for last in [&b"\x83\x80\0\0\0\0"[..], b"\x88\x80\0\0\0\0"] {
        let mut begun = encode_header(Opcode::Binary, false, 1000, Some(KEY)).to_vec();
        begun.extend([0; 1000]);
        let mut last = last.to_vec();
        let mut decoder = Decoder::new(Role::Server);
        let (_, _, held) = count(|| {
            assert_eq!(pull(&mut decoder, &mut begun, &mut Spare::new()), 0);
            let mut input = Input::new(&mut last);
            for _ in 0..2 {
                let _ = decoder.next_event(&mut input, &Limits::default());
            }
        });
        assert_eq!(held, 0);
    }
}

#[test]
fn spare_makes_split_messages_free() {
    let bytes = frames(1, Opcode::Binary, &[7; 100_000]);
    let mut decoder = Decoder::new(Role::Server);
    let mut spare = Spare::new();
    let mut rounds = (0..3).map(|_| {
        let mut bytes = bytes.clone();
        let (first, second) = bytes.split_at_mut(60_000);
        count(|| {
            assert_eq!(pull(&mut decoder, first, &mut spare), 0);
            assert_eq!(pull(&mut decoder, second, &mut spare), 1);
        })
        .0
    });
    assert!(rounds.next().unwrap() > 0);
    assert_eq!(rounds.next(), Some(0));
    assert_eq!(rounds.next(), Some(0));
    assert!(spare.capacity() >= 100_000);
}

/// A peer that sends a byte would otherwise hold what a large message of another one has left.
#[test]
fn a_few_bytes_do_not_take_the_memory_of_a_large_message() {
    let mut spare = Spare::new();
    let mut decoder = Decoder::new(Role::Server);
    let mut large = frames(1, Opcode::Binary, &[7; 1 << 20]);
    for part in large.chunks_mut(1 << 19) {
        pull(&mut decoder, part, &mut spare);
    }
    assert!(decoder.memory() <= 300 && spare.capacity() >= 1 << 20);
    for opcode in [Opcode::Binary, Opcode::Ping] {
        let mut slow = Decoder::new(Role::Server);
        let mut frame = frames(1, opcode, &[7; 100]);
        assert_eq!(pull(&mut slow, &mut frame[..50], &mut spare), 0);
        assert!((40..1000).contains(&slow.memory()), "{} bytes", slow.memory());
        assert!(spare.capacity() >= 1 << 20);
    }
    let mut streaming = Decoder::new(Role::Server);
    let mut frame = frames(1, Opcode::Binary, &[7; 60_000]);
    let mut input = Input::new(&mut frame[..50_000]);
    streaming.next_chunk(&mut input, &Limits::default(), &mut spare).unwrap().unwrap();
    assert!(streaming.memory() < 1000 && spare.capacity() >= 1 << 20);
}

#[test]
fn spare_does_not_keep_more_than_4_mib() {
    let limits = Limits { max_frame_size: 8 << 20, max_message_size: 8 << 20 };
    let mut bytes = frames(1, Opcode::Binary, &vec![7; 5 << 20]);
    let mut decoder = Decoder::new(Role::Server);
    let mut spare = Spare::new();
    for lent in bytes.chunks_mut(1 << 20) {
        let mut input = Input::new(lent);
        while decoder.next_event_with(&mut input, &limits, &mut spare).unwrap().is_some() {}
    }
    assert_eq!(spare.capacity(), 0);
}
