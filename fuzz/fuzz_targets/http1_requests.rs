//! Any bytes, split anywhere, give the same requests, the same error, and no memory use beyond the
//! limits.
#![no_main]

use libfuzzer_sys::fuzz_target;
use throng_proto::Input;
use throng_proto::http1::{Decoder, Error, Event, Limits};

/// Returns all events of a decoder for `pieces`; parts of a body are joined, since they depend on
/// the split.
fn events<'p>(pieces: impl Iterator<Item = &'p [u8]>, limits: &Limits) -> (Vec<u8>, Option<Error>) {
    let mut decoder = Decoder::new();
    let mut seen = Vec::new();
    for piece in pieces {
        let mut bytes = piece.to_vec();
        let mut input = Input::new(&mut bytes);
        loop {
            match decoder.next_event(&mut input, limits) {
                Ok(Some(Event::Head(request))) => {
                    seen.push(b'H');
                    seen.extend_from_slice(request.raw());
                    seen.extend_from_slice(request.path().as_bytes());
                    seen.extend_from_slice(request.query().unwrap_or("-").as_bytes());
                    seen.extend_from_slice(request.host().unwrap_or("-").as_bytes());
                    seen.extend_from_slice(format!("{:?}", request.body_length()).as_bytes());
                    for header in request.headers() {
                        assert!(request.header_bytes(header.name).is_some());
                        seen.extend_from_slice(header.name.as_bytes());
                        seen.extend_from_slice(header.value);
                    }
                    // Accepted requests have none of the bytes that make parsers disagree.
                    let lines = request.lines().raw();
                    assert!(!lines.contains(&0));
                    let crlfs = lines.windows(2).filter(|pair| pair == b"\r\n").count();
                    assert_eq!(crlfs, lines.iter().filter(|byte| **byte == b'\n').count());
                    assert_eq!(crlfs, lines.iter().filter(|byte| **byte == b'\r').count());
                    assert!(request.raw().len() <= limits.max_header_bytes);
                    assert!(crlfs <= limits.max_headers);
                }
                Ok(Some(Event::Body(data))) => {
                    assert!(!data.is_empty());
                    seen.extend_from_slice(data);
                }
                Ok(Some(Event::End)) => {
                    seen.push(b'E');
                    let trailers = decoder.trailers();
                    assert!(trailers.raw().len() <= limits.max_header_bytes);
                    assert!(trailers.iter().count() <= limits.max_headers);
                    for trailer in trailers.iter() {
                        assert!(!trailer.name.eq_ignore_ascii_case("content-length"));
                        seen.extend_from_slice(trailer.name.as_bytes());
                        seen.extend_from_slice(trailer.value);
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    assert!(matches!(error.status(), 400 | 413 | 414 | 417 | 431 | 501 | 505));
                    return (seen, Some(error));
                }
            }
            assert!(decoder.buffered() <= limits.max_header_bytes);
        }
        assert!(input.is_empty(), "no event means that everything was taken");
    }
    (seen, None)
}

fuzz_target!(|data: &[u8]| {
    let Some((&[cut, small], bytes)) = data.split_first_chunk::<2>() else { return };
    let limits = if small & 1 == 0 {
        Limits::default()
    } else {
        Limits { max_header_bytes: 60 + usize::from(small), max_headers: 3, max_body: 20 }
    };
    let whole = events(std::iter::once(bytes), &limits);
    let pieces = events(bytes.chunks(usize::from(cut).max(1)), &limits);
    assert_eq!(whole, pieces);
    let at = usize::from(cut).min(bytes.len());
    let (first, second) = bytes.split_at(at);
    assert_eq!(whole, events([first, second].into_iter(), &limits));
});
