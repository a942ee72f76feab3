//! Passes events from other threads to the parts of a node.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use tokio::sync::mpsc::UnboundedSender;

use super::node::NodeEvent;

/// Sends events to the parts of a node from any thread.
#[derive(Clone, Debug)]
pub(super) struct Events {
    direct: Arc<[UnboundedSender<NodeEvent>]>,
    /// The sender to the thread that passes events on, if there is such a thread.
    relayed: Option<Sender<(u16, NodeEvent)>>,
}

/// The events that a thread must pass on.
#[derive(Debug)]
pub(super) struct Relayed {
    events: Receiver<(u16, NodeEvent)>,
    direct: Arc<[UnboundedSender<NodeEvent>]>,
}

impl Events {
    /// Creates the sender for parts that have these queues.
    pub(super) fn new(
        direct: Vec<UnboundedSender<NodeEvent>>,
        is_relayed: bool,
    ) -> (Self, Option<Relayed>) {
        let direct: Arc<[_]> = direct.into();
        let (sender, events) = is_relayed.then(channel).unzip();
        let relayed = events.map(|events| Relayed { events, direct: Arc::clone(&direct) });
        (Self { direct, relayed: sender }, relayed)
    }

    /// Sends an event to a part; returns false if it has ended.
    pub(super) fn send(&self, part: u16, event: NodeEvent) -> bool {
        match &self.relayed {
            Some(relayed) => relayed.send((part, event)).is_ok(),
            None => self.direct[usize::from(part)].send(event).is_ok(),
        }
    }
}

impl Relayed {
    /// Starts the thread that passes the events on. It uses no descriptor while it waits, and
    /// shares the descriptor table of the node's thread, which is the process's.
    pub(super) fn start(self) -> io::Result<()> {
        let run = move || {
            // Until all parts have ended.
            while let Ok((part, event)) = self.events.recv()
                && (self.direct[usize::from(part)].send(event).is_ok()
                    || self.direct.iter().any(|direct| !direct.is_closed()))
            {}
        };
        std::thread::Builder::new().name("cluster-events".to_owned()).spawn(run).map(drop)
    }
}
