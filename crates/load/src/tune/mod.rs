//! Finds the settings with which a server does better under a load: one setting at a time, in runs
//! that alternate with the best settings so far.
//!
//! The search is pure: [`Measure`] makes the runs, so that tests can replace the server. Its rules:
//!
//! * Runs with equal settings come first. How far they differ is the noise; nothing that is smaller
//!   is believed.
//! * A candidate is kept if the confidence interval of its ratio excludes 1, and the gain is at
//!   least [`Rules::min_gain`]. All candidates, and all looks at one candidate, share
//!   [`Rules::error`].
//! * What was kept is compared with the start once more, in new runs. If that does not show a gain,
//!   nothing is recommended.
//! * Nothing is searched while the generator or something else on the machine is the limit. A
//!   candidate that meets such a limit counts with the gain that is seen.

mod assignment;
mod knobs;
mod model;
mod pairs;
mod ratio;
mod report;
mod search;
#[cfg(test)]
mod tests;

pub use self::assignment::Assignment;
pub use self::knobs::{Knob, Program, Situation, knobs};
pub use self::model::{
    Confirmation, EarlyEnd, Interruption, Judgement, Measure, Noise, Reading, Refusal, Rules,
    Trial, TuneEvent, Tuning,
};
pub use self::ratio::Ratio;
pub use self::report::TuneReport;
pub use self::search::tune;
