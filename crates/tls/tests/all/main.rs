//! TLS over every driver, in the simulator, and against rustls.

mod allocations;
mod config;
mod contract;
mod driver;
mod memory;
mod oracle;
mod simulated;
mod support;
mod tickets;
