//! Figures for operators, in the text format that Prometheus reads.
//!
//! [`App::metrics`](crate::App::metrics) serves a server's metrics; an [`Observer`] has them for
//! another server.

pub use throng_http::openmetrics;

pub use crate::observe::Observer;

/// Resources of this process, as the operating system reports them.
pub mod process {
    pub use crate::process::{descriptor_limit, descriptors_in_use, resident_bytes, write_metrics};
}
