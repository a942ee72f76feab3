//! Distinct messages, so that each answer can be matched with its message.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use throng_engine::Message;
use throng_engine::random::Random;

use super::json::{self, STAMP_AT};
use crate::plan::{Content, Plan};
use crate::template::{Template, Tokens, Values};

/// Bytes of a message that name its connection and its number.
const STAMP: usize = 8;

/// The body of a message, with a new stamp for each send.
///
/// The first eight bytes depend on the connection and the message's number, so that an answer to
/// another message, from another connection, or out of order is detected; length, kind and last
/// bytes are also checked. Comparing every byte would make the generator the limit, and masking
/// errors affect all bytes.
#[derive(Debug)]
pub struct Payload {
    body: Body,
}

#[derive(Debug)]
enum Body {
    Text(String),
    Binary(Vec<u8>),
    /// Each connection takes the documents in turn, and begins with a different one.
    Json(Vec<String>),
    /// One text for all messages.
    GivenText(String),
    GivenBinary(Arc<[u8]>),
    /// A different text for each client and each message.
    Template(Box<Own>),
}

/// Messages made from a template.
#[derive(Debug)]
struct Own {
    template: Template,
    text: bool,
    tokens: Tokens,
    /// The number of the thread's first connection in the sequence of all connections.
    first: usize,
    /// The seed of random values. They must be repeatable, because the message is rendered again to
    /// compare its answer.
    seed: u64,
    /// The last rendered message.
    scratch: String,
}

impl Own {
    fn values(&self, index: usize, k: u64) -> Values<'_> {
        let client = (self.first + index) as u64;
        Values { client, sequence: k, seed: self.seed, tokens: &self.tokens }
    }

    fn message(&mut self, index: usize, k: u64) -> Message<'_> {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        self.template.render(&self.values(index, k), &mut scratch);
        self.scratch = scratch;
        match self.text {
            true => Message::Text(&self.scratch),
            false => Message::Binary(self.scratch.as_bytes()),
        }
    }
}

/// Distance between the first documents of two consecutive connections. It is usually coprime to
/// the number of documents and far from 1, so that messages sent at nearly the same time have
/// different contents.
const STRIDE: usize = 257;

impl Payload {
    /// Returns the messages of a thread. `first` is the number of its first connection in the
    /// sequence of all connections.
    pub fn of(plan: &Plan, first: usize) -> Self {
        Self::seeded(plan, first, RandomState::new().hash_one(first))
    }

    /// Messages with random values of this seed: threads that share it make the same messages.
    pub fn seeded(plan: &Plan, first: usize, seed: u64) -> Self {
        match &plan.content {
            Content::Letters => Self::new(plan.size, plan.text),
            Content::Json { seed } => Self { body: Body::Json(json::documents(plan.size, *seed)) },
            Content::Given(bytes) => {
                // The plan was checked: text is UTF-8.
                let text = plan.text.then(|| String::from_utf8_lossy(bytes).into_owned());
                let binary = || Body::GivenBinary(Arc::clone(bytes));
                Self { body: text.map_or_else(binary, Body::GivenText) }
            }
            Content::Template(template) => {
                let (template, tokens) = (template.clone(), plan.common.tokens.clone());
                let (text, scratch) = (plan.text, String::new());
                let own = Own { template, text, tokens, first, seed, scratch };
                Self { body: Body::Template(Box::new(own)) }
            }
        }
    }

    pub fn new(size: usize, text: bool) -> Self {
        // Letters without a short period, so that a shifted answer is detected.
        let mut letters = Random::new(1);
        let bytes = (0..size).map(|_| b'a' + letters.below(26) as u8);
        let body = match text {
            true => Body::Text(bytes.map(char::from).collect()),
            false => Body::Binary(bytes.collect()),
        };
        Self { body }
    }

    /// Returns message number `k` of connection `index`.
    #[inline]
    pub fn message(&mut self, index: usize, k: u64) -> Message<'_> {
        let stamp = stamp(index, k);
        match &mut self.body {
            Body::Text(text) => {
                let n = text.len().min(STAMP);
                // All bytes are letters, so this never fails. The lengths are equal, so the text is
                // changed in place.
                text.replace_range(..n, str::from_utf8(&stamp[..n]).unwrap_or_default());
                Message::Text(text)
            }
            Body::Binary(bytes) => {
                let n = bytes.len().min(STAMP);
                bytes[..n].copy_from_slice(&stamp[..n]);
                Message::Binary(bytes)
            }
            Body::Json(documents) => {
                let at = document(documents.len(), index, k);
                let text = &mut documents[at];
                let place = STAMP_AT..STAMP_AT + STAMP;
                text.replace_range(place, str::from_utf8(&stamp).unwrap_or_default());
                Message::Text(text)
            }
            Body::GivenText(text) => Message::Text(text),
            Body::GivenBinary(bytes) => Message::Binary(bytes),
            Body::Template(own) => own.message(index, k),
        }
    }

    /// Returns whether `answer` is message number `k` of connection `index`.
    #[inline]
    pub fn is_answer(&self, answer: Message<'_>, index: usize, k: u64) -> bool {
        let (expected, same_kind) = match &self.body {
            Body::Text(text) => (text.as_bytes(), matches!(answer, Message::Text(_))),
            Body::Binary(bytes) => (&bytes[..], matches!(answer, Message::Binary(_))),
            Body::Json(documents) => {
                let expected = documents[document(documents.len(), index, k)].as_bytes();
                let answer = match answer {
                    Message::Text(text) => text.as_bytes(),
                    Message::Binary(_) => return false,
                };
                // Compares all bytes, because an error of an inflater can be anywhere.
                return answer.len() == expected.len()
                    && answer[..STAMP_AT] == expected[..STAMP_AT]
                    && answer[STAMP_AT..STAMP_AT + STAMP] == stamp(index, k)
                    && answer[STAMP_AT + STAMP..] == expected[STAMP_AT + STAMP..];
            }
            Body::GivenText(text) => return answer == Message::Text(text),
            Body::GivenBinary(bytes) => return answer == Message::Binary(bytes),
            Body::Template(own) => {
                let is_text = matches!(answer, Message::Text(_));
                let expected = own.template.rendered(&own.values(index, k));
                return own.text == is_text && expected.as_bytes() == answer.as_bytes();
            }
        };
        let answer = answer.as_bytes();
        let n = expected.len().min(STAMP);
        same_kind
            && answer.len() == expected.len()
            && answer[..n] == stamp(index, k)[..n]
            && answer[n.max(answer.len().saturating_sub(STAMP))..]
                == expected[n.max(expected.len().saturating_sub(STAMP))..]
    }

    /// Describes the fault in an answer.
    #[cold]
    pub fn describe(&self, answer: Message<'_>, index: usize, k: u64) -> String {
        let (size, text) = match &self.body {
            Body::Text(text) => (text.len(), true),
            Body::Binary(bytes) => (bytes.len(), false),
            Body::Json(documents) => (documents.first().map_or(0, String::len), true),
            Body::GivenText(text) => (text.len(), true),
            Body::GivenBinary(bytes) => (bytes.len(), false),
            Body::Template(own) => (own.template.rendered(&own.values(index, k)).len(), own.text),
        };
        let kind = |text| if text { "text" } else { "binary" };
        let (len, answer_text) = (answer.as_bytes().len(), matches!(answer, Message::Text(_)));
        if len != size || answer_text != text {
            return format!(
                "a {} message of {len} bytes answered a {} one of {size} (message {k} of \
                 connection {index})",
                kind(answer_text),
                kind(text)
            );
        }
        format!(
            "the answer to message {k} of connection {index} has other content: lost, repeated or \
             out of order"
        )
    }
}

/// Returns the index, below `count`, of the document for message number `k` of connection `index`.
#[inline]
fn document(count: usize, index: usize, k: u64) -> usize {
    (index.wrapping_mul(STRIDE).wrapping_add(k as usize)) % count
}

/// Eight letters that depend on both numbers.
#[inline]
fn stamp(index: usize, k: u64) -> [u8; STAMP] {
    let mixed = (k as u32).wrapping_mul(0x9e37_79b1)
        ^ (index as u32).wrapping_mul(0x85eb_ca6b).rotate_left(16);
    // Spreads the eight nibbles to one byte each, as one of the letters a to p.
    let mut x = u64::from(mixed);
    x = (x | x << 16) & 0x0000_ffff_0000_ffff;
    x = (x | x << 8) & 0x00ff_00ff_00ff_00ff;
    x = (x | x << 4) & 0x0f0f_0f0f_0f0f_0f0f;
    (x + 0x6161_6161_6161_6161).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(message: Message<'_>) -> Vec<u8> {
        message.as_bytes().to_vec()
    }

    #[test]
    fn an_echo_is_accepted_at_every_size_and_kind() {
        for size in [0, 1, 7, 8, 9, 15, 16, 17, 100, 70_000] {
            for text in [false, true] {
                let mut payload = Payload::new(size, text);
                for (index, k) in [(0, 0), (1, 0), (9_999, 123_456_789)] {
                    let sent = copy(payload.message(index, k));
                    assert_eq!(sent.len(), size);
                    let answer = match text {
                        true => Message::Text(str::from_utf8(&sent).unwrap()),
                        false => Message::Binary(&sent),
                    };
                    assert!(payload.is_answer(answer, index, k), "{size} {text}");
                    let other = match text {
                        true => Message::Binary(&sent),
                        false => Message::Text(str::from_utf8(&sent).unwrap()),
                    };
                    assert!(!payload.is_answer(other, index, k), "the other kind");
                }
            }
        }
    }

    #[test]
    fn a_document_differs_from_its_neighbours_and_only_its_own_echo_is_accepted() {
        let mut payload = Payload { body: Body::Json(json::documents(136, 3)) };
        let mut text = |index, k| String::from_utf8(copy(payload.message(index, k))).unwrap();
        let (sent, next, other) = (text(5, 9), text(5, 10), text(6, 9));
        assert!(sent[15..] != next[15..] && sent[15..] != other[15..], "{sent} {next} {other}");
        assert!(payload.is_answer(Message::Text(&sent), 5, 9));
        for wrong in [&next, &other, &sent[1..], &sent.replace("ts", "st")] {
            assert!(!payload.is_answer(Message::Text(wrong), 5, 9), "{wrong}");
        }
        assert!(!payload.is_answer(Message::Binary(sent.as_bytes()), 5, 9), "the other kind");
        assert!(payload.describe(Message::Text(&next), 5, 9).contains("out of order"));
    }

    #[test]
    fn any_other_message_is_refused() {
        let mut payload = Payload::new(100, false);
        let sent = copy(payload.message(3, 7));
        let refused = |bytes: &[u8], index, k| !payload.is_answer(Message::Binary(bytes), index, k);
        assert!(refused(&sent, 3, 8) && refused(&sent, 3, 6) && refused(&sent, 4, 7));
        assert!(refused(&sent[..99], 3, 7) && refused(&[&sent[..], &[0]].concat(), 3, 7));
        for at in [0, 5, 99, 93] {
            let mut wrong = sent.clone();
            wrong[at] ^= 1;
            assert!(refused(&wrong, 3, 7), "byte {at}");
        }
        assert!(payload.describe(Message::Binary(&sent[..99]), 3, 7).contains("99 bytes"));
        assert!(payload.describe(Message::Binary(&sent), 3, 8).contains("out of order"));
    }
}
