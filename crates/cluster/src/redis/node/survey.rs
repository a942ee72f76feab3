//! Questions to all nodes, which have a time limit.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use redis::RedisError;

use super::super::link::Link;
use super::super::open::LIMIT;
use super::super::pool::Reserved;
use super::super::reply::{AskError, Reply, Waiting};
use super::super::{Bus, Outgoing, ReceiverCount};
use crate::announcement::number;
use crate::outcome::{PublishOutcome, Ticket};
use crate::redis::node::{self, Node};
use crate::survey::{Content, MAX_BROADCAST, MAX_CONTENT, Survey};

/// Maximum nodes whose answers to one question are counted.
const MAX_ANSWERS: usize = 4_096;

/// Maximum bytes of the answers to one question of the program.
const MAX_ANSWER_BYTES: usize = 4 << 20;

/// An event of questions and their timeouts, with the generation of its connection.
#[derive(Debug)]
pub(crate) enum SurveyInput {
    Ask(Arc<str>, Instant, Waiting<Counted>),
    Own(Box<[u8]>, Instant, Waiting<Surveyed>),
    Broadcast(Box<[u8]>, Instant, Waiting<Counted>),
    Publish(Outgoing, Reserved, Duration, Waiting<Counted>),
    Asked(u64, u64, Result<HashSet<u64>, RedisError>),
    Answered(u64, Result<(), RedisError>),
}

/// The subscribers of a channel on all nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counted {
    /// The total of the nodes that have answered.
    pub total: u64,
    /// Nodes that have not answered in time, in order.
    pub missing: Vec<u64>,
}

/// The answers of nodes to a question of the program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Surveyed {
    /// The nodes that have answered, in order, with their answers.
    pub answers: Vec<(u64, Vec<u8>)>,
    /// Nodes that have not answered in time, in order.
    pub missing: Vec<u64>,
}

/// The kind of a question, its answers so far, and its waiting caller.
#[derive(Debug)]
enum Answers {
    Counts(Waiting<Counted>, HashMap<u64, u64>),
    Own(Waiting<Surveyed>, HashMap<u64, Vec<u8>>),
}

#[derive(Debug)]
struct Question {
    answers: Answers,
    due: u64,
    /// Nodes that must answer; `None` until they are known.
    nodes: Option<HashSet<u64>>,
}

impl Question {
    fn missing(&self) -> Option<Vec<u64>> {
        let has_answered = |node: &u64| match &self.answers {
            Answers::Counts(_, counts) => counts.contains_key(node),
            Answers::Own(_, answers) => answers.contains_key(node),
        };
        let nodes = self.nodes.as_ref()?.iter().copied();
        let mut missing: Vec<_> = nodes.filter(|node| !has_answered(node)).collect();
        missing.sort_unstable();
        Some(missing)
    }

    /// Records an answer, if it fits the question and there is capacity for it.
    fn take(&mut self, node: u64, content: Content<'_>) {
        match (&mut self.answers, content) {
            (Answers::Counts(_, counts), Content::Count(count)) if counts.len() < MAX_ANSWERS => {
                counts.insert(node, count);
            }
            (Answers::Own(_, answers), Content::Answer(answer)) => {
                let bytes: usize = answers.values().map(Vec::len).sum();
                if answers.len() < MAX_ANSWERS && bytes + answer.len() <= MAX_ANSWER_BYTES {
                    answers.insert(node, answer.to_vec());
                }
            }
            _ => {}
        }
    }

    fn end(self) {
        let missing = self.missing().ok_or(AskError::NoAnswer);
        match self.answers {
            Answers::Counts(waiting, counts) => {
                let total = counts.values().fold(0, |sum: u64, count| sum.saturating_add(*count));
                waiting.answer(missing.map(|missing| Counted { total, missing }));
            }
            Answers::Own(waiting, answers) => {
                let mut answers: Vec<_> = answers.into_iter().collect();
                answers.sort_unstable();
                waiting.answer(missing.map(|missing| Surveyed { answers, missing }));
            }
        }
    }

    fn fail(self, error: AskError) {
        match self.answers {
            Answers::Counts(waiting, _) => waiting.answer(Err(error)),
            Answers::Own(waiting, _) => waiting.answer(Err(error)),
        }
    }
}

/// The questions of a node that wait for answers.
#[derive(Debug, Default)]
pub(super) struct SurveyState {
    questions: HashMap<u64, Question>,
    /// Publications that have no outcome yet, by their number.
    unpublished: HashMap<u64, Unpublished>,
}

/// A publication whose receivers must be counted.
#[derive(Debug)]
struct Unpublished {
    channel: Arc<str>,
    limit: Duration,
    waiting: Waiting<Counted>,
}

impl SurveyState {
    /// Returns when the next question times out.
    pub(super) fn next_due(&self) -> Option<u64> {
        self.questions.values().map(|question| question.due).min()
    }

    /// Ends the questions that have timed out.
    pub(super) fn expire(&mut self, now: u64) {
        self.questions
            .extract_if(|_, question| question.due <= now)
            .for_each(|(_, question)| question.end());
    }

    /// Cancels the count for a publication that does not reach the broker.
    pub(super) fn forget(&mut self, number: u64) {
        self.unpublished.remove(&number);
    }

    fn end_if_complete(&mut self, number: u64) {
        let missing = self.questions.get(&number).and_then(Question::missing);
        if missing.is_some_and(|missing| missing.is_empty())
            && let Some(question) = self.questions.remove(&number)
        {
            question.end();
        }
    }
}

/// Returns when a question asked now times out.
fn due_in(limit: Duration) -> Instant {
    Instant::now() + limit.min(LIMIT)
}

impl Bus {
    /// Asks all nodes for the subscribers of a channel. Nodes that do not answer within `limit`, at
    /// most five seconds, are listed in the answer.
    pub fn count(&self, channel: Arc<str>, limit: Duration) -> Reply<Counted> {
        let (reply, waiting) = Waiting::begin(&self.asks);
        if let Some(waiting) = waiting {
            let part = self.part_of(&channel);
            let event = SurveyInput::Ask(channel, due_in(limit), waiting);
            let _ = self.events.send(part, node::NodeEvent::Survey(event));
        }
        reply
    }

    /// Asks all nodes, this node included, a question of the program, of at most 64 KiB, which
    /// [`Members::answer`](super::super::Members::answer) answers. Nodes that do not answer within
    /// `limit`, at most five seconds, are listed in the answer, as are nodes whose answers do not
    /// fit in 4 MiB.
    pub fn survey(&self, question: &[u8], limit: Duration) -> Reply<Surveyed> {
        let (reply, waiting) = Waiting::begin(&self.asks);
        let Some(waiting) = waiting else { return reply };
        if question.len() > MAX_CONTENT {
            let why = format!("a question has {MAX_CONTENT} bytes at most");
            waiting.answer(Err(AskError::Failed(why)));
        } else {
            let event = SurveyInput::Own(question.into(), due_in(limit), waiting);
            let _ = self.events.send(self.part_of_nodes(), node::NodeEvent::Survey(event));
        }
        reply
    }

    /// Sends an [encoded](crate::encode) message to all receivers of all nodes, this node included,
    /// and counts them. Nodes that do not answer within `limit`, at most five seconds, are listed
    /// in the answer: they are disconnected, or some of their receivers may not get it.
    pub fn broadcast(&self, envelope: Vec<u8>, limit: Duration) -> Reply<Counted> {
        let (reply, waiting) = Waiting::begin(&self.asks);
        let Some(waiting) = waiting else { return reply };
        if envelope.len() > MAX_BROADCAST {
            let why = format!("a broadcast has {MAX_BROADCAST} bytes at most");
            waiting.answer(Err(AskError::Failed(why)));
        } else {
            let event = SurveyInput::Broadcast(envelope.into(), due_in(limit), waiting);
            let _ = self.events.send(self.part_of_nodes(), node::NodeEvent::Survey(event));
        }
        reply
    }

    /// Publishes as [`publish`](Self::publish), then asks all nodes for the subscribers of the
    /// channel, as [`count`](Self::count) does.
    pub fn publish_counted(&self, outgoing: Outgoing, limit: Duration) -> Reply<Counted> {
        let (reply, waiting) = Waiting::begin(&self.asks);
        // If the publication cannot be counted, it is not published.
        let Some(waiting) = waiting else { return reply };
        let part = self.part_of(&outgoing.channel);
        if let Some((_, reserved)) = self.admit(part, &outgoing, None) {
            let event = SurveyInput::Publish(outgoing, reserved, limit.min(LIMIT), waiting);
            let _ = self.events.send(part, node::NodeEvent::Survey(event));
        } else {
            waiting.answer(Err(AskError::Refused));
        }
        reply
    }
}

impl Node {
    pub(super) fn on_survey(&mut self, event: SurveyInput) {
        match event {
            SurveyInput::Ask(channel, due, waiting) => self.count_all(&channel, due, waiting),
            SurveyInput::Own(question, due, waiting) => {
                let answers = Answers::Own(waiting, HashMap::new());
                self.ask_all(Content::Own(&question), due, answers);
            }
            SurveyInput::Broadcast(envelope, due, waiting) => {
                let answers = Answers::Counts(waiting, HashMap::new());
                self.ask_all(Content::Broadcast(&envelope), due, answers);
            }
            SurveyInput::Publish(outgoing, reserved, limit, waiting) => {
                let channel = Arc::clone(&outgoing.channel);
                if let Some(number) = self.publish(outgoing, reserved, Ticket::default()) {
                    let unpublished = Unpublished { channel, limit, waiting };
                    self.survey.unpublished.insert(number, unpublished);
                }
            }
            SurveyInput::Asked(generation, asked, nodes) if generation == self.link.generation => {
                match nodes {
                    Ok(mut nodes) => {
                        // This node's first heartbeat may follow later.
                        nodes.insert(self.target.names.node);
                        if let Some(question) = self.survey.questions.get_mut(&asked) {
                            question.nodes = Some(nodes);
                        }
                        self.survey.end_if_complete(asked);
                    }
                    Err(error) => {
                        if let Some(question) = self.survey.questions.remove(&asked) {
                            question.fail(AskError::Failed(error.to_string()));
                        }
                        self.failed(&error);
                    }
                }
            }
            SurveyInput::Answered(generation, Err(error)) if generation == self.link.generation => {
                self.failed(&error);
            }
            // Events of replaced connections.
            _ => {}
        }
    }

    /// Records that a publication has an outcome: if it was published, its receivers are counted.
    pub(super) fn count_receivers(&mut self, number: u64, outcome: PublishOutcome) {
        let Some(one) = self.survey.unpublished.remove(&number) else { return };
        match outcome {
            PublishOutcome::Taken => {
                self.count_all(&one.channel, due_in(one.limit), one.waiting);
            }
            PublishOutcome::Refused => one.waiting.answer(Err(AskError::Refused)),
            PublishOutcome::Unknown => one.waiting.answer(Err(AskError::Unknown)),
        }
    }

    /// Returns whether receivers of a publication must be counted.
    pub(super) fn awaits_receivers(&self) -> bool {
        !self.survey.unpublished.is_empty()
    }

    fn count_all(&mut self, channel: &str, due: Instant, waiting: Waiting<Counted>) {
        let answers = Answers::Counts(waiting, HashMap::new());
        self.ask_all(Content::Subscribers(channel), due, answers);
    }

    fn ask_all(&mut self, content: Content<'_>, due: Instant, answers: Answers) {
        // Without a connection there is no answer.
        let Some(Link { commands, .. }) = self.link.open.clone() else { return };
        let (asked, due) = (self.clock.draw(), self.clock.at(due));
        self.survey.questions.insert(asked, Question { answers, due, nodes: None });
        let survey = Survey { number: asked, node: self.target.names.node, content };
        let mut pipeline = redis::Pipeline::with_capacity(2);
        pipeline.cmd("SMEMBERS").arg(format!("{}.nodes", self.target.names.prefix));
        pipeline
            .cmd(self.target.names.publish())
            .arg(self.target.names.control(None))
            .arg(survey.encode())
            .ignore();
        let (mut connection, generation) = (commands, self.link.generation);
        self.start(async move {
            let nodes: Result<(Vec<Vec<u8>>,), RedisError> =
                pipeline.query_async(&mut connection).await;
            let of = |node: &Vec<u8>| number(node.as_slice().try_into().ok()?).ok();
            let nodes = nodes.map(|(nodes,)| nodes.iter().filter_map(of).collect());
            node::NodeEvent::Survey(SurveyInput::Asked(generation, asked, nodes))
        });
    }

    /// Answers a question of a node, or records the answer to one.
    pub(super) fn take_survey(&mut self, Survey { number, node, content }: Survey<'_>) {
        let own = self.target.names.node;
        let answer = match content {
            Content::Count(_) | Content::Answer(_) => {
                if let Some(question) = self.survey.questions.get_mut(&number) {
                    question.take(node, content);
                    self.survey.end_if_complete(number);
                }
                return;
            }
            Content::Subscribers(channel) => {
                let content = Content::Count(self.members.borrow_mut().subscribers(channel));
                Survey { number, node: own, content }.encode()
            }
            Content::Own(question) => {
                let answer = self.members.borrow_mut().answer(question);
                let Some(answer) = answer.filter(|answer| answer.len() <= MAX_CONTENT) else {
                    return;
                };
                Survey { number, node: own, content: Content::Answer(&answer) }.encode()
            }
            Content::Broadcast(envelope) => {
                let receivers = self.members.borrow_mut().broadcast(envelope);
                match receivers {
                    Some(receivers) => self.answer_when_counted(number, node, receivers),
                    None => drop(self.own.counters().malformed.fetch_add(1, Ordering::Relaxed)),
                }
                return;
            }
        };
        self.answer(node, async move { Some(answer) });
    }

    /// Answers a broadcast of a node when its receivers here are counted.
    fn answer_when_counted(&self, number: u64, node: u64, receivers: ReceiverCount) {
        let own = self.target.names.node;
        self.answer(node, async move {
            // Later, the asker has its answer.
            let counted = tokio::time::timeout(LIMIT, receivers).await.ok()??;
            Some(Survey { number, node: own, content: Content::Count(counted) }.encode())
        });
    }

    /// Sends an answer to a node, if there is one.
    fn answer(&self, node: u64, answer: impl Future<Output = Option<Vec<u8>>> + Send + 'static) {
        let Some(Link { commands, .. }) = self.link.open.clone() else { return };
        let mut publish = redis::cmd(self.target.names.publish());
        publish.arg(self.target.names.control(Some(node)));
        let (mut connection, generation) = (commands, self.link.generation);
        self.start(async move {
            let done = match answer.await {
                Some(answer) => publish.arg(answer).query_async::<()>(&mut connection).await,
                None => Ok(()),
            };
            node::NodeEvent::Survey(SurveyInput::Answered(generation, done))
        });
    }
}
