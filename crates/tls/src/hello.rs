//! The arrival of a ClientHello, in pieces of any size.

use crate::alert::Alert;
use crate::fragments::may_have;
use crate::handshake::MAX_INPUT;
use crate::record::{ContentType, HEADER_LEN, MAX_PLAINTEXT};

/// The type of the handshake message.
const CLIENT_HELLO: u8 = 1;
const RANDOM_LEN: usize = 32;

/// The progress of receiving a ClientHello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// The ClientHello is not complete.
    Partial,
    /// The ClientHello is complete, or the input cannot begin one and rustls refuses it.
    Whole,
    /// Its header, or the header of one of its records, announces more than is accepted.
    TooLong(Alert),
}

/// Follows a ClientHello, which may be cut into records anywhere (RFC 8446 section 5.1). Each
/// record is processed once, even if it arrives in many pieces.
#[derive(Debug, Default)]
pub(crate) struct HelloReader {
    /// Where the first incomplete record begins.
    at: usize,
    /// The header of the message, and the bytes of the message in the earlier records.
    head: [u8; 4],
    come: usize,
    /// The complete records.
    records: usize,
    /// The number of times that a record was examined.
    #[cfg(test)]
    steps: usize,
}

impl HelloReader {
    /// Continues with `input`: the input of the previous call, and the bytes that have arrived
    /// since.
    pub(crate) fn advance(&mut self, input: &[u8]) -> Arrival {
        loop {
            #[cfg(test)]
            {
                self.steps += 1;
            }
            let rest = input.get(self.at..).unwrap_or_default();
            let Some((header, payload)) = rest.split_first_chunk::<HEADER_LEN>() else {
                return Arrival::Partial;
            };
            let &[kind, _, _, high, low] = header;
            let len = usize::from(u16::from_be_bytes([high, low]));
            if len > MAX_PLAINTEXT {
                return Arrival::TooLong(Alert::RECORD_OVERFLOW);
            }
            let is_whole = payload.len() >= len;
            if kind != ContentType::Handshake as u8 || len == 0 {
                return if is_whole { Arrival::Whole } else { Arrival::Partial };
            }
            let payload = &payload[..len.min(payload.len())];
            for (to, from) in self.head.iter_mut().skip(self.come).zip(payload) {
                *to = *from;
            }
            let come = self.come + payload.len();
            let [kind, high, middle, low] = self.head.map(usize::from);
            let message = self.head.len() + (high << 16 | middle << 8 | low);
            let has_head = come >= self.head.len();
            if has_head && kind == usize::from(CLIENT_HELLO) && message > MAX_INPUT {
                return Arrival::TooLong(Alert::ILLEGAL_PARAMETER);
            }
            if !is_whole {
                return Arrival::Partial;
            }
            if kind != usize::from(CLIENT_HELLO) || has_head && come >= message {
                return Arrival::Whole;
            }
            (self.at, self.come) = (self.at + HEADER_LEN + len, come);
            self.records += 1;
            if !may_have(self.records + 1, come) {
                return Arrival::TooLong(Alert::UNEXPECTED_MESSAGE);
            }
        }
    }
}

/// Returns the random bytes of a complete ClientHello (RFC 8446 section 4.1.2); `None` if `input`
/// begins with something else.
pub(crate) fn client_random(input: &[u8]) -> Option<[u8; RANDOM_LEN]> {
    // The type, the length and the version come before.
    const AT: usize = 6;
    let mut rest = input;
    let mut message = Vec::with_capacity(AT + RANDOM_LEN);
    while message.len() < AT + RANDOM_LEN {
        let (&[kind, _, _, high, low], payload) = rest.split_first_chunk::<HEADER_LEN>()?;
        let len = usize::from(u16::from_be_bytes([high, low]));
        if kind != ContentType::Handshake as u8 || len == 0 {
            return None;
        }
        let (part, behind) = payload.split_at_checked(len)?;
        message.extend_from_slice(&part[..len.min(AT + RANDOM_LEN - message.len())]);
        rest = behind;
    }
    if message[0] != CLIENT_HELLO {
        return None;
    }
    message[AT..].try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_random_bytes_of_a_hello_are_found_in_records_of_any_length() {
        let random: [u8; 32] = std::array::from_fn(|at| at as u8 + 1);
        let message = [&[1, 0, 0, 40, 3, 3][..], &random, &[0; 6]].concat();
        for most in [1, 5, 37, 38, 46] {
            let record =
                |part: &[u8]| [&[22, 3, 1][..], &(part.len() as u16).to_be_bytes(), part].concat();
            let input: Vec<u8> = message.chunks(most).flat_map(record).collect();
            assert_eq!(client_random(&input), Some(random), "{most}");
            assert_eq!(client_random(&[&input[..], b"more"].concat()), Some(random), "{most}");
            assert_eq!(client_random(&input[..35]), None, "{most}");
        }
        for other in [&b"GET / HTTP/1.1"[..], &[22, 3, 1, 0, 0], &[21, 3, 3, 0, 2, 2, 10], &[]] {
            assert_eq!(client_random(other), None, "{other:?}");
        }
        let server = [&[22, 3, 3, 0, 46, 2][..], &message[1..]].concat();
        assert_eq!(client_random(&server), None);
    }

    /// A ClientHello with a body of `len` bytes, in records with at most `most` bytes each.
    fn hello(len: usize, most: usize) -> Vec<u8> {
        let mut message = vec![1, (len >> 16) as u8, (len >> 8) as u8, len as u8];
        message.resize(4 + len, 0);
        let record =
            |part: &[u8]| [&[22, 3, 1][..], &(part.len() as u16).to_be_bytes(), part].concat();
        message.chunks(most).flat_map(record).collect()
    }

    #[test]
    fn each_record_is_looked_at_once_however_a_hello_comes() {
        for (len, most) in [(28, 1), (90, 3), (8_000, 600), (60_000, 16_384)] {
            let hello = hello(len, most);
            let records = (4 + len).div_ceil(most);
            for step in [1, 7, 1000] {
                let mut reader = HelloReader::default();
                let mut come = 0;
                while come + step < hello.len() {
                    come += step;
                    assert_eq!(reader.advance(&hello[..come]), Arrival::Partial, "{come}");
                }
                assert_eq!(reader.advance(&hello), Arrival::Whole);
                // Each arrival examines the incomplete record, and each record that it completes.
                assert!(reader.steps <= hello.len().div_ceil(step) + records, "{}", reader.steps);
            }
        }
    }

    #[test]
    fn a_hello_comes_in_a_bounded_number_of_records() {
        let arrival = |len: usize, most: usize| {
            let hello = hello(len, most);
            let mut reader = HelloReader::default();
            (reader.advance(&hello), reader.steps)
        };
        for (len, most) in [(28, 1), (2000, 1), (10_000, 100), (10_000, 16_384)] {
            assert_eq!(arrival(len, most).0, Arrival::Whole, "{len} {most}");
        }
        let refused = Arrival::TooLong(Alert::UNEXPECTED_MESSAGE);
        for (len, most) in [(10_000, 1), (60_000, 1), (60_000, 20)] {
            let (arrival, steps) = arrival(len, most);
            assert_eq!(arrival, refused, "{len} {most}");
            assert!(steps <= 2200, "{len} {most}: {steps}");
        }
    }

    #[test]
    fn a_hello_that_announces_too_much_is_refused_by_its_header() {
        let arrival = |input: &[u8]| HelloReader::default().advance(input);
        let overflow = Arrival::TooLong(Alert::RECORD_OVERFLOW);
        assert_eq!(arrival(&[22, 3, 1, 0x40, 1]), overflow);
        let second = [&hello(100, 50)[..55], &[22, 3, 3, 0xff, 0xff]].concat();
        assert_eq!(arrival(&second), overflow);
        let too_long = Arrival::TooLong(Alert::ILLEGAL_PARAMETER);
        assert_eq!(arrival(&[22, 3, 1, 0x40, 0, 1, 1, 0, 0]), too_long);
        assert_eq!(arrival(&[22, 3, 1, 0, 1, 1, 22, 3, 1, 0, 3, 1, 0, 0]), too_long);
        assert_eq!(arrival(&[22, 3, 1, 0x40, 0, 1, 0, 0xff, 0xfc]), Arrival::Partial);
    }

    #[test]
    fn other_messages_are_left_to_rustls_once_their_record_is_whole() {
        let mut reader = HelloReader::default();
        assert_eq!(reader.advance(b"\x16\x03\x01\x00\x05hell"), Arrival::Partial);
        assert_eq!(reader.advance(b"\x16\x03\x01\x00\x05hello"), Arrival::Whole);
        for record in [&[22, 3, 1, 0, 0][..], &[21, 3, 3, 0, 2, 2, 10], &[0, 3, 3, 0, 0]] {
            assert_eq!(HelloReader::default().advance(record), Arrival::Whole, "{record:?}");
        }
    }
}
