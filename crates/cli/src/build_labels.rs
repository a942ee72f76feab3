//! Labels of the build.

/// Labels of the metrics `build_info` besides the version.
pub(crate) const BUILD_LABELS: &[(&str, &str)] =
    &[("commit", env!("BUILD_COMMIT")), ("target", env!("BUILD_TARGET"))];
