//! Labels of the build.

/// Labels of the metrics `build_info` besides the version.
pub(crate) const BUILD_LABELS: &[(&str, &str)] =
    &[("commit", env!("BUILD_COMMIT")), ("target", env!("BUILD_TARGET"))];

/// Version, commit and its date.
pub(crate) const VERSION: &str =
    concat!(env!("CARGO_PKG_VERSION"), " (", env!("BUILD_COMMIT"), ")");
