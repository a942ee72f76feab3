//! Any bytes as compressed messages of two connections on one inflater, one of them with a context:
//! no panic, no output beyond the limit, and a valid message between them is inflated correctly.
#![no_main]

use libfuzzer_sys::fuzz_target;
use throng_proto::ws::deflate::{History, Inflater};
use throng_proto::ws::{Deflated, Event};

fuzz_target!(|data: &[u8]| {
    let Some((plan, rest)) = data.split_first_chunk::<4>() else { return };
    let [bits, max, text, cut] = *plan;
    let max = usize::from(max) * 64;
    let mut inflater = Inflater::new();
    let mut history = History::new(9 + bits % 7);
    for payload in rest.chunks(1 + usize::from(cut) * 8) {
        for context in [None, Some(&mut history)] {
            let message = Deflated { text: text % 2 == 0, payload };
            let inflated = inflater.inflate(message, context, max);
            match inflated.map(|inflated| inflated.event) {
                Ok(Event::Text(text)) => assert!(text.len() <= max),
                Ok(Event::Binary(bytes)) => assert!(bytes.len() <= max),
                Ok(other) => panic!("{other:?} is no message"),
                Err(error) => assert!(matches!(error.close_code(), 1007 | 1009)),
            }
            assert!(inflater.capacity() <= max.max(5) + (64 << 10));
        }
        let hello = Deflated { text: true, payload: b"\xf2\x48\xcd\xc9\xc9\x07\x00" };
        let hello = inflater.inflate(hello, None, 5).unwrap();
        assert_eq!(hello.event, Event::Text("Hello"));
        assert!(history.len() <= 1 << (9 + bits % 7));
    }
});
