//! One cell of a table, on a fresh server.

use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use super::plan::{IoModel, IoModelsPlan, ServerPlan};
use super::report::{BlockingFigures, ConnectFigures, IdleFigures, Variant};
use super::session::{IdleTime, SessionPlan, SessionResult, run_session};
use crate::servers::Server;
use throng_load::report::Measured;
use throng_load::sampler::Processes;
use throng_load::{Common, Error, Mode, Pace, Plan, Progress, Target};

/// Before memory is looked at: what a process allocates once should not count as a connection's.
const FIRST_CONNECTIONS: usize = 4;
/// Longest wait until the server has noticed that those have gone.
const GONE: Duration = Duration::from_secs(2);
/// Warm-up of a row with the handler; all connections have had several answers by then.
pub(super) const WARMUP: Duration = Duration::from_secs(1);
/// The kernel's own stack of a thread, on x86-64 and arm64.
const KERNEL_STACK_BYTES: usize = 16 << 10;

/// Starts a server of a model.
pub(super) type Starter<'a, S> = &'a dyn Fn(&ServerPlan) -> Result<S, Error>;

/// Settings and state that all cells need.
pub(super) struct Bench<'a, S> {
    pub(super) plan: &'a IoModelsPlan,
    pub(super) start: Starter<'a, S>,
    pub(super) stop: &'a AtomicBool,
}

impl<S: Server> Bench<'_, S> {
    /// Connections that do nothing.
    pub(super) fn idle(
        &self,
        model: IoModel,
        connections: usize,
        watch: &mut dyn FnMut(&Progress),
    ) -> Result<IdleFigures, Error> {
        let hold = Some(self.plan.window);
        let session = self.measure(model, connections, false, hold, watch)?;
        let SessionResult { before, idle, .. } = &session;
        let Some(IdleTime { measured, ticks }) = idle else { return Err(Error::Interrupted) };
        let (after, cpu) = (measured.server_memory, measured.server());
        let unread = || Error::Child("the server's memory and CPU cannot be read here".to_owned());
        let (after, cpu) = after.zip(cpu).ok_or_else(unread)?;
        let memory = before.memory.ok_or_else(unread)?;
        let each = |after: u64, before: u64| (after as f64 - before as f64) / connections as f64;
        let threads = cpu.threads.saturating_sub(before.threads);
        Ok(IdleFigures {
            window_s: cpu.wall_s,
            cpu_percent: cpu.cores * 100.0,
            cpu_ticks: *ticks,
            memory_bytes_per_connection: each(after.pss_bytes, memory.pss_bytes),
            rss_bytes_per_connection: each(after.rss_bytes, memory.rss_bytes),
            kernel_stack_bytes_per_connection: (threads * KERNEL_STACK_BYTES) as f64
                / connections as f64,
            process_bytes: after.pss_bytes,
            threads: cpu.threads,
            descriptors: measured.server_descriptors,
            machine_busy_share: measured.machine_busy(),
        })
    }

    /// So many connections, and a message there and back on each.
    pub(super) fn connect(
        &self,
        model: IoModel,
        connections: usize,
        watch: &mut dyn FnMut(&Progress),
    ) -> Result<ConnectFigures, Error> {
        let session = self.measure(model, connections, true, None, watch)?;
        let answered_s = session.answered.unwrap_or_default().as_secs_f64();
        Ok(ConnectFigures {
            connected_s: session.connected.as_secs_f64(),
            answered_s,
            connections_per_s: connections as f64 / answered_s.max(1e-9),
            server_cpu_s: session.cpu.map(|cpu| cpu.cpu_s),
        })
    }

    /// Connections on a fresh server that has had a few before.
    fn measure(
        &self,
        model: IoModel,
        connections: usize,
        echo: bool,
        hold: Option<Duration>,
        watch: &mut dyn FnMut(&Progress),
    ) -> Result<SessionResult, Error> {
        let server = (self.start)(&self.plan.server(model, 0))?;
        let setup_timeout = self.plan.setup_timeout;
        let (address, pid) = (server.address(), server.pid());
        let processes = Processes::new(vec![pid]);
        let alone = processes.descriptors();
        let asked = SessionPlan { address, pid, connections, echo, hold, setup_timeout };
        let few = FIRST_CONNECTIONS.min(connections);
        run_session(
            &SessionPlan { connections: few, echo: true, hold: None, ..asked },
            self.stop,
            watch,
        )?;
        let step = Duration::from_millis(5);
        let mut waited = Duration::ZERO;
        while processes.descriptors() > alone && waited < GONE {
            thread::sleep(step);
            waited += step;
        }
        let session = run_session(&asked, self.stop, watch)?;
        match &session.errors.first {
            Some(first) => Err(Error::Child(format!(
                "{} failures, the first: {first}",
                session.errors.total()
            ))),
            None => Ok(session),
        }
    }

    /// A handler that blocks.
    pub(super) fn blocking(
        &self,
        variant: Variant,
        model: IoModel,
        workers: usize,
        watch: &mut dyn FnMut(&Progress),
    ) -> Result<BlockingFigures, Error> {
        let server = (self.start)(&self.plan.server(model, workers))?;
        let path = if variant.has_workers() { "/work" } else { "/block" };
        let target = Target::parse(&format!("ws://{}{path}", server.address()))?;
        let pace = Pace::Closed { pipeline: 1 };
        let mode = Mode::Echo { pace, duration: self.plan.duration, warmup: WARMUP };
        let common = Common {
            connections: self.plan.clients,
            setup_timeout: self.plan.setup_timeout,
            server_pids: vec![server.pid()],
            ..target.into()
        };
        let plan = Plan::new(common, mode);
        let report = throng_load::run(&plan, self.stop, watch)?;
        if let Some(first) = &report.errors.first {
            let total = report.errors.total();
            return Err(Error::Child(format!("{total} failures, the first: {first}")));
        }
        let (Measured::Echo(echo), Some(_)) = (&report.result, report.server.as_ref()) else {
            return Err(Error::Child("the server cannot be watched here".to_owned()));
        };
        let latency = echo.latency.ok_or_else(|| {
            Error::Child("no message was answered within --duration; give it more".to_owned())
        })?;
        Ok(BlockingFigures {
            messages_per_s: echo.messages_per_s,
            latency,
            server_cpu_us_per_message: echo.server_cpu_us_per_message,
            verdict: report.verdict.clone(),
        })
    }
}
