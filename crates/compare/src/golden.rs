//! Compares reports with files, so that no change of the code changes a report's form unnoticed.

use std::path::Path;

use serde_json::Value;
use throng_load::report::Render;

/// With this variable set, the tests write the files.
const WRITE: &str = "UPDATE_DOCUMENTS";

/// Compares the report as JSON (with its keys in alphabetical order), CSV and text.
pub(crate) fn assert_unchanged(name: &str, report: &impl Render) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden");
    let json: Value = serde_json::from_str(&report.to_json()).unwrap();
    let forms =
        [("json", format!("{json:#}\n")), ("csv", report.to_csv()), ("txt", report.to_text())];
    for (ending, text) in forms {
        let path = folder.join(format!("{name}.{ending}"));
        if std::env::var_os(WRITE).is_some() {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(&path, &text).unwrap();
        }
        let expected = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(text == expected, "{} is not\n{text}", path.display());
    }
}
