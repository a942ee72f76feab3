//! Checks that lines of Rust have at most 100 columns, including comments and strings.

use super::Source;

/// The limit, the same as in rustfmt.
const COLUMNS: usize = 100;

/// Returns every line of a Rust file that is too long.
pub(super) fn problems(file: &Source) -> Vec<String> {
    if !file.is_rust() {
        return Vec::new();
    }
    let widths = file.text.lines().map(|line| line.chars().count()).enumerate();
    widths
        .filter(|(_, width)| *width > COLUMNS)
        .map(|(index, width)| format!("{}:{}: {width} columns", file.path, index + 1))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(path: &str, text: &str) -> usize {
        problems(&Source { path: path.into(), text: text.into() }).len()
    }

    #[test]
    fn columns_are_characters_and_the_limit_is_inclusive() {
        let most = "\u{e9}".repeat(COLUMNS);
        assert_eq!(count("src/a.rs", &format!("{most}\n{most}x\n")), 1);
        assert_eq!(count("README.md", &format!("{most}x\n")), 0);
    }
}
