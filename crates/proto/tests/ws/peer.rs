//! A peer that sends arbitrary bytes, even invalid ones, and records our decoder's events.

use throng_proto::Input;
use throng_proto::ws::{Decoder, Event, Limits, ProtocolError, Role, Spare};

pub(crate) const KEY: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];

/// An [`Event`] that outlives the bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Got {
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
            Event::Close(reason) => {
                Self::Close(reason.map(|reason| (reason.code, reason.reason.to_owned())))
            }
            Event::Compressed(_) | Event::Chunk(_) => panic!("it was not asked for: {event:?}"),
        }
    }
}

pub(crate) fn text(text: &str) -> Got {
    Got::Text(text.to_owned())
}

pub(crate) fn binary(bytes: &[u8]) -> Got {
    Got::Binary(bytes.to_owned())
}

/// Passes `bytes` to the decoder as one read.
pub(crate) fn feed(
    decoder: &mut Decoder,
    bytes: &[u8],
    limits: &Limits,
) -> Result<Vec<Got>, ProtocolError> {
    let mut lent = bytes.to_vec();
    let mut input = Input::new(&mut lent);
    let mut got = Vec::new();
    while let Some(event) = decoder.next_event(&mut input, limits)? {
        got.push(event.into());
    }
    assert!(input.is_empty(), "all input is taken");
    Ok(got)
}

/// The result of a whole conversation: the events, and the error that ended it.
pub(crate) type Outcome = (Vec<Got>, Option<ProtocolError>);

/// Passes each of `reads` to a new decoder, up to the first error.
pub(crate) fn converse<'r>(
    role: Role,
    limits: &Limits,
    reads: impl IntoIterator<Item = &'r [u8]>,
) -> Outcome {
    let mut decoder = Decoder::new(role);
    let mut got = Vec::new();
    for read in reads {
        let mut lent = read.to_vec();
        let mut input = Input::new(&mut lent);
        loop {
            match decoder.next_event(&mut input, limits) {
                Ok(Some(event)) => got.push(event.into()),
                Ok(None) => break,
                Err(error) => return (got, Some(error)),
            }
        }
    }
    (got, None)
}

/// Passes each of `reads` to a new decoder that does not reassemble, and joins its chunks.
pub(crate) fn converse_in_pieces<'r>(
    role: Role,
    limits: &Limits,
    reads: impl IntoIterator<Item = &'r [u8]>,
) -> Outcome {
    let (mut decoder, mut spare) = (Decoder::new(role), Spare::new());
    let (mut got, mut message) = (Vec::new(), None::<Vec<u8>>);
    for read in reads {
        let mut lent = read.to_vec();
        let mut input = Input::new(&mut lent);
        loop {
            match decoder.next_chunk(&mut input, limits, &mut spare) {
                Ok(Some(Event::Chunk(piece))) => {
                    assert_eq!(piece.first, message.is_none(), "{piece:?}");
                    assert!(!piece.bytes.is_empty() || piece.last, "{piece:?}");
                    message.get_or_insert_default().extend_from_slice(piece.bytes);
                    if piece.last {
                        let message = message.take().unwrap();
                        got.push(match piece.text {
                            true => Got::Text(String::from_utf8(message).unwrap()),
                            false => Got::Binary(message),
                        });
                    }
                }
                Ok(Some(event)) => got.push(event.into()),
                Ok(None) => break,
                Err(error) => return (got, Some(error)),
            }
        }
        assert!(input.is_empty(), "all input is taken");
        assert!(decoder.buffered() <= 125, "only control frames are held");
        assert_eq!(spare.capacity() / 1024, 0, "nothing of a message is held");
    }
    (got, None)
}

/// Decodes these bytes on a server in one read. Decoding byte by byte must give the same result.
pub(crate) fn server(bytes: &[u8]) -> Outcome {
    let limits = Limits::default();
    let outcome = converse(Role::Server, &limits, [bytes]);
    assert_eq!(outcome, converse(Role::Server, &limits, bytes.chunks(1)), "byte by byte");
    outcome
}

/// Decodes these bytes on a client in one read. Decoding byte by byte must give the same result.
pub(crate) fn client(bytes: &[u8]) -> Outcome {
    let limits = Limits::default();
    let outcome = converse(Role::Client, &limits, [bytes]);
    assert_eq!(outcome, converse(Role::Client, &limits, bytes.chunks(1)), "byte by byte");
    outcome
}

/// Returns a masked frame with this first byte (FIN, RSV and opcode) and a correct length.
pub(crate) fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![first];
    match payload.len() {
        len @ 0..126 => bytes.push(0x80 | len as u8),
        len @ 126..0x1_0000 => {
            bytes.push(0x80 | 126);
            bytes.extend((len as u16).to_be_bytes());
        }
        len => {
            bytes.push(0x80 | 127);
            bytes.extend((len as u64).to_be_bytes());
        }
    }
    bytes.extend(KEY);
    bytes.extend(payload.iter().enumerate().map(|(i, byte)| byte ^ KEY[i % 4]));
    bytes
}

/// Returns the header of a frame with a 64-bit length, and nothing after it.
pub(crate) fn head_64(first: u8, len: u64) -> Vec<u8> {
    [&[first, 0x80 | 127][..], &len.to_be_bytes(), &KEY].concat()
}
