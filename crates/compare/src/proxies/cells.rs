//! One measurement of one proxy.

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant as WallClock};

use throng_load::client::Timeline;
use throng_load::report::{Measured, Report};
use throng_load::run::{LEAD, Sampled, measure};
use throng_load::sampler::{CpuSample, Memory, Processes};
use throng_load::{Common, Error, Mode, Pace, Plan, Progress, RunStage};

use super::burst::Burst;
use super::flags::{Proxies, ProxyTest};
use super::mostly_idle::{LARGEST, MostlyIdle, MostlyIdleOutcome};
use super::report::{Figures, Sample};
use super::subjects::Running;
use crate::bench::{Bench, FIRST_CONNECTIONS, flawless, until_gone};
use crate::pool::SteeredPool;

/// The time for which connections stay open before memory is measured.
const FIRST: Duration = Duration::from_millis(200);
/// Payload of the tables connect and latency.
const SIZE: usize = 100;
/// Connections being made at a time in the table connect.
const CONNECTING: usize = 64;
/// Longest wait for the last answers of an open loop.
const DRAIN: Duration = Duration::from_secs(5);
/// Between two looks at CPU and memory.
const SAMPLE_EVERY: Duration = Duration::from_millis(200);

impl Proxies {
    /// Measures the figures of a test.
    ///
    /// # Errors
    /// A failure that leaves no figures to report, including wrong answers.
    pub(super) fn figures(
        &self,
        test: ProxyTest,
        running: &Running,
        bench: &mut Bench<'_>,
    ) -> Result<Figures, Error> {
        match test {
            ProxyTest::Echo { size_bytes } => self.echo(running, size_bytes, bench),
            ProxyTest::Connect => self.connect(running, bench),
            ProxyTest::Idle => self.idle(running, bench),
            ProxyTest::Latency => self.latency(running, bench),
            ProxyTest::MostlyIdle => self.mostly_idle(running, bench),
            ProxyTest::Burst { size_bytes } => self.burst(running, size_bytes, bench),
        }
    }

    fn load_plan(&self, running: &Running, connections: usize, size: usize, mode: Mode) -> Plan {
        let common = Common {
            connections,
            setup_timeout: self.setup_timeout,
            server_pids: running.pids.clone(),
            ..running.target.clone().into()
        };
        Plan { size, ..Plan::new(common, mode) }
    }

    fn echo(
        &self,
        running: &Running,
        size: usize,
        bench: &mut Bench<'_>,
    ) -> Result<Figures, Error> {
        let (duration, warmup, connections) = (self.duration(), self.warmup, self.connections);
        let mode = Mode::Echo { pace: Pace::Closed { pipeline: 1 }, duration, warmup };
        let report = bench.flawless_load(&self.load_plan(running, connections, size, mode))?;
        let Measured::Echo(echo) = &report.result else { return Ok(Figures::default()) };
        Ok(Figures {
            per_s: Some(echo.messages_per_s),
            per_cpu_s: echo.messages_per_server_cpu_s,
            latency: echo.latency,
            ..Figures::of(&report)
        })
    }

    fn connect(&self, running: &Running, bench: &mut Bench<'_>) -> Result<Figures, Error> {
        let (duration, warmup) = (self.duration(), self.warmup);
        let mode = Mode::Connect { rate_per_s: None, duration, warmup };
        let report = bench.flawless_load(&self.load_plan(running, CONNECTING, SIZE, mode))?;
        let Measured::Connect(connect) = &report.result else { return Ok(Figures::default()) };
        Ok(Figures {
            per_s: Some(connect.connections_per_s),
            per_cpu_s: connect.connections_per_server_cpu_s,
            latency: connect.total,
            ..Figures::of(&report)
        })
    }

    fn idle(&self, running: &Running, bench: &mut Bench<'_>) -> Result<Figures, Error> {
        self.first_come_and_go(running, bench)?;
        let mode = Mode::Idle { hold: self.idle_hold() };
        let report = bench.flawless_load(&self.load_plan(running, self.tunnels(), SIZE, mode))?;
        let Measured::Idle(idle) = &report.result else { return Ok(Figures::default()) };
        Ok(Figures {
            bytes_per_tunnel: idle.private_bytes_per_connection,
            rss_bytes_per_tunnel: idle.rss_bytes_per_connection,
            process_bytes: idle.memory_after.map(|memory| memory.pss_bytes),
            ..Figures::of(&report)
        })
    }

    fn latency(&self, running: &Running, bench: &mut Bench<'_>) -> Result<Figures, Error> {
        let (connections, warmup) = (self.connections, self.warmup);
        let pace = Pace::Open { rate_per_s: self.rate };
        let mode = Mode::Echo { pace, duration: 2 * self.duration(), warmup };
        let report = bench.flawless_load(&self.load_plan(running, connections, SIZE, mode))?;
        let Measured::Echo(echo) = &report.result else { return Ok(Figures::default()) };
        Ok(Figures {
            per_s: Some(echo.messages_per_s),
            per_cpu_s: echo.messages_per_server_cpu_s,
            latency: echo.latency,
            unanswered: echo.open_loop.as_ref().map(|open| open.unanswered),
            late_p99_us: echo.open_loop.as_ref().and_then(|open| Some(open.lateness?.p99_us)),
            ..Figures::of(&report)
        })
    }

    /// A few connections with some messages, and the wait until they are forgotten.
    fn first_come_and_go(&self, running: &Running, bench: &mut Bench<'_>) -> Result<(), Error> {
        let Some(processes) = running.processes() else { return Ok(()) };
        let alone = processes.descriptors();
        let pace = Pace::Closed { pipeline: 1 };
        let mode = Mode::Echo { pace, duration: FIRST, warmup: Duration::ZERO };
        bench.flawless_load(&self.load_plan(running, FIRST_CONNECTIONS, SIZE, mode))?;
        until_gone(&processes, alone);
        Ok(())
    }

    fn mostly_idle(&self, running: &Running, bench: &mut Bench<'_>) -> Result<Figures, Error> {
        self.first_come_and_go(running, bench)?;
        let (connections, warmup) = (self.tunnels(), self.warmup);
        let (duration, seed) = (self.mostly_idle_time(), self.seed);
        let processes = running.processes();
        let before = processes.as_ref().and_then(Processes::memory);
        let pool = SteeredPool {
            ramp: self.ramp(),
            exact: true,
            ..self.pool(running, connections, LARGEST, processes.as_ref(), bench.stop)
        };
        let mut sampler = Sampler::new(processes.as_ref());
        let mut watch_and_sample = |progress: &Progress| {
            sampler.look(progress);
            (bench.watch)(progress);
        };
        let work = MostlyIdle::new(running.resource(), seed);
        let (sampled, setup, outcome) =
            pool.run(work, &mut watch_and_sample, |steering, shared| {
                steering.ready(connections)?;
                let start = steering.clock.now().after(LEAD);
                let from = start.after(warmup);
                let timeline = Timeline { start, from, to: from.after(duration) };
                shared.begin(timeline);
                shared.wake_all();
                let measured = measure(steering, timeline, warmup, duration)?;
                steering.drain(DRAIN);
                Ok(measured)
            })?;
        flawless(&setup.errors)?;
        let samples = sampler.samples;
        Ok(Figures {
            samples,
            ..mostly_idle_figures(&sampled, before, &outcome, connections, duration)
        })
    }

    fn burst(
        &self,
        running: &Running,
        size: usize,
        bench: &mut Bench<'_>,
    ) -> Result<Figures, Error> {
        let (connections, messages) = (self.burst_connections, self.burst_messages);
        let wanted = connections as u64 * messages;
        let processes = running.processes();
        let pool = self.pool(running, connections, size, processes.as_ref(), bench.stop);
        let work = Burst::new(running.resource(), self.seed, connections, messages, size);
        let begun = WallClock::now();
        let cpu = || {
            let at_ns = begun.elapsed().as_nanos() as u64;
            processes.as_ref().and_then(|processes| processes.cpu(at_ns))
        };
        let before = cpu();
        let watch = &mut *bench.watch;
        let mut peak = processes.as_ref().and_then(Processes::resident);
        let mut watch_and_look = |progress: &Progress| {
            peak = peak.max(processes.as_ref().and_then(Processes::resident));
            watch(progress);
        };
        let ended = pool.run(work, &mut watch_and_look, |steering, shared| {
            let done = || shared.sum(|lane| &lane.done);
            let stage = || RunStage::Draining { waiting: wanted.saturating_sub(done()) };
            // The timeout is for a lack of progress, not for the total time.
            let mut reached = done();
            while !steering.wait_for(self.setup_timeout, || done() >= wanted, stage) {
                if steering.is_over() || done() == reached {
                    break;
                }
                reached = done();
            }
            match (done() >= wanted, steering.is_over()) {
                // All connections are still open here.
                (true, _) => Ok((cpu(), processes.as_ref().and_then(Processes::memory))),
                (false, true) => Err(Error::Interrupted),
                (false, false) => Err(Error::Child(format!(
                    "{} of {wanted} messages were not answered within {} s of silence",
                    wanted - done(),
                    self.setup_timeout.as_secs_f64(),
                ))),
            }
        })?;
        let ((after, memory), setup, outcome) = ended;
        flawless(&setup.errors)?;
        let Some((connected_s, seconds)) = outcome.seconds() else {
            return Err(Error::Interrupted);
        };
        let cpu = after.zip(before).map(|(after, before)| after.since(&before));
        let cpu_s = cpu.map(|cpu| cpu.cpu_s);
        Ok(Figures {
            seconds: Some(seconds),
            connected_s: Some(connected_s),
            cpu_s,
            per_s: Some(wanted as f64 / seconds),
            per_cpu_s: cpu_s.filter(|&cpu_s| cpu_s > 0.0).map(|cpu_s| wanted as f64 / cpu_s),
            cores: cpu.map(|cpu| cpu.cores),
            waiting_share: cpu.map(|cpu| cpu.busiest_thread_waiting),
            latency: outcome.latency.summary(),
            process_bytes: memory.map(|memory| memory.pss_bytes),
            peak_resident_bytes: peak.max(memory.map(|memory| memory.rss_bytes)),
            ..Figures::default()
        })
    }

    fn pool<'c>(
        &self,
        running: &'c Running,
        connections: usize,
        size: usize,
        watched: Option<&'c Processes>,
        stop: &'c AtomicBool,
    ) -> SteeredPool<'c> {
        SteeredPool {
            setup_timeout: self.setup_timeout,
            watched,
            ..SteeredPool::new(&running.target, connections, size, stop)
        }
    }
}

impl Figures {
    /// Returns the figures that every report has.
    fn of(report: &Report) -> Self {
        let cpu = report.server.as_ref().and_then(|server| server.cpu);
        Self { cpu_s: cpu.map(|cpu| cpu.cpu_s), cores: cpu.map(|cpu| cpu.cores), ..Self::default() }
    }
}

fn mostly_idle_figures(
    sampled: &Sampled,
    before: Option<Memory>,
    outcome: &MostlyIdleOutcome,
    connections: usize,
    duration: Duration,
) -> Figures {
    let (cpu, after) = (sampled.server(), sampled.server_memory);
    let measured_s = sampled.seconds(duration);
    let each = |figure: fn(Memory) -> u64| {
        let (before, after) = (figure(before?), figure(after?));
        Some((after as f64 - before as f64) / connections as f64)
    };
    Figures {
        per_s: Some(outcome.in_time as f64 / measured_s),
        per_cpu_s: sampled.per_server_cpu_s(),
        cpu_s: cpu.map(|cpu| cpu.cpu_s),
        cores: cpu.map(|cpu| cpu.cores),
        waiting_share: cpu.map(|cpu| cpu.busiest_thread_waiting),
        latency: outcome.latency.summary(),
        unanswered: Some(outcome.unanswered),
        late_p99_us: Some(outcome.lateness.quantile_ns(0.99) as f64 / 1e3),
        payload_bytes_per_s: Some(outcome.payload_bytes as f64 / measured_s),
        bytes_per_tunnel: each(|memory| memory.private_bytes),
        rss_bytes_per_tunnel: each(|memory| memory.rss_bytes),
        process_bytes: after.map(|memory| memory.pss_bytes),
        ..Figures::default()
    }
}

/// Looks at the proxy now and then while a cell runs.
struct Sampler<'a> {
    processes: Option<&'a Processes>,
    begun: WallClock,
    last: Option<(Duration, CpuSample)>,
    samples: Vec<Sample>,
}

impl<'a> Sampler<'a> {
    fn new(processes: Option<&'a Processes>) -> Self {
        Self { processes, begun: WallClock::now(), last: None, samples: Vec::new() }
    }

    fn look(&mut self, progress: &Progress) {
        let Some(processes) = self.processes else { return };
        let at = self.begun.elapsed();
        if self.last.as_ref().is_some_and(|(last, _)| at - *last < SAMPLE_EVERY) {
            return;
        }
        let Some((cpu, resident)) = processes.cpu(at.as_nanos() as u64).zip(processes.resident())
        else {
            return;
        };
        let cores = self.last.as_ref().map(|(_, before)| cpu.since(before).cores);
        self.samples.push(Sample {
            at_s: at.as_secs_f64(),
            tunnels: progress.connections,
            resident_bytes: resident,
            cores,
        });
        self.last = Some((at, cpu));
    }
}
