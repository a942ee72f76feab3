//! The compiler's messages for the usual mistakes name the remedy.

/// The messages are those of the compiler that `rust-version` names. After an update:
/// `TRYBUILD=overwrite cargo test -p throng --test mistakes`, and read the difference.
#[test]
fn compile_errors_of_the_usual_mistakes_name_the_remedy() {
    trybuild::TestCases::new().compile_fail("tests/mistakes/*.rs");
}
