//! The settings that are tried, each with its range and the reason to try it.
//!
//! A setting is here if a measurement has shown that its best value depends on the load. Each has a
//! row.

use std::collections::{BTreeMap, BTreeSet};

use super::assignment::Assignment;

/// A setting to try, with the values for this server and load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Knob {
    /// The name: the key that matters most.
    pub name: String,
    /// The values to try, in their order.
    pub choices: Vec<Assignment>,
    /// Why it is tried.
    pub reason: String,
    /// Whether the values rise, so that the search ends where the figure falls.
    pub is_ascending: bool,
}

/// The kind of the program that is tuned, which decides on its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// `throng serve`.
    Serve,
    /// `throng balance`.
    Balance,
    /// A program with the library that calls `Server::settings_from_env`.
    Library,
}

/// The facts that decide on the knobs.
#[derive(Clone, Debug)]
pub struct Situation {
    /// The program.
    pub program: Program,
    /// CPUs that this process may use.
    pub cpus: usize,
    /// Bytes of a message.
    pub size: usize,
    /// Whether clients offer compression.
    pub offers_deflate: bool,
    /// Whether the load has a rate, which may be below what the server can do.
    pub has_rate: bool,
    /// Values that the program has now, as far as they are known. They are not tried.
    pub current: Assignment,
    /// Keys that flags of the program set: the file of a candidate cannot change them.
    pub fixed: BTreeSet<String>,
    /// Rules of `throng doctor --live` that found something under this load, with their findings.
    /// `None` if the server shows no statistics.
    pub findings: Option<BTreeMap<String, String>>,
}

/// The description of a knob.
struct Row {
    name: &'static str,
    programs: &'static [Program],
    reason: &'static str,
    /// The rules that make it the first to try.
    rules: &'static [&'static str],
    is_ascending: bool,
    applies: fn(&Situation) -> bool,
    choices: fn(&Situation) -> Vec<Assignment>,
}

/// Messages below this size are hardly ever sent in fragments, or worth a context.
const LARGE: usize = 2 << 10;

use Program::{Balance, Library, Serve};

#[rustfmt::skip]
static ROWS: &[Row] = &[
    Row {
        name: "workers.pool_size",
        programs: &[Library],
        reason: "a handler that waits occupies a worker: with more of them, more wait at a time",
        rules: &["live-workers", "live-stalls"],
        is_ascending: true,
        applies: |_| true,
        choices: |it| {
            let mut sizes = [it.cpus, 4 * it.cpus, 16, 64, 256];
            sizes.sort_unstable();
            numbers("workers.pool_size", sizes)
        },
    },
    Row {
        name: "deflate.enabled",
        programs: &[Serve, Library],
        reason: "compression costs CPU time: on content that does not shrink it saves nothing",
        rules: &["live-deflate"],
        is_ascending: false,
        applies: |it| it.offers_deflate,
        choices: |_| vec![
            one("deflate.enabled", "false"),
            Assignment::of([("deflate.enabled", "true"), ("deflate.mode", "shared")]),
        ],
    },
    Row {
        name: "shards",
        programs: &[Serve, Balance, Library],
        reason: "a shard uses one CPU; with too many, one shard wakes another one more often",
        rules: &["live-shards", "live-lag"],
        is_ascending: false,
        applies: |_| true,
        // At a fixed rate, the loss of what more of them could do would not show.
        choices: |it| match it.has_rate {
            true => numbers("shards", [it.cpus]),
            false => numbers("shards", [it.cpus, it.cpus.div_ceil(2), 1]),
        },
    },
    Row {
        name: "fragment_size",
        programs: &[Serve, Library],
        reason: "each fragment has a header and a place in the queue",
        rules: &[],
        is_ascending: true,
        applies: |it| it.size >= LARGE,
        choices: |_| vec![
            Assignment::of([("fragment_threshold", "1MiB"), ("fragment_size", "64KiB")]),
            Assignment::of([("fragment_threshold", "4MiB"), ("fragment_size", "256KiB")]),
        ],
    },
    Row {
        name: "deflate.threshold",
        programs: &[Serve, Library],
        reason: "a short message shrinks little, and costs nearly as much as a longer one",
        rules: &[],
        is_ascending: false,
        applies: compresses,
        choices: |_| vec![one("deflate.threshold", "1KiB"), one("deflate.threshold", "64B")],
    },
    Row {
        name: "deflate.level",
        programs: &[Serve, Library],
        reason: "level 1 is the fastest; higher ones send fewer bytes",
        rules: &[],
        is_ascending: true,
        applies: compresses,
        choices: |_| numbers("deflate.level", [1, 3, 6]),
    },
    Row {
        name: "deflate.mode",
        programs: &[Serve, Library],
        reason: "with earlier messages as context, short messages that resemble each other shrink",
        rules: &[],
        is_ascending: false,
        applies: |it| compresses(it) && it.size < LARGE,
        choices: |_| vec![Assignment::of([
            ("deflate.enabled", "true"),
            ("deflate.mode", "window"),
            ("deflate.window_bits", "10"),
        ])],
    },
    Row {
        name: "pin",
        programs: &[Serve, Library],
        reason: "a shard that stays on its CPU keeps its caches; the system cannot move it away \
                 from other work",
        rules: &[],
        is_ascending: false,
        applies: |it| it.cpus > 1,
        choices: |_| vec![one("pin", "none"), one("pin", "cores")],
    },
];

fn compresses(it: &Situation) -> bool {
    it.offers_deflate && it.current.get("deflate.enabled") != Some("false")
}

fn one(key: &str, value: &str) -> Assignment {
    Assignment::of([(key, value)])
}

/// Returns the different numbers as values of `key`, in their order.
fn numbers<const N: usize>(key: &str, numbers: [usize; N]) -> Vec<Assignment> {
    let mut all: Vec<Assignment> = Vec::new();
    for number in numbers {
        let choice = Assignment::of([(key, number)]);
        if !all.contains(&choice) {
            all.push(choice);
        }
    }
    all
}

/// Returns the knobs to try, those with a finding first. `only` names knobs; empty means all. `own`
/// are values of the user's for a key, which replace the ones of the table.
///
/// # Errors
/// `only` has a name without a knob.
pub fn knobs(
    situation: &Situation,
    only: &[String],
    own: &[(String, Vec<String>)],
) -> Result<Vec<Knob>, String> {
    let rows: Vec<&Row> =
        ROWS.iter().filter(|row| row.programs.contains(&situation.program)).collect();
    let is_known = |name: &String| {
        rows.iter().any(|row| row.name == name) || own.iter().any(|(key, _)| key == name)
    };
    if let Some(unknown) = only.iter().find(|name| !is_known(name)) {
        let names: Vec<&str> = rows.iter().map(|row| row.name).collect();
        return Err(format!("{unknown} is not tried here: write one of {}", names.join(", ")));
    }
    let is_wanted = |name: &str| only.is_empty() || only.iter().any(|it| it == name);
    let is_replaced = |row: &Row| own.iter().any(|(key, _)| key == row.name);
    let mut found: Vec<(bool, Knob)> = rows
        .into_iter()
        .filter(|row| is_wanted(row.name) && !is_replaced(row) && (row.applies)(situation))
        .filter_map(|row| of_row(row, situation))
        .collect();
    // A stable sort: the table is in the order of the effect.
    found.sort_by_key(|(has_finding, _)| !has_finding);
    let of_user = own.iter().filter(|(key, _)| is_wanted(key)).map(of_user);
    Ok(of_user.chain(found.into_iter().map(|(_, knob)| knob)).collect())
}

fn of_user((key, values): &(String, Vec<String>)) -> Knob {
    Knob {
        name: key.clone(),
        choices: values.iter().map(|value| one(key, value)).collect(),
        reason: "asked for by --try".to_owned(),
        is_ascending: false,
    }
}

/// Returns the knob and whether a rule has found something; `None` if nothing is left to try.
fn of_row(row: &Row, situation: &Situation) -> Option<(bool, Knob)> {
    let choices = (row.choices)(situation);
    let is_new = |choice: &Assignment| {
        let is_free = choice.iter().all(|(key, _)| !situation.fixed.contains(key));
        is_free && !choice.is_part_of(&situation.current)
    };
    let choices: Vec<Assignment> = choices.into_iter().filter(is_new).collect();
    let findings = situation.findings.as_ref();
    let finding = row.rules.iter().find_map(|rule| Some((rule, findings?.get(*rule)?)));
    let reason = match finding {
        Some((rule, found)) => format!("{rule}: {found}"),
        None => row.reason.to_owned(),
    };
    let knob = Knob { name: row.name.to_owned(), choices, reason, is_ascending: row.is_ascending };
    (!knob.choices.is_empty()).then_some((finding.is_some(), knob))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Two CPUs, no statistics, nothing known.
    pub(in crate::tune) fn situation(program: Program) -> Situation {
        Situation {
            program,
            cpus: 2,
            size: 100,
            offers_deflate: false,
            has_rate: false,
            current: Assignment::default(),
            fixed: BTreeSet::new(),
            findings: None,
        }
    }

    fn names(knobs: &[Knob]) -> Vec<&str> {
        knobs.iter().map(|knob| knob.name.as_str()).collect()
    }

    #[test]
    fn only_settings_that_can_matter_are_tried() {
        let small = knobs(&situation(Serve), &[], &[]).unwrap();
        assert_eq!(names(&small), ["shards", "pin"]);
        let shards =
            |it: &Situation| knobs(it, &["shards".to_owned()], &[]).unwrap()[0].choices.len();
        assert_eq!(shards(&situation(Serve)), 2);
        assert_eq!(shards(&Situation { has_rate: true, ..situation(Serve) }), 1);
        let large = Situation { size: 64 << 10, offers_deflate: true, ..situation(Library) };
        let large = knobs(&large, &[], &[]).unwrap();
        let first = ["workers.pool_size", "deflate.enabled", "shards", "fragment_size"];
        assert_eq!(names(&large)[..4], first);
        assert!(!names(&large).contains(&"deflate.mode"));
        assert_eq!(names(&knobs(&situation(Balance), &[], &[]).unwrap()), ["shards"]);
    }

    #[test]
    fn a_finding_comes_first_and_is_the_reason() {
        let found = [("live-shards".to_owned(), "one of 2 is busy".to_owned())];
        let it = Situation { findings: Some(found.into()), ..situation(Library) };
        let all = knobs(&it, &[], &[]).unwrap();
        assert_eq!(names(&all)[..2], ["shards", "workers.pool_size"]);
        assert_eq!(all[0].reason, "live-shards: one of 2 is busy");
    }

    #[test]
    fn current_values_and_the_ones_of_flags_are_not_tried() {
        let mut it = situation(Serve);
        it.current = Assignment::of([("shards", "2")]);
        it.fixed.insert("pin".to_owned());
        let all = knobs(&it, &[], &[]).unwrap();
        let choices: Vec<String> =
            all.iter().flat_map(|knob| &knob.choices).map(ToString::to_string).collect();
        assert_eq!(choices, ["shards=1"]);
    }

    #[test]
    fn users_name_knobs_and_values() {
        let own = [("backlog".to_owned(), vec!["128".to_owned(), "4096".to_owned()])];
        let only = ["backlog".to_owned(), "pin".to_owned()];
        let all = knobs(&situation(Serve), &only, &own).unwrap();
        assert_eq!(names(&all), ["backlog", "pin"]);
        assert_eq!(all[0].choices[1].to_string(), "backlog=4096");
        let error = knobs(&situation(Serve), &["shard".to_owned()], &[]).unwrap_err();
        assert!(error.contains("shard is not tried here: write one of"), "{error}");
    }
}
