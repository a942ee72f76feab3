//! Following frames without reading them.

/// Where one direction of a tunnel is: between two frames, or inside one.
///
/// Whoever passes bytes on and wants to say something itself (a Close, because the server behind it is to be replaced)
/// can do so between two frames only; within a fragmented message is fine, RFC 6455 section 5.4. This reads heads of
/// frames and steps over payloads by their length, so its cost is a few instructions a frame, whatever its size. It
/// allocates nothing and judges nothing: a tunnel is bytes, and what is wrong in them is for the ends to say.
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
    /// Bytes of the key and the payload still to come; while a length is being read, what of it is known.
    left: u64,
    next: Next,
    /// A key follows the long length that is being read.
    masked: bool,
    inside: bool,
    closed: bool,
    lost: bool,
}

/// What the next byte is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// Of a payload or its key while some is left, else the first of a frame.
    Payload,
    /// The second of a frame: mask and short length.
    Short,
    /// One of so many that are left of a long length.
    Long(u8),
}

const FIN: u8 = 0x80;
const MASK: u8 = 0x80;

impl Boundary {
    /// Before the first frame, which is a boundary.
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

    /// Steps over `bytes`, which were passed on.
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
                // A long length, or a head that is cut: byte by byte.
                [byte, ref rest @ ..] => {
                    self.take(byte);
                    rest
                }
            };
        }
    }

    /// Steps over `bytes` up to the first boundary, and gives how many that were: 0 at a boundary, all of them if there is
    /// none among them (then [`is_at_boundary`](Self::is_at_boundary) tells whether one is at their end). What is
    /// counted may be passed on; what follows need not be.
    #[must_use = "what follows was not stepped over"]
    pub fn advance_to_boundary(&mut self, bytes: &[u8]) -> usize {
        let mut used = 0;
        while used < bytes.len() && !self.is_at_boundary() {
            let rest = bytes.len() - used;
            let step = match self.next {
                Next::Payload => usize::try_from(self.left).map_or(rest, |left| left.min(rest)),
                Next::Short | Next::Long(_) => 1,
            };
            // Once lost there is no boundary ahead.
            let step = if self.lost { rest } else { step };
            self.advance(&bytes[used..used + step]);
            used += step;
        }
        used
    }

    /// All frames so far are complete: another one, such as a Close, may be put in here.
    #[inline]
    #[must_use]
    pub const fn is_at_boundary(&self) -> bool {
        self.left == 0 && matches!(self.next, Next::Payload) && !self.lost
    }

    /// A Close frame has at least begun: this direction says no more, and nothing is to be put in.
    #[inline]
    #[must_use]
    pub const fn saw_close(&self) -> bool {
        self.closed
    }

    /// A message has begun and its last fragment has not.
    #[inline]
    #[must_use]
    pub const fn is_inside_message(&self) -> bool {
        self.inside
    }

    /// A length has its highest bit set, which no frame has (RFC 6455 section 5.2): what follows is no frame that could be
    /// followed, and there is no boundary any more.
    #[inline]
    #[must_use]
    pub const fn is_lost(&self) -> bool {
        self.lost
    }

    /// A frame begins with this byte.
    #[inline]
    fn begin(&mut self, first: u8) {
        let opcode = first & 0x0f;
        // A control frame may stand between the fragments of a message and does not end it.
        if opcode < 8 {
            self.inside = first & FIN == 0;
        }
        self.closed |= opcode == 8;
    }

    /// One byte of a head that did not come whole, or is of the rare, long kind.
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
                    // Of a length without the highest bit this is no overflow.
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
    use crate::Input;
    use crate::ws::{Decoder, Event, Limits, Opcode, Role, encode_close, encode_header};

    const _: () = assert!(size_of::<Boundary>() <= 24, "one for each direction of every tunnel");

    #[derive(Clone, Debug)]
    struct Frame {
        opcode: Opcode,
        fin: bool,
        len: usize,
    }

    /// Frames that a sender may send: fragments in order, control frames between them.
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

    /// The bytes of `frames`, and where each ends.
    fn written(frames: &[Frame], key: Option<[u8; 4]>) -> (Vec<u8>, Vec<usize>) {
        let mut bytes = Vec::new();
        let ends = frames.iter().map(|frame| {
            bytes.extend_from_slice(&encode_header(frame.opcode, frame.fin, frame.len as u64, key));
            // Looks like heads, to whoever takes it for one.
            bytes.extend((0..frame.len).map(|at| if at % 2 == 0 { 0x88 } else { 0xff }));
            bytes.len()
        });
        let ends = ends.collect();
        (bytes, ends)
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

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
                // One more has begun, unless this is where it would.
                let begun = complete + usize::from(!ends.contains(&at));
                let last = frames[..begun].iter().rev().find(|frame| !frame.opcode.is_control());
                prop_assert_eq!(boundary.is_inside_message(), last.is_some_and(|frame| !frame.fin));
            }
            prop_assert!(!boundary.saw_close() && !boundary.is_lost());
        }

        #[test]
        fn a_close_put_in_at_any_boundary_is_understood(
            frames in frames(),
            key in prop::option::of(any::<[u8; 4]>()),
            passed in any::<prop::sample::Index>(),
        ) {
            let (bytes, ends) = written(&frames, key);
            let passed = passed.index(bytes.len() + 1);
            let mut boundary = Boundary::new();
            boundary.advance(&bytes[..passed]);
            let used = boundary.advance_to_boundary(&bytes[passed..]);
            prop_assert!(boundary.is_at_boundary());
            let first = ends.iter().copied().find(|end| *end >= passed).unwrap_or(0);
            prop_assert_eq!(passed + used, if passed == 0 { 0 } else { first });
            let mut stream = bytes[..passed + used].to_vec();
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
        fn any_bytes_however_cut_lead_to_the_same_place(
            bytes in prop::collection::vec(
                prop_oneof![any::<u8>(), prop::sample::select(vec![0x81, 0x88, 0, 126, 127, 254, 255])],
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
    fn a_close_is_seen_from_its_first_byte() {
        let mut boundary = Boundary::new();
        boundary.advance(&[0x88]);
        assert!(boundary.saw_close() && !boundary.is_at_boundary());
        boundary.advance(&[0x80, 1, 2, 3, 4]);
        assert!(boundary.saw_close() && boundary.is_at_boundary());
    }

    #[test]
    fn rfc6455_5_2_a_length_with_its_highest_bit_set_loses_the_way() {
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
        // The longest there is can be followed, key and all.
        let mut boundary = Boundary::new();
        boundary.advance(&[0x82, 0xff, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
        assert!(!boundary.is_lost());
        assert_eq!(boundary.left, (1 << 63) - 1 + 4);
    }
}
