//! Commands for other nodes.

use std::sync::atomic::Ordering;

use redis::RedisError;

use super::super::Bus;
use super::super::calls::is_fatal;
use super::super::reply::{AskError, Reply, Waiting};
use crate::control::Control;
use crate::redis::node::{self, Node};
use crate::survey::Survey;

/// An event of commands, with the generation of its connection.
#[derive(Debug)]
pub(crate) enum ControlInput {
    Send(Option<u64>, Vec<u8>, Waiting<u64>),
    Sent(u64, Waiting<u64>, Result<u64, RedisError>),
}

/// The nodes that get a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recipients<'a> {
    /// The node of this number.
    Node(u64),
    /// All nodes that may have members of this channel.
    Of(&'a str),
}

impl Bus {
    /// Sends an [encoded](Control::encode) command to a node, or to all nodes that have a channel,
    /// this node included. The answer is the number of nodes reached. A disconnected node does not
    /// get the command later; a suspended node whose connection is open counts as reached, and gets
    /// it later. With one server all nodes are reached; with several, all nodes that use the
    /// channel's server.
    pub fn control(&self, to: Recipients<'_>, command: Vec<u8>) -> Reply<u64> {
        let (reply, waiting) = Waiting::begin(&self.asks);
        if let Some(waiting) = waiting {
            let (part, node) = match to {
                Recipients::Node(node) => (self.part_of_nodes(), Some(node)),
                Recipients::Of(channel) => (self.part_of(channel), None),
            };
            let event = ControlInput::Send(node, command, waiting);
            let _ = self.events.send(part, node::NodeEvent::Control(event));
        }
        reply
    }
}

impl Node {
    pub(super) fn on_control(&mut self, event: ControlInput) {
        match event {
            ControlInput::Send(to, command, waiting) => self.send_control(to, &command, waiting),
            ControlInput::Sent(generation, waiting, done) => {
                if generation == self.link.generation {
                    self.requests.controls -= 1;
                }
                if let Err(error) = &done
                    && is_fatal(error)
                    && generation == self.link.generation
                {
                    self.broken_by(error);
                }
                waiting.answer(done.map_err(|error| AskError::Failed(error.to_string())));
            }
        }
    }

    fn send_control(&mut self, to: Option<u64>, command: &[u8], waiting: Waiting<u64>) {
        // Without a connection there is no answer.
        let Some(link) = &self.link.open else { return };
        let (mut connection, generation) = (link.commands.clone(), self.link.generation);
        let name = self.target.names.control(to);
        let publish = redis::cmd(self.target.names.publish()).arg(name).arg(command).to_owned();
        self.requests.controls += 1;
        self.start(async move {
            let done = publish.query_async(&mut connection).await;
            node::NodeEvent::Control(ControlInput::Sent(generation, waiting, done))
        });
    }

    /// Executes a command for this node, if `name` is one of its channels for commands.
    pub(super) fn take_control(&mut self, name: &str, bytes: &[u8]) {
        let ways = [None, Some(self.target.names.node)];
        if !ways.iter().any(|node| self.target.names.control(*node) == name) {
            return;
        }
        match Control::decode(bytes) {
            Ok(control) => self.members.borrow_mut().control(control),
            Err(_) => match Survey::decode(bytes) {
                Ok(survey) => self.take_survey(survey),
                Err(_) => drop(self.own.counters().malformed.fetch_add(1, Ordering::Relaxed)),
            },
        }
    }
}
