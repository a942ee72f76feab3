//! Messages between the processes of a comparison: a line of JSON each, over the children's
//! standard input and output. A child whose input ends has lost its parent, and ends too.

use std::io::{self, BufRead, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::word::words;

words! {
    /// One of the three variants to send one message to all.
    enum Variant {
        /// A loop over all connections, encoding for each
        Naive = "naive",
        /// Encoded once, a reference to each connection
        Encoded = "encoded",
        /// To a channel that all are members of
        Publish = "publish",
    }
}

/// Order of the coordinator to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Order {
    /// Variant of the broadcast.
    pub variant: Variant,
    /// Number of the broadcast, from 1.
    pub round: u32,
}

/// Message of a child to the coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ChildMessage {
    /// A server listens.
    Listening {
        /// Where.
        address: String,
    },
    /// The server has executed the request: the call has returned.
    Broadcast {
        /// Number of the broadcast.
        round: u32,
        /// When the call began, on the machine's clock.
        called_ns: u64,
        /// When it returned.
        returned_ns: u64,
        /// Times that a shard's mailbox was full and the call had to wait.
        waits: u64,
    },
    /// All subscribers of a process are connected.
    Subscribed {
        /// Number of subscribers.
        subscribers: usize,
    },
    /// All subscribers of a process have a broadcast.
    Reached {
        /// Number of the broadcast.
        round: u32,
        /// When the first had it, on the machine's clock.
        first_ns: u64,
        /// When the last had it.
        last_ns: u64,
    },
    /// The subscribers are gone; the last counts.
    Left {
        /// Messages that were none of ours, came twice or in a wrong order.
        wrong: u64,
        /// Connections that ended while they were needed.
        lost: u64,
        /// Subscribers that had the last broadcast.
        received: usize,
        /// The first thing that went wrong, in words.
        first: Option<String>,
    },
    /// The child cannot go on.
    Failed {
        /// Why, for people.
        reason: String,
    },
}

/// Writes one line, at once.
///
/// # Errors
/// The reader has closed its end.
pub(crate) fn write_line(out: &mut impl Write, what: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    out.write_all(&line)?;
    out.flush()
}

/// Reads one line; `None` when there are no more.
///
/// # Errors
/// Reading failed, or the line says something else.
pub(crate) fn read_line<T: DeserializeOwned>(input: &mut impl BufRead) -> io::Result<Option<T>> {
    let mut line = String::new();
    match input.read_line(&mut line)? {
        0 => Ok(None),
        _ => Ok(Some(serde_json::from_str(&line)?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_written_line_is_read() {
        let mut pipe = Vec::new();
        let orders = [Variant::Naive, Variant::Encoded, Variant::Publish]
            .map(|variant| Order { variant, round: 7 });
        orders.iter().for_each(|order| write_line(&mut pipe, order).unwrap());
        let left = ChildMessage::Left {
            wrong: 1,
            lost: 0,
            received: 9,
            first: Some("line\nbreak".to_owned()),
        };
        write_line(&mut pipe, &left).unwrap();
        let mut input = &pipe[..];
        for order in orders {
            assert_eq!(read_line(&mut input).unwrap(), Some(order));
        }
        assert_eq!(read_line(&mut input).unwrap(), Some(left));
        assert_eq!(read_line::<ChildMessage>(&mut input).unwrap(), None);
        assert!(read_line::<ChildMessage>(&mut &b"nonsense\n"[..]).is_err());
    }
}
