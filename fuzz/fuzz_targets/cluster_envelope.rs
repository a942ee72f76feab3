//! Any bytes are a publication of the cluster that is encoded to the same bytes again, or
//! malformed.
#![no_main]

use libfuzzer_sys::fuzz_target;
use throng_cluster::{decode, encode};

fuzz_target!(|data: &[u8]| {
    // Most inputs would fail at the first three bytes.
    let known = [&[1, 1][..], data].concat();
    for bytes in [data, &known] {
        let Ok((place, envelope)) = decode(bytes) else { continue };
        let mut again = Vec::new();
        encode(&envelope, &mut again);
        assert!(bytes.ends_with(&again));
        assert_eq!(decode(&again), Ok((None, envelope.clone())));
        match place {
            None => assert_eq!(again.len(), bytes.len()),
            Some(place) => {
                let placed = [format!("{place} ").as_bytes(), &again].concat();
                assert_eq!(decode(&placed), Ok((Some(place), envelope)));
            }
        }
    }
});
