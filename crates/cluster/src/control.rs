//! The form in which a command travels between nodes.
//!
//! ```text
//! version kind code:2 which name:2 (client:8 | channel) reason
//! ```
//!
//! Numbers are big-endian; `which` is 0 for a client, 1 for a channel, and `name` is the number of
//! bytes of either.

use crate::Malformed;

/// The form that this release writes, and its kind: beside publications and announcements.
const VERSION: u8 = 1;
const CLOSE: u8 = 3;

const CLIENT: u8 = 0;
const CHANNEL: u8 = 1;

/// Most bytes of a reason (RFC 6455 section 5.5).
pub const MAX_REASON: usize = 123;

/// A command to close sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Control<'a> {
    /// Those that are to be closed.
    pub target: Target<'a>,
    /// The close code.
    pub code: u16,
    /// The reason.
    pub reason: &'a str,
}

/// The sessions that a command is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target<'a> {
    /// A connection of the node that gets the command.
    Client(u64),
    /// The members of a channel.
    Members(&'a str),
}

impl<'a> Control<'a> {
    /// Returns the command in its form, its reason cut to [`MAX_REASON`] bytes; `None`: the name of
    /// the channel is longer than 65,535 bytes.
    #[must_use]
    pub fn encode(&self) -> Option<Vec<u8>> {
        let bits;
        let (which, name) = match self.target {
            Target::Client(client) => {
                bits = client.to_be_bytes();
                (CLIENT, &bits[..])
            }
            Target::Members(channel) => (CHANNEL, channel.as_bytes()),
        };
        let length = u16::try_from(name.len()).ok()?;
        let mut out = vec![VERSION, CLOSE];
        out.extend(self.code.to_be_bytes());
        out.push(which);
        out.extend(length.to_be_bytes());
        out.extend(name);
        out.extend(&self.reason.as_bytes()[..self.reason.floor_char_boundary(MAX_REASON)]);
        Some(out)
    }

    /// Reads a command.
    ///
    /// # Errors
    /// The bytes are anything else, or of a version that this release does not know.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (head, rest) = bytes.split_first_chunk().ok_or(Malformed)?;
        let [VERSION, CLOSE, high, low, which, long, short] = head else { return Err(Malformed) };
        let length = u16::from_be_bytes([*long, *short]);
        let (name, reason) = rest.split_at_checked(length.into()).ok_or(Malformed)?;
        let text = |bytes| str::from_utf8(bytes).map_err(|_| Malformed);
        let target = match *which {
            CLIENT => Target::Client(u64::from_be_bytes(name.try_into().map_err(|_| Malformed)?)),
            CHANNEL => Target::Members(text(name)?),
            _ => return Err(Malformed),
        };
        let reason = text(reason)?;
        if reason.len() > MAX_REASON {
            return Err(Malformed);
        }
        Ok(Self { target, code: u16::from_be_bytes([*high, *low]), reason })
    }
}

#[cfg(test)]
mod tests {
    use throng_testkit::Random;

    use super::*;

    /// Written by 0.1.0: later releases read it, too.
    #[test]
    fn commands_of_the_first_version_are_read() {
        let client = Target::Client(0x40_0002);
        let control = Control { target: client, code: 4001, reason: "banned" };
        let bytes = b"\x01\x03\x0f\xa1\0\0\x08\0\0\0\0\0\x40\0\x02banned";
        assert_eq!(Control::decode(bytes), Ok(control));
        let members = Target::Members("user.ann");
        let control = Control { target: members, code: 1000, reason: "" };
        assert_eq!(Control::decode(b"\x01\x03\x03\xe8\x01\0\x08user.ann"), Ok(control));
    }

    #[test]
    fn a_command_is_read_as_it_is_written_and_anything_else_is_an_error() {
        let reason = "x".repeat(MAX_REASON);
        for target in [Target::Client(0x40_0002), Target::Members("user.ann"), Target::Members("")]
        {
            for reason in ["", "banned", &reason] {
                let control = Control { target, code: 4001, reason };
                let bytes = control.encode().unwrap();
                assert_eq!(Control::decode(&bytes), Ok(control));
                for end in 0..bytes.len() - reason.len() {
                    assert!(Control::decode(&bytes[..end]).is_err());
                }
                let mut random = Random::new(3);
                for _ in 0..1_000 {
                    let mut bytes = bytes.clone();
                    let at = random.below(bytes.len());
                    bytes[at] = random.below(256) as u8;
                    let _ = Control::decode(&bytes);
                }
            }
        }
        let long = "ü".repeat(MAX_REASON);
        let target = Target::Client(1);
        let bytes = Control { target, code: 1000, reason: &long }.encode().unwrap();
        assert_eq!(Control::decode(&bytes).unwrap().reason, "ü".repeat(MAX_REASON / 2));
        let name = "x".repeat(1 << 16);
        let control = Control { target: Target::Members(&name), code: 1000, reason: "" };
        assert_eq!(control.encode(), None);
        let bytes = Control { target, code: 1000, reason: "" }.encode().unwrap();
        assert!(Control::decode(&[&bytes, long.as_bytes()].concat()).is_err());
    }
}
