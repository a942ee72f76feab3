//! The names that a node uses at a server.

use std::borrow::Cow;

/// The names in use at a server, or in a partition of a Redis Cluster.
#[derive(Clone, Debug)]
pub(super) struct Names {
    pub(super) prefix: String,
    pub(super) node: u64,
    pub(super) is_partition: bool,
}

impl Names {
    /// Returns the beginning of the names of all partitions, before the tag.
    pub(super) fn prefix_of_tags(&self) -> String {
        let end = self.prefix.find('{').map_or(self.prefix.len(), |at| at + 1);
        self.prefix[..end].to_owned()
    }

    /// Returns the publish command; a partition's publications stay at its master.
    pub(super) fn publish(&self) -> &'static str {
        if self.is_partition { "SPUBLISH" } else { "PUBLISH" }
    }

    /// Returns a script with that command.
    pub(super) fn script<'a>(&self, script: &'a str) -> Cow<'a, str> {
        match self.is_partition {
            true => script.replace("'PUBLISH'", "'SPUBLISH'").into(),
            false => script.into(),
        }
    }

    /// Returns the name under which a channel's publications are delivered.
    pub(super) fn channel(&self, channel: &str) -> String {
        format!("{}.m.{channel}", self.prefix)
    }

    /// Returns the channel of such a name.
    pub(super) fn channel_of<'a>(&self, name: &'a str) -> Option<&'a str> {
        name.strip_prefix(&*self.prefix)?.strip_prefix(".m.")
    }

    /// Returns the names of a channel's record and stream.
    pub(super) fn keys(&self, channel: &str) -> [String; 2] {
        [format!("{}.o.{channel}", self.prefix), format!("{}.s.{channel}", self.prefix)]
    }

    /// Returns the mark of a publication that a node has delivered without a place.
    pub(super) fn mark(&self, origin: u64, published: u64) -> String {
        format!("{}.d.{origin:016x}.{published:x}", self.prefix)
    }

    /// Returns the key of the data's identity, which changes when the server loses its data.
    pub(super) fn data(&self) -> String {
        format!("{}.epoch", self.prefix)
    }

    /// Returns the channel on which this node receives its own probes. A partition has another
    /// channel for each generation: the confirmation of its subscription follows all messages of
    /// earlier generations.
    pub(super) fn probe(&self, generation: u64) -> String {
        match self.is_partition {
            true => format!("{}.q.{:016x}.{generation}", self.prefix, self.node),
            false => format!("{}.q.{:016x}", self.prefix, self.node),
        }
    }

    /// Returns the channel on which a node gets commands; `None`: all nodes.
    pub(super) fn control(&self, node: Option<u64>) -> String {
        match node {
            Some(node) => format!("{}.c.{node:016x}", self.prefix),
            None => format!("{}.c", self.prefix),
        }
    }
}
