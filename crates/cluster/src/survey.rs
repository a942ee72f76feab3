//! The format of a question, and of its answers, between nodes.
//!
//! ```text
//! version kind number:8 node:8 (channel | count:8 | question | answer | publication)
//! ```
//!
//! Numbers are big-endian.

use crate::envelope::Malformed;

/// The version that this release writes, and its kinds, which differ from publications and
/// commands.
const VERSION: u8 = 1;
const QUESTION: u8 = 4;
const COUNT: u8 = 5;
const OWN: u8 = 8;
const ANSWER: u8 = 9;
const BROADCAST: u8 = 10;

/// Maximum bytes of a program's question, and of an answer to it.
pub(crate) const MAX_CONTENT: usize = 64 << 10;

/// Maximum bytes of an encoded broadcast.
pub(crate) const MAX_BROADCAST: usize = 1 << 20;

/// A question to all nodes, or the answer of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Survey<'a> {
    /// Number of the question.
    pub number: u64,
    /// The node that asks or answers.
    pub node: u64,
    /// The question, or the answer.
    pub content: Content<'a>,
}

/// The content of a [`Survey`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content<'a> {
    /// Asks for the subscribers of a channel.
    Subscribers(&'a str),
    /// The number of subscribers on the node.
    Count(u64),
    /// A question of the program.
    Own(&'a [u8]),
    /// The answer to a question of the program.
    Answer(&'a [u8]),
    /// An [encoded](crate::encode) message for all receivers of each node, which counts them.
    Broadcast(&'a [u8]),
}

impl<'a> Survey<'a> {
    /// Encodes it.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let kind = match self.content {
            Content::Subscribers(_) => QUESTION,
            Content::Count(_) => COUNT,
            Content::Own(_) => OWN,
            Content::Answer(_) => ANSWER,
            Content::Broadcast(_) => BROADCAST,
        };
        let mut out = vec![VERSION, kind];
        out.extend(self.number.to_be_bytes());
        out.extend(self.node.to_be_bytes());
        match self.content {
            Content::Subscribers(channel) => out.extend(channel.as_bytes()),
            Content::Count(count) => out.extend(count.to_be_bytes()),
            Content::Own(content) | Content::Answer(content) | Content::Broadcast(content) => {
                out.extend(content);
            }
        }
        out
    }

    /// Reads a question or an answer.
    ///
    /// # Errors
    /// The bytes have another format, or a version that this release does not know.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (head, rest) = bytes.split_first_chunk().ok_or(Malformed)?;
        let (number, rest) = rest.split_first_chunk().ok_or(Malformed)?;
        let (node, rest) = rest.split_first_chunk().ok_or(Malformed)?;
        let content = match head {
            [VERSION, QUESTION] => {
                Content::Subscribers(str::from_utf8(rest).map_err(|_| Malformed)?)
            }
            [VERSION, COUNT] => {
                Content::Count(u64::from_be_bytes(rest.try_into().map_err(|_| Malformed)?))
            }
            [VERSION, OWN] if rest.len() <= MAX_CONTENT => Content::Own(rest),
            [VERSION, ANSWER] if rest.len() <= MAX_CONTENT => Content::Answer(rest),
            [VERSION, BROADCAST] if rest.len() <= MAX_BROADCAST => Content::Broadcast(rest),
            _ => return Err(Malformed),
        };
        let (number, node) = (u64::from_be_bytes(*number), u64::from_be_bytes(*node));
        Ok(Self { number, node, content })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Release 0.1.0 has written these bytes: later releases must also read them.
    #[test]
    fn surveys_of_the_first_version_are_read() {
        let (number, node) = (3, 9);
        let survey = Survey { number, node, content: Content::Subscribers("a") };
        let bytes = b"\x01\x04\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\x09a";
        assert_eq!(Survey::decode(bytes), Ok(survey));
        let survey = Survey { number, node, content: Content::Count(7) };
        let bytes = b"\x01\x05\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\x09\0\0\0\0\0\0\0\x07";
        assert_eq!(Survey::decode(bytes), Ok(survey));
        let survey = Survey { number, node, content: Content::Broadcast(b"x") };
        let bytes = b"\x01\x0a\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\x09x";
        assert_eq!(Survey::decode(bytes), Ok(survey));
    }

    #[test]
    fn a_survey_is_read_as_it_is_written_and_anything_else_is_an_error() {
        let own = [Content::Own(b"how many?"), Content::Own(b""), Content::Answer(b"\xff")];
        let of_channels = [Content::Subscribers("a"), Content::Subscribers(""), Content::Count(7)];
        let broadcast = [Content::Broadcast(b"hello")];
        for content in own.into_iter().chain(of_channels).chain(broadcast) {
            let survey = Survey { number: 1 << 40, node: 9, content };
            let bytes = survey.encode();
            assert_eq!(Survey::decode(&bytes), Ok(survey));
            assert!((0..18).all(|end| Survey::decode(&bytes[..end]).is_err()));
        }
        let mut bytes = Survey { number: 1, node: 2, content: Content::Count(3) }.encode();
        assert!(Survey::decode(&bytes[..25]).is_err());
        bytes.push(0);
        assert!(Survey::decode(&bytes).is_err());
        bytes[1] = 11;
        assert!(Survey::decode(&bytes).is_err());
        let long = vec![0; MAX_BROADCAST + 1];
        for content in [Content::Own(&long[..=MAX_CONTENT]), Content::Broadcast(&long)] {
            let bytes = Survey { number: 1, node: 2, content }.encode();
            assert!(Survey::decode(&bytes).is_err());
        }
    }
}
