//! `throng demo`.

#[cfg(feature = "tls")]
use std::path::Path;
use std::process::Output;

use super::throng;

#[test]
fn a_demonstration_of_twenty_shows_messages_and_ends_well() {
    let output =
        throng(&["demo", "--for", "2s", "--clients", "20", "--rate", "20"]).output().unwrap();
    shows_messages(&output);
}

#[cfg(feature = "tls")]
#[test]
fn a_demonstration_with_tls_makes_its_own_certificate() {
    let words = ["demo", "--tls", "--for", "2s", "--clients", "20", "--rate", "20"];
    let out = shows_messages(&throng(&words).output().unwrap());
    assert!(out.contains("throng listens on https://"), "{out}");
    let line = out.lines().find(|line| line.contains("--cacert ")).unwrap();
    let file = line.split("--cacert ").nth(1).unwrap().trim_end_matches(')');
    assert!(!Path::new(file).exists(), "it lasts as long as the demonstration");
}

/// Checks that messages were exchanged, and that nothing failed.
fn shows_messages(output: &Output) -> String {
    let out = String::from_utf8(output.stdout.clone()).unwrap();
    let errors = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!((output.status.code(), errors.as_str()), (Some(0), ""), "{out}");
    let live: Vec<_> = out.lines().filter(|line| line.contains(" in/s ")).collect();
    assert!(!live.is_empty(), "{out}");
    let received = out.lines().find_map(|line| line.split(" and received ").nth(1)).unwrap();
    assert_ne!(received, "0", "two clients of a channel receive from each other: {out}");
    let out_rate = |line: &&str| -> Option<u64> {
        let (before, _) = line.split_once(" out/s")?;
        before.split_whitespace().last()?.replace(',', "").parse().ok()
    };
    assert!(live.iter().filter_map(out_rate).any(|rate| rate > 0), "{out}");
    out
}
