//! Sends subscriptions, questions, publications and probes to the broker.

use super::super::calls::{self, ANSWER_BYTES, NumberedPublication, Question};
use super::super::link::Link;
#[cfg(test)]
use super::PANICS;
use super::{Node, NodeEvent};
use crate::interest::Batch;

/// Maximum commands in a pipeline, and maximum bytes of its publications.
const PIPELINE: usize = 256;
const PIPELINE_BYTES: usize = 1 << 20;

impl Node {
    /// Publishes a probe like an ordinary message: an open connection may still deliver nothing.
    pub(super) fn send_probe(&mut self) {
        let Some(link) = &self.link.open else { return };
        let (mut commands, generation) = (link.commands.clone(), self.link.generation);
        self.link.probe_sent(self.clock.now());
        let publish = redis::cmd(self.target.names.publish())
            .arg(self.target.names.probe(generation))
            .arg("")
            .to_owned();
        self.start(async move {
            NodeEvent::Probed(generation, publish.query_async::<()>(&mut commands).await)
        });
    }

    /// Sends everything that is waiting. Each kind has at most one command in flight.
    pub(super) fn send(&mut self) {
        self.own.status.set_channels(self.own.part, self.interest.len());
        let Some(link) = self.link.open.clone() else { return };
        if !self.follows.is_subscribing {
            self.send_subscriptions(&link);
        }
        if !self.requests.is_asking && !self.requests.questions.is_empty() {
            self.send_questions(&link);
        }
        self.send_presence(&link);
        if !self.sender.is_publishing {
            self.send_publications(&link);
        }
    }

    fn send_subscriptions(&mut self, link: &Link) {
        let batches = self.interest.commands();
        self.follows.sent = self.follows.asked;
        if batches.is_empty() {
            return self.subscribed(self.follows.asked);
        }
        self.follows.is_subscribing = true;
        let (mut link, names) = (link.clone(), self.target.names.clone());
        let generation = self.link.generation;
        self.start(async move {
            let mut done = Ok(());
            for Batch { verb, names: channels } in batches {
                let channels: Vec<_> = channels.iter().map(|name| names.channel(name)).collect();
                done = link.subscribe(verb, &channels).await;
                if done.is_err() {
                    break;
                }
            }
            if done.is_ok() {
                done = link.confirmed().await;
            }
            NodeEvent::Subscribed(generation, done)
        });
    }

    fn send_questions(&mut self, link: &Link) {
        self.requests.is_asking = true;
        let mut bytes = 0;
        let fits = |question: &&Question| {
            bytes += if question.was_late { ANSWER_BYTES } else { question.most_bytes() };
            bytes <= ANSWER_BYTES
        };
        let count = self.requests.questions.iter().take(PIPELINE).take_while(fits).count();
        let questions: Vec<_> = self.requests.questions.drain(..count).collect();
        let (mut link, names) = (link.clone(), self.target.names.clone());
        let generation = self.link.generation;
        self.start(async move {
            let Link { commands, scripts, .. } = &mut link;
            let answers = calls::read(commands, scripts, &names, &questions).await;
            NodeEvent::Answered(generation, questions, answers)
        });
    }

    fn send_publications(&mut self, link: &Link) {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        let (tries_held, taken) =
            (self.clock.now() >= self.sender.next_publish_at, self.follows.taken);
        while batch.len() < PIPELINE
            && bytes < PIPELINE_BYTES
            && let Some(pending) = self
                .sender
                .outbox
                .send_if(tries_held, |next: &NumberedPublication| next.after <= taken)
        {
            bytes += pending.bytes;
            batch.push(pending);
        }
        if batch.is_empty() {
            return;
        }
        self.sender.is_publishing = true;
        let (mut link, names, epoch) = (link.clone(), self.target.names.clone(), self.clock.draw());
        let generation = self.link.generation;
        self.start(async move {
            #[cfg(test)]
            assert!(batch.iter().all(|one| &*one.item.outgoing.channel != PANICS));
            let Link { commands, scripts, .. } = &mut link;
            let done = calls::publish(commands, scripts, &names, epoch, &batch).await;
            NodeEvent::Published(generation, done)
        });
    }
}
