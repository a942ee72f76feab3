//! Clients that follow a script: each client sends, waits for an expected message, and continues.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use throng_engine::{Close, Core, Cx, Message};
use throng_io::Instant;

use crate::client::{ClientPool, Timeline, Work};
use crate::merge::{Merge, tally};
use crate::plan::Plan;
use crate::record::Record;
use crate::script::{Script, ScriptAction};
use crate::template::{Template, Tokens, Values};

/// Messages kept for a client that is not waiting for a message. Further messages are dropped and
/// counted.
const MAX_KEPT: usize = 256;
/// Characters of a message in a description.
const SHOWN: usize = 80;
/// Maximum kept descriptions of mismatches.
const MAX_EXAMPLES: usize = 10;

/// The work of a thread whose clients follow a script.
#[derive(Debug)]
pub(crate) struct ScriptWork {
    script: Arc<Script>,
    tokens: Tokens,
    /// Number of the thread's first connection among all.
    first: usize,
    seed: u64,
    timeout: Duration,
    clients: Vec<Follower>,
    /// When paused clients continue.
    pauses: BinaryHeap<Reverse<(Instant, u32)>>,
    next_sweep: Option<Instant>,
    timeline: Option<Timeline>,
    /// Clients of all threads that have finished or have lost their connection.
    ended: Arc<AtomicU64>,
    /// The text of a message or an expectation.
    scratch: String,
    outcome: ScriptOutcome,
}

/// A client that follows the script.
#[derive(Clone, Debug)]
struct Follower {
    step: usize,
    state: ScriptState,
    /// Messages sent.
    sent: u64,
    sent_at: Instant,
    /// Completed rounds of the current loop.
    turns: u64,
    kept: VecDeque<(Instant, bool, Box<[u8]>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScriptState {
    /// Not begun, or between two steps.
    Ready,
    /// The client waits for a message since this time.
    Waiting(Instant),
    Pausing,
    Ended,
}

tally! {
    /// The measurements of one thread.
    pub(crate) struct ScriptOutcome {
        /// By step, in the order of the script.
        pub(crate) steps: Vec<StepTally>,
        /// From the last send to each expected message.
        pub(crate) latency: Record,
        pub(crate) sent: u64,
        pub(crate) received: u64,
        pub(crate) rounds: u64,
        pub(crate) left_out: u64,
        /// Clients that finished, and clients that were waiting for a message when the run ended.
        pub(crate) finished: u64,
        pub(crate) waiting: u64,
        pub(crate) examples: Vec<String>,
    }
}

tally! {
    /// The counts of a step within the measured time; failures count from the start.
    pub(crate) struct StepTally {
        pub(crate) done: u64,
        pub(crate) mismatches: u64,
        pub(crate) missing: u64,
        /// Only set for steps that wait for a message, because a record is large.
        pub(crate) latency: Option<Box<Record>>,
    }
}

impl Merge for Vec<StepTally> {
    fn merge(&mut self, other: Self) {
        self.resize_with(other.len(), StepTally::default);
        self.iter_mut().zip(other).for_each(|(sum, more)| sum.merge(more));
    }
}

impl Merge for Option<Box<Record>> {
    fn merge(&mut self, other: Self) {
        if let Some(other) = other {
            self.get_or_insert_default().merge(&other);
        }
    }
}

impl Merge for Vec<String> {
    fn merge(&mut self, other: Self) {
        self.extend(other);
        self.truncate(MAX_EXAMPLES);
    }
}

impl ScriptOutcome {
    /// Returns the number of expected messages that arrived.
    pub(crate) fn answers(&self) -> u64 {
        self.steps.iter().filter(|step| step.latency.is_some()).map(|step| step.done).sum()
    }
}

impl ScriptWork {
    pub(crate) fn new(
        plan: &Plan,
        script: &Arc<Script>,
        thread: usize,
        connections: usize,
        timeout: Duration,
        ended: Arc<AtomicU64>,
    ) -> Self {
        let follower = Follower {
            step: 0,
            state: ScriptState::Ready,
            sent: 0,
            sent_at: Instant(0),
            turns: 0,
            kept: VecDeque::new(),
        };
        let steps = script.steps().iter().map(|step| StepTally {
            latency: matches!(step.action, ScriptAction::Receive { .. }).then(Box::default),
            ..StepTally::default()
        });
        Self {
            tokens: plan.common.tokens.clone(),
            first: plan.common.first(thread),
            seed: RandomState::new().hash_one(thread),
            timeout,
            clients: vec![follower; connections],
            pauses: BinaryHeap::new(),
            next_sweep: None,
            timeline: None,
            ended,
            scratch: String::new(),
            outcome: ScriptOutcome { steps: steps.collect(), ..ScriptOutcome::default() },
            script: Arc::clone(script),
        }
    }

    fn counts(&self, now: Instant) -> bool {
        self.timeline.is_some_and(|timeline| timeline.counts(now))
    }

    /// Fills in a template for a client. An expectation uses the values of the last sent message.
    fn fill(&mut self, template: &Template, index: usize, sequence: u64) {
        let client = (self.first + index) as u64;
        let values = Values { client, sequence, seed: self.seed, tokens: &self.tokens };
        self.scratch.clear();
        template.render(&values, &mut self.scratch);
    }

    /// Performs steps until a step has to wait.
    fn advance(&mut self, pool: &mut ClientPool, core: &mut Core, index: usize, now: Instant) {
        let script = Arc::clone(&self.script);
        loop {
            let at = self.clients[index].step;
            let Some(step) = script.steps().get(at) else { return self.end(index, now) };
            match &step.action {
                ScriptAction::Send { payload, is_text } => {
                    let number = self.clients[index].sent;
                    self.fill(payload, index, number);
                    let message = match is_text {
                        true => Message::Text(&self.scratch),
                        false => Message::Binary(self.scratch.as_bytes()),
                    };
                    pool.note_sent(core.send(pool.id(index), message));
                    let client = &mut self.clients[index];
                    (client.sent, client.sent_at, client.step) = (number + 1, now, at + 1);
                    let counted = u64::from(self.counts(now));
                    self.outcome.sent += counted;
                    self.outcome.steps[at].done += counted;
                }
                ScriptAction::Receive { .. } => {
                    self.clients[index].state = ScriptState::Waiting(now);
                    let Some((came_at, is_text, bytes)) = self.clients[index].kept.pop_front()
                    else {
                        return;
                    };
                    // If the message is skipped, the same step handles the next message.
                    self.receive(pool, index, (is_text, &bytes), came_at, now);
                }
                ScriptAction::Pause(time) => {
                    let client = &mut self.clients[index];
                    (client.state, client.step) = (ScriptState::Pausing, at + 1);
                    self.pauses.push(Reverse((now.after(*time), index as u32)));
                    self.outcome.steps[at].done += u64::from(self.counts(now));
                    return;
                }
                ScriptAction::Repeat { to, times } => {
                    let client = &mut self.clients[index];
                    client.turns += 1;
                    let is_over = times.is_some_and(|times| client.turns >= times);
                    client.step = if is_over { at + 1 } else { *to };
                    client.turns = if is_over { 0 } else { client.turns };
                    let counted = u64::from(self.counts(now));
                    self.outcome.rounds += counted;
                    self.outcome.steps[at].done += counted;
                }
            }
        }
    }

    fn end(&mut self, index: usize, now: Instant) {
        let client = &mut self.clients[index];
        client.state = ScriptState::Ended;
        client.kept = VecDeque::new();
        self.outcome.finished += 1;
        let repeats = |action: &ScriptAction| matches!(action, ScriptAction::Repeat { .. });
        if !self.script.steps().last().is_some_and(|step| repeats(&step.action)) {
            self.outcome.rounds += u64::from(self.counts(now));
        }
        self.ended.fetch_add(1, Ordering::Relaxed);
    }

    /// Compares a message that arrived at `came_at` with the waiting step. The step is then
    /// complete, unless it skips unexpected messages.
    fn receive(
        &mut self,
        pool: &mut ClientPool,
        index: usize,
        (is_text, bytes): (bool, &[u8]),
        came_at: Instant,
        now: Instant,
    ) {
        let script = Arc::clone(&self.script);
        let at = self.clients[index].step;
        let Some(step) = script.steps().get(at) else { return };
        let ScriptAction::Receive { part, skips_others } = &step.action else { return };
        let sent = self.clients[index].sent;
        self.fill(part, index, sent.saturating_sub(1));
        let counts = self.counts(now);
        self.outcome.received += u64::from(counts);
        let matches = contains(bytes, self.scratch.as_bytes());
        if !matches && *skips_others {
            return;
        }
        let client = &mut self.clients[index];
        (client.state, client.step) = (ScriptState::Ready, at + 1);
        if !matches {
            self.outcome.steps[at].mismatches += 1;
            let why = format!(
                "{}:{}: connection {} expected {:?}, and {} came",
                script.name(),
                step.line,
                self.first + index,
                shortened(&self.expected(part, index, sent.saturating_sub(1))),
                self.describe(part, index, is_text, bytes),
            );
            return self.note(pool, why, |pool| &mut pool.errors.wrong_answers);
        }
        pool.count_done();
        if !counts {
            return;
        }
        let tally = &mut self.outcome.steps[at];
        tally.done += 1;
        // A message before any send is not an answer.
        let sent_at = self.clients[index].sent_at;
        if sent > 0 && came_at >= sent_at {
            let ns = came_at.since(sent_at).as_nanos() as u64;
            self.outcome.latency.add(ns);
            if let Some(latency) = &mut tally.latency {
                latency.add(ns);
            }
        }
    }

    /// Returns the expected text in a form that a report may show.
    #[cold]
    fn expected<'a>(&self, part: &'a Template, index: usize, sequence: u64) -> Cow<'a, str> {
        let client = (self.first + index) as u64;
        part.rendered(&Values { client, sequence, seed: self.seed, tokens: &Tokens::hidden() })
    }

    /// Describes a message that arrived instead of `part`, in a form that a report may show: if a
    /// token was expected, the message may be another token.
    #[cold]
    fn describe(&self, part: &Template, index: usize, is_text: bool, bytes: &[u8]) -> String {
        let kind = if is_text { "" } else { "binary " };
        if part.needs_token() {
            return format!("a {kind}message of {} bytes", bytes.len());
        }
        let token = self.tokens.of((self.first + index) as u64);
        let mut text = String::from_utf8_lossy(bytes);
        if !token.is_empty() {
            text = text.replace(token, "{token}").into();
        }
        format!("{kind}{:?}", shortened(&text))
    }

    #[cold]
    fn note(
        &mut self,
        pool: &mut ClientPool,
        why: String,
        kind: impl FnOnce(&mut ClientPool) -> &mut u64,
    ) {
        *kind(pool) += 1;
        if self.outcome.examples.len() < MAX_EXAMPLES {
            self.outcome.examples.push(why.clone());
        }
        pool.errors.note(|| why);
    }

    /// Lets clients continue that have waited too long for a message.
    fn sweep(&mut self, pool: &mut ClientPool, core: &mut Core, now: Instant) {
        let script = Arc::clone(&self.script);
        for index in 0..self.clients.len() {
            let ScriptState::Waiting(since) = self.clients[index].state else { continue };
            if now.since(since) < self.timeout {
                continue;
            }
            let at = self.clients[index].step;
            let step = &script.steps()[at];
            self.outcome.steps[at].missing += 1;
            let why = format!(
                "{}:{}: connection {} waited {} s for `{}`, and nothing came",
                script.name(),
                step.line,
                self.first + index,
                self.timeout.as_secs_f64(),
                shortened(&step.text),
            );
            self.note(pool, why, |pool| &mut pool.errors.missing_answers);
            let client = &mut self.clients[index];
            (client.state, client.step) = (ScriptState::Ready, at + 1);
            self.advance(pool, core, index, now);
        }
        self.next_sweep = Some(now.after((self.timeout / 4).min(Duration::from_secs(1))));
    }
}

impl Work for ScriptWork {
    type Outcome = ScriptOutcome;

    fn on_start(&mut self, pool: &mut ClientPool, core: &mut Core, timeline: Timeline) {
        self.timeline = Some(timeline);
        self.next_sweep = Some(timeline.start.after(self.timeout / 4));
        for index in 0..self.clients.len() {
            let now = pool.clock.now();
            self.advance(pool, core, index, now);
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let pause = self.pauses.peek().map(|&Reverse((at, _))| at);
        [pause, self.next_sweep].into_iter().flatten().min()
    }

    fn on_deadline(&mut self, pool: &mut ClientPool, core: &mut Core, now: Instant) {
        while let Some(&Reverse((at, index))) = self.pauses.peek()
            && at <= now
        {
            self.pauses.pop();
            if self.clients[index as usize].state == ScriptState::Pausing {
                self.clients[index as usize].state = ScriptState::Ready;
                self.advance(pool, core, index as usize, now);
            }
        }
        if self.next_sweep.is_some_and(|at| at <= now) {
            self.sweep(pool, core, now);
        }
    }

    fn on_message(
        &mut self,
        pool: &mut ClientPool,
        cx: &mut Cx<'_>,
        index: usize,
        message: Message<'_>,
        now: Instant,
    ) {
        let (is_text, bytes) = (matches!(message, Message::Text(_)), message.as_bytes());
        let client = &mut self.clients[index];
        match client.state {
            ScriptState::Waiting(_) => {
                self.receive(pool, index, (is_text, bytes), now, now);
                if self.clients[index].state == ScriptState::Ready {
                    self.advance(pool, cx.core(), index, now);
                }
            }
            ScriptState::Ready | ScriptState::Pausing if client.kept.len() < MAX_KEPT => {
                client.kept.push_back((now, is_text, bytes.into()));
            }
            ScriptState::Ready | ScriptState::Pausing => self.outcome.left_out += 1,
            ScriptState::Ended => {}
        }
    }

    fn on_close(&mut self, pool: &mut ClientPool, index: usize, close: Close<'_>) {
        // A server may end a session that has finished its script.
        if self.clients[index].state != ScriptState::Ended {
            self.clients[index].state = ScriptState::Ended;
            self.ended.fetch_add(1, Ordering::Relaxed);
            pool.note_lost(index, close);
        }
    }

    fn finish(&mut self, _: &mut ClientPool, _: Instant) -> ScriptOutcome {
        let is_waiting = |client: &&Follower| matches!(client.state, ScriptState::Waiting(_));
        self.outcome.waiting = self.clients.iter().filter(is_waiting).count() as u64;
        std::mem::take(&mut self.outcome)
    }
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    match (str::from_utf8(bytes), str::from_utf8(part)) {
        (Ok(text), Ok(part)) => text.contains(part),
        _ => part.is_empty() || bytes.windows(part.len()).any(|window| window == part),
    }
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}
