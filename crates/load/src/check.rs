//! Validation of a [`Plan`], before any socket is opened.

use std::time::Duration;

use crate::client::{Handshake, JSON_SMALLEST};
use crate::common::check_time;
use crate::error::Error;
use crate::plan::{
    Content, FANOUT_STAMP, MAX_CONNECTS_PER_S, MAX_PIPELINE, MAX_SIZE, Mode, Pace, Plan,
};
use crate::slo::Slo;
use crate::work::split_stamp;

/// Maximum messages in flight on all connections together. The send time of each takes memory.
const MAX_UNDER_WAY: usize = 1 << 26;

impl Plan {
    /// Refuses an invalid plan.
    ///
    /// # Errors
    /// [`Error::Usage`] naming the flag and the bound.
    pub fn check(&self) -> Result<(), Error> {
        if let Mode::Fanout { channels, subscribers, rate_per_s, .. } = self.mode {
            self.check_fanout(channels, subscribers, rate_per_s)?;
        }
        let most_per_s = match self.mode {
            Mode::Connect { .. } => MAX_CONNECTS_PER_S,
            _ => 1e6 * self.common.connections as f64,
        };
        self.common.check(self.mode.is_open(), most_per_s)?;
        Handshake::of(self, 0)?;
        self.check_content()?;
        self.check_times()?;
        self.check_pace()
    }

    fn check_content(&self) -> Result<(), Error> {
        let refuse = |text: String| Err(Error::Usage(text));
        if matches!(self.content, Content::Json { .. }) && self.size < JSON_SMALLEST {
            return refuse(format!(
                "--size is {}; a JSON document needs {JSON_SMALLEST} bytes",
                self.size
            ));
        }
        if let Some(number) = self.common.number {
            let (least, of) = match self.mode {
                Mode::Echo { pace: Pace::Closed { .. }, .. } => (1, "messages of a closed loop"),
                // At least as many as connections in progress, so that each is used.
                Mode::Connect { rate_per_s: None, .. } => {
                    (self.common.connections as u64, "connections, as many as --concurrency")
                }
                _ => (u64::MAX, "for echo and connect"),
            };
            if number < least {
                let least =
                    if least == u64::MAX { String::new() } else { format!(", at least {least}") };
                return refuse(format!("--number is {number}; it is {of}{least}"));
            }
        }
        if let Content::Given(bytes) = &self.content
            && self.text
            && str::from_utf8(bytes).is_err()
        {
            return refuse(
                "the payload is not text in UTF-8; send it in binary messages".to_owned(),
            );
        }
        if self.size > MAX_SIZE {
            return refuse("--size must be at most 1GiB".to_owned());
        }
        Ok(())
    }

    /// Refuses durations and thresholds that are invalid for the mode.
    fn check_times(&self) -> Result<(), Error> {
        let refuse = |text: String| Err(Error::Usage(text));
        let ten_ms = Duration::from_millis(10);
        if let Some((duration, warmup)) = self.mode.times() {
            check_time("--duration", duration, ten_ms)?;
            check_time("--warmup", warmup, Duration::ZERO)?;
        }
        match self.mode {
            Mode::Script { timeout, .. } if timeout < Duration::from_millis(1) => {
                return refuse("--timeout must be at least 1ms".to_owned());
            }
            Mode::Script { .. } if self.script.is_none() => {
                return refuse("the script mode needs a script".to_owned());
            }
            Mode::Idle { hold } => {
                check_time("--hold", hold, ten_ms)?;
                if !self.common.slos.iter().all(Slo::is_about_errors) {
                    return refuse(
                        "--slo: idle connections have no latency and no rate; write errors<0.1%"
                            .to_owned(),
                    );
                }
            }
            Mode::Broadcast { .. } if self.common.slos.iter().any(Slo::is_about_rate) => {
                return refuse(
                    "--slo: broadcasts have no rate, one follows another; write p99<10ms"
                        .to_owned(),
                );
            }
            Mode::Broadcast { publishes: 0, .. } => {
                return refuse("--publishes must be at least 1".to_owned());
            }
            _ => {}
        }
        Ok(())
    }

    fn check_pace(&self) -> Result<(), Error> {
        let refuse = |text: String| Err(Error::Usage(text));
        match self.mode {
            Mode::Echo { pace: Pace::Closed { pipeline }, .. }
                if pipeline == 0 || pipeline > MAX_PIPELINE =>
            {
                refuse(format!("--pipeline must be between 1 and {MAX_PIPELINE}"))
            }
            Mode::Echo { pace: Pace::Closed { pipeline }, .. }
                if pipeline * self.common.connections > MAX_UNDER_WAY =>
            {
                refuse(format!(
                    "--pipeline {pipeline} on {} connections is more than {MAX_UNDER_WAY} messages \
                     under way",
                    self.common.connections
                ))
            }
            Mode::Echo { pace: Pace::Open { rate_per_s }, .. }
                if !(0.001..=1e6).contains(&rate_per_s) =>
            {
                refuse(format!(
                    "--rate is messages a second per connection, between 0.001 and 1000000, not \
                     {rate_per_s}"
                ))
            }
            Mode::Connect { .. } if !self.common.ramp.is_zero() => refuse(
                "--ramp spreads a set-up, and connect has none: --rate says how many begin in a \
                 second"
                    .to_owned(),
            ),
            Mode::Connect { rate_per_s: Some(rate_per_s), .. }
                if !(0.001..=MAX_CONNECTS_PER_S).contains(&rate_per_s) =>
            {
                refuse(format!(
                    "--rate is connections a second, between 0.001 and {MAX_CONNECTS_PER_S}, not \
                     {rate_per_s}"
                ))
            }
            _ => Ok(()),
        }
    }

    fn check_fanout(
        &self,
        channels: usize,
        subscribers: usize,
        rate_per_s: f64,
    ) -> Result<(), Error> {
        let refuse = |text: String| Err(Error::Usage(text));
        if channels == 0 || subscribers == 0 {
            return refuse(format!(
                "--channels is {channels} and --subscribers {subscribers}; both must be at least 1"
            ));
        }
        if self.common.connections != Self::fanout_connections(channels, subscribers) {
            return refuse(format!(
                "--connections is {}, but {channels} channels of {subscribers} subscribers and a \
                 publisher need {}",
                self.common.connections,
                Self::fanout_connections(channels, subscribers)
            ));
        }
        if !(0.001..=1e7).contains(&rate_per_s) {
            return refuse(format!(
                "--rate is {rate_per_s}; it is messages a second to all channels together, between \
                 0.001 and 10000000"
            ));
        }
        let is_stamped = match &self.content {
            Content::Letters => true,
            Content::Given(bytes) => split_stamp(bytes).is_some(),
            Content::Json { .. } | Content::Template(_) => false,
        };
        if !is_stamped {
            return refuse(
                "--payload has to be a text with {stamp} once, where the 40 characters go that \
                 name the message"
                    .to_owned(),
            );
        }
        if self.size < FANOUT_STAMP {
            return refuse(format!(
                "--size is {}; a message needs {FANOUT_STAMP} bytes for its channel, number and \
                 planned time",
                self.size
            ));
        }
        if channels > 1 && !self.resource().contains("{channel}") {
            return refuse(format!(
                "--against has the path {:?}, which names one channel; write {{channel}} where its \
                 name goes, as in /ws/{{channel}}, or --channels 1",
                self.resource()
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::Common;
    use crate::plan::tests::{SECOND, plan};
    use crate::target::Target;
    use throng_proto::ws::deflate::Settings as Deflate;

    fn with(mut plan: Plan, change: impl FnOnce(&mut Common)) -> Plan {
        change(&mut plan.common);
        plan
    }

    #[test]
    fn defaults_pass() {
        assert!(plan(Pace::Closed { pipeline: 1 }).check().is_ok());
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        let fine = || plan(Pace::Closed { pipeline: 1 });
        let bad = [
            (with(fine(), |common| common.connections = 0), "--connections"),
            (with(fine(), |common| common.connections = usize::MAX), "--connections"),
            (
                with(plan(Pace::Closed { pipeline: MAX_PIPELINE }), |common| {
                    common.connections = 20_000
                }),
                "messages under way",
            ),
            (with(fine(), |common| common.threads = 0), "--threads"),
            (with(fine(), |common| common.threads = 65), "--threads"),
            (with(fine(), |common| (common.threads, common.connections) = (2, 1)), "--threads 2"),
            (Plan { size: MAX_SIZE + 1, ..fine() }, "--size"),
            (Plan { size: 71, content: Content::Json { seed: 1 }, ..fine() }, "needs 72 bytes"),
            (Plan { deflate: Deflate::default().level(0), ..fine() }, "level is 0"),
            (with(fine(), |common| common.window = 0), "--window"),
            (with(fine(), |common| common.setup_timeout = Duration::ZERO), "--setup-timeout"),
            (plan(Pace::Closed { pipeline: 0 }), "--pipeline"),
            (plan(Pace::Open { rate_per_s: 0.0 }), "--rate"),
            (plan(Pace::Open { rate_per_s: f64::NAN }), "--rate"),
            (Plan { mode: Mode::Idle { hold: Duration::ZERO }, ..fine() }, "--hold"),
            (
                Plan {
                    mode: Mode::Connect {
                        rate_per_s: None,
                        duration: Duration::ZERO,
                        warmup: SECOND,
                    },
                    ..fine()
                },
                "--duration",
            ),
            (
                with(
                    Plan {
                        mode: Mode::Connect { rate_per_s: None, duration: SECOND, warmup: SECOND },
                        ..fine()
                    },
                    |common| common.ramp = SECOND,
                ),
                "--ramp",
            ),
            (
                Plan { mode: Mode::Broadcast { publishes: 0, timeout: SECOND }, ..fine() },
                "--publishes",
            ),
        ];
        for (plan, flag) in bad {
            let error = plan.check().unwrap_err();
            assert!(error.to_string().contains(flag) && error.exit_code() == 2, "{flag}: {error}");
        }
    }

    #[test]
    fn a_fanout_must_fit_together() {
        let fanout = |url: &str, channels, subscribers, rate_per_s| {
            let (duration, warmup) = (SECOND, SECOND);
            let mode = Mode::Fanout { channels, subscribers, rate_per_s, duration, warmup };
            let connections = Plan::fanout_connections(channels, subscribers);
            let target = Target::parse(url).unwrap();
            Plan::new(Common { connections, ..target.into() }, mode)
        };
        let url = "ws://127.0.0.1:9001";
        let fine = || fanout(url, 1_000, 15, 1_000.0);
        assert!(fine().check().is_ok());
        assert_eq!((fine().sockets(), fine().resource()), (16_000, "/ws/{channel}"));
        let one = "ws://127.0.0.1:9001/feed";
        assert!(fanout(one, 1, 15, 1.0).check().is_ok());
        for (plan, words) in [
            (fanout(url, 0, 15, 1.0), "--channels is 0"),
            (fanout(url, 5, 0, 1.0), "--subscribers 0"),
            (fanout(url, 5, 5, 0.0), "--rate is 0"),
            (fanout(url, 5, 5, f64::INFINITY), "--rate is inf"),
            (fanout(one, 2, 5, 1.0), "write {channel}"),
            (Plan { size: 39, ..fine() }, "--size is 39; a message needs 40"),
            (with(fine(), |common| common.connections = 7), "need 16000"),
        ] {
            let error = plan.check().unwrap_err();
            assert!(
                error.to_string().contains(words) && error.exit_code() == 2,
                "{words}: {error}"
            );
        }
    }
}
