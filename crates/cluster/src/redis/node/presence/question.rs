//! Questions about the members of a channel.

use std::sync::Arc;

use crate::redis::reply::{AskError, Waiting};

/// A member of a channel on another node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RemoteMember {
    /// The node.
    pub node: u64,
    /// The connection.
    pub client: u64,
    /// Its information.
    pub info: Arc<str>,
}

/// Members of a channel on other nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Listed {
    /// The number of members.
    pub total: u64,
    /// The members that fit into the answer.
    pub members: Vec<RemoteMember>,
}

/// A question that waits.
#[derive(Debug)]
pub(crate) struct Question {
    pub(super) channel: Arc<str>,
    pub(super) most: usize,
    pub(super) waiting: Waiting<Listed>,
    /// When the question times out, and the number of subscriptions requested before it.
    pub(super) due: u64,
    pub(super) after: u64,
}

impl Question {
    pub(super) fn asked(&self) -> (Arc<str>, usize) {
        (Arc::clone(&self.channel), self.most)
    }

    pub(super) fn answer(self, answer: Result<Listed, AskError>) {
        self.waiting.answer(answer);
    }
}
