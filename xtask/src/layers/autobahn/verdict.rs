//! Evaluates Autobahn's reports, accepting only strict passes.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::outcome::{Stop, Tally};

/// Number of cases without compression, for RFC 6455.
pub(super) const UNCOMPRESSED: usize = 301;

/// Number of cases with compression: 90 in group 12, 126 in group 13.
pub(super) const COMPRESSED: usize = 90 + 126;

/// Cases that examine behaviour that the specification leaves open; Autobahn never reports them as
/// OK.
const INFORMATIONAL: [&str; 3] = ["7.1.6", "7.13.1", "7.13.2"];

/// Evaluates each of these folders as a separate run of [`evaluate`].
pub(super) fn evaluate_each(folders: Vec<PathBuf>, expected: usize) -> Result<Tally, Stop> {
    let mut tally = Tally::default();
    for folder in folders {
        tally.add(evaluate(&[folder], expected)?);
    }
    Ok(tally)
}

/// Evaluates `index.json` in each of these folders of reports, as one. Fewer cases than `expected`
/// are a failure.
pub(super) fn evaluate(folders: &[PathBuf], expected: usize) -> Result<Tally, Stop> {
    let mut cases = Map::new();
    for folder in folders {
        cases.extend(read(&folder.join("index.json"))?);
    }
    let failures = failed_cases(&cases);
    for case in &failures {
        println!("FAILED {case}");
    }
    if !failures.is_empty() {
        let pages: Vec<_> =
            folders.iter().map(|folder| folder.join("index.html").display().to_string()).collect();
        println!("details of each case: {}", pages.join(" or "));
    }
    let mut tally = Tally { passed: cases.len() - failures.len(), failures };
    for number in cases.len() + 1..=expected {
        tally.record(&format!("case {number} of {expected}"), Err("not in the reports".into()));
    }
    Ok(tally)
}

/// Reads the cases of a report that has one agent.
fn read(file: &Path) -> Result<Map<String, Value>, Stop> {
    let problem = |why: String| Stop::Failed(format!("{}: {why}", file.display()));
    let text = std::fs::read_to_string(file).map_err(|error| problem(error.to_string()))?;
    let report: Value = serde_json::from_str(&text).map_err(|error| problem(error.to_string()))?;
    let agents = report.as_object().ok_or_else(|| problem("is not an object".into()))?;
    match agents.values().filter_map(Value::as_object).collect::<Vec<_>>()[..] {
        [cases] => Ok(cases.clone()),
        ref agents => Err(problem(format!("names {} agents, not one", agents.len()))),
    }
}

/// Returns the cases that did not pass strictly, in the order of their numbers.
fn failed_cases(cases: &Map<String, Value>) -> Vec<String> {
    let number =
        |id: &str| id.split('.').filter_map(|part| part.parse().ok()).collect::<Vec<u32>>();
    let mut ids: Vec<_> = cases.keys().collect();
    ids.sort_by_key(|id| number(id));
    ids.into_iter()
        .filter_map(|id| {
            let said = |what: &str| cases[id][what].as_str().unwrap_or("nothing");
            let (behavior, close) = (said("behavior"), said("behaviorClose"));
            let good = |word: &str| {
                word == "OK" || (word == "INFORMATIONAL" && INFORMATIONAL.contains(&id.as_str()))
            };
            (!good(behavior) || !good(close)).then(|| format!("{id}: {behavior}, closing {close}"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_a_strict_pass_is_a_pass() {
        let report = json!({
            "1.1.1": {"behavior": "OK", "behaviorClose": "OK"},
            "6.4.1": {"behavior": "NON-STRICT", "behaviorClose": "OK"},
            "10.1.1": {"behavior": "OK", "behaviorClose": "WRONG CODE"},
            "7.1.6": {"behavior": "INFORMATIONAL", "behaviorClose": "INFORMATIONAL"},
            "2.1": {"behavior": "INFORMATIONAL", "behaviorClose": "OK"},
            "2.2": {"behaviorClose": "OK"},
        });
        assert_eq!(
            failed_cases(report.as_object().unwrap()),
            [
                "2.1: INFORMATIONAL, closing OK",
                "2.2: nothing, closing OK",
                "6.4.1: NON-STRICT, closing OK",
                "10.1.1: OK, closing WRONG CODE",
            ]
        );
    }
}
