//! One measurement of one proxy.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant as WallClock};

use super::burst::Burst;
use super::mostly_idle::{LARGEST, MostlyIdle, MostlyIdleOutcome};
use super::plan::{ProxyPlan, Test};
use super::report::{Figures, Sample};
use crate::pool::SteeredPool;
use throng_load::client::Timeline;
use throng_load::report::{Errors, Measured, Report};
use throng_load::run::{LEAD, Measured as Sampled, measure};
use throng_load::sampler::{CpuSample, Memory, Processes};
use throng_load::{Common, Error, Mode, Pace, Plan, Progress, Stage, Target};

/// Before memory is looked at: what a process allocates once should not count as a tunnel's.
const FIRST_CONNECTIONS: usize = 4;
const FIRST: Duration = Duration::from_millis(200);
/// Longest wait until the proxy has noticed that those have gone.
const GONE: Duration = Duration::from_secs(2);
/// Payload of the tables connect and latency.
const SIZE: usize = 100;
/// Connections being made at a time in the table connect.
const CONNECTING: usize = 64;
/// Longest wait for the last answers of an open loop.
const DRAIN: Duration = Duration::from_secs(5);
/// Between two looks at CPU and memory.
const SAMPLE_EVERY: Duration = Duration::from_millis(200);

/// Settings and state that all cells need.
pub(super) struct Bench<'a> {
    pub(super) plan: &'a ProxyPlan,
    pub(super) stop: &'a AtomicBool,
}

/// A proxy, or a backend, that runs.
pub(super) struct Running {
    pub(super) target: Target,
    /// Empty: not known.
    pub(super) pids: Vec<u32>,
}

impl Running {
    fn resource(&self) -> &str {
        self.target.resource("/echo")
    }

    fn processes(&self) -> Option<Processes> {
        (!self.pids.is_empty()).then(|| Processes::new(self.pids.clone()))
    }
}

impl Bench<'_> {
    /// Measures.
    ///
    /// # Errors
    /// Whatever leaves nothing to report, wrong answers included.
    pub(super) fn measure(
        &self,
        test: Test,
        running: &Running,
        watch: &mut dyn FnMut(&Progress),
    ) -> Result<Figures, Error> {
        match test {
            Test::Echo { size_bytes } => self.echo(running, size_bytes, watch),
            Test::Connect => self.connect(running, watch),
            Test::Idle => self.idle(running, watch),
            Test::Latency => self.latency(running, watch),
            Test::MostlyIdle => self.mostly_idle(running, watch),
            Test::Burst { size_bytes } => self.burst(running, size_bytes, watch),
        }
    }

    fn plan(&self, running: &Running, connections: usize, size: usize, mode: Mode) -> Plan {
        let common = Common {
            connections,
            setup_timeout: self.plan.setup_timeout,
            server_pids: running.pids.clone(),
            ..running.target.clone().into()
        };
        Plan { size, ..Plan::new(common, mode) }
    }

    fn run(&self, plan: &Plan, watch: &mut dyn FnMut(&Progress)) -> Result<Report, Error> {
        let report = throng_load::run(plan, self.stop, watch)?;
        flawless(&report.errors)?;
        Ok(report)
    }

    fn echo(
        &self,
        running: &Running,
        size: usize,
        watch: &mut dyn FnMut(&Progress),
    ) -> Result<Figures, Error> {
        let ProxyPlan { duration, warmup, connections, .. } = *self.plan;
        let mode = Mode::Echo { pace: Pace::Closed { pipeline: 1 }, duration, warmup };
        let report = self.run(&self.plan(running, connections, size, mode), watch)?;
        let Measured::Echo(echo) = &report.result else { return Ok(Figures::default()) };
        Ok(Figures {
            per_s: Some(echo.messages_per_s),
            per_cpu_s: echo.messages_per_server_cpu_s,
            latency: echo.latency,
            ..Figures::of(&report)
        })
    }

    fn connect(
        &self,
        running: &Running,
        watch: &mut dyn FnMut(&Progress),
    ) -> Result<Figures, Error> {
        let ProxyPlan { duration, warmup, .. } = *self.plan;
        let mode = Mode::Connect { rate_per_s: None, duration, warmup };
        let report = self.run(&self.plan(running, CONNECTING, SIZE, mode), watch)?;
        let Measured::Connect(connect) = &report.result else { return Ok(Figures::default()) };
        Ok(Figures {
            per_s: Some(connect.connections_per_s),
            per_cpu_s: connect.connections_per_server_cpu_s,
            latency: connect.total,
            ..Figures::of(&report)
        })
    }

    fn idle(&self, running: &Running, watch: &mut dyn FnMut(&Progress)) -> Result<Figures, Error> {
        self.first_come_and_go(running, watch)?;
        let mode = Mode::Idle { hold: self.plan.idle_hold() };
        let report = self.run(&self.plan(running, self.plan.idle, SIZE, mode), watch)?;
        let Measured::Idle(idle) = &report.result else { return Ok(Figures::default()) };
        Ok(Figures {
            bytes_per_tunnel: idle.private_bytes_per_connection,
            rss_bytes_per_tunnel: idle.rss_bytes_per_connection,
            process_bytes: idle.memory_after.map(|memory| memory.pss_bytes),
            ..Figures::of(&report)
        })
    }

    fn latency(
        &self,
        running: &Running,
        watch: &mut dyn FnMut(&Progress),
    ) -> Result<Figures, Error> {
        let ProxyPlan { duration, warmup, connections, rate_per_s, .. } = *self.plan;
        let pace = Pace::Open { rate_per_s };
        let mode = Mode::Echo { pace, duration: 2 * duration, warmup };
        let report = self.run(&self.plan(running, connections, SIZE, mode), watch)?;
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
    fn first_come_and_go(
        &self,
        running: &Running,
        watch: &mut dyn FnMut(&Progress),
    ) -> Result<(), Error> {
        let Some(processes) = running.processes() else { return Ok(()) };
        let alone = processes.descriptors();
        let pace = Pace::Closed { pipeline: 1 };
        let mode = Mode::Echo { pace, duration: FIRST, warmup: Duration::ZERO };
        self.run(&self.plan(running, FIRST_CONNECTIONS, SIZE, mode), watch)?;
        let begun = WallClock::now();
        while processes.descriptors() > alone && begun.elapsed() < GONE {
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn mostly_idle(
        &self,
        running: &Running,
        watch: &mut dyn FnMut(&Progress),
    ) -> Result<Figures, Error> {
        self.first_come_and_go(running, watch)?;
        let ProxyPlan { idle: connections, warmup, mostly_idle: duration, seed, .. } = *self.plan;
        let processes = running.processes();
        let before = processes.as_ref().and_then(Processes::memory);
        let pool = self.pool(running, connections, LARGEST, processes.as_ref(), true);
        let mut sampler = Sampler::new(processes.as_ref());
        let mut watch_and_sample = |progress: &Progress| {
            sampler.look(progress);
            watch(progress);
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
        watch: &mut dyn FnMut(&Progress),
    ) -> Result<Figures, Error> {
        let ProxyPlan { burst_connections: connections, burst_messages: messages, .. } = *self.plan;
        let wanted = connections as u64 * messages;
        let processes = running.processes();
        let pool = self.pool(running, connections, size, processes.as_ref(), false);
        let work = Burst::new(running.resource(), self.plan.seed, connections, messages, size);
        let begun = WallClock::now();
        let cpu = || {
            let at_ns = begun.elapsed().as_nanos() as u64;
            processes.as_ref().and_then(|processes| processes.cpu(at_ns))
        };
        let before = cpu();
        let (after, setup, outcome) = pool.run(work, watch, |steering, shared| {
            let done = || shared.sum(|lane| &lane.done);
            let stage = || Stage::Draining { waiting: wanted.saturating_sub(done()) };
            // The timeout is for a lack of progress, not for the total time.
            let mut reached = done();
            while !steering.wait_for(self.plan.setup_timeout, || done() >= wanted, stage) {
                if steering.is_over() || done() == reached {
                    break;
                }
                reached = done();
            }
            match (done() >= wanted, steering.is_over()) {
                (true, _) => Ok(cpu()),
                (false, true) => Err(Error::Interrupted),
                (false, false) => Err(Error::Child(format!(
                    "{} of {wanted} messages were not answered within {} s of silence",
                    wanted - done(),
                    self.plan.setup_timeout.as_secs_f64(),
                ))),
            }
        })?;
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
            ..Figures::default()
        })
    }

    fn pool<'c>(
        &'c self,
        running: &'c Running,
        connections: usize,
        size: usize,
        watched: Option<&'c Processes>,
        is_open_loop: bool,
    ) -> SteeredPool<'c> {
        SteeredPool {
            target: &running.target,
            connections,
            size,
            ramp: if is_open_loop { self.plan.ramp() } else { Duration::ZERO },
            exact: is_open_loop,
            setup_timeout: self.plan.setup_timeout,
            watched,
            stop: self.stop,
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

/// Refuses figures with wrong answers or lost connections.
fn flawless(errors: &Errors) -> Result<(), Error> {
    match &errors.first {
        Some(first) => {
            Err(Error::Child(format!("{} failures, the first: {first}", errors.total())))
        }
        None => Ok(()),
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

/// Returns whether a run was stopped.
pub(super) fn is_stopped(stop: &AtomicBool) -> bool {
    stop.load(Ordering::Relaxed)
}
