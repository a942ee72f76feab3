//! Honest load for WebSocket and HTTP servers.
//!
//! * Duty: drive any WebSocket or HTTP server by a plan, verify every answer, and report rates,
//!   latency and the server's cost, with a verdict on the limiting party.
//! * Not its duty: the command line (part of the CLI), the server.
//! * Depends on: `throng-engine` for its connections, `throng-io`'s drivers, `throng-proto` for
//!   frames.
//! * The modules hidden from the documentation are for `throng-compare`.
//! * Start reading at: [`plan`], with [`common`], then [`run()`]; [`schedule`] and [`verdict`] make
//!   the results honest.
//!
//! ```no_run
//! use std::sync::atomic::AtomicBool;
//! use std::time::Duration;
//! use throng_load::{Common, Mode, Pace, Plan, Target};
//!
//! let target = Target::parse("ws://127.0.0.1:9001/echo")?;
//! let pace = Pace::Open { rate_per_s: 10.0 };
//! let (duration, warmup) = (Duration::from_secs(10), Duration::from_secs(1));
//! let clients = Common { connections: 1000, ..target.into() };
//! let plan = Plan::new(clients, Mode::Echo { pace, duration, warmup });
//! let report = throng_load::run(&plan, &AtomicBool::new(false), &mut |_| {})?;
//! println!("{report}");
//! # Ok::<(), throng_load::Error>(())
//! ```
#![forbid(unsafe_code)]

mod check;
#[doc(hidden)]
pub mod client;
#[doc(hidden)]
pub mod clock;
pub mod common;
pub mod compare;
pub mod deflate;
pub mod demo;
pub mod descriptors;
pub mod error;
mod errors;
pub mod find_max;
pub mod http;
mod merge;
mod negotiated;
pub mod page;
pub mod plan;
#[doc(hidden)]
pub mod pool;
pub mod progress;
pub mod record;
pub mod report;
#[doc(hidden)]
pub mod run;
#[doc(hidden)]
pub mod sampled;
pub mod sampler;
pub mod scenario;
pub mod schedule;
pub mod script;
pub mod sequence;
mod session_failures;
pub mod slo;
pub mod sources;
pub mod target;
pub mod template;
mod tls;
pub mod tune;
pub mod units;
pub mod verdict;
mod work;

pub use clock::machine_now_ns;
pub use common::Common;
pub use error::Error;
pub use negotiated::TlsReport;
pub use plan::{Content, MAX_SHARDS, Mode, ModeName, Pace, Plan};
pub use progress::{Progress, RunStage};
pub use record::{Record, Summary};
pub use report::{LoadReport, Report};
pub use run::run;
pub use schedule::{RateStage, Schedule};
pub use script::Script;
pub use session_failures::SessionFailures;
pub use slo::Slo;
pub use sources::Sources;
pub use target::Target;
pub use template::{Template, Tokens};
pub use throng_proto::ws::deflate::{Mode as DeflateMode, Settings as Deflate};
pub use tls::{TlsClient, TlsPlan, TlsTrust};
#[cfg(feature = "tls")]
pub use tls::{TlsStream, is_certificate_required};
pub use verdict::{Facts, Limit, Verdict};
