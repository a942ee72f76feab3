//! Frame boundaries of a byte stream that is forwarded, not decoded.

use throng_carry::{Carried, CarryError, Content, Encoder};

/// The position of one direction of a tunnel: between two frames, or inside one.
///
/// A proxy that forwards bytes can insert its own frame, such as a Close when its server must be
/// replaced, only between two frames. A position within a fragmented message is allowed, [RFC 6455
/// section 5.4](https://www.rfc-editor.org/rfc/rfc6455#section-5.4). This type reads frame headers
/// and skips payloads by their length, so it costs a few instructions per frame of any size. It
/// does not allocate or validate: the endpoints of the tunnel detect violations.
///
/// ```
/// use throng_proto::ws::{Boundary, Opcode, encode};
///
/// let mut frame = Vec::new();
/// encode(Opcode::Text, b"hello", &mut frame);
/// let mut boundary = Boundary::new();
/// assert!(boundary.is_at_boundary());
/// boundary.advance(&frame[..3]);
/// assert!(!boundary.is_at_boundary());
/// assert_eq!(boundary.advance_to_boundary(&frame[3..]), 4);
/// assert!(boundary.is_at_boundary() && !boundary.saw_close());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Boundary {
    /// Bytes of the key and the payload still to come; while a length is being read, its value so
    /// far.
    left: u64,
    next: Next,
    /// Whether a key follows the extended length that is being read.
    masked: bool,
    inside: bool,
    closed: bool,
    lost: bool,
}

/// The kind of the next byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// A byte of a payload or its key while some are left, else the first byte of a frame.
    Payload,
    /// The second byte of a frame: mask bit and 7-bit length.
    Short,
    /// One of the given number of bytes left of an extended length.
    Long(u8),
}

throng_carry::carried! {
    Boundary {
        required { 1 left, 3 next, 5 masked, 7 inside, 9 closed, 11 lost }
        optional { }
        rebuilt { }
        check |it| it.is_sound()
    }
}

impl Carried for Next {
    fn put(&self, tag: u16, out: Encoder) -> Encoder {
        let code = match self {
            Self::Payload => 0,
            Self::Short => 16,
            Self::Long(left) => *left,
        };
        code.put(tag, out)
    }

    fn take(content: Content<'_>) -> Result<Self, CarryError> {
        match u8::take(content)? {
            0 => Ok(Self::Payload),
            16 => Ok(Self::Short),
            left @ 1..=8 => Ok(Self::Long(left)),
            _ => Err(CarryError::Malformed),
        }
    }
}

const FIN: u8 = 0x80;
const MASK: u8 = 0x80;

impl Boundary {
    /// Returns whether the value of a length has no more bytes than were read of it.
    const fn is_sound(&self) -> bool {
        match self.next {
            Next::Payload => true,
            Next::Short => self.left == 0,
            Next::Long(left @ 1..=7) => self.left >> (64 - 8 * left as u32) == 0,
            Next::Long(_) => self.left == 0,
        }
    }

    /// Creates the position before the first frame, which is a boundary.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            left: 0,
            next: Next::Payload,
            masked: false,
            inside: false,
            closed: false,
            lost: false,
        }
    }

    /// Creates a position without boundaries, for data that is not frames.
    #[must_use]
    pub const fn unframed() -> Self {
        Self { lost: true, ..Self::new() }
    }

    /// Advances over `bytes`, which were forwarded.
    pub fn advance(&mut self, mut bytes: &[u8]) {
        while !self.lost {
            if self.next != Next::Payload {
                let [byte, after @ ..] = bytes else { return };
                self.take(*byte);
                bytes = after;
                continue;
            }
            let Some(after) = usize::try_from(self.left).ok().and_then(|left| bytes.get(left..))
            else {
                self.left -= bytes.len() as u64;
                return;
            };
            self.left = 0;
            bytes = match *after {
                [] => return,
                [first, second, ref rest @ ..] if second & !MASK < 126 => {
                    self.begin(first);
                    self.left = u64::from(second & !MASK) + key_length(second & MASK != 0);
                    rest
                }
                [first, second, high, low, ref rest @ ..] if second & !MASK == 126 => {
                    self.begin(first);
                    let length = u16::from_be_bytes([high, low]);
                    self.left = u64::from(length) + key_length(second & MASK != 0);
                    rest
                }
                // An extended length, or a header that is split: byte by byte.
                [byte, ref rest @ ..] => {
                    self.take(byte);
                    rest
                }
            };
        }
    }

    /// Advances over `bytes` up to the first boundary, and returns how many bytes precede the
    /// boundary.
    ///
    /// Returns 0 at a boundary. Returns the length of `bytes` if they contain no boundary before
    /// their end; [`is_at_boundary`](Self::is_at_boundary) then returns whether a boundary is at
    /// their end. The counted bytes may be forwarded; the rest need not be.
    #[must_use = "what follows was not stepped over"]
    pub fn advance_to_boundary(&mut self, bytes: &[u8]) -> usize {
        let mut used = 0;
        while used < bytes.len() && !self.is_at_boundary() {
            let rest = bytes.len() - used;
            let step = match self.next {
                Next::Payload => usize::try_from(self.left).map_or(rest, |left| left.min(rest)),
                Next::Short | Next::Long(_) => 1,
            };
            // Once the position is lost there is no further boundary.
            let step = if self.lost { rest } else { step };
            self.advance(&bytes[used..used + step]);
            used += step;
        }
        used
    }

    /// Returns whether all frames so far are complete, so that another one, such as a Close, may be
    /// inserted here.
    #[inline]
    #[must_use]
    pub const fn is_at_boundary(&self) -> bool {
        self.left == 0 && matches!(self.next, Next::Payload) && !self.lost
    }

    /// Returns whether a Close frame has started: nothing follows it in this direction, and nothing
    /// may be inserted.
    #[inline]
    #[must_use]
    pub const fn saw_close(&self) -> bool {
        self.closed
    }

    /// Returns whether the stream is at the end of a Close frame.
    #[must_use]
    pub const fn is_after_close(&self) -> bool {
        self.saw_close() && self.is_at_boundary()
    }

    /// Returns whether a message has started and its last fragment has not.
    #[inline]
    #[must_use]
    pub const fn is_inside_message(&self) -> bool {
        self.inside
    }

    /// Returns whether the position is lost: a length has its most significant bit set, which no
    /// valid frame has
    /// ([RFC 6455 section 5.2](https://www.rfc-editor.org/rfc/rfc6455#section-5.2)). The following
    /// bytes cannot be interpreted, and there are no more boundaries.
    #[inline]
    #[must_use]
    pub const fn is_lost(&self) -> bool {
        self.lost
    }

    /// Starts a frame with this byte.
    #[inline]
    fn begin(&mut self, first: u8) {
        let opcode = first & 0x0f;
        // A control frame may come between the fragments of a message and does not end it.
        if opcode < 8 {
            self.inside = first & FIN == 0;
        }
        self.closed |= opcode == 8;
    }

    /// Handles one byte of a header that was split, or that has an extended length.
    fn take(&mut self, byte: u8) {
        self.next = match self.next {
            Next::Payload => {
                self.begin(byte);
                Next::Short
            }
            Next::Short => {
                let masked = byte & MASK != 0;
                match byte & !MASK {
                    length @ (126 | 127) => {
                        self.masked = masked;
                        Next::Long(if length == 126 { 2 } else { 8 })
                    }
                    length => {
                        self.left = u64::from(length) + key_length(masked);
                        Next::Payload
                    }
                }
            }
            Next::Long(left) => {
                self.left = self.left << 8 | u64::from(byte);
                if left > 1 {
                    Next::Long(left - 1)
                } else {
                    self.lost |= self.left >> 63 != 0;
                    // Without the most significant bit this cannot overflow.
                    self.left = self.left.saturating_add(key_length(self.masked));
                    self.masked = false;
                    Next::Payload
                }
            }
        };
    }
}

impl Default for Boundary {
    fn default() -> Self {
        Self::new()
    }
}

#[inline]
const fn key_length(masked: bool) -> u64 {
    if masked { 4 } else { 0 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::input::Input;
    use crate::ws::{Decoder, Event, Limits, Opcode, Role, encode_close, encode_header};

    proptest! {
        #[test]
        fn a_boundary_that_moves_at_any_byte_stays_the_same(
            bytes in prop::collection::vec(any::<u8>(), 0..64),
        ) {
            let mut boundary = Boundary::new();
            for byte in bytes {
                boundary.advance(&[byte]);
                let moved = throng_carry::thaw::<Boundary>(&throng_carry::freeze(&boundary));
                prop_assert_eq!(moved, Ok(boundary));
            }
        }

        #[test]
        fn a_boundary_of_hostile_bytes_is_refused_or_advances(
            at in any::<prop::sample::Index>(),
            to in any::<u8>(),
            input in prop::collection::vec(any::<u8>(), 0..64),
        ) {
            let mut bytes = throng_carry::freeze(&Boundary::new());
            let at = at.index(bytes.len());
            bytes[at] = to;
            if let Ok(mut boundary) = throng_carry::thaw::<Boundary>(&bytes) {
                boundary.advance(&input);
            }
        }
    }

    const _: () = assert!(size_of::<Boundary>() <= 24, "one for each direction of every tunnel");

    #[derive(Clone, Debug)]
    struct Frame {
        opcode: Opcode,
        fin: bool,
        len: usize,
    }

    /// Generates a valid sequence of frames: fragments in order, control frames between them.
    fn frames() -> impl Strategy<Value = Vec<Frame>> {
        let len = prop_oneof![
            4 => 0..130usize,
            1 => prop::sample::select(vec![125, 126, 127, 65_535, 65_536]),
        ];
        prop::collection::vec((0..4u8, any::<bool>(), len), 0..12).prop_map(|picks| {
            let mut inside = false;
            picks
                .into_iter()
                .map(|(kind, fin, len)| match kind {
                    0 => Frame { opcode: Opcode::Ping, fin: true, len: len.min(125) },
                    _ => {
                        let opcode = if inside { Opcode::Continuation } else { Opcode::Binary };
                        inside = !fin;
                        Frame { opcode, fin, len }
                    }
                })
                .collect()
        })
    }

    /// Encodes `frames`, and returns the bytes and where each frame ends.
    fn written(frames: &[Frame], key: Option<[u8; 4]>) -> (Vec<u8>, Vec<usize>) {
        let mut bytes = Vec::new();
        let ends = frames.iter().map(|frame| {
            bytes.extend_from_slice(&encode_header(frame.opcode, frame.fin, frame.len as u64, key));
            // A payload that looks like frame headers.
            bytes.extend((0..frame.len).map(|at| if at % 2 == 0 { 0x88 } else { 0xff }));
            bytes.len()
        });
        let ends = ends.collect();
        (bytes, ends)
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn it_is_at_a_boundary_exactly_where_a_frame_ends(
            frames in frames(),
            key: Option<[u8; 4]>,
            cuts in prop::collection::vec(1..300usize, 1..8),
        ) {
            let (bytes, ends) = written(&frames, key);
            let mut boundary = Boundary::new();
            let (mut at, mut cuts) = (0, cuts.iter().cycle());
            while at < bytes.len() {
                let read = (*cuts.next().unwrap()).min(bytes.len() - at);
                boundary.advance(&bytes[at..at + read]);
                at += read;
                prop_assert_eq!(boundary.is_at_boundary(), ends.contains(&at), "at {}", at);
                let complete = ends.iter().filter(|end| **end <= at).count();
                // One more frame has started, unless this is a boundary.
                let begun = complete + usize::from(!ends.contains(&at));
                let last = frames[..begun].iter().rev().find(|frame| !frame.opcode.is_control());
                prop_assert_eq!(boundary.is_inside_message(), last.is_some_and(|frame| !frame.fin));
            }
            prop_assert!(!boundary.saw_close() && !boundary.is_lost());
        }

        #[test]
        fn a_close_inserted_at_any_boundary_is_valid(
            frames in frames(),
            key in prop::option::of(any::<[u8; 4]>()),
            streamed in any::<prop::sample::Index>(),
        ) {
            let (bytes, ends) = written(&frames, key);
            let streamed = streamed.index(bytes.len() + 1);
            let mut boundary = Boundary::new();
            boundary.advance(&bytes[..streamed]);
            let used = boundary.advance_to_boundary(&bytes[streamed..]);
            prop_assert!(boundary.is_at_boundary());
            let first = ends.iter().copied().find(|end| *end >= streamed).unwrap_or(0);
            prop_assert_eq!(streamed + used, if streamed == 0 { 0 } else { first });
            let mut stream = bytes[..streamed + used].to_vec();
            encode_close(1012, "moved", key, &mut stream);
            let role = if key.is_some() { Role::Server } else { Role::Client };
            let mut decoder = Decoder::new(role);
            let mut input = Input::new(&mut stream);
            let mut closed = false;
            while let Some(event) = decoder.next_event(&mut input, &Limits::default()).unwrap() {
                closed |= matches!(event, Event::Close(Some(reason)) if reason.code == 1012);
            }
            prop_assert!(closed);
        }

        #[test]
        fn any_split_of_any_bytes_leads_to_the_same_position(
            bytes in prop::collection::vec(
                prop_oneof![
                    any::<u8>(),
                    prop::sample::select(vec![0x81, 0x88, 0, 126, 127, 254, 255])
                ],
                0..200,
            ),
            cuts in prop::collection::vec(1..20usize, 1..8),
        ) {
            let mut whole = Boundary::new();
            whole.advance(&bytes);
            let (mut rest, mut cuts) = (&bytes[..], cuts.iter().cycle());
            let (mut cut, mut stopping) = (Boundary::new(), Boundary::new());
            while !rest.is_empty() {
                let (read, after) = rest.split_at((*cuts.next().unwrap()).min(rest.len()));
                cut.advance(read);
                rest = after;
            }
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let used = stopping.advance_to_boundary(rest);
                prop_assert!(stopping.is_at_boundary() || used == rest.len());
                rest = &rest[used..];
                let (one, after) = rest.split_at(rest.len().min(1));
                stopping.advance(one);
                rest = after;
            }
            if whole.lost {
                prop_assert!(cut.lost && stopping.lost);
            } else {
                prop_assert_eq!(cut, whole);
                prop_assert_eq!(stopping, whole);
            }
        }
    }

    #[test]
    fn a_close_is_detected_at_its_first_byte() {
        let mut boundary = Boundary::new();
        boundary.advance(&[0x88]);
        assert!(boundary.saw_close() && !boundary.is_after_close());
        boundary.advance(&[0x80, 1, 2, 3, 4]);
        assert!(boundary.is_after_close());
    }

    #[test]
    fn rfc6455_5_2_a_length_with_its_highest_bit_set_loses_the_position() {
        let head = [0x82, 0xff, 0x80, 0, 0, 0, 0, 0, 0, 0];
        for cut in 0..head.len() {
            let mut boundary = Boundary::new();
            boundary.advance(&head[..cut]);
            assert!(!boundary.is_lost());
            boundary.advance(&head[cut..]);
            assert!(boundary.is_lost() && !boundary.is_at_boundary());
            boundary.advance(&[0; 100]);
            assert_eq!(boundary.advance_to_boundary(&[0; 100]), 100);
            assert!(boundary.is_lost() && !boundary.is_at_boundary());
        }
        // The longest valid frame can be followed, including its key.
        let mut boundary = Boundary::new();
        boundary.advance(&[0x82, 0xff, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
        assert!(!boundary.is_lost());
        assert_eq!(boundary.left, (1 << 63) - 1 + 4);
    }
}
