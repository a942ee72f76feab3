//! Any bytes, split anywhere, give the same header or the same error; a decoded header can be
//! encoded and decoded again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use throng_proto::proxy_protocol::{Decoded, MAX_LENGTH, decode, encode};

fuzz_target!(|data: &[u8]| {
    // Most inputs would fail at the signature.
    let signed = [&b"\r\n\r\n\0\r\nQUIT\n"[..], data].concat();
    for bytes in [data, &signed] {
        let whole = decode(bytes);
        let mut cut = 0;
        while cut < bytes.len() {
            match decode(&bytes[..cut]) {
                Ok(Decoded::Needs(needed)) => {
                    assert!(needed > cut && needed <= MAX_LENGTH);
                    cut = needed;
                }
                decided => {
                    assert_eq!(decided, whole);
                    break;
                }
            }
        }
        for shorter in 0..bytes.len().min(64) {
            let part = decode(&bytes[..shorter]);
            assert!(
                matches!(part, Ok(Decoded::Needs(needed)) if needed > shorter) || part == whole
            );
        }
        let Ok(Decoded::Header(header)) = whole else { continue };
        assert!(header.len <= bytes.len() && header.len >= "PROXY UNKNOWN\r\n".len());
        if let Some((source, destination)) = header.addresses {
            let mut out = Vec::new();
            encode(source, destination, &mut out);
            let Ok(Decoded::Header(again)) = decode(&out) else { panic!("we wrote it") };
            let canonical = |(a, b): (std::net::SocketAddr, std::net::SocketAddr)| {
                (a.ip().to_canonical(), a.port(), b.ip().to_canonical(), b.port())
            };
            assert_eq!(again.len, out.len());
            assert_eq!(again.addresses.map(canonical), header.addresses.map(canonical));
        }
    }
});
