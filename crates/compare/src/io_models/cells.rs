//! One cell of a table, on a fresh server.

use std::time::Duration;

use throng_load::report::Measured;
use throng_load::sampler::Processes;
use throng_load::{Common, Error, Facts, Mode, Pace, Plan, Target, Verdict};

use super::flags::IoModels;
use super::report::{BlockingFigures, ConnectFigures, IdleFigures};
use super::session::{IdleTime, SessionPlan, SessionResult, run_session};
use crate::bench::{Bench, FIRST_CONNECTIONS, flawless, until_gone};
use crate::io_model::{IoModel, Variant};
use crate::parts::{OwnServer, ServerPart};

/// Warm-up of a row with the handler; all connections have had several answers by then.
pub(super) const WARMUP: Duration = Duration::from_secs(1);
/// The kernel's own stack of a thread, on x86-64 and arm64.
const KERNEL_STACK_BYTES: usize = 16 << 10;

impl IoModels {
    /// Connections that do nothing.
    pub(super) fn idle(
        &self,
        model: IoModel,
        connections: usize,
        bench: &mut Bench<'_>,
    ) -> Result<IdleFigures, Error> {
        let hold = Some(self.window());
        let session = self.measure(model, connections, false, hold, bench)?;
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
        bench: &mut Bench<'_>,
    ) -> Result<ConnectFigures, Error> {
        let session = self.measure(model, connections, true, None, bench)?;
        let answered_s = session.answered.unwrap_or_default().as_secs_f64();
        let facts = Facts {
            completed: connections as u64,
            generator: session.own_cpu,
            server: session.cpu,
            server_cpus: Processes::own().cpus_allowed(),
            connects: true,
            ..Facts::default()
        };
        Ok(ConnectFigures {
            connected_s: session.connected.as_secs_f64(),
            answered_s,
            connections_per_s: connections as f64 / answered_s.max(1e-9),
            server_cpu_s: session.cpu.map(|cpu| cpu.cpu_s),
            verdict: Verdict::of(&facts),
        })
    }

    /// Connections on a fresh server that has had a few before.
    fn measure(
        &self,
        model: IoModel,
        connections: usize,
        echo: bool,
        hold: Option<Duration>,
        bench: &mut Bench<'_>,
    ) -> Result<SessionResult, Error> {
        let server = self.start(model, 0, bench)?;
        let setup_timeout = self.setup_timeout;
        let (address, pid) = (&*server.address, server.pid());
        let processes = Processes::new(vec![pid]);
        let alone = processes.descriptors();
        let asked = SessionPlan { address, pid, connections, echo, hold, setup_timeout };
        let few = FIRST_CONNECTIONS.min(connections);
        let first = SessionPlan { connections: few, echo: true, hold: None, ..asked };
        run_session(&first, bench.stop, bench.watch)?;
        until_gone(&processes, alone);
        let session = run_session(&asked, bench.stop, bench.watch)?;
        flawless(&session.errors).map(|()| session)
    }

    /// Starts a server that uses the model.
    fn start(&self, model: IoModel, workers: usize, bench: &Bench<'_>) -> Result<OwnServer, Error> {
        let server = ServerPart {
            shards: self.event_loops(),
            io: model.name().to_owned(),
            workers,
            handler: self.handler(),
            ..ServerPart::default()
        };
        OwnServer::start(bench.launch, server)
    }

    /// A handler that blocks.
    pub(super) fn blocking(
        &self,
        variant: Variant,
        model: IoModel,
        workers: usize,
        bench: &mut Bench<'_>,
    ) -> Result<BlockingFigures, Error> {
        let server = self.start(model, workers, bench)?;
        let path = if variant.has_workers() { "/work" } else { "/block" };
        let target = Target::parse(&format!("ws://{}{path}", server.address))?;
        let pace = Pace::Closed { pipeline: 1 };
        let mode = Mode::Echo { pace, duration: self.duration(), warmup: WARMUP };
        let common = Common {
            connections: self.clients,
            setup_timeout: self.setup_timeout,
            server_pids: vec![server.pid()],
            ..target.into()
        };
        let report = bench.flawless_load(&Plan::new(common, mode))?;
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
