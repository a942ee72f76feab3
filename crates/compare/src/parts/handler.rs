//! The handler that blocks.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A handler that computes and then waits, as one does that asks a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Handler {
    /// The sleep of the handler for each message.
    #[serde(rename = "blocking_ms", with = "milliseconds")]
    pub blocking: Duration,
    /// CPU time of the handler for each message.
    #[serde(rename = "cpu_ms", with = "milliseconds")]
    pub cpu: Duration,
}

impl Handler {
    /// Does it once, on this thread.
    pub(crate) fn run(&self) {
        let until = thread_cpu() + self.cpu;
        // By this thread's own clock: on an overloaded machine time passes in which it computes
        // nothing.
        while thread_cpu() < until {
            std::hint::black_box((0..500_u64).fold(0, |a, b| a ^ std::hint::black_box(b * b)));
        }
        std::thread::sleep(self.blocking);
    }
}

mod milliseconds {
    use super::{Deserialize, Deserializer, Duration, Serializer};

    pub(super) fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_f64(time.as_secs_f64() * 1e3)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        f64::deserialize(from).map(|ms| Duration::from_secs_f64(ms / 1e3))
    }
}

#[cfg(all(unix, not(target_os = "netbsd")))]
fn thread_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// As near as it gets without a thread's clock.
#[cfg(not(all(unix, not(target_os = "netbsd"))))]
fn thread_cpu() -> Duration {
    Duration::from_nanos(throng_load::machine_now_ns())
}

#[cfg(all(test, unix, not(target_os = "netbsd")))]
mod tests {
    use super::*;

    #[test]
    fn it_takes_the_cpu_time_and_the_time_it_says() {
        let handler = Handler { blocking: Duration::from_millis(3), cpu: Duration::from_millis(2) };
        let (begun, cpu) = (std::time::Instant::now(), thread_cpu());
        handler.run();
        assert!(thread_cpu() - cpu >= handler.cpu);
        assert!(begun.elapsed() >= handler.blocking + handler.cpu);
    }
}
