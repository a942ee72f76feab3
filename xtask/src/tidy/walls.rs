//! Counts the open walls between the parts of a shard: a part must have private fields, and only a
//! few files may change several parts.

use super::Source;
use super::code::{is_test_file, without_comments, without_tests};
use super::counts::Count;

/// A struct of parts, the folder of their files, and its subfolder for records: plain data that the
/// parts share.
const SHARDS: [(&str, &str, &str); 1] =
    [("BalanceParts", "crates/balance/src/shard/", "crates/balance/src/shard/records/")];

/// Counts the fields that other modules can reach, and the files with methods of all parts.
pub(super) fn counts(files: &[Source]) -> Vec<Count> {
    let count = |(parts, folder, records): (&str, &str, &str)| {
        let inside = files.iter().filter(|file| file.is_rust() && file.is_below(folder));
        let production = inside.filter(|file| !is_test_file(&file.path));
        let code = production.map(|file| (file, without_comments(without_tests(&file.text))));
        let code: Vec<(&Source, String)> = code.collect();
        let fields = |is_record: bool| {
            let files = code.iter().filter(|(file, _)| file.is_below(records) == is_record);
            let places = files.flat_map(|(file, code)| {
                let lines = code.lines().enumerate().filter(|(_, line)| is_open_field(line));
                lines.map(|(index, _)| format!("{}:{}", file.path, index + 1))
            });
            places.collect::<Vec<_>>()
        };
        let changing = code.iter().filter(|(_, code)| code.lines().any(|it| is_impl(it, parts)));
        let changing = changing.map(|(file, _)| file.path.clone());
        [
            Count::of(format!("open fields in parts of `{parts}`"), fields(false)),
            Count::of(format!("open fields in records of `{parts}`"), fields(true)),
            Count::of(format!("files with `impl {parts}`"), changing.collect()),
        ]
    };
    SHARDS.into_iter().flat_map(count).collect()
}

/// Returns whether a line declares a field that is visible in some modules, but not in all.
fn is_open_field(line: &str) -> bool {
    let Some((_, rest)) = line.trim_start().strip_prefix("pub(").and_then(|it| it.split_once(") "))
    else {
        return false;
    };
    let name = rest.split(':').next().unwrap_or_default();
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    rest.contains(": ") && !name.is_empty() && name.chars().all(is_name)
}

fn is_impl(line: &str, parts: &str) -> bool {
    line.strip_prefix("impl ").is_some_and(|rest| rest.strip_suffix(" {") == Some(parts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_fields_count_in_any_form_and_functions_do_not() {
        for field in ["    pub(super) at: u32,", "    pub(crate) at_2: [u8; 2],"] {
            assert!(is_open_field(field), "{field}");
        }
        assert!(is_open_field("    pub(in crate::shard) flags: u16,"));
        for other in [
            "    at: u32,",
            "    pub(super) fn at(&self, id: u32) {",
            "pub(super) const AT: u32 = 1;",
            "pub(super) use self::at;",
            "    pub at: u32,",
        ] {
            assert!(!is_open_field(other), "{other}");
        }
    }

    #[test]
    fn fields_count_by_folder_and_files_that_change_all_parts_once() {
        let file = |path: &str, text: &str| Source {
            path: format!("crates/balance/src/shard/{path}"),
            text: text.to_owned(),
        };
        let files = [
            file("mod.rs", "struct BalanceParts {\n    a: A,\n}\nimpl BalanceParts {\n}\n"),
            file("roads/a.rs", "impl BalanceParts {\n}\nimpl BalanceParts {\n}\n"),
            file("a.rs", "struct A {\n    pub(super) b: u32,\n}\nimpl A {\n}\n"),
            file("records/c.rs", "struct C {\n    pub(super) d: u8,\n    pub(super) e: u8,\n}\n"),
        ];
        let numbers: Vec<usize> = counts(&files).iter().map(|count| count.number).collect();
        assert_eq!(numbers, [1, 2, 2]);
    }
}
