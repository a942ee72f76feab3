//! The format of a command between nodes.
//!
//! ```text
//! version kind [code:2] which name:2 (client:8 | channel) rest
//! ```
//!
//! Numbers are big-endian; `which` is 0 for a client, 1 for a channel, and `name` is the number of
//! bytes of its id or name. The rest is the code and reason of a close, the channel of an
//! unsubscribe, or the data of a refresh.

use crate::envelope::Malformed;

/// The version that this release writes, and its kinds, which differ from publications,
/// announcements and surveys.
const VERSION: u8 = 1;
const CLOSE: u8 = 3;
const UNSUBSCRIBE: u8 = 6;
const REFRESH: u8 = 7;

const CLIENT: u8 = 0;
const CHANNEL: u8 = 1;

/// Maximum bytes of a reason (RFC 6455 section 5.5).
pub const MAX_REASON: usize = 123;

/// Maximum bytes of a channel's name, and of the data of a refresh.
pub const MAX_FIELD: usize = u16::MAX as usize;

/// A command for sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Control<'a> {
    /// The sessions concerned.
    pub target: Target<'a>,
    /// The action.
    pub command: NodeCommand<'a>,
}

/// The sessions that a command concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target<'a> {
    /// A connection of the node that gets the command.
    Client(u64),
    /// The members of a channel.
    Members(&'a str),
}

/// The content of a [`Control`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeCommand<'a> {
    /// Begin the closing handshake.
    Close {
        /// The close code.
        code: u16,
        /// The reason.
        reason: &'a str,
    },
    /// Leave a channel.
    Unsubscribe {
        /// The channel.
        channel: &'a str,
    },
    /// Look up the client's rights again.
    Refresh {
        /// For the program.
        data: &'a [u8],
    },
}

impl<'a> Control<'a> {
    /// Encodes the command, with its reason cut to [`MAX_REASON`] bytes. Returns `None` if a name
    /// or the data is longer than [`MAX_FIELD`].
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
        let (kind, code, rest) = match self.command {
            NodeCommand::Close { code, reason } => {
                let reason = &reason.as_bytes()[..reason.floor_char_boundary(MAX_REASON)];
                (CLOSE, Some(code), reason)
            }
            NodeCommand::Unsubscribe { channel } => (UNSUBSCRIBE, None, channel.as_bytes()),
            NodeCommand::Refresh { data } => (REFRESH, None, data),
        };
        let length = u16::try_from(name.len()).ok().filter(|_| rest.len() <= MAX_FIELD)?;
        let mut out = vec![VERSION, kind];
        out.extend(code.into_iter().flat_map(u16::to_be_bytes));
        out.push(which);
        out.extend(length.to_be_bytes());
        out.extend(name);
        out.extend(rest);
        Some(out)
    }

    /// Reads a command.
    ///
    /// # Errors
    /// The bytes have another format, or a version that this release does not know.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let ([version, kind], bytes) = take(bytes)?;
        if version != VERSION {
            return Err(Malformed);
        }
        let (code, bytes) = match kind {
            CLOSE => take(bytes).map(|(code, rest)| (u16::from_be_bytes(code), rest))?,
            _ => (0, bytes),
        };
        let ([which, long, short], bytes) = take(bytes)?;
        let length = u16::from_be_bytes([long, short]);
        let (name, rest) = bytes.split_at_checked(length.into()).ok_or(Malformed)?;
        let text = |bytes| str::from_utf8(bytes).map_err(|_| Malformed);
        let target = match which {
            CLIENT => Target::Client(u64::from_be_bytes(name.try_into().map_err(|_| Malformed)?)),
            CHANNEL => Target::Members(text(name)?),
            _ => return Err(Malformed),
        };
        let command = match kind {
            CLOSE if rest.len() <= MAX_REASON => NodeCommand::Close { code, reason: text(rest)? },
            UNSUBSCRIBE if rest.len() <= MAX_FIELD => {
                NodeCommand::Unsubscribe { channel: text(rest)? }
            }
            REFRESH if rest.len() <= MAX_FIELD => NodeCommand::Refresh { data: rest },
            _ => return Err(Malformed),
        };
        Ok(Self { target, command })
    }
}

fn take<const N: usize>(bytes: &[u8]) -> Result<([u8; N], &[u8]), Malformed> {
    let (taken, rest) = bytes.split_first_chunk().ok_or(Malformed)?;
    Ok((*taken, rest))
}

#[cfg(test)]
mod tests {
    use throng_testkit::Random;

    use super::*;

    /// Release 0.1.0 has written these bytes: later releases must also read them.
    #[test]
    fn commands_of_the_first_version_are_read() {
        let client = Target::Client(0x40_0002);
        let members = Target::Members("user.ann");
        let close = |code, reason| NodeCommand::Close { code, reason };
        for (bytes, target, command) in [
            (
                &b"\x01\x03\x0f\xa1\0\0\x08\0\0\0\0\0\x40\0\x02banned"[..],
                client,
                close(4001, "banned"),
            ),
            (b"\x01\x03\x03\xe8\x01\0\x08user.ann", members, close(1000, "")),
            (
                b"\x01\x06\x01\0\x08user.annchat.a",
                members,
                NodeCommand::Unsubscribe { channel: "chat.a" },
            ),
            (b"\x01\x07\x01\0\x08user.ann\xff", members, NodeCommand::Refresh { data: b"\xff" }),
        ] {
            assert_eq!(Control::decode(bytes), Ok(Control { target, command }));
        }
    }

    #[test]
    fn a_command_is_read_as_it_is_written_and_anything_else_is_an_error() {
        let reason = "x".repeat(MAX_REASON);
        let reasons = ["", "banned", &reason];
        let closes =
            reasons.map(|reason| (NodeCommand::Close { code: 4001, reason }, reason.len()));
        let unsubscribe = (NodeCommand::Unsubscribe { channel: "chat" }, 4);
        let refresh = (NodeCommand::Refresh { data: &[0xff, 0] }, 2);
        for target in [Target::Client(0x40_0002), Target::Members("user.ann"), Target::Members("")]
        {
            for (command, rest) in closes.into_iter().chain([unsubscribe, refresh]) {
                let control = Control { target, command };
                let bytes = control.encode().unwrap();
                assert_eq!(Control::decode(&bytes), Ok(control));
                for end in 0..bytes.len() - rest {
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
    }

    #[test]
    fn a_reason_that_is_too_long_is_cut_and_a_name_or_data_refused() {
        let target = Target::Client(1);
        let close = |reason| Control { target, command: NodeCommand::Close { code: 1000, reason } };
        let long = "ü".repeat(MAX_REASON);
        let bytes = close(&long).encode().unwrap();
        let cut = "ü".repeat(MAX_REASON / 2);
        assert_eq!(Control::decode(&bytes), Ok(close(&cut)));
        let bytes = close("").encode().unwrap();
        assert!(Control::decode(&[&bytes, long.as_bytes()].concat()).is_err());
        let name = "x".repeat(MAX_FIELD + 1);
        for control in [
            Control { target: Target::Members(&name), ..close("") },
            Control { target, command: NodeCommand::Unsubscribe { channel: &name } },
            Control { target, command: NodeCommand::Refresh { data: name.as_bytes() } },
        ] {
            assert_eq!(control.encode(), None);
        }
    }
}
