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
        let Some(link) = &self.link else { return };
        self.probed = self.now();
        self.probe = Some(self.probed);
        let (mut commands, generation) = (link.commands.clone(), self.generation);
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
        let Some(link) = self.link.clone() else { return };
        if !self.is_subscribing {
            self.send_subscriptions(&link);
        }
        if !self.is_asking && !self.questions.is_empty() {
            self.send_questions(&link);
        }
        self.send_presence(&link);
        if !self.is_publishing {
            self.send_publications(&link);
        }
    }

    fn send_subscriptions(&mut self, link: &Link) {
        let batches = self.interest.commands();
        self.follows_sent = self.follows;
        if batches.is_empty() {
            return self.subscribed(self.follows);
        }
        self.is_subscribing = true;
        let (mut link, names) = (link.clone(), self.target.names.clone());
        let generation = self.generation;
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
        self.is_asking = true;
        let mut bytes = 0;
        let fits = |question: &&Question| {
            bytes += if question.was_late { ANSWER_BYTES } else { question.most_bytes() };
            bytes <= ANSWER_BYTES
        };
        let count = self.questions.iter().take(PIPELINE).take_while(fits).count();
        let questions: Vec<_> = self.questions.drain(..count).collect();
        let (mut link, names) = (link.clone(), self.target.names.clone());
        let generation = self.generation;
        self.start(async move {
            let Link { commands, scripts, .. } = &mut link;
            let answers = calls::read(commands, scripts, &names, &questions).await;
            NodeEvent::Answered(generation, questions, answers)
        });
    }

    fn send_publications(&mut self, link: &Link) {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        let (tries_held, taken) = (self.now() >= self.next_publish, self.follows_taken);
        while batch.len() < PIPELINE
            && bytes < PIPELINE_BYTES
            && let Some(pending) =
                self.outbox.send_if(tries_held, |next: &NumberedPublication| next.after <= taken)
        {
            bytes += pending.bytes;
            batch.push(pending);
        }
        if batch.is_empty() {
            return;
        }
        self.is_publishing = true;
        let (mut link, names, epoch) = (link.clone(), self.target.names.clone(), self.draw());
        let generation = self.generation;
        self.start(async move {
            #[cfg(test)]
            assert!(batch.iter().all(|one| &*one.item.outgoing.channel != PANICS));
            let Link { commands, scripts, .. } = &mut link;
            let done = calls::publish(commands, scripts, &names, epoch, &batch).await;
            NodeEvent::Published(generation, done)
        });
    }
}
