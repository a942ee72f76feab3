//! Any bytes, split anywhere, give the same responses, the same error, the same end.
#![no_main]

use libfuzzer_sys::fuzz_target;
use throng_proto::Input;
use throng_proto::http1::{Error, Limits, ResponseDecoder, ResponseEvent};

fn note(seen: &mut Vec<u8>, event: ResponseEvent<'_>) {
    match event {
        ResponseEvent::Head(response) => {
            let length = response.body_length();
            seen.extend_from_slice(format!("H{} {length:?}", response.status()).as_bytes());
            for header in response.headers() {
                seen.extend_from_slice(header.name.as_bytes());
                seen.extend_from_slice(header.value);
            }
        }
        ResponseEvent::Body(data) => {
            assert!(!data.is_empty());
            seen.extend_from_slice(data);
        }
        ResponseEvent::End => seen.push(b'E'),
    }
}

fn events<'p>(
    pieces: impl Iterator<Item = &'p [u8]>,
    answers_head: bool,
    limits: &Limits,
) -> (Vec<u8>, Option<Error>) {
    let mut decoder = ResponseDecoder::new();
    if answers_head {
        decoder.expect_answer_to_head();
    }
    let mut seen = Vec::new();
    for piece in pieces {
        let mut bytes = piece.to_vec();
        let mut input = Input::new(&mut bytes);
        loop {
            match decoder.next_event(&mut input, limits) {
                Ok(Some(event)) => {
                    let is_end = matches!(event, ResponseEvent::End);
                    note(&mut seen, event);
                    if is_end {
                        seen.extend_from_slice(decoder.trailers().raw());
                    }
                }
                Ok(None) => break,
                Err(error) => return (seen, Some(error)),
            }
        }
    }
    match decoder.handle_end_of_stream() {
        Ok(event) => {
            event.into_iter().for_each(|event| note(&mut seen, event));
            (seen, None)
        }
        Err(error) => (seen, Some(error)),
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((&[cut, flags], bytes)) = data.split_first_chunk::<2>() else { return };
    let limits = if flags & 1 == 0 {
        Limits::default()
    } else {
        Limits { max_header_bytes: 60 + usize::from(flags), max_headers: 3, max_body: 20 }
    };
    let answers_head = flags & 2 != 0;
    let whole = events(std::iter::once(bytes), answers_head, &limits);
    let pieces = events(bytes.chunks(usize::from(cut).max(1)), answers_head, &limits);
    assert_eq!(whole, pieces);
});
