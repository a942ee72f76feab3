//! Counts that may only fall, and the table with which they are compared.

use std::collections::BTreeMap;
use std::path::Path;

/// The table: a line `"name" = [count, goal]` for each count that may be above zero.
const TABLE: &str = "xtask/counts.toml";

/// The environment variable with which a run enters reduced counts.
const LOWER: &str = "LOWER_COUNTS";

/// Maximum places that a problem lists.
const LISTED: usize = 12;

/// The count of one check.
#[derive(Debug)]
pub(super) struct Count {
    pub(super) name: String,
    pub(super) number: usize,
    /// The places, which help to find additions; empty if a number has no places.
    pub(super) places: Vec<String>,
}

impl Count {
    /// Counts `places`.
    pub(super) fn of(name: String, places: Vec<String>) -> Count {
        Count { name, number: places.len(), places }
    }
}

/// The rows of the table by name, with the current count and its goal.
type Table = BTreeMap<String, (usize, usize)>;

/// Compares counts with the table. With `LOWER_COUNTS=1` it first enters reduced counts.
pub(super) fn problems(root: &Path, counts: &[Count]) -> Vec<String> {
    let path = root.join(TABLE);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) => return vec![format!("{TABLE}: {error}")],
    };
    let Some(mut table) = parse(&text) else {
        return vec![format!("{TABLE}: each line is a comment or `\"name\" = [count, goal]`")];
    };
    if std::env::var_os(LOWER).is_some() {
        let comments: String = text
            .lines()
            .filter(|line| line.starts_with('#'))
            .map(|line| format!("{line}\n"))
            .collect();
        lower(&mut table, counts);
        if let Err(error) = std::fs::write(&path, comments + &print(&table)) {
            return vec![format!("{TABLE}: {error}")];
        }
    }
    compare(&table, counts)
}

/// Returns each count above its row, each count that has fallen below it, and each row without a
/// count.
fn compare(table: &Table, counts: &[Count]) -> Vec<String> {
    let rows = table.keys().filter(|row| counts.iter().all(|count| count.name != **row));
    let unknown = rows.map(|row| format!("{TABLE}: nothing counts `{row}`: remove the line"));
    let differences = counts.iter().filter_map(|count| {
        let (most, goal) = table.get(&count.name).copied().unwrap_or_default();
        let name = &count.name;
        if count.number > most.max(goal) {
            let over = count.number - most.max(goal);
            let places: Vec<&str> = count.places.iter().take(LISTED).map(String::as_str).collect();
            let more = if count.places.len() > LISTED { "\n    ..." } else { "" };
            let places: String = places.iter().map(|place| format!("\n    {place}")).collect();
            return Some(format!(
                "{name}: {} (goal {goal}), at most {most}: remove {over}{places}{more}",
                count.number
            ));
        }
        (count.number.max(goal) < most).then(|| {
            format!(
                "{name}: {} now, {most} in {TABLE}: lower it by `{LOWER}=1 cargo xtask test --only \
                 tidy`",
                count.number
            )
        })
    });
    differences.chain(unknown).collect()
}

/// Enters the counts that have fallen. A row at zero leaves the table.
fn lower(table: &mut Table, counts: &[Count]) {
    for count in counts {
        if let Some((most, goal)) = table.get_mut(&count.name) {
            *most = count.number.max(*goal).min(*most);
        }
    }
    table.retain(|name, row| *row != (0, 0) && counts.iter().any(|count| count.name == *name));
}

fn parse(text: &str) -> Option<Table> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let (name, numbers) = line.strip_prefix('"')?.split_once("\" = [")?;
            let (count, goal) = numbers.strip_suffix(']')?.split_once(", ")?;
            Some((name.to_owned(), (count.parse().ok()?, goal.parse().ok()?)))
        })
        .collect()
}

fn print(table: &Table) -> String {
    table.iter().map(|(name, (count, goal))| format!("\"{name}\" = [{count}, {goal}]\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(name: &str, number: usize) -> Count {
        Count::of(name.to_owned(), vec!["a.rs:1".to_owned(); number])
    }

    fn of(table: &str, counts: &[Count]) -> Vec<String> {
        compare(&parse(table).expect("a table"), counts)
    }

    #[test]
    fn a_count_over_its_line_is_reported_with_its_places() {
        assert_eq!(
            of("\"a\" = [1, 0]\n", &[count("a", 2), count("b", 1)]),
            [
                "a: 2 (goal 0), at most 1: remove 1\n    a.rs:1\n    a.rs:1",
                "b: 1 (goal 0), at most 0: remove 1\n    a.rs:1"
            ]
        );
        assert!(of("\"a\" = [1, 0]\n", &[count("a", 1), count("b", 0)]).is_empty());
    }

    #[test]
    fn a_count_below_its_line_asks_to_lower_it() {
        let found = of("\"a\" = [3, 1]\n", &[count("a", 2)]);
        assert!(found[0].starts_with("a: 2 now, 3 in xtask/counts.toml: lower it by"), "{found:?}");
        assert!(of("\"a\" = [3, 3]\n", &[count("a", 2)]).is_empty(), "the goal is reached");
        assert_eq!(
            of("\"a\" = [3, 1]\n", &[]),
            ["xtask/counts.toml: nothing counts `a`: remove the line"]
        );
    }

    #[test]
    fn lowering_never_raises_a_line() {
        let text = "\"a\" = [3, 1]\n\"b\" = [3, 0]\n\"c\" = [1, 0]\n\"d\" = [1, 0]\n";
        let mut table = parse(text).expect("a table");
        lower(&mut table, &[count("a", 0), count("b", 4), count("c", 0)]);
        assert_eq!(print(&table), "\"a\" = [1, 1]\n\"b\" = [3, 0]\n");
    }

    #[test]
    fn a_line_of_another_form_is_refused() {
        for text in ["a = [1, 0]\n", "\"a\" = 1\n", "\"a\" = [1]\n", "\"a\" = [x, 0]\n"] {
            assert!(parse(text).is_none(), "{text}");
        }
    }
}
