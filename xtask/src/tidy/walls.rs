//! Counts the open walls between the parts of a shard: a part must have private fields, and few
//! files may change several parts.

use super::Source;
use super::code::{is_test_file, without_comments, without_tests};
use super::counts::Count;

/// A shard whose parts are counted.
struct Walls {
    /// The struct of its parts.
    parts: &'static str,
    /// The folders of their files.
    folders: &'static [&'static str],
    /// A folder below them for records: plain data that the parts share.
    records: Option<&'static str>,
    /// A part that many roads reach by a field, whose uses are counted.
    lent: Option<&'static str>,
}

const SHARDS: [Walls; 2] = [
    Walls {
        parts: "BalanceParts",
        folders: &["crates/balance/src/shard/"],
        records: Some("crates/balance/src/shard/records/"),
        lent: None,
    },
    Walls {
        parts: "EngineParts",
        folders: &["crates/engine/src/shard/", "crates/engine/src/connections/"],
        records: None,
        lent: Some("core.conns"),
    },
];

/// Counts the fields that other modules can reach, and the files with methods of all parts.
pub(super) fn counts(files: &[Source]) -> Vec<Count> {
    SHARDS.iter().flat_map(|walls| counts_of(walls, files)).collect()
}

fn counts_of(walls: &Walls, files: &[Source]) -> Vec<Count> {
    let Walls { parts, folders, records, lent } = walls;
    let is_inside = |file: &&Source| folders.iter().any(|folder| file.is_below(folder));
    let inside = files.iter().filter(|file| file.is_rust()).filter(is_inside);
    let production = inside.filter(|file| !is_test_file(&file.path));
    let code = production.map(|file| (file, without_comments(without_tests(&file.text))));
    let code: Vec<(&Source, String)> = code.collect();
    let places = |is_counted: &dyn Fn(&Source, &str) -> bool| -> Vec<String> {
        let places = code.iter().flat_map(|(file, code)| {
            let lines = code.lines().enumerate().filter(|(_, line)| is_counted(file, line));
            lines.map(|(index, _)| format!("{}:{}", file.path, index + 1))
        });
        places.collect()
    };
    let is_record = |file: &Source| records.is_some_and(|records| file.is_below(records));
    let open = places(&|file, line| !is_record(file) && is_open_field(line));
    let mut counts = vec![Count::of(format!("open fields in parts of `{parts}`"), open)];
    if records.is_some() {
        let open = places(&|file, line| is_record(file) && is_open_field(line));
        counts.push(Count::of(format!("open fields in records of `{parts}`"), open));
    }
    if let Some(lent) = lent {
        counts.push(Count::of(format!("uses of `{lent}`"), places(&|_, line| line.contains(lent))));
    }
    let changing = code.iter().filter(|(_, code)| code.lines().any(|it| is_impl(it, parts)));
    let changing = changing.map(|(file, _)| file.path.clone());
    counts.push(Count::of(format!("files with `impl {parts}`"), changing.collect()));
    counts
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

/// Returns whether a line begins the methods of the struct, with or without parameters.
fn is_impl(line: &str, parts: &str) -> bool {
    let head = line.strip_prefix("impl").and_then(|rest| rest.strip_suffix(" {"));
    let mut words = head.into_iter().flat_map(|head| head.split([' ', '<', '>']));
    head.is_some_and(|head| !head.contains(" for ")) && words.any(|word| word == parts)
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
        let numbers = |at: usize, files: &[Source]| -> Vec<usize> {
            counts_of(&SHARDS[at], files).iter().map(|count| count.number).collect()
        };
        assert_eq!(numbers(0, &files), [1, 2, 2]);
        let engine = [Source {
            path: "crates/engine/src/shard/a.rs".to_owned(),
            text: "impl<S: Service> EngineParts<S> {\n    core.conns.a();\n}\n".to_owned(),
        }];
        assert_eq!(numbers(1, &engine), [0, 1, 1]);
    }

    #[test]
    fn methods_of_a_struct_count_with_parameters_and_traits_do_not() {
        assert!(is_impl("impl EngineParts {", "EngineParts"));
        assert!(is_impl("impl<S: Service> EngineParts<S> {", "EngineParts"));
        assert!(!is_impl("impl<S> Drop for EngineParts<S> {", "EngineParts"));
        assert!(!is_impl("impl MoreEngineParts {", "EngineParts"));
    }
}
