//! The format of a publication between nodes.
//!
//! ```text
//! [place] version kind flags origin:8 published:8 [except:8] [key:8] [name] [id] [publisher]
//!         payload
//! ```
//!
//! Numbers are big-endian; `name`, `id` and `publisher` begin with two bytes of length. For a
//! channel with history the broker's script prepends the place as text: epoch, offset and tag with
//! colons in between, and a space. A plus sign replaces the space if the publication was first
//! delivered without a place, to nodes where its channel has no history. An epoch begins with a
//! hexadecimal digit and a version is smaller, so the first byte distinguishes the two forms.
//!
//! Servers are upgraded one after the other. So a release reads the format of the release before
//! it, and writes nothing that the older release cannot read: a new format is read by one release,
//! and written by the next. An unknown version is counted as malformed. A node still reads its
//! place, so that members of a channel with history learn of the gap.

use std::fmt;
use std::str::FromStr;

/// The version that this release writes.
const VERSION: u8 = 1;

/// The only kind so far.
const PUBLICATION: u8 = 1;

const TEXT: u8 = 1;
const INCOMPRESSIBLE: u8 = 2;
const EXCEPT: u8 = 4;
const KEY: u8 = 8;
const NAME: u8 = 16;
const ID: u8 = 32;
const PUBLISHER: u8 = 64;
const KNOWN: u8 = TEXT | INCOMPRESSIBLE | EXCEPT | KEY | NAME | ID | PUBLISHER;

/// Maximum bytes of the name and of the id of a server-sent event, and of a publisher.
pub const MAX_NAME: usize = u16::MAX as usize;

/// A publication, borrowed from the received bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Envelope<'a> {
    /// Whether the payload is text, in UTF-8.
    pub is_text: bool,
    /// Whether the publication must not be compressed.
    pub is_incompressible: bool,
    /// The node that published it.
    pub origin: u64,
    /// Time of publication by its node's clock, in microseconds since 1970; used only for figures.
    pub published: u64,
    /// Connection of the origin that does not get it.
    pub except: Option<u64>,
    /// Hash of the message's key.
    pub key: Option<u64>,
    /// Name of the server-sent event.
    pub name: Option<&'a str>,
    /// Id of the server-sent event.
    pub id: Option<&'a str>,
    /// Description of the client that has published it.
    pub publisher: Option<&'a str>,
    /// The message.
    pub payload: &'a [u8],
}

/// A publication's place in the sequence of its channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Identifies the sequence.
    pub epoch: u64,
    /// The offset of the previous publication plus one.
    pub offset: u64,
    /// A random number of [`TAG_BITS`] bits, chosen by the publisher. A broker that has lost the
    /// end of a sequence and continued it assigns the same offset to another publication; the tag
    /// differs. 0 at the beginning of a sequence.
    pub tag: u64,
}

/// Bits of a [tag](Place::tag).
pub const TAG_BITS: u32 = 40;

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}:{}:{}", self.epoch, self.offset, self.tag)
    }
}

/// The bytes are not a publication in a known format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a publication of a known version")
    }
}

impl std::error::Error for Malformed {}

impl FromStr for Place {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        let mut parts = text.splitn(3, ':');
        let epoch = parts.next().ok_or(Malformed)?;
        let is_epoch = epoch.len() == 16 && epoch.bytes().all(|byte| byte.is_ascii_hexdigit());
        let epoch = u64::from_str_radix(epoch, 16).map_err(|_| Malformed)?;
        let (offset, tag) = (number(parts.next())?, number(parts.next())?);
        if is_epoch { Ok(Self { epoch, offset, tag }) } else { Err(Malformed) }
    }
}

fn number(text: Option<&str>) -> Result<u64, Malformed> {
    let text = text.filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    text.and_then(|text| text.parse().ok()).ok_or(Malformed)
}

/// Appends a publication to `out`. A name, id or publisher of more than [`MAX_NAME`] bytes is left
/// out.
pub fn encode(envelope: &Envelope<'_>, out: &mut Vec<u8>) {
    let name = envelope.name.filter(|name| name.len() <= MAX_NAME);
    let id = envelope.id.filter(|id| id.len() <= MAX_NAME);
    let publisher = envelope.publisher.filter(|publisher| publisher.len() <= MAX_NAME);
    let flags = [
        (envelope.is_text, TEXT),
        (envelope.is_incompressible, INCOMPRESSIBLE),
        (envelope.except.is_some(), EXCEPT),
        (envelope.key.is_some(), KEY),
        (name.is_some(), NAME),
        (id.is_some(), ID),
        (publisher.is_some(), PUBLISHER),
    ];
    let flags = flags.iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).sum();
    out.extend([VERSION, PUBLICATION, flags]);
    out.extend(envelope.origin.to_be_bytes());
    out.extend(envelope.published.to_be_bytes());
    for number in [envelope.except, envelope.key].into_iter().flatten() {
        out.extend(number.to_be_bytes());
    }
    for text in [name, id, publisher].into_iter().flatten() {
        out.extend((text.len() as u16).to_be_bytes());
        out.extend(text.as_bytes());
    }
    out.extend(envelope.payload);
}

/// The place in front of a publication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The place.
    pub place: Place,
    /// Whether the publication was first delivered without a place.
    pub is_adopted: bool,
}

/// Reads the place in front of a publication, if it has one, and returns the rest, which may be of
/// any version.
///
/// # Errors
/// Fails for bytes that begin like a place but are not one.
pub fn split_place(bytes: &[u8]) -> Result<(Option<Placed>, &[u8]), Malformed> {
    if !matches!(bytes.first(), Some(b'0'..=b'9' | b'a'..=b'f')) {
        return Ok((None, bytes));
    }
    let mut begin = bytes.iter().take(64);
    let end = begin.position(|byte| matches!(byte, b' ' | b'+')).ok_or(Malformed)?;
    let text = str::from_utf8(&bytes[..end]).map_err(|_| Malformed)?;
    let placed = Placed { place: text.parse()?, is_adopted: bytes[end] == b'+' };
    Ok((Some(placed), &bytes[end + 1..]))
}

/// Reads a publication, and its place if it has one.
///
/// # Errors
/// The bytes have another format, or a version that this release does not know.
pub fn decode(bytes: &[u8]) -> Result<(Option<Place>, Envelope<'_>), Malformed> {
    let (placed, mut rest) = split_place(bytes)?;
    let place = placed.map(|placed| placed.place);
    let [version, kind, flags] = take(&mut rest)?;
    if version != VERSION || kind != PUBLICATION || flags & !KNOWN != 0 {
        return Err(Malformed);
    }
    let origin = u64::from_be_bytes(take(&mut rest)?);
    let published = u64::from_be_bytes(take(&mut rest)?);
    let mut optional = |flag| match flags & flag != 0 {
        true => take(&mut rest).map(|bytes| Some(u64::from_be_bytes(bytes))),
        false => Ok(None),
    };
    let (except, key) = (optional(EXCEPT)?, optional(KEY)?);
    let mut text = |flag| match flags & flag != 0 {
        true => take_text(&mut rest).map(Some),
        false => Ok(None),
    };
    let (name, id, publisher) = (text(NAME)?, text(ID)?, text(PUBLISHER)?);
    let is_text = flags & TEXT != 0;
    if is_text && str::from_utf8(rest).is_err() {
        return Err(Malformed);
    }
    let is_incompressible = flags & INCOMPRESSIBLE != 0;
    let payload = rest;
    let envelope = Envelope {
        is_text,
        is_incompressible,
        origin,
        published,
        except,
        key,
        name,
        id,
        publisher,
        payload,
    };
    Ok((place, envelope))
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], Malformed> {
    let (taken, after) = rest.split_first_chunk().ok_or(Malformed)?;
    *rest = after;
    Ok(*taken)
}

fn take_text<'a>(rest: &mut &'a [u8]) -> Result<&'a str, Malformed> {
    let len = usize::from(u16::from_be_bytes(take(rest)?));
    let (text, after) = rest.split_at_checked(len).ok_or(Malformed)?;
    *rest = after;
    str::from_utf8(text).map_err(|_| Malformed)
}

#[cfg(test)]
mod tests {
    use throng_testkit::{Random, noise};

    use super::*;

    fn full() -> Envelope<'static> {
        Envelope {
            is_text: true,
            is_incompressible: true,
            origin: 7,
            published: 1_700_000_000_000_000,
            except: Some(u64::MAX),
            key: Some(9),
            name: Some("price"),
            id: Some(""),
            publisher: None,
            payload: "grün".as_bytes(),
        }
    }

    fn encoded(envelope: &Envelope<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        encode(envelope, &mut out);
        out
    }

    #[test]
    fn a_publication_is_read_as_it_was_written() {
        let plain = Envelope { payload: &[0xff, 0], ..Envelope::default() };
        let published = Envelope { publisher: Some("{\"user\":\"ann\"}"), ..full() };
        for envelope in [Envelope::default(), plain, full(), published] {
            let bytes = encoded(&envelope);
            assert_eq!(decode(&bytes), Ok((None, envelope.clone())));
            let place = Place { epoch: 0xab, offset: 12, tag: u64::MAX };
            let placed = [format!("{place} ").as_bytes(), &bytes].concat();
            assert_eq!(decode(&placed), Ok((Some(place), envelope)));
        }
    }

    /// Release 0.1.0 has written these bytes: later releases must also read them.
    #[test]
    fn publications_of_the_first_version_are_read() {
        let bytes = b"00000000000000ab:12:18446744073709551615 \
            \x01\x01\x3f\0\0\0\0\0\0\0\x07\0\x06\x0a\x24\x18\x1e\x40\0\
            \xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\0\0\0\0\x09\
            \0\x05price\0\0gr\xc3\xbcn";
        let place = Place { epoch: 0xab, offset: 12, tag: u64::MAX };
        assert_eq!(decode(bytes), Ok((Some(place), full())));
        let plain = b"\x01\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\xff\0";
        let envelope = Envelope { payload: &[0xff, 0], ..Envelope::default() };
        assert_eq!(decode(plain), Ok((None, envelope)));
    }

    #[test]
    fn the_place_of_a_later_version_is_read() {
        let bytes = b"00000000000000ab:12:3 \x02\xff";
        let place = Place { epoch: 0xab, offset: 12, tag: 3 };
        let placed = Placed { place, is_adopted: false };
        assert_eq!(split_place(bytes), Ok((Some(placed), &b"\x02\xff"[..])));
        let adopted = Placed { place, is_adopted: true };
        assert_eq!(split_place(b"00000000000000ab:12:3+a b"), Ok((Some(adopted), &b"a b"[..])));
        assert_eq!(decode(bytes), Err(Malformed));
        assert_eq!(split_place(b"\x02\xff"), Ok((None, &b"\x02\xff"[..])));
        assert_eq!(split_place(b"00000000000000ab:12 \x02"), Err(Malformed));
    }

    #[test]
    fn a_header_that_is_cut_off_or_unknown_is_malformed() {
        let bytes = encoded(&full());
        let header = bytes.len() - full().payload.len();
        for end in 0..header {
            assert_eq!(decode(&bytes[..end]), Err(Malformed), "{end}");
        }
        for (at, value) in [(0, 2), (1, 0), (1, 9), (2, 64)] {
            let mut other = bytes.clone();
            other[at] = value;
            assert_eq!(decode(&other), Err(Malformed));
        }
        let mut no_text = bytes;
        *no_text.last_mut().unwrap() = 0xff;
        assert_eq!(decode(&no_text), Err(Malformed));
    }

    #[test]
    fn a_place_that_is_not_written_as_one_is_malformed() {
        let bytes = encoded(&full());
        for place in [
            "0 ",
            "00000000000000ab:1 ",
            "00000000000000ab:1: ",
            "00000000000000ab:-1:1 ",
            "ab:1:1 ",
            "00000000000000ab:1:1:1 ",
            "00000000000000ab:18446744073709551616:1 ",
            "00000000000000ab:1:1",
        ] {
            assert_eq!(decode(&[place.as_bytes(), &bytes].concat()), Err(Malformed), "{place}");
        }
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let mut random = Random::new(3);
        let valid = encoded(&full());
        for seed in 0..20_000 {
            let mut bytes = match seed % 2 {
                0 => noise(random.below(80), seed),
                _ => valid.clone(),
            };
            for _ in 0..random.below(4) {
                if !bytes.is_empty() {
                    let at = random.below(bytes.len());
                    bytes[at] = random.bits() as u8;
                }
            }
            if let Ok((None, envelope)) = decode(&bytes) {
                assert_eq!(encoded(&envelope), bytes);
            }
        }
    }
}
