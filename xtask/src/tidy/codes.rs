//! Counts close codes that are written as numbers although `CloseCode` has a name for them.

use super::Source;
use super::code::{is_test_file, without_comments, without_tests};
use super::counts::Count;

/// The file that defines the names.
const NAMES: &str = "crates/proto/src/ws/close.rs";

/// Folders of peers in tests and in the simulation, which send any code.
const PEERS: [&str; 4] = ["crates/sim/", "dev/testkit/", "fuzz/", "conformance/"];

/// Counts the arguments from 1000 to 1015 outside tests.
pub(super) fn counts(files: &[Source]) -> Vec<Count> {
    let sources = files.iter().filter(|file| file.is_rust() && file.is_in_workspace());
    let production = sources.filter(|file| {
        let is_peer = PEERS.iter().any(|folder| file.is_below(folder));
        !is_peer && !is_test_file(&file.path) && file.path != NAMES
    });
    let places = production.flat_map(|file| {
        let code = without_comments(without_tests(&file.text));
        let lines = code.lines().enumerate();
        let found = lines.flat_map(|(index, line)| std::iter::repeat_n(index + 1, arguments(line)));
        found.map(|line| format!("{}:{line}", file.path)).collect::<Vec<_>>()
    });
    vec![Count::of("close codes as numbers: write `CloseCode::NAME`".to_owned(), places.collect())]
}

/// Returns how many arguments of a line are close codes.
fn arguments(line: &str) -> usize {
    let numbers = line.match_indices("10").filter(|(at, _)| {
        let number = line.get(*at..at + 4).and_then(|text| text.parse::<u16>().ok());
        let before = line[..*at].trim_end();
        let after = line.get(at + 4..).unwrap_or_default();
        number.is_some_and(|number| (1000..=1015).contains(&number))
            && before.ends_with(['(', ','])
            // A text, as in `close (1008), drop_newest`.
            && !before.ends_with(" (")
            && after.starts_with([',', ')'])
    });
    numbers.count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_count_and_other_numbers_do_not() {
        assert_eq!(arguments("socket.close(1000, \"\"); close(id, 1012)"), 2);
        assert_eq!(arguments("const A: u16 = 1000; f(10000, 1016); g(1000.0, 1_000, x1000)"), 0);
        assert_eq!(arguments("\"close (1008), drop_newest\""), 0);
    }
}
