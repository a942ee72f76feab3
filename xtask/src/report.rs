//! Runs the layers and reports the results.

use std::io::Write;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use crate::arguments::Selection;
use crate::layers::{CARGO, LAYERS, Layer};
use crate::outcome::{Stop, Tally};
use crate::site::Site;

struct Row {
    layer: &'static str,
    result: Result<Tally, Stop>,
    took: Duration,
}

/// Runs every selected layer, prints the table and ends with `N passed, N failed`.
pub(crate) fn run_layers(site: &Site, selection: &Selection) -> ExitCode {
    let layers: Vec<&Layer> = LAYERS.iter().filter(|layer| selection.includes(layer)).collect();
    let after_cargo = layers.iter().position(|layer| layer.name == CARGO).map_or(0, |at| at + 1);
    let (ahead, rest) = layers.split_at(after_cargo);
    let mut rows = run_beside(site, ahead, rest);
    rows.extend(rest.iter().map(|layer| run_one(site, layer)));
    let (table, total) = summary(rows, site.ci);
    print!("\n{table}\n{} passed, {} failed\n", total.passed, total.failures.len());
    if total.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) }
}

/// Runs the layers `ahead`, and builds the requirements of the others in parallel.
fn run_beside(site: &Site, ahead: &[&'static Layer], others: &[&'static Layer]) -> Vec<Row> {
    thread::scope(|scope| {
        if !ahead.is_empty() {
            scope.spawn(|| {
                for prepare in others.iter().filter_map(|layer| layer.prepare) {
                    // An error here occurs again when the layer runs, which then reports it.
                    let _ = prepare(site);
                }
            });
        }
        ahead.iter().map(|layer| run_one(site, layer)).collect()
    })
}

fn run_one(site: &Site, layer: &'static Layer) -> Row {
    println!("\n=== {}: {} ===", layer.name, layer.about);
    let start = Instant::now();
    let result = (layer.run)(site);
    let row = Row { layer: layer.name, result, took: start.elapsed() };
    match &row.result {
        Ok(tally) => {
            let failed = tally.failures.len();
            println!("--- {}: {} passed, {failed} failed", row.layer, tally.passed)
        }
        Err(Stop::Failed(why)) => println!("--- {}: FAILED: {why}", row.layer),
        Err(Stop::Missing(what)) => println!("--- {}: skipped: {what}", row.layer),
    }
    let _ = std::io::stdout().flush();
    row
}

/// Returns the table of results, followed by failures and missing programs, and the sum of all
/// tests. A layer that could not finish counts as one failure.
fn summary(rows: Vec<Row>, ci: bool) -> (String, Tally) {
    let mut table = format!("{:<20} {:<34} {:>8}\n", "layer", "result", "seconds");
    let mut reasons = String::new();
    let mut total = Tally::default();
    for Row { layer, result, took } in rows {
        let (text, tally) = match result {
            Ok(tally) => (counts(&tally), tally),
            Err(Stop::Failed(why)) => ("FAILED".to_owned(), failure(why)),
            Err(Stop::Missing(what)) if ci => {
                ("FAILED: something is missing".to_owned(), failure(what))
            }
            Err(Stop::Missing(what)) => {
                reasons.push_str(&format!("{layer}: {what}\n"));
                ("skipped: something is missing".to_owned(), Tally::default())
            }
        };
        table.push_str(&format!("{layer:<20} {text:<34} {:>8.1}\n", took.as_secs_f64()));
        for why in &tally.failures {
            reasons.push_str(&format!("{layer}: {why}\n"));
        }
        total.add(tally);
    }
    (table + &reasons, total)
}

fn counts(tally: &Tally) -> String {
    match tally.failures.len() {
        0 => format!("ok, {} passed", tally.passed),
        failed => format!("FAILED, {failed} of {}", tally.passed + failed),
    }
}

fn failure(why: String) -> Tally {
    Tally { passed: 0, failures: vec![why] }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(result: Result<Tally, Stop>) -> Row {
        Row { layer: "some", result, took: Duration::from_secs(1) }
    }

    #[test]
    fn a_missing_program_fails_on_ci_only() {
        let rows = || {
            vec![
                row(Ok(Tally { passed: 3, failures: Vec::new() })),
                row(Err(Stop::Missing("no python2.7".into()))),
            ]
        };
        let missing = vec!["no python2.7".to_owned()];
        assert_eq!(summary(rows(), false).1, Tally { passed: 3, failures: Vec::new() });
        assert_eq!(summary(rows(), true).1, Tally { passed: 3, failures: missing });
        for ci in [false, true] {
            assert!(summary(rows(), ci).0.contains("no python2.7"));
        }
    }

    #[test]
    fn failures_are_added_up() {
        let failures = vec!["a".to_owned(), "b: why".to_owned()];
        let rows =
            vec![row(Ok(Tally { passed: 3, failures })), row(Err(Stop::Failed("it broke".into())))];
        let (table, total) = summary(rows, false);
        assert_eq!(total.passed, 3);
        assert_eq!(total.failures, ["a", "b: why", "it broke"]);
        assert!(table.contains("FAILED, 2 of 5"), "{table}");
        assert!(table.contains("some: b: why\n") && table.contains("some: it broke"), "{table}");
    }
}
