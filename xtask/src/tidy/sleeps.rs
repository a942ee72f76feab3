//! Checks that tests wait for events: no test's thread sleeps, except where the test kit polls.

use super::Source;

/// The only file with sleeps: conditions are polled there.
const WAITING: &str = "dev/testkit/src/waiting.rs";

/// Returns each line of a test that sleeps.
pub(super) fn problems(files: &[Source]) -> Vec<String> {
    let tests = files.iter().filter(|file| file.is_rust() && file.path != WAITING);
    tests.flat_map(sleeps).collect()
}

fn sleeps(file: &Source) -> Vec<String> {
    let mut is_test = is_test(&file.path);
    let mut found = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        is_test |= line.trim_start().starts_with("#[cfg(test)]");
        let code = line.split("//").next().unwrap_or_default();
        if is_test && code.contains("thread::sleep(") {
            let (path, number) = (&file.path, index + 1);
            found.push(format!(
                "{path}:{number}: a test sleeps: wait for an event, or poll with `eventually` of \
                 {WAITING}"
            ));
        }
    }
    found
}

/// Returns whether a file contains only tests.
fn is_test(path: &str) -> bool {
    path.starts_with("tests/") || path.contains("/tests/") || path.ends_with("/tests.rs")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(path: &str, text: &str) -> Vec<String> {
        problems(&[Source { path: path.into(), text: text.into() }])
    }

    #[test]
    fn a_sleep_in_a_test_is_found_and_one_in_production_is_not() {
        let sleep = concat!("fn f() {\n    std::thread::", "sleep(TIME);\n}\n");
        assert_eq!(of("crates/a/src/b.rs", sleep), [""; 0]);
        assert_eq!(of(WAITING, &format!("#[cfg(test)]\n{sleep}")), [""; 0]);
        for path in ["crates/a/tests/b.rs", "crates/a/src/tests.rs", "crates/a/src/b/tests/c.rs"] {
            let found = of(path, sleep);
            assert!(found.len() == 1 && found[0].starts_with(&format!("{path}:2: ")), "{found:?}");
        }
        assert_eq!(of("crates/a/src/b.rs", &format!("#[cfg(test)]\n{sleep}")).len(), 1);
        let comment = concat!("// thread::", "sleep(TIME)\n");
        assert_eq!(of("crates/a/tests/b.rs", comment), [""; 0]);
    }
}
