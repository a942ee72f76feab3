//! A simulated driver, network and clock that runs the production engine.
//!
//! * Duty: run real shards, unmodified, through seeded schedules of faults and peers, in virtual
//!   time, and check the conditions that must hold. `THRONG_SIM_SEED=<seed>` repeats a failed seed.
//! * Not its duty: real sockets, real time, speed.
//! * Depends on: `throng-engine`, `throng-balance`, `throng-io`, `throng-proto`, `throng-tls`,
//!   rustls.
//! * Start reading at: [`world`], which runs a [`plan`]; then [`driver`], which asserts the driver
//!   contract from the engine's side, and `world/checks.rs`, which checks the end. [`balance`] has
//!   the worlds in which only the balancer is real, and [`secured`] the parts for runs over TLS.
#![forbid(unsafe_code)]

pub mod ask;
pub mod balance;
pub mod driver;
pub mod exchange;
pub mod faults;
pub mod lifecycle;
pub mod moves;
pub mod net;
pub mod peer;
mod placing;
pub mod plan;
pub mod reader;
pub mod record;
#[cfg(feature = "contract")]
pub mod rig;
pub mod rng;
pub mod rules;
pub mod script;
pub mod secured;
pub mod seeds;
pub mod service;
mod stops;
pub mod turns;
pub mod world;

pub use ask::{Ask, ServiceStart, Take};
pub use driver::{SimDriver, Waiting};
pub use faults::Faults;
pub use net::{Net, SharedNet, SimSocket};
pub use peer::{End, Peer};
pub use plan::{Expect, SECOND, SimPlan};
pub use record::Audience;
pub use rng::Rng;
pub use rules::Rules;
pub use script::{Do, Pace};
pub use seeds::Seeds;
pub use world::{World, WorldOutcome, run_chained_seed, run_secured_seed, run_seed};

/// Suppresses the panic hook for panics that peers have requested.
pub fn hush_planned_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !info.payload().is::<exchange::Planned>() {
                before(info);
            }
        }));
    });
}
