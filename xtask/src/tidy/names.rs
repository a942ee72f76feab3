//! Counts types whose names are meaningless without their module and occur in many modules.

use super::Source;
use super::code::{is_test_file, without_comments, without_tests};
use super::counts::Count;

/// Names that at most one type of the workspace may have.
const HOMONYMS: [&str; 17] = [
    "Action", "Answer", "Command", "Core", "Entry", "Outcome", "Place", "Plan", "Pool", "Report",
    "Session", "Shared", "Stage", "Start", "State", "Step", "Tick",
];

/// Counts the types with each name.
pub(super) fn counts(files: &[Source]) -> Vec<Count> {
    let sources = files
        .iter()
        .filter(|file| file.is_rust() && file.is_in_workspace() && !is_test_file(&file.path));
    let defined: Vec<(String, String)> = sources
        .flat_map(|file| {
            let code = without_comments(without_tests(&file.text));
            let lines = code.lines().enumerate();
            let name = |(index, line)| {
                Some((type_name(line)?.to_owned(), format!("{}:{}", file.path, index + 1)))
            };
            lines.filter_map(name).collect::<Vec<_>>()
        })
        .collect();
    let count = |name| {
        let places = defined.iter().filter(|(defined, _)| defined == name);
        Count::of(format!("types named `{name}`"), places.map(|(_, place)| place.clone()).collect())
    };
    HOMONYMS.into_iter().map(count).collect()
}

/// Returns the name of the type whose definition begins on a line. An associated type is always
/// used with its trait, so its name may be short.
fn type_name(line: &str) -> Option<&str> {
    if line.starts_with("    type ") {
        return None;
    }
    let line = line.trim_start();
    let line = match line.strip_prefix("pub(") {
        Some(rest) => rest.split_once(") ")?.1,
        None => line.strip_prefix("pub ").unwrap_or(line),
    };
    let kinds = ["struct ", "enum ", "trait ", "type "];
    let rest = kinds.iter().find_map(|kind| line.strip_prefix(kind))?;
    rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_count_wherever_they_are_defined() {
        let text = "pub(super) struct Plan {\n    plan: Plan,\n}\nenum PlanStep {}\n\
                    pub type Plan<T> = T;\n\
                    impl Work for Echo {\n    type Plan = u8;\n}\n\
                    // struct Plan;\n#[cfg(test)]\nmod tests {\n    struct Plan;\n}\n";
        let source = |path: &str| Source { path: path.into(), text: text.into() };
        let counts = counts(&[
            source("crates/a/src/a.rs"),
            source("bench/a.rs"),
            source("crates/a/tests/b.rs"),
        ]);
        let plans = counts.iter().find(|count| count.name == "types named `Plan`");
        let places = plans.map(|count| count.places.as_slice()).unwrap_or_default();
        assert_eq!(places, ["crates/a/src/a.rs:1", "crates/a/src/a.rs:5"]);
    }
}
