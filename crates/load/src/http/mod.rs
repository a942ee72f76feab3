//! HTTP/1.1 load: requests per second, their latency, and the server's cost.
//!
//! Written directly on the driver, without the engine: a generator must be cheaper than the servers
//! that it measures. A request is encoded once, and sent from memory that all connections share. An
//! answer whose head equals the previous one byte for byte is recognised without decoding; the
//! strict decoder handles all other answers.
//!
//! ```no_run
//! use std::sync::atomic::AtomicBool;
//! use throng_load::{Target, http};
//!
//! let plan = http::HttpPlan::new(Target::parse_http("http://127.0.0.1:9001/")?);
//! let report = http::run(&plan, &AtomicBool::new(false), &mut |_| {})?;
//! println!("{} requests a second", report.result.requests_per_s);
//! # Ok::<(), throng_load::Error>(())
//! ```

mod answer;
mod client;
mod conn;
mod expect;
mod plan;
mod pool;
mod request;
mod results;
mod run;
mod tally;

pub use expect::Expect;
pub use plan::{HttpPlan, MAX_PIPELINE, Pace};
#[doc(hidden)]
pub use request::encode;
pub use results::{Quantile, RequestsReport};
pub use run::run;

pub use crate::report::{ConnectionsReport, Errors, LoadReport, PlanReport};
pub use crate::slo::{Slo, SloReport};

/// The report of a run of HTTP requests.
pub type HttpReport = LoadReport<RequestsReport>;
