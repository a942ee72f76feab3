//! A message in several frames,
//! [RFC 6455 section 5.4](https://www.rfc-editor.org/rfc/rfc6455#section-5.4).

use std::num::NonZeroUsize;

use throng_simd::mask;

use super::{Opcode, encode_header};

/// An iterator over the frames of one message: fragments of equal size, the last one with the rest.
///
/// Control frames may be sent between any two fragments, and frames of other connections at any
/// time; another message of this connection may not. An empty message is one empty frame.
///
/// ```
/// use std::num::NonZeroUsize;
/// use throng_proto::ws::{Fragments, Opcode};
///
/// let mut out = Vec::new();
/// for fragment in Fragments::new(Opcode::Text, b"Hello", NonZeroUsize::new(3).unwrap()) {
///     fragment.encode(None, &mut out);
/// }
/// assert_eq!(out, b"\x01\x03Hel\x80\x02lo"); // RFC 6455 section 5.7
/// ```
#[derive(Clone, Debug)]
pub struct Fragments<'a> {
    /// `None` after the last fragment.
    rest: Option<&'a [u8]>,
    size: NonZeroUsize,
    opcode: Opcode,
    deflated: bool,
}

/// One frame of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment<'a> {
    /// The opcode of the message in the first fragment, [`Opcode::Continuation`] in the others.
    pub opcode: Opcode,
    /// Whether this is the last fragment.
    pub fin: bool,
    /// Whether this is the first fragment of a compressed message.
    pub deflated: bool,
    /// The payload: a part of the message.
    pub payload: &'a [u8],
}

impl<'a> Fragments<'a> {
    /// Splits `message`, text or binary by `opcode`, into fragments of `size` bytes. Text may be
    /// split inside a character.
    #[must_use]
    pub fn new(opcode: Opcode, message: &'a [u8], size: NonZeroUsize) -> Self {
        Self { rest: Some(message), size, opcode, deflated: false }
    }

    /// Splits a compressed message. Some clients cannot read compressed messages in fragments, so
    /// this should be opt-in.
    #[must_use]
    pub fn deflated(mut self) -> Self {
        self.deflated = true;
        self
    }

    /// Returns the bytes of the message for which no fragment was returned yet.
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.rest.unwrap_or_default()
    }
}

impl<'a> Iterator for Fragments<'a> {
    type Item = Fragment<'a>;

    fn next(&mut self) -> Option<Fragment<'a>> {
        let rest = self.rest?;
        let (payload, rest) = rest.split_at(self.size.get().min(rest.len()));
        self.rest = (!rest.is_empty()).then_some(rest);
        let fragment = Fragment {
            opcode: self.opcode,
            fin: rest.is_empty(),
            deflated: self.deflated,
            payload,
        };
        (self.opcode, self.deflated) = (Opcode::Continuation, false);
        Some(fragment)
    }
}

impl Fragment<'_> {
    /// Appends the frame, masked if there is a key; a client must mask.
    pub fn encode(&self, mask: Option<[u8; 4]>, out: &mut Vec<u8>) {
        let head = encode_header(self.opcode, self.fin, self.payload.len() as u64, mask);
        let head = if self.deflated { head.deflated() } else { head };
        out.reserve(head.len() + self.payload.len());
        out.extend_from_slice(&head);
        match mask {
            Some(key) => mask::append(self.payload, key, out),
            None => out.extend_from_slice(self.payload),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::Input;
    use crate::ws::{Decoder, Deflated, Event, Limits, Role, Spare};

    fn size(size: usize) -> NonZeroUsize {
        NonZeroUsize::new(size).unwrap()
    }

    #[test]
    fn rfc6455_5_4_fragments_make_the_message_again() {
        let message: Vec<u8> = (0..=255).cycle().take(1000).collect();
        for len in [0, 1, 2, 63, 64, 65, 128, 1000] {
            for cut in [1, 2, 64, 999, 1000, 5000] {
                for key in [None, Some([1, 2, 3, 4])] {
                    let (mut bytes, mut count) = (Vec::new(), 0);
                    for fragment in Fragments::new(Opcode::Binary, &message[..len], size(cut)) {
                        let first = if count == 0 { Opcode::Binary } else { Opcode::Continuation };
                        assert_eq!(fragment.opcode, first);
                        fragment.encode(key, &mut bytes);
                        count += 1;
                    }
                    assert_eq!(count, len.div_ceil(cut).max(1));
                    let role = if key.is_some() { Role::Server } else { Role::Client };
                    let mut decoder = Decoder::new(role);
                    let mut input = Input::new(&mut bytes);
                    let event = decoder.next_event(&mut input, &Limits::default());
                    assert_eq!(event, Ok(Some(Event::Binary(&message[..len]))));
                    assert!(input.is_empty());
                }
            }
        }
    }

    #[test]
    fn rfc7692_6_1_only_the_first_fragment_has_rsv1() {
        let mut bytes = Vec::new();
        for fragment in Fragments::new(Opcode::Text, b"\xf2\x48\xcd\xc9", size(3)).deflated() {
            fragment.encode(None, &mut bytes);
        }
        assert_eq!(bytes, b"\x41\x03\xf2\x48\xcd\x80\x01\xc9");
        let mut decoder = Decoder::with_deflate(Role::Client);
        let mut input = Input::new(&mut bytes);
        let event =
            decoder.next_event_with(&mut input, &Limits::default(), &mut Spare::new()).unwrap();
        let expected = Deflated { text: true, payload: b"\xf2\x48\xcd\xc9" };
        assert_eq!(event, Some(Event::Compressed(expected)));
    }

    #[test]
    fn rest_is_the_part_not_yet_returned() {
        let mut fragments = Fragments::new(Opcode::Text, b"Hello", size(3));
        assert_eq!(fragments.rest(), b"Hello");
        fragments.next();
        assert_eq!(fragments.rest(), b"lo");
        fragments.next();
        assert_eq!((fragments.rest(), fragments.next()), (&b""[..], None));
    }
}
