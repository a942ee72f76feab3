//! Comparisons: designs, servers and proxies side by side, each measured in a separate process.
//!
//! * Duty: measure cell after cell of a comparison, and report its rows as text, CSV, JSON and a
//!   page: ways to broadcast, settings of compression, I/O models, proxies, and any server in the
//!   blank/work benchmark; run the tables of published articles; and run the servers and
//!   subscribers for these.
//! * Not its duty: load on one server (`throng-load`), the command line's other flags and its
//!   output.
//! * Depends on: `throng-load` for the load and the reports, `throng` for the servers.
//! * Start reading at: [`Comparison`], then [`run()`] and one of the five.
#![forbid(unsafe_code)]

mod bench;
pub mod blank_work;
pub mod broadcast;
mod comparison;
pub mod compression;
mod figures;
#[cfg(test)]
mod golden;
mod io_model;
pub mod io_models;
pub mod netbench;
pub mod parts;
mod peers;
mod pin;
mod pool;
mod process;
pub mod proxies;
pub mod published;
mod run;
mod spread;
mod table;
mod word;

pub use bench::Bench;
pub use comparison::{Comparison, Measured, from_flags};
pub use run::{CellProgress, run};
pub use spread::Spread;
