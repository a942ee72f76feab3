//! `throng bench connect`: how many connections a server accepts, and how fast.

use throng_config::units::parse_count;
use throng_load::{Error, Mode, Plan, Target};

use super::flags::{Common, LoopArgs, TargetArgs, TimeArgs, parse_rate};
use super::measurement::Measurement;
use super::payload::PayloadArgs;

pub(super) const EXAMPLES: &str = "Examples:
  throng bench connect ws://127.0.0.1:9001/echo --concurrency 64 --duration 10s
  throng bench connect wss://127.0.0.1:9001/echo --insecure --number 10k
  throng bench connect ws://127.0.0.1:9001/echo --rate 2000/s --slo 'p99<20ms'
  throng bench connect wss://127.0.0.1:9001/echo --ca server.pem --find-max --slo 'p99<50ms' -d 5s

With --rate, a connection that finds --concurrency others open waits for one of
them to end, while its time runs; the verdict says how many did.";

/// Parallel connection attempts in a closed loop.
const PLACES: usize = 64;
/// Maximum parallel attempts in an open loop, which begins no more than the rate requires.
const MAX_PLACES: usize = 1000;
/// The first rate of a search.
const START_PER_S: f64 = 500.0;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    target: TargetArgs,
    /// Connections open at a time; with --rate, --stages or --find-max at most [default: 64, there
    /// 1000]
    #[arg(long, short, value_name = "N", value_parser = parse_count)]
    concurrency: Option<usize>,
    #[command(flatten)]
    payload: PayloadArgs,
    /// Connections a second, such as 2000 or 2000/s (open loop)
    #[arg(long, short, value_name = "PER_SECOND", value_parser = parse_rate)]
    rate: Option<f64>,
    #[command(flatten)]
    loops: LoopArgs,
    #[command(flatten)]
    time: TimeArgs,
    #[command(flatten)]
    common: Common,
}

impl Args {
    /// Returns the measurement.
    ///
    /// # Errors
    /// Flags that contradict each other.
    pub(super) fn measurement(self) -> Result<Measurement, Error> {
        let rate_per_s = self.rate.or(self.loops.highest());
        let search = self.loops.find_max.options(rate_per_s.unwrap_or(START_PER_S));
        let (number, duration, warmup) = self.loops.times(&self.time, rate_per_s);
        let is_open = rate_per_s.is_some() || search.is_some();
        let places = self.concurrency.unwrap_or(if is_open { MAX_PLACES } else { PLACES });
        if places == 0 {
            return Err(Error::Usage("--concurrency is 0; it must be at least 1".to_owned()));
        }
        let mode = Mode::Connect { rate_per_s, duration, warmup };
        let mut plan = Plan::new(Target::parse(&self.target.url)?, mode);
        // A fixed number of connections also bounds the parallel attempts.
        plan.common.connections =
            number.map_or(places, |number| places.min(number.max(1) as usize));
        self.loops.apply(number, &mut plan.common);
        self.payload.apply(&mut plan)?;
        Ok(Measurement { search, ..self.common.measurement(plan)? })
    }
}
