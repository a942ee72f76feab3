//! The time for which the kernel did not run this thread, although it was ready to run.

#[cfg(target_os = "linux")]
use std::{fs::File, os::unix::fs::FileExt};

/// The run delay of one thread (`/proc/thread-self/schedstat`) since the last sample; 0 on systems
/// without that file.
#[derive(Debug, Default)]
pub(crate) struct RunDelay {
    #[cfg(target_os = "linux")]
    file: Option<File>,
    /// In nanoseconds.
    sampled: u64,
}

#[cfg(target_os = "linux")]
impl RunDelay {
    /// Samples the delay; must be called on the measured thread.
    pub(crate) fn sample(&mut self) {
        if self.file.is_none() {
            self.file = File::open("/proc/thread-self/schedstat").ok();
        }
        self.sampled = self.read();
    }

    /// Returns the nanoseconds since the last sample; 0 without one.
    pub(crate) fn since_sample(&self) -> u64 {
        self.read().saturating_sub(self.sampled)
    }

    fn read(&self) -> u64 {
        let mut line = [0; 96];
        let length = self.file.as_ref().and_then(|file| file.read_at(&mut line, 0).ok());
        second_number(&line[..length.unwrap_or_default()])
    }

    #[cfg(test)]
    pub(crate) fn of_file(path: &std::path::Path) -> Self {
        let mut delay = Self { file: File::open(path).ok(), sampled: 0 };
        delay.sample();
        delay
    }
}

#[cfg(not(target_os = "linux"))]
impl RunDelay {
    pub(crate) fn sample(&mut self) {}

    pub(crate) fn since_sample(&self) -> u64 {
        self.sampled
    }
}

/// Reads a line such as `2131516 45123 12`: time on a CPU, run delay, and time slices.
#[cfg(target_os = "linux")]
fn second_number(line: &[u8]) -> u64 {
    let text = str::from_utf8(line).unwrap_or_default();
    text.split_ascii_whitespace().nth(1).and_then(|number| number.parse().ok()).unwrap_or_default()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn the_second_number_of_the_line_is_the_delay() {
        assert_eq!(second_number(b"2131516 45123 12\n"), 45123);
        assert_eq!((second_number(b""), second_number(b"1 x")), (0, 0));
        let mut own = RunDelay::default();
        assert_eq!(own.since_sample(), 0, "not sampled yet");
        own.sample();
        let line = std::fs::read("/proc/thread-self/schedstat").unwrap();
        assert!(own.sampled <= second_number(&line));
    }
}
