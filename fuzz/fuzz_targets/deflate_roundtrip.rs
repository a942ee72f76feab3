//! Any messages, private ones with a history and broadcast ones without, with any window and
//! effort: a peer with the same history reads them all, and both ends of a conversation stay
//! synchronised.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use throng_proto::ws::deflate::{Deflater, History, Inflater, Settings};
use throng_proto::ws::{Deflated, Event};

fuzz_target!(|data: &[u8]| {
    let Some((plan, rest)) = data.split_first_chunk::<6>() else { return };
    let [window, kept, level, mem_level, cut, times] = *plan;
    let settings = Settings::default()
        .enabled(true)
        .level(1 + level % 9)
        .mem_level(1 + mem_level % 9);
    let Ok(Some(policy)) = settings.check() else { unreachable!("good settings") };
    let mut deflater = Deflater::new(&policy);
    let mut inflater = Inflater::new();
    let window = 9 + window % 7;
    let mut ours = History::new((9 + kept % 7).min(window));
    let mut theirs = History::new(window);
    for (index, piece) in rest.chunks(1 + usize::from(cut)).enumerate() {
        let text = piece.repeat(1 + usize::from(times) % 40);
        let private = piece[0] % 3 != 0;
        let mut out = Vec::new();
        let deflated = if private {
            deflater.deflate(&text, window, Some(&ours), &mut out)
        } else {
            let bits = Deflater::shared_window_bits(window, text.len());
            deflater.deflate(&text, bits, None, &mut out)
        };
        if !deflated {
            assert!(out.is_empty());
            continue;
        }
        assert!(out.len() < text.len());
        let message = Deflated { text: false, payload: &out };
        let inflated = inflater.inflate(message, Some(&mut theirs), text.len()).unwrap();
        assert_eq!(inflated.event, Event::Binary(&text), "message {index}");
        if private {
            ours.append(&text);
        } else {
            let len = text.len();
            ours.append_shared(&Arc::from(text), 0..len);
        }
    }
});
