//! The parts of a comparison that are processes of their own: the program started again.

mod child;
mod handler;
pub(crate) mod message;
mod own;
mod subscribers;
mod wire;

use std::fmt::Display;
use std::process::Command;
use std::sync::mpsc::channel;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use throng_load::Error;

pub(crate) use child::{Child, ChildEvent};
pub(crate) use handler::Handler;
pub use wire::Variant;
pub(crate) use wire::{ChildMessage, Order};

/// The command that starts a part: this program, with words by which it passes the part's text to
/// [`play()`]. Its standard streams are set here.
pub type Launch<'a> = &'a dyn Fn(&Part) -> Command;

/// Where broadcasts go.
pub(crate) const ALL: &str = "/all";

/// A part that is wanted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// A server.
    Server(ServerPart),
    /// The subscribers of a comparison of broadcasts.
    Subscribers(SubscriberPart),
}

/// A server. It reports where it listens, and broadcasts as it is ordered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServerPart {
    /// Where to listen; port 0 takes a free port.
    pub(crate) address: String,
    /// Others listen on the same port, and the kernel spreads the connections over them.
    pub(crate) share_port: bool,
    /// Event loops; 0: one for each usable CPU.
    pub(crate) shards: usize,
    /// Payload bytes of a broadcast.
    pub(crate) size: usize,
    /// Compression of messages: `off`, `no-context` or `window:BITS`.
    pub(crate) deflate: String,
    /// The I/O model, as in the setting `io`.
    pub(crate) io: String,
    /// Workers; 0: none before they are needed, and then one for each usable CPU.
    pub(crate) workers: usize,
    /// The handler that blocks.
    pub(crate) handler: Handler,
}

impl Default for ServerPart {
    fn default() -> Self {
        Self {
            address: "127.0.0.1:0".to_owned(),
            share_port: false,
            shards: 1,
            size: 0,
            deflate: "off".to_owned(),
            io: "auto".to_owned(),
            workers: 0,
            handler: Handler { blocking: Duration::ZERO, cpu: Duration::ZERO },
        }
    }
}

/// Subscribers of one process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SubscriberPart {
    /// The server, with its path.
    pub(crate) url: String,
    /// Subscribers of the process.
    pub(crate) subscribers: usize,
    /// Connections to this address from all processes, which determine the source addresses.
    pub(crate) of: usize,
    /// Number of this process's first among them.
    pub(crate) first: usize,
    /// Payload bytes of the message.
    pub(crate) size: usize,
    /// Compression to offer, as in [`ServerPart`].
    pub(crate) deflate: String,
    /// Longest time without progress while they connect.
    pub(crate) setup_timeout: Duration,
}

impl ServerPart {
    /// A server with this many event loops; 0: one for each usable CPU.
    #[must_use]
    pub fn with_shards(shards: usize) -> Self {
        Self { shards, ..Self::default() }
    }
}

impl Part {
    /// The text that [`play()`] reads.
    #[must_use]
    pub fn text(&self) -> String {
        // Nothing of it can fail to be JSON.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Plays a part until standard input ends: the process that started it has ended then, or does not
/// need it.
///
/// # Errors
/// The text is not a part's; the part could not begin.
pub fn play(part: &str) -> Result<(), Error> {
    match serde_json::from_str(part) {
        Ok(Part::Server(server)) => own::serve(&server),
        Ok(Part::Subscribers(part)) => subscribers::play(&part),
        Err(error) => Err(Error::Usage(format!("this is not a part of a comparison: {error}"))),
    }
}

/// A server of the program's own; ended when dropped.
#[derive(Debug)]
pub struct OwnServer {
    child: Child,
    /// Where it listens, as `127.0.0.1:9001`.
    pub address: String,
}

impl OwnServer {
    /// Starts a server, and waits until it listens.
    ///
    /// # Errors
    /// It could not be started, or ended before it listened; its reason is on standard error.
    pub fn start(launch: Launch<'_>, server: ServerPart) -> Result<Self, Error> {
        let cannot =
            |why: &dyn Display| Error::Child(format!("cannot start a server to measure: {why}"));
        let (sender, events) = channel();
        let child = Child::start(launch(&Part::Server(server)), 0, sender)
            .map_err(|error| cannot(&error))?;
        match events.recv() {
            Ok((_, ChildEvent::Message(ChildMessage::Listening { address }))) => {
                Ok(Self { child, address })
            }
            Ok((_, ChildEvent::Ended(why))) => Err(cannot(&why)),
            _ => Err(cannot(&"it did not report where it listens")),
        }
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.pid()
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        // Its figures have been read; it holds nothing that needs an orderly end.
        self.child.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_read_from_its_text() {
        let part = Part::Server(ServerPart { shards: 2, ..ServerPart::default() });
        assert_eq!(serde_json::from_str::<Part>(&part.text()).unwrap(), part);
        assert!(play("{}").unwrap_err().to_string().contains("not a part"));
    }
}
