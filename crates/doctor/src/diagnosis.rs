//! All rules applied to a machine.

use crate::facts::Facts;
use crate::finding::{Finding, Status};
use crate::question::Question;
use crate::rules::{Case, RULES, Rule};

/// A limit at which there are no more connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wall {
    /// The number of connections.
    pub connections: u64,
    /// The id of the rule.
    pub id: &'static str,
    /// The name of the limit.
    pub title: &'static str,
}

/// The findings of all rules.
#[derive(Clone, Debug, PartialEq)]
pub struct Diagnosis {
    /// The question.
    pub question: Question,
    /// The limits that stop connections, the lowest first.
    pub walls: Vec<Wall>,
    /// A finding for each rule, in the order of [`RULES`].
    pub findings: Vec<Finding>,
    /// A sentence on settings that the answer depends on; may be empty.
    pub note: String,
}

impl Diagnosis {
    /// Returns the number of connections that the machine holds; `None` if no limit is known.
    #[must_use]
    pub fn connections(&self) -> Option<u64> {
        self.walls.first().map(|wall| wall.connections)
    }

    /// Returns the number of findings of a state.
    #[must_use]
    pub fn count(&self, status: Status) -> usize {
        self.findings.iter().filter(|finding| finding.status == status).count()
    }

    /// Returns the finding of a rule.
    #[must_use]
    pub fn finding(&self, id: &str) -> Option<&Finding> {
        self.findings.iter().find(|finding| finding.id == id)
    }
}

/// Applies all rules.
#[must_use]
pub fn diagnose(facts: &Facts, question: &Question) -> Diagnosis {
    let case = Case::new(facts, question);
    let findings: Vec<Finding> =
        RULES.iter().flat_map(|of| *of).map(|it| apply(it, &case)).collect();
    let wall = |finding: &Finding| {
        let Finding { id, title, .. } = *finding;
        Some(Wall { connections: finding.wall?, id, title })
    };
    let mut walls: Vec<Wall> = findings.iter().filter_map(wall).collect();
    walls.sort_by_key(|wall| wall.connections);
    let note = case.note(walls.first().is_some_and(|first| first.id == "nofile-hard"));
    Diagnosis { question: question.clone(), walls, findings, note }
}

/// Returns the findings of the rules that a start checks, if they warn or fail. These rules read
/// few files and measure nothing.
#[must_use]
pub fn at_start(facts: &Facts, question: &Question) -> Vec<Finding> {
    let case = Case::new(facts, question);
    let rules = RULES.iter().flat_map(|of| *of).filter(|rule| rule.at_start);
    let findings = rules.map(|rule| apply(rule, &case));
    findings.filter(|it| matches!(it.status, Status::Fail | Status::Warn)).collect()
}

fn apply(rule: &'static Rule, case: &Case<'_>) -> Finding {
    Finding::of([rule.id, rule.title, rule.formula, rule.source], (rule.check)(case))
}
