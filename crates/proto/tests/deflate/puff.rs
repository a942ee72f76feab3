//! A slow and simple inflater that checks every distance: the oracle for our output.

/// The peer's end of one direction: it inflates message after message, as a plain stream does.
pub(crate) struct Puff {
    /// All output so far.
    plaintext: Vec<u8>,
    /// The negotiated window in bytes.
    window: usize,
}

struct Bits<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Bits<'_> {
    fn take(&mut self, count: usize) -> usize {
        let mut value = 0;
        for bit in 0..count {
            value |= usize::from(self.bytes[self.at / 8] >> (self.at % 8) & 1) << bit;
            self.at += 1;
        }
        value
    }
}

/// A canonical Huffman code (RFC 1951 section 3.2.2): symbols sorted by length, and how many have
/// each.
struct Code {
    counts: [usize; 16],
    symbols: Vec<usize>,
}

impl Code {
    fn new(lengths: &[usize]) -> Self {
        let mut counts = [0; 16];
        lengths.iter().for_each(|len| counts[*len] += 1);
        counts[0] = 0;
        let mut symbols: Vec<usize> = (0..lengths.len()).filter(|at| lengths[*at] > 0).collect();
        symbols.sort_by_key(|symbol| lengths[*symbol]);
        Self { counts, symbols }
    }

    fn decode(&self, bits: &mut Bits<'_>) -> usize {
        let (mut code, mut first, mut index) = (0, 0, 0);
        for count in &self.counts[1..] {
            code |= bits.take(1);
            if code < first + count {
                return self.symbols[index + code - first];
            }
            index += count;
            first = (first + count) << 1;
            code <<= 1;
        }
        panic!("no such code");
    }
}

const LENGTHS: [usize; 29] = [
    3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 15, 17, 19, 23, 27, 31, 35, 43, 51, 59, 67, 83, 99, 115, 131,
    163, 195, 227, 258,
];
const DISTANCES: [usize; 30] = [
    1, 2, 3, 4, 5, 7, 9, 13, 17, 25, 33, 49, 65, 97, 129, 193, 257, 385, 513, 769, 1025, 1537,
    2049, 3073, 4097, 6145, 8193, 12289, 16385, 24577,
];
const ORDER: [usize; 19] = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];

impl Puff {
    pub(crate) fn new(window_bits: u8) -> Self {
        Self { plaintext: Vec::new(), window: 1 << window_bits }
    }

    /// Inflates a message; panics if it is invalid on this connection.
    pub(crate) fn inflate(&mut self, deflated: &[u8]) -> Vec<u8> {
        let start = self.plaintext.len();
        let bytes = [deflated, &[0, 0, 0xff, 0xff]].concat();
        let mut bits = Bits { bytes: &bytes, at: 0 };
        while bits.at < 8 * bytes.len() {
            assert_eq!(bits.take(1), 0, "BFINAL is for those who need it");
            match bits.take(2) {
                0 => {
                    bits.at = bits.at.next_multiple_of(8);
                    let (len, complement) = (bits.take(16), bits.take(16));
                    assert_eq!(len, complement ^ 0xffff);
                    let from = bits.at / 8;
                    self.plaintext.extend_from_slice(&bytes[from..from + len]);
                    bits.at += 8 * len;
                }
                1 => {
                    let lengths: Vec<usize> = (0..288)
                        .map(|symbol| match symbol {
                            0..144 | 280.. => 8,
                            144..256 => 9,
                            _ => 7,
                        })
                        .collect();
                    self.codes(&mut bits, &Code::new(&lengths), &Code::new(&[5; 30]));
                }
                2 => self.dynamic(&mut bits),
                _ => panic!("no such block"),
            }
        }
        self.plaintext[start..].to_vec()
    }

    fn dynamic(&mut self, bits: &mut Bits<'_>) {
        let (literals, distances) = (bits.take(5) + 257, bits.take(5) + 1);
        let count = bits.take(4) + 4;
        let mut lengths = [0; 19];
        ORDER[..count].iter().for_each(|at| lengths[*at] = bits.take(3));
        let code = Code::new(&lengths);
        let mut lengths = Vec::new();
        while lengths.len() < literals + distances {
            let (len, repeat) = match code.decode(bits) {
                16 => (*lengths.last().unwrap(), 3 + bits.take(2)),
                17 => (0, 3 + bits.take(3)),
                18 => (0, 11 + bits.take(7)),
                len => (len, 1),
            };
            lengths.extend(std::iter::repeat_n(len, repeat));
        }
        let (literals, distances) = lengths.split_at(literals);
        self.codes(bits, &Code::new(literals), &Code::new(distances));
    }

    fn codes(&mut self, bits: &mut Bits<'_>, literals: &Code, distances: &Code) {
        loop {
            let symbol = literals.decode(bits);
            match symbol {
                0..256 => self.plaintext.push(symbol as u8),
                256 => return,
                _ => {
                    let extra = match symbol - 257 {
                        0..8 | 28 => 0,
                        at => at / 4 - 1,
                    };
                    let len = LENGTHS[symbol - 257] + bits.take(extra);
                    let symbol = distances.decode(bits);
                    let distance = DISTANCES[symbol] + bits.take((symbol / 2).saturating_sub(1));
                    assert!(distance <= self.window, "{distance} is beyond {}", self.window);
                    let from = self.plaintext.len() - distance;
                    (from..from + len).for_each(|at| self.plaintext.push(self.plaintext[at]));
                }
            }
        }
    }
}
