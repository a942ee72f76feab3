//! DEFLATE as RFC 1951 describes it, bit by bit: slow, and strict about distances, unlike zlib-rs,
//! whose window is 32 KiB for any negotiated size.

/// A stream that lasts as long as the connection.
pub(crate) struct PlainInflate {
    window: usize,
    /// Output as far back as a distance can refer to.
    before: Vec<u8>,
}

struct Bits<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// A canonical Huffman code: how many codes there are of each length, and the symbols in order.
struct Code {
    counts: [u16; 16],
    symbols: Vec<u16>,
}

const LENGTHS: [(u16, u8); 29] = {
    let mut table = [(0, 0); 29];
    let (mut at, mut length) = (0, 3);
    while at < 28 {
        let extra = if at < 8 { 0 } else { (at as u8 - 4) / 4 };
        table[at] = (length, extra);
        length += 1 << extra;
        at += 1;
    }
    table[28] = (258, 0);
    table
};

const DISTANCES: [(u16, u8); 30] = {
    let mut table = [(0, 0); 30];
    let (mut at, mut distance) = (0, 1_u32);
    while at < 30 {
        let extra = if at < 4 { 0 } else { (at as u8 - 2) / 2 };
        table[at] = (distance as u16, extra);
        distance += 1 << extra;
        at += 1;
    }
    table
};

const ORDER: [usize; 19] = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];

impl PlainInflate {
    pub(crate) fn new(bits: u8) -> Self {
        Self { window: 1 << bits, before: Vec::new() }
    }

    /// The plaintext of `deflated`, which must end with whole blocks, none of them the stream's
    /// last.
    pub(crate) fn inflate(&mut self, deflated: &[u8]) -> Result<Vec<u8>, String> {
        let mut bits = Bits { bytes: deflated, at: 0 };
        let mut out = std::mem::take(&mut self.before);
        let start = out.len();
        // The end of the input is at a byte's boundary, and a block has three bits at least.
        while bits.at < 8 * deflated.len() {
            if bits.take(1)? == 1 {
                return Err("the last block of the stream".to_owned());
            }
            match bits.take(2)? {
                0 => bits.stored(&mut out)?,
                1 => {
                    let lengths: Vec<u8> =
                        [(8, 144), (9, 112), (7, 24), (8, 8)].iter().flat_map(repeated).collect();
                    let (symbols, distances) = (Code::new(&lengths), Code::new(&[5; 30]));
                    bits.block(&symbols, &distances, self.window, &mut out)?;
                }
                2 => {
                    let (symbols, distances) = bits.codes()?;
                    bits.block(&symbols, &distances, self.window, &mut out)?;
                }
                _ => return Err("a block of an unknown kind".to_owned()),
            }
        }
        self.before = out[out.len().saturating_sub(self.window)..].to_vec();
        Ok(out.split_off(start))
    }
}

fn repeated((length, count): &(u8, usize)) -> Vec<u8> {
    vec![*length; *count]
}

impl Code {
    fn new(lengths: &[u8]) -> Self {
        let mut counts = [0; 16];
        for length in lengths {
            counts[usize::from(*length)] += 1;
        }
        counts[0] = 0;
        let of_length = |length| {
            let has = move |(_, of): &(usize, &u8)| **of == length;
            lengths.iter().enumerate().filter(has).map(|(symbol, _)| symbol as u16)
        };
        Self { counts, symbols: (1..16).flat_map(of_length).collect() }
    }
}

impl Bits<'_> {
    fn take(&mut self, count: u8) -> Result<usize, String> {
        let mut value = 0;
        for bit in 0..count {
            let byte = self.bytes.get(self.at / 8).ok_or("cut off inside of a block")?;
            value |= usize::from(byte >> (self.at % 8) & 1) << bit;
            self.at += 1;
        }
        Ok(value)
    }

    fn symbol(&mut self, code: &Code) -> Result<usize, String> {
        let (mut value, mut first, mut index) = (0, 0, 0);
        for count in &code.counts[1..] {
            value |= self.take(1)?;
            let count = usize::from(*count);
            if value < first + count {
                return Ok(usize::from(code.symbols[index + value - first]));
            }
            index += count;
            first = (first + count) << 1;
            value <<= 1;
        }
        Err("no such code".to_owned())
    }

    fn stored(&mut self, out: &mut Vec<u8>) -> Result<(), String> {
        self.at = self.at.next_multiple_of(8);
        let (len, not) = (self.take(16)?, self.take(16)?);
        if len != not ^ 0xffff {
            return Err("lengths of a stored block that do not agree".to_owned());
        }
        let start = self.at / 8;
        let bytes = self.bytes.get(start..start + len).ok_or("cut off inside of a stored block")?;
        out.extend_from_slice(bytes);
        self.at += 8 * len;
        Ok(())
    }

    fn codes(&mut self) -> Result<(Code, Code), String> {
        let (symbols, distances) = (self.take(5)? + 257, self.take(5)? + 1);
        let given = self.take(4)? + 4;
        let mut lengths = [0; 19];
        for at in &ORDER[..given] {
            lengths[*at] = self.take(3)? as u8;
        }
        let code = Code::new(&lengths);
        let mut lengths = Vec::new();
        while lengths.len() < symbols + distances {
            match self.symbol(&code)? {
                16 => {
                    let last = *lengths.last().ok_or("nothing to repeat")?;
                    lengths.extend(vec![last; 3 + self.take(2)?]);
                }
                17 => lengths.extend(vec![0; 3 + self.take(3)?]),
                18 => lengths.extend(vec![0; 11 + self.take(7)?]),
                length => lengths.push(length as u8),
            }
        }
        if lengths.len() > symbols + distances {
            return Err("more lengths than codes".to_owned());
        }
        Ok((Code::new(&lengths[..symbols]), Code::new(&lengths[symbols..])))
    }

    fn block(
        &mut self,
        symbols: &Code,
        distances: &Code,
        window: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        loop {
            match self.symbol(symbols)? {
                byte @ 0..256 => out.push(byte as u8),
                256 => return Ok(()),
                length => {
                    let (base, extra) = *LENGTHS.get(length - 257).ok_or("no such length")?;
                    let length = usize::from(base) + self.take(extra)?;
                    let symbol = self.symbol(distances)?;
                    let (base, extra) = *DISTANCES.get(symbol).ok_or("no such distance")?;
                    let distance = usize::from(base) + self.take(extra)?;
                    if distance > window || distance > out.len() {
                        let len = out.len();
                        return Err(format!("a distance of {distance} in {len}, window {window}"));
                    }
                    for _ in 0..length {
                        out.push(out[out.len() - distance]);
                    }
                }
            }
        }
    }
}
