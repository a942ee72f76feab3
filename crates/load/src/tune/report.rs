//! The result of a search as a table, JSON, a page, and the file of the settings.

use std::fmt::Write as _;

use serde::Serialize;

use super::assignment::{Assignment, toml_value};
use super::model::{Confirmation, EarlyEnd, Judgement, Trial, Tuning};
use crate::page::{Axis, Plot};
use crate::report::model::{Cell, Column, Document, Render, Row, Table, Unit};
use crate::report::{Origin, SCHEMA};
use crate::row;
use crate::units::{rounded, show_ns};

/// A search, its program and its load.
#[derive(Clone, Debug, Serialize)]
pub struct TuneReport {
    /// The version of the JSON's shape.
    pub schema: &'static str,
    /// `tune`.
    pub mode: &'static str,
    /// The program, the time, the command line and the machine.
    pub run: Origin,
    /// The scenario: its name, and its words.
    pub scenario: String,
    /// The objective: `rate`, `cpu` or `latency`.
    pub maximize: &'static str,
    /// The program that was tuned, as it was started.
    pub program: String,
    /// The search.
    #[serde(flatten)]
    pub tuning: Tuning,
}

impl TuneReport {
    /// Creates the report of a search that has just ended.
    #[must_use]
    pub fn of(scenario: String, maximize: &'static str, program: String, tuning: Tuning) -> Self {
        let run = Origin::now();
        Self { schema: SCHEMA, mode: "tune", run, scenario, maximize, program, tuning }
    }

    /// Returns the settings as a file for `THRONG_TUNED`, with the provenance of each value.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let mut text = "# Written by throng tune.\n".to_owned();
        for (label, words) in self.run.remarks() {
            let _ = writeln!(text, "# {label}: {}", one_line(&words));
        }
        let _ = writeln!(text, "# program: {}", one_line(&self.program));
        let _ = writeln!(text, "# load: {}; maximized: {}", self.scenario, self.maximize);
        for line in self.closing() {
            let _ = writeln!(text, "# {line}");
        }
        text.push_str("# Use it: THRONG_TUNED=FILE before the program. Variables and flags have\n");
        text.push_str("# precedence over it, and it has precedence over the configuration file.\n");
        for (key, value) in self.tuning.kept.iter() {
            text.push('\n');
            if let Some(trial) = self.origin_of(key) {
                let ratio = trial.ratio.map(|ratio| ratio.words()).unwrap_or_default();
                let (against, why) = (against(&trial.against), one_line(&trial.reason));
                let _ = writeln!(text, "# {ratio} against {against}. {why}");
            }
            let _ = writeln!(text, "{key} = {}", toml_value(value));
        }
        text
    }

    /// Returns the candidate from which the value of a key was kept.
    fn origin_of(&self, key: &str) -> Option<&Trial> {
        let kept = |trial: &&Trial| {
            trial.judgement == Judgement::Kept && trial.settings.get(key).is_some()
        };
        self.tuning.trials.iter().rfind(kept)
    }

    /// Returns the result in sentences.
    #[must_use]
    pub fn closing(&self) -> Vec<String> {
        let Tuning { kept, confirmation, trials, early_end, .. } = &self.tuning;
        let mut lines = Vec::new();
        match confirmation {
            Some(Confirmation { ratio: Some(ratio), holds: true, p99_us, start_p99_us }) => {
                let latency = match (start_p99_us, p99_us) {
                    (Some(before), Some(after)) => {
                        format!(", p99 {} -> {}", show_us(*before), show_us(*after))
                    }
                    _ => String::new(),
                };
                let pairs = ratio.pairs;
                let words = ratio.words();
                lines.push(format!("Confirmed in {pairs} new pairs of runs: {words}{latency}."));
            }
            Some(_) => lines.push(
                "New runs do not confirm the gain: no change is worth it for certain.".to_owned(),
            ),
            None if !kept.is_empty() => lines.push(
                "Not confirmed: the search ended before new runs of all values together."
                    .to_owned(),
            ),
            None if trials.is_empty() => lines.push("Nothing was tried.".to_owned()),
            None if !trials.iter().any(|trial| trial.ratio.is_some()) => {
                lines.push("No candidate could be compared.".to_owned());
            }
            None => lines.push("No change is worth it: the settings suit this load.".to_owned()),
        }
        lines.extend(early_end.as_ref().map(|end| one_line(&end.words())));
        lines
    }

    fn noise_words(&self) -> String {
        let noise = &self.tuning.noise;
        format!(
            "noise: {} runs with the program's own settings, {} {}, {:.1} % between two runs",
            noise.figures.len(),
            rounded(noise.mean()),
            unit_of(self.maximize),
            noise.deviation * 100.0
        )
    }

    fn table(&self) -> Table {
        let columns = vec![
            Column::new("number", Unit::Count, "try"),
            Column::new("settings", Unit::Text, "settings"),
            Column::new("ratio", Unit::Times, "gain"),
            Column::new("ratio_low", Unit::Times, "from"),
            Column::new("ratio_high", Unit::Times, "to"),
            Column::new("pairs", Unit::Count, "pairs"),
            Column::new("judgement", Unit::Text, "result"),
            Column::new("reason", Unit::Text, "reason"),
        ];
        let trials = self.tuning.trials.iter().enumerate();
        let rows = trials.map(|(at, trial)| trial_row(at + 1, trial));
        let title = "The tries, each against the best before it";
        Table::new(title, columns).rows(rows).plots(self.plot())
    }

    /// Returns the ratios with their intervals over the numbers of the tries.
    fn plot(&self) -> Option<Plot> {
        let points = |figure: fn(&super::Ratio) -> f64| -> Vec<(f64, f64)> {
            let trials = self.tuning.trials.iter().enumerate();
            let known = trials.filter_map(|(at, trial)| Some((at, trial.ratio?)));
            let point = known.map(|(at, ratio)| ((at + 1) as f64, figure(&ratio)));
            point.filter(|(_, ratio)| ratio.is_finite() && *ratio < 100.0).collect()
        };
        let means = points(|ratio| ratio.mean);
        if means.is_empty() {
            return None;
        }
        let plot = Plot::new("The gain of each try", Axis::new("try"), Axis::new("ratio"))
            .captioned("Above 1 it is better than the best before it.")
            .series("from", &points(|ratio| ratio.low))
            .series("gain", &means)
            .series("to", &points(|ratio| ratio.high));
        Some(plot)
    }
}

fn trial_row(number: usize, trial: &Trial) -> Row {
    let result = trial.judgement.words();
    let reason = one_line(&trial.reason);
    let ratio = trial.ratio;
    let pairs: Option<usize> = ratio.map(|ratio| ratio.pairs);
    let cells: Vec<Cell> = row![
        number,
        trial.settings.to_string(),
        ratio.map(|ratio| ratio.mean),
        ratio.map(|ratio| ratio.low),
        ratio.map(|ratio| ratio.high),
        pairs,
        result,
        reason,
    ];
    cells.into()
}

impl Render for TuneReport {
    fn document(&self) -> Document {
        let conditions = vec![
            self.program.clone(),
            format!("{}; maximized: {}", self.scenario, self.maximize),
            self.noise_words(),
        ];
        let kept = self.tuning.kept.to_toml();
        let mut notices = self.closing();
        if !kept.is_empty() {
            notices.push(format!("Settings: {}", self.tuning.kept));
        }
        Document {
            kind: "tune",
            title: "Settings for this load".to_owned(),
            conditions,
            tables: vec![self.table()],
            remarks: self.run.remarks(),
            notices,
            verdict: None,
        }
    }

    /// A search without a gain is also a result.
    fn exit_code(&self) -> u8 {
        u8::from(matches!(self.tuning.early_end, Some(EarlyEnd::Failed(_))))
    }
}

/// Returns what the figure is of an objective.
fn unit_of(maximize: &str) -> &'static str {
    match maximize {
        "cpu" => "answers per server CPU-second",
        "latency" => "per second, the reciprocal of p99",
        _ => "answers a second",
    }
}

fn against(settings: &Assignment) -> String {
    match settings.is_empty() {
        true => "the program's own settings".to_owned(),
        false => settings.to_string(),
    }
}

/// Returns the text without line breaks: a comment ends with its line.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn show_us(us: f64) -> String {
    show_ns((us * 1e3).round() as u64)
}

#[cfg(test)]
mod tests {
    use super::super::{Noise, Ratio};
    use super::*;

    fn report(is_confirmed: bool) -> TuneReport {
        let ratio = Ratio { mean: 1.42, low: 1.38, high: 1.46, pairs: 4 };
        let trial = |key: &str, value: &str, judgement, ratio| Trial {
            knob: key.to_owned(),
            settings: Assignment::of([(key, value)]),
            against: Assignment::default(),
            ratio,
            judgement,
            reason: "a reason\nof two lines".to_owned(),
        };
        let pool = trial("workers.pool_size", "24", Judgement::Kept, Some(ratio));
        let io = trial("io", "threads", Judgement::Refused, None);
        let confirmation = Confirmation {
            ratio: Some(ratio),
            holds: is_confirmed,
            p99_us: Some(6100.0),
            start_p99_us: Some(8800.0),
        };
        let kept = if is_confirmed { pool.settings.clone() } else { Assignment::default() };
        let tuning = Tuning {
            noise: Noise { figures: vec![100.0, 102.0], deviation: 0.02, p99_us: None },
            trials: vec![pool, io],
            kept,
            confirmation: Some(confirmation),
            early_end: None,
        };
        TuneReport::of("chat".to_owned(), "rate", "throng serve".to_owned(), tuning)
    }

    #[test]
    fn the_file_has_each_value_with_its_provenance() {
        let text = report(true).to_toml();
        let gain = "# 1.42x (1.38-1.46) against the program's own settings. a reason of two lines";
        assert!(text.contains(&format!("{gain}\nworkers.pool_size = 24\n")), "{text}");
        assert!(text.contains("# Confirmed in 4 new pairs of runs: 1.42x"), "{text}");
        assert!(text.contains("p99 8.80 ms -> 6.10 ms"), "{text}");
        let is_known =
            |line: &str| line.is_empty() || line.starts_with('#') || line.contains(" = ");
        assert!(text.lines().all(is_known), "{text}");
        let none = report(false).to_toml();
        assert!(none.contains("do not confirm") && !none.contains("\nworkers"), "{none}");
    }

    #[test]
    fn the_tries_are_a_table_and_a_page() {
        let report = report(true);
        let text = report.to_text();
        assert!(text.contains("workers.pool_size=24") && text.contains("1.42x"), "{text}");
        assert!(text.contains("refused") && text.contains("Settings:"), "{text}");
        let html = report.to_html();
        assert!(html.contains("The tries") && html.contains("<svg"), "{html}");
        let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
        assert_eq!(json["kept"]["workers.pool_size"], "24");
        assert_eq!(json["trials"][1]["judgement"], "refused");
    }
}
