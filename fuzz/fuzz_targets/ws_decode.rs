//! Any bytes in any reads, at a server and at a client: no panic, no memory beyond the received
//! bytes and the limits, and the same events for any split of the bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use throng_proto::Input;
use throng_proto::ws::{Decoder, Event, Limits, ProtocolError, Role, Spare};

#[derive(Debug, PartialEq)]
enum Got {
    Text(String),
    Binary(Vec<u8>),
    Ping(Vec<u8>),
    Pong(Vec<u8>),
    Close(Option<(u16, String)>),
}

impl From<Event<'_>> for Got {
    fn from(event: Event<'_>) -> Self {
        match event {
            Event::Text(text) => Self::Text(text.to_owned()),
            Event::Binary(bytes) => Self::Binary(bytes.to_owned()),
            Event::Ping(bytes) => Self::Ping(bytes.to_owned()),
            Event::Pong(bytes) => Self::Pong(bytes.to_owned()),
            Event::Compressed(_) | Event::Chunk(_) => panic!("it was not asked for: {event:?}"),
            Event::Close(reason) => {
                Self::Close(reason.map(|reason| (reason.code, reason.reason.to_owned())))
            }
        }
    }
}

const LIMITS: Limits = Limits { max_frame_size: 1000, max_message_size: 1500 };

fn converse<'r>(
    role: Role,
    reads: impl Iterator<Item = &'r [u8]>,
) -> (Vec<Got>, Option<ProtocolError>) {
    let (mut decoder, mut spare) = (Decoder::new(role), Spare::new());
    let (mut got, mut received) = (Vec::new(), 0);
    for read in reads {
        received += read.len();
        let mut lent = read.to_vec();
        let mut input = Input::new(&mut lent);
        loop {
            match decoder.next_event_with(&mut input, &LIMITS, &mut spare) {
                Ok(Some(event)) => got.push(event.into()),
                Ok(None) => break,
                Err(error) => {
                    let again = decoder.next_event(&mut input, &LIMITS);
                    assert_eq!(again, Err(error), "an error stays");
                    assert!(decoder.is_between_messages());
                    assert!(matches!(error.close_code(), 1002 | 1007 | 1009));
                    return (got, Some(error));
                }
            }
        }
        assert!(input.is_empty());
        assert!(decoder.buffered() <= received.min(LIMITS.max_message_size + 125));
        assert!(decoder.buffered() == 0 || !decoder.is_between_messages());
    }
    (got, None)
}

fuzz_target!(|data: &[u8]| {
    let Some((sizes, bytes)) = data.split_first_chunk::<4>() else { return };
    for role in [Role::Server, Role::Client] {
        let whole = converse(role, std::iter::once(bytes));
        let mut rest = bytes;
        let mut sizes = sizes.iter().cycle();
        let cut = std::iter::from_fn(|| {
            let size = usize::from(*sizes.next()?).clamp(1, rest.len().max(1));
            let (read, after) = rest.split_at_checked(size)?;
            rest = after;
            Some(read)
        });
        assert_eq!(converse(role, cut), whole);
        assert_eq!(converse(role, bytes.chunks(1)), whole);
    }
});
