//! The checks of the machine and the settings when `serve` and `balance` start.

use throng_doctor::{Finding, Question, ReadOptions, at_start, facts};

use crate::failure::Failure;
use crate::log::{Log, events};

/// Checks the rules of a start, and logs each that warns or fails. Returns their sentences, for the
/// status.
///
/// # Errors
/// `strict`, and there is one.
pub(crate) fn check_start(
    question: &Question,
    strict: bool,
    log: Option<&Log>,
) -> Result<Vec<String>, Failure> {
    let found = at_start(&facts::read(&ReadOptions::default()), question);
    if let Some(log) = log {
        for finding in &found {
            let fields = [("rule", finding.id.into()), ("status", finding.status.word().into())];
            log.event(&events::CHECK, finding.sentence(), fields);
        }
    }
    let sentences: Vec<String> = found.iter().map(Finding::sentence).collect();
    match strict && !sentences.is_empty() {
        true => Err(Failure::usage(format!("strict_start is true, and {}", sentences.join("; ")))),
        false => Ok(sentences),
    }
}
