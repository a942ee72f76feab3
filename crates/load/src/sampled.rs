//! Samples of the processes at the beginning and end of a measurement.

use std::time::Duration;

use throng_io::Instant;

use crate::sampler::{CpuSample, CpuUsage, MachineSample, Memory};

/// CPU times and counts at one moment.
#[derive(Clone, Debug)]
pub struct Moment {
    pub at: Instant,
    /// Answers so far.
    pub done: u64,
    pub server: Option<CpuSample>,
    pub own: Option<CpuSample>,
    pub machine: Option<MachineSample>,
}

/// Samples of the processes after the measurement, with all connections still open.
#[derive(Clone, Debug)]
pub struct Sampled {
    pub begin: Moment,
    pub end: Moment,
    /// Whether the run was stopped early.
    pub cut_short: bool,
    pub server_memory: Option<Memory>,
    pub server_descriptors: Option<usize>,
    pub own_memory: Option<Memory>,
}

impl Sampled {
    /// Returns the server's CPU use.
    pub fn server(&self) -> Option<CpuUsage> {
        Some(self.end.server.as_ref()?.since(self.begin.server.as_ref()?))
    }

    /// Returns the work completed between the samples per second of server CPU time.
    pub fn per_server_cpu_s(&self) -> Option<f64> {
        let done = self.end.done.saturating_sub(self.begin.done);
        self.server().filter(|cpu| cpu.cpu_s > 0.0).map(|cpu| done as f64 / cpu.cpu_s)
    }

    /// Returns the server's CPU time per completed unit of work between the samples, in
    /// microseconds.
    pub fn server_cpu_us_each(&self) -> Option<f64> {
        self.per_server_cpu_s().filter(|&rate| rate > 0.0).map(|rate| 1e6 / rate)
    }

    /// Returns the measured time in seconds: the planned time, or less if the run ended early. The
    /// threads count by the planned times and not by the samples, which are taken a moment later.
    pub fn seconds(&self, planned: Duration) -> f64 {
        let sampled = self.end.at.since(self.begin.at);
        let measured = if self.cut_short { sampled.min(planned) } else { planned };
        measured.as_secs_f64().max(1e-9)
    }

    pub fn generator(&self) -> CpuUsage {
        let Moment { own: Some(begin), .. } = &self.begin else { return CpuUsage::default() };
        self.end.own.as_ref().map(|end| end.since(begin)).unwrap_or_default()
    }

    pub fn machine_busy(&self) -> Option<f64> {
        Some(self.end.machine?.busy_since(&self.begin.machine?))
    }
}
