//! `docs/doctor.md` explains each rule once, in the words of `--explain`.

use std::collections::BTreeSet;
use std::path::Path;

use throng_doctor::{LIVE_RULES, document, explain, explain_live, rules};

use crate::golden::is_current;

#[test]
fn the_document_explains_each_rule_once() {
    let text = document();
    let all: Vec<&rules::Rule> = rules::RULES.iter().flat_map(|of| *of).collect();
    assert_eq!(all.len(), 48);
    for rule in &all {
        assert_eq!(text.matches(&format!("### {}\n", rule.id)).count(), 1, "{}", rule.id);
        assert!(text.contains(explain(rule).trim_end()), "{}", rule.id);
        assert!(rules::find(rule.id).is_some_and(|found| found.id == rule.id));
        for part in [rule.about, rule.formula, rule.reads, rule.undo, rule.source] {
            assert!(!part.is_empty(), "{}", rule.id);
        }
    }
    let live = || LIVE_RULES.iter().flat_map(|of| *of);
    assert_eq!(live().count(), 12);
    for rule in live() {
        assert_eq!(text.matches(&format!("### {}\n", rule.id)).count(), 1, "{}", rule.id);
        assert!(text.contains(explain_live(rule).trim_end()), "{}", rule.id);
    }
    let ids: BTreeSet<&str> =
        all.iter().map(|rule| rule.id).chain(live().map(|it| it.id)).collect();
    assert_eq!(ids.len(), all.len() + 12, "an id is there twice");
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/doctor.md");
    is_current(&docs, &text);
}
