//! Servers for external tests and probes.

pub(crate) mod blocking;
pub(crate) mod netbench;
pub(crate) mod probe;
