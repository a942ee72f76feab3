//! The way of events from other threads to a node.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};

use tokio::sync::mpsc::UnboundedSender;

use super::node::Event;

/// Sends events to a node from any thread.
#[derive(Clone, Debug)]
pub(super) struct Events {
    direct: UnboundedSender<Event>,
    /// By way of the thread that passes them on.
    relayed: Option<Sender<Event>>,
}

/// The events that a thread is to pass on.
#[derive(Debug)]
pub(super) struct Relayed {
    events: Receiver<Event>,
    direct: UnboundedSender<Event>,
}

impl Events {
    pub(super) fn new(direct: UnboundedSender<Event>, is_relayed: bool) -> (Self, Option<Relayed>) {
        let (sender, events) = is_relayed.then(channel).unzip();
        let relayed = events.map(|events| Relayed { events, direct: direct.clone() });
        (Self { direct, relayed: sender }, relayed)
    }

    /// Sends an event; returns false if the node has ended.
    pub(super) fn send(&self, event: Event) -> bool {
        match &self.relayed {
            Some(relayed) => relayed.send(event).is_ok(),
            None => self.direct.send(event).is_ok(),
        }
    }

    /// Returns the way for the node's own thread.
    pub(super) fn direct(&self) -> &UnboundedSender<Event> {
        &self.direct
    }
}

impl Relayed {
    /// Starts the thread that passes them on. It waits without a descriptor, and has the table of
    /// the node's thread, which is that of the process.
    pub(super) fn start(self) -> io::Result<()> {
        let run = move || {
            // Until the node has ended.
            while let Ok(event) = self.events.recv()
                && self.direct.send(event).is_ok()
            {}
        };
        std::thread::Builder::new().name("cluster-events".to_owned()).spawn(run).map(drop)
    }
}
