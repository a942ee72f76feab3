//! The parts of a comparison that run as separate processes: the same program, started again.

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

/// The command that starts a part: this program, with arguments that pass the part's text to
/// [`play()`]. The comparison sets its standard streams.
pub type Launch<'a> = &'a dyn Fn(&Part) -> Command;

/// Where broadcasts go.
pub(crate) const ALL: &str = "/all";

/// A part to start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// A server.
    Server(ServerPart),
    /// The subscribers of a comparison of broadcasts.
    Subscribers(SubscriberPart),
}

/// A server, which reports its address and broadcasts on request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServerPart {
    /// The address to listen on; port 0 selects a free port.
    pub(crate) address: String,
    /// Whether other processes listen on the same port. The kernel then spreads the connections
    /// over them.
    pub(crate) share_port: bool,
    /// Event loops; 0 means one for each usable CPU.
    pub(crate) shards: usize,
    /// Payload bytes of a broadcast.
    pub(crate) size: usize,
    /// Compression of messages: `off`, `no-context` or `window:BITS`.
    pub(crate) deflate: String,
    /// The I/O model, as in the setting `io`.
    pub(crate) io: String,
    /// Workers; 0 means that the first use starts one for each usable CPU.
    pub(crate) workers: usize,
    /// The blocking handler.
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

/// The subscribers of one process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SubscriberPart {
    /// The URL of the server, with its path.
    pub(crate) url: String,
    /// The number of subscribers in the process.
    pub(crate) subscribers: usize,
    /// Connections from all processes to this address. Their number determines the source
    /// addresses.
    pub(crate) of: usize,
    /// The number of this process's first connection among them.
    pub(crate) first: usize,
    /// Payload bytes of the message.
    pub(crate) size: usize,
    /// Compression to offer, as in [`ServerPart`].
    pub(crate) deflate: String,
    /// Maximum time without progress while the subscribers connect.
    pub(crate) setup_timeout: Duration,
}

impl ServerPart {
    /// Returns a server with this many event loops; 0 means one for each usable CPU.
    #[must_use]
    pub fn with_shards(shards: usize) -> Self {
        Self { shards, ..Self::default() }
    }
}

impl Part {
    /// Returns the text that [`play()`] reads.
    #[must_use]
    pub fn text(&self) -> String {
        // Every part can be written as JSON.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Runs a part until standard input ends, because the starting process has ended or no longer needs
/// the part.
///
/// # Errors
/// The text does not describe a part, or the part could not start.
pub fn play(part: &str) -> Result<(), Error> {
    match serde_json::from_str(part) {
        Ok(Part::Server(server)) => own::serve(&server),
        Ok(Part::Subscribers(part)) => subscribers::play(&part),
        Err(error) => Err(Error::Usage(format!("this is not a part of a comparison: {error}"))),
    }
}

/// A server of the comparison, which ends when this is dropped.
#[derive(Debug)]
pub struct OwnServer {
    child: Child,
    /// Its address, such as `127.0.0.1:9001`.
    pub address: String,
}

impl OwnServer {
    /// Starts a server, and waits until it listens.
    ///
    /// # Errors
    /// The server could not be started, or ended before it listened; standard error has the reason.
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
        // The server's figures have been read, and it has no state that needs an orderly end.
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
