//! Servers for tests and probes from outside.

pub(crate) mod blocking;
pub(crate) mod netbench;
pub(crate) mod probe;
