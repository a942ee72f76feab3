//! Memory use and allocations of the codec, counted by the allocator.

use allocation_counter::measure;
use throng_proto::ws::deflate::{History, Inflater};
use throng_proto::ws::{Deflated, ProtocolError};

use crate::peer::{self, Peer, deflater, trade};

#[test]
fn a_gibibyte_of_zeros_costs_the_limit() {
    const MAX: usize = 1 << 20;
    // A mebibyte compressed independently can appear anywhere in a stream.
    let segment = [&Peer::new(9, 15).deflate(&vec![0; 1 << 20])[..], &[0, 0, 0xff, 0xff]].concat();
    let mut bomb = segment.repeat(1024);
    bomb.truncate(bomb.len() - 4);
    assert!(bomb.len() < 2 << 20);
    let mut inflater = Inflater::new();
    let counted = measure(|| {
        let refused =
            peer::event(&mut inflater, Deflated { text: false, payload: &bomb }, None, MAX);
        assert_eq!(refused, Err(ProtocolError::MessageTooBig));
    });
    // While growing, the old memory and the new exist for a moment; the rest is the codec's own.
    assert!(counted.bytes_max < (MAX + MAX / 2 + (128 << 10)) as u64, "{}", counted.bytes_max);
    assert!(inflater.capacity() <= MAX);
}

#[test]
fn memory_of_a_huge_message_is_not_kept() {
    let huge = Peer::new(6, 15).deflate(&vec![0; 9 << 20]);
    let small = Peer::new(6, 15).deflate(b"small");
    let mut inflater = Inflater::new();
    let message = |payload| Deflated { text: false, payload };
    peer::event(&mut inflater, message(&huge), None, 16 << 20).unwrap();
    assert!(inflater.capacity() >= 9 << 20);
    peer::event(&mut inflater, message(&small), None, 16 << 20).unwrap();
    assert!(inflater.capacity() < 64 << 10, "{}", inflater.capacity());
}

#[test]
fn a_message_allocates_nothing_once_the_codec_is_warm() {
    let mut deflater = deflater(1, 7);
    let mut inflater = Inflater::new();
    let mut peer = Peer::new(1, 10);
    let (mut ours, mut theirs) = (History::new(10), History::new(10));
    let mut out = Vec::with_capacity(1024);
    let mut round = |n| {
        let text = trade(n).into_bytes();
        let payload = peer.deflate(&text);
        let counted = measure(|| {
            peer::event(
                &mut inflater,
                Deflated { text: true, payload: &payload },
                Some(&mut theirs),
                1000,
            )
            .unwrap();
            out.clear();
            assert!(deflater.deflate(&text, 15, Some(&ours), &mut out));
            ours.append(&text);
        });
        counted.count_total
    };
    let warm_up: u64 = (0..20).map(&mut round).sum();
    assert!(warm_up > 0);
    assert_eq!((20..60).map(&mut round).sum::<u64>(), 0);
}

#[test]
fn a_history_uses_its_window_and_an_empty_one_nothing() {
    assert_eq!(size_of::<Option<Box<History>>>(), 8);
    let counted = measure(|| drop(std::hint::black_box(History::new(15))));
    assert_eq!(counted.count_total, 0);
    for bits in 9..=15 {
        let mut history = None;
        let counted = measure(|| {
            let mut full = Box::new(History::new(bits));
            for n in 0..1000 {
                full.append(trade(n).as_bytes());
            }
            history = Some(full);
        });
        let held = counted.bytes_current as usize;
        assert!(held <= (1 << bits) + 128, "{held} bytes for {bits} bits");
        assert_eq!(
            history.map(|history| history.len()),
            Some((1 << bits).min(1000 * trade(1).len()))
        );
    }
}
