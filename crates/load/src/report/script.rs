//! The report of clients that follow a script.

use serde::Serialize;

use super::document::times;
use super::model::{Cell, Column, Table, Unit};
use crate::record::Summary;
use crate::row;
use crate::script::{Action, Script};
use crate::work::ScriptOutcome;

/// Clients that followed a script.
#[derive(Clone, Debug, Serialize)]
pub struct ScriptReport {
    /// The script's file.
    pub script: String,
    /// Measured time: until the last client had come to the end of the script, if that was earlier
    /// than planned.
    pub measured_s: f64,
    /// Completed loops and scripts within it.
    pub rounds: u64,
    /// Loops a second.
    pub rounds_per_s: f64,
    /// Messages sent within it.
    pub sent: u64,
    /// Sent messages a second.
    pub sent_per_s: f64,
    /// Messages compared within it.
    pub received: u64,
    /// Messages that were expected, and came, within it.
    pub answers: u64,
    /// Expected messages a second.
    pub answers_per_s: f64,
    /// Server CPU time (all threads) for each expected message.
    pub server_cpu_us_per_answer: Option<f64>,
    /// Clients that came to the end of the script.
    pub clients_finished: u64,
    /// Clients that were waiting for a message when the run was over.
    pub clients_waiting: u64,
    /// Messages that were dropped because a client that did not wait for one had too many.
    pub left_out: u64,
    /// From a client's last send to each expected message.
    pub latency: Option<Summary>,
    /// The lines of the script.
    pub steps: Vec<StepReport>,
    /// Descriptions of the first mismatches.
    pub mismatches: Vec<String>,
}

/// A line of a script.
#[derive(Clone, Debug, Serialize)]
pub struct StepReport {
    /// Its number, from 1.
    pub line: usize,
    /// The line itself.
    pub text: String,
    /// Number of times the step was done within the measured time.
    pub done: u64,
    /// Messages that came instead of the expected one.
    pub mismatches: u64,
    /// Number of times that no message came.
    pub missing: u64,
    /// From the client's last send to the expected message.
    pub latency: Option<Summary>,
}

impl ScriptReport {
    pub(crate) fn of(
        script: &Script,
        sum: &ScriptOutcome,
        measured_s: f64,
        server_cpu_us_per_answer: Option<f64>,
    ) -> Self {
        let waits = |action: &Action| matches!(action, Action::Receive { .. });
        let steps = script.steps().iter().zip(&sum.steps);
        let answers = steps.clone().filter(|(step, _)| waits(&step.action));
        let answers = answers.map(|(_, tally)| tally.done).sum();
        let steps = steps.map(|(step, tally)| StepReport {
            line: step.line,
            text: step.text.clone(),
            done: tally.done,
            mismatches: tally.mismatches,
            missing: tally.missing,
            latency: tally.latency.as_ref().and_then(|latency| latency.summary()),
        });
        Self {
            script: script.name().to_owned(),
            measured_s,
            rounds: sum.rounds,
            rounds_per_s: sum.rounds as f64 / measured_s,
            sent: sum.sent,
            sent_per_s: sum.sent as f64 / measured_s,
            received: sum.received,
            answers,
            answers_per_s: answers as f64 / measured_s,
            server_cpu_us_per_answer,
            clients_finished: sum.finished,
            clients_waiting: sum.waiting,
            left_out: sum.left_out,
            latency: sum.latency.summary(),
            steps: steps.collect(),
            mismatches: sum.examples.clone(),
        }
    }

    pub(super) fn tables(&self, limit: (Column, Cell)) -> Vec<Table> {
        let figure = |unit, label: &str, value: Cell| (Column::new("", unit, label), value);
        let none = |count: u64| Some(count).filter(|&count| count > 0);
        let list = Table::list(vec![
            figure(Unit::Count, "rounds", self.rounds.into()),
            figure(Unit::Number, "rounds a second", self.rounds_per_s.into()),
            figure(Unit::Count, "messages sent", self.sent.into()),
            figure(Unit::Count, "expected messages", self.answers.into()),
            figure(Unit::Number, "expected messages a second", self.answers_per_s.into()),
            figure(Unit::Seconds, "measured", self.measured_s.into()),
            figure(
                Unit::Us,
                "server CPU by expected message",
                self.server_cpu_us_per_answer.into(),
            ),
            figure(Unit::Count, "clients at the end of the script", self.clients_finished.into()),
            figure(Unit::Count, "clients still waiting", none(self.clients_waiting).into()),
            figure(Unit::Count, "messages left out", none(self.left_out).into()),
        ]);
        let columns = vec![
            Column::new("line", Unit::Count, "line"),
            Column::new("step", Unit::Text, "step"),
            Column::new("done", Unit::Count, "done"),
            Column::new("mismatches", Unit::Count, "mismatches"),
            Column::new("missing", Unit::Count, "missing"),
            Column::new("p50_us", Unit::Us, "p50"),
            Column::new("p99_us", Unit::Us, "p99"),
            Column::new("max_us", Unit::Us, "max"),
            Column::new(limit.0.key(), Unit::Text, ""),
        ];
        let rows = self.steps.iter().map(|step| {
            let latency = step.latency.as_ref();
            let waits = step.latency.is_some() || step.mismatches + step.missing > 0;
            let text: String = step.text.chars().take(40).collect();
            row![
                step.line,
                text,
                step.done,
                waits.then_some(step.mismatches),
                waits.then_some(step.missing),
                latency.map(|latency| latency.p50_us),
                latency.map(|latency| latency.p99_us),
                latency.map(|latency| latency.max_us),
                limit.1.clone(),
            ]
        });
        let steps = Table::new("Steps", columns).rows(rows).notes(self.mismatches.clone());
        vec![list, times(&[("latency", self.latency)]), steps]
    }
}
