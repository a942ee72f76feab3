//! TLS over every driver, in the simulator, and against rustls.

mod alerts;
mod allocations;
mod closes;
mod config;
mod contract;
mod cuts;
mod driver;
mod handshakes;
mod hellos;
mod memory;
mod moves;
mod oracle;
mod ours;
mod policies;
mod reload;
mod resumed;
mod rig;
mod simulated;
mod support;
mod tickets;
