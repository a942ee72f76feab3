//! The compiler's messages for the usual mistakes name the remedy.
//!
//! Each file of `mistakes/` is compiled against the library; its lines `//~ text` are the expected
//! messages. Only the library's own texts are expected, which do not depend on the compiler's
//! version.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder of this test's dependencies, where the library is as well.
fn dependencies() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_owned()
}

/// The library that was built last: other sets of features have files of their own.
fn library(folder: &Path) -> PathBuf {
    let is_library = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with("libthrong-") && name.ends_with(".rlib")
    };
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let built = |path: &PathBuf| fs::metadata(path).and_then(|of| of.modified()).unwrap();
    files.filter(is_library).max_by_key(built).expect("the library is built for its tests")
}

#[test]
fn compile_errors_of_the_usual_mistakes_name_the_remedy() {
    let folder = dependencies();
    let library = library(&folder);
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mistakes");
    let (output, mut compiled) = (throng_testkit::TempFolder::new("mistakes"), 0);
    for entry in fs::read_dir(sources).unwrap() {
        let path = entry.unwrap().path();
        let source = fs::read_to_string(&path).unwrap();
        let output = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
            .args(["--edition", "2024", "--crate-type", "bin", "--emit", "metadata", "-o"])
            .arg(output.join("metadata"))
            .arg("-L")
            .arg(format!("dependency={}", folder.display()))
            .arg("--extern")
            .arg(format!("throng={}", library.display()))
            .arg(&path)
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{} compiles", path.display());
        let expected: Vec<&str> =
            source.lines().filter_map(|line| line.strip_prefix("//~ ")).collect();
        assert!(!expected.is_empty(), "{} expects nothing", path.display());
        for text in expected {
            assert!(errors.contains(text), "no {text:?} for {}:\n{errors}", path.display());
        }
        compiled += 1;
    }
    assert_eq!(compiled, 7);
}
