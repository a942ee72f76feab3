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
    let layers: Vec<&Layer> =
        LAYERS.iter().filter(|layer| selection.includes(layer.name)).collect();
    let after_cargo = layers.iter().position(|layer| layer.name == CARGO).map_or(0, |at| at + 1);
    let (ahead, rest) = layers.split_at(after_cargo);
    let mut rows = run_beside(site, ahead, rest);
    rows.extend(rest.iter().map(|layer| run_one(site, layer)));
    let (table, total) = summary(&rows, site.ci);
    print!("\n{table}\n{} passed, {} failed\n", total.passed, total.failed);
    if total.failed == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) }
}

/// Runs the layers `ahead`, and prepares the others meanwhile.
fn run_beside(site: &Site, ahead: &[&'static Layer], others: &[&'static Layer]) -> Vec<Row> {
    thread::scope(|scope| {
        if !ahead.is_empty() {
            scope.spawn(|| {
                for prepare in others.iter().filter_map(|layer| layer.prepare) {
                    // What went wrong goes wrong again when the layer runs, which reports it.
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
            println!("--- {}: {} passed, {} failed", row.layer, tally.passed, tally.failed)
        }
        Err(Stop::Failed(why)) => println!("--- {}: FAILED: {why}", row.layer),
        Err(Stop::Missing(what)) => println!("--- {}: skipped: {what}", row.layer),
    }
    let _ = std::io::stdout().flush();
    row
}

/// Returns the table of results, and the sum of all tests. A layer that could not finish counts as
/// one failure.
fn summary(rows: &[Row], ci: bool) -> (String, Tally) {
    let mut table = format!("{:<20} {:<34} {:>8}\n", "layer", "result", "seconds");
    let mut total = Tally::default();
    for row in rows {
        let (result, failed) = match &row.result {
            Ok(tally) => {
                total.passed += tally.passed;
                let text = match tally.failed {
                    0 => format!("ok, {} passed", tally.passed),
                    failed => format!("FAILED, {failed} of {}", tally.passed + failed),
                };
                (text, tally.failed)
            }
            Err(Stop::Failed(_)) => ("FAILED".to_owned(), 1),
            Err(Stop::Missing(_)) if ci => ("FAILED: something is missing".to_owned(), 1),
            Err(Stop::Missing(_)) => ("skipped: something is missing".to_owned(), 0),
        };
        total.failed += failed;
        table.push_str(&format!(
            "{:<20} {:<34} {:>8.1}\n",
            row.layer,
            result,
            row.took.as_secs_f64()
        ));
    }
    for row in rows {
        if let Err(Stop::Failed(why) | Stop::Missing(why)) = &row.result {
            table.push_str(&format!("{}: {}\n", row.layer, why.lines().next().unwrap_or_default()));
        }
    }
    (table, total)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(result: Result<Tally, Stop>) -> Row {
        Row { layer: "some", result, took: Duration::from_secs(1) }
    }

    #[test]
    fn a_missing_program_fails_on_ci_only() {
        let rows = [
            row(Ok(Tally { passed: 3, failed: 0 })),
            row(Err(Stop::Missing("no python2.7".into()))),
        ];
        assert_eq!(summary(&rows, false).1, Tally { passed: 3, failed: 0 });
        assert_eq!(summary(&rows, true).1, Tally { passed: 3, failed: 1 });
        assert!(summary(&rows, true).0.contains("no python2.7"));
    }

    #[test]
    fn failures_are_added_up() {
        let rows =
            [row(Ok(Tally { passed: 3, failed: 2 })), row(Err(Stop::Failed("it broke".into())))];
        let (table, total) = summary(&rows, false);
        assert_eq!(total, Tally { passed: 3, failed: 3 });
        assert!(table.contains("FAILED, 2 of 5") && table.contains("it broke"), "{table}");
    }
}
