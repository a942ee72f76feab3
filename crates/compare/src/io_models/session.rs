//! Connections that all come, may each say something once, and stay for a while.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use throng_engine::{Cx, Message};
use throng_io::Instant;

use throng_load::client::{ClientPool, Payload, PoolShared, Timeline, Work};
use throng_load::clock::Clock;
use throng_load::report::Errors;
use throng_load::run::{Sampled, Steering};
use throng_load::sampler::{CpuSample, CpuUsage, Memory, Processes};
use throng_load::{Error, Mode, Plan, Progress, RunStage, Target};

use crate::pool::SteeredPool;

/// Path of the connections.
const PATH: &str = "/echo";
/// Between the last connection and the idle time that counts: a server tidies up a second after
/// something happened.
pub(super) const SETTLE: Duration = Duration::from_secs(2);

/// A plan for connections that come, may echo once, and stay.
#[derive(Clone, Copy, Debug)]
pub(super) struct SessionPlan<'a> {
    /// The server's address and process.
    pub(super) address: &'a str,
    pub(super) pid: u32,
    pub(super) connections: usize,
    /// Each sends a message when it is open, and has it back.
    pub(super) echo: bool,
    /// Then they do nothing for so long.
    pub(super) hold: Option<Duration>,
    pub(super) setup_timeout: Duration,
}

/// The measurements of a session.
#[derive(Debug)]
pub(super) struct SessionResult {
    /// From the first connect call to the last upgrade.
    pub(super) connected: Duration,
    /// From there too, to the last echo.
    pub(super) answered: Option<Duration>,
    /// The server's CPU until then.
    pub(super) cpu: Option<CpuUsage>,
    /// CPU use of this process.
    pub(super) own_cpu: CpuUsage,
    /// The idle time.
    pub(super) idle: Option<IdleTime>,
    pub(super) before: Before,
    pub(super) errors: Errors,
}

/// The server while nothing happened.
#[derive(Debug)]
pub(super) struct IdleTime {
    pub(super) measured: Sampled,
    /// CPU in the kernel's ticks.
    pub(super) ticks: Option<u64>,
}

/// The server before the first connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Before {
    pub(super) memory: Option<Memory>,
    pub(super) threads: usize,
}

/// Opens the connections, measures, and resets them in the end.
///
/// # Errors
/// A connection that could not be made or was lost while all were set up, and
/// [`Error::Interrupted`].
pub(super) fn run_session(
    session: &SessionPlan<'_>,
    stop: &AtomicBool,
    watch: &mut dyn FnMut(&Progress),
) -> Result<SessionResult, Error> {
    let target = Target::parse(&format!("ws://{}{PATH}", session.address))?;
    let plan = Plan::new(target, Mode::Idle { hold: Duration::ZERO });
    let (clock, server) = (Clock, Processes::new(vec![session.pid]));
    let own = Processes::own();
    let (cpu, own_cpu) = (server.cpu(clock.now().0), own.cpu(clock.now().0));
    let before = Before { memory: server.memory(), threads: threads(cpu.as_ref()) };
    let pool = SteeredPool {
        setup_timeout: session.setup_timeout,
        watched: Some(&server),
        ..SteeredPool::new(&plan.common.target, session.connections, plan.size, stop)
    };
    let arrive = Arrive::new(&plan, session.echo);
    let ((arrived, idle), setup, times) =
        pool.run(arrive, watch, |steering, shared| steer(session, shared, &server, steering))?;
    let since = |after: Option<CpuSample>, before: Option<CpuSample>| {
        after.zip(before).map(|(after, before)| after.since(&before))
    };
    Ok(SessionResult {
        connected: times.opened.since(times.begun),
        answered: session.echo.then(|| times.answered.since(times.begun)),
        cpu: since(arrived.server, cpu),
        own_cpu: since(arrived.own, own_cpu).unwrap_or_default(),
        idle,
        before,
        errors: setup.errors,
    })
}

/// CPU samples taken when all connections were open and had their echoes.
struct Arrived {
    server: Option<CpuSample>,
    own: Option<CpuSample>,
}

fn threads(sample: Option<&CpuSample>) -> usize {
    sample.map_or(0, |sample| sample.since(sample).threads)
}

/// Waits until all are there and answered, then through the idle time.
fn steer(
    session: &SessionPlan<'_>,
    shared: &PoolShared,
    server: &Processes,
    steering: &mut Steering<'_>,
) -> Result<(Arrived, Option<IdleTime>), Error> {
    let wanted = session.connections;
    steering.ready(wanted)?;
    let answered = || shared.sum(|lane| &lane.done);
    let waiting = || RunStage::Draining { waiting: (wanted as u64).saturating_sub(answered()) };
    let all = || !session.echo || answered() >= wanted as u64;
    if !steering.wait_for(session.setup_timeout.max(Duration::from_secs(10)), all, waiting) {
        return Err(match steering.is_over() {
            true => Error::Interrupted,
            false => Error::SetupTimeout {
                ready: answered() as usize,
                wanted,
                after: session.setup_timeout,
            },
        });
    }
    let now = steering.clock.now().0;
    let arrived = Arrived { server: server.cpu(now), own: Processes::own().cpu(now) };
    let Some(hold) = session.hold else { return Ok((arrived, None)) };
    let start = steering.clock.now();
    let from = start.after(SETTLE);
    // From here on a connection that is lost is counted.
    shared.begin(Timeline { start, from, to: from.after(hold) });
    if !steering.until(from, start, |elapsed| RunStage::WarmingUp { elapsed, total: SETTLE }) {
        return Err(Error::Interrupted);
    }
    let (ticks, begin) = (server.cpu_ticks(), steering.moment());
    // Not from `from`: reading the times of thousands of threads takes its time.
    let to = begin.at.after(hold);
    if !steering.until(to, begin.at, |elapsed| RunStage::Measuring { elapsed, total: hold }) {
        return Err(Error::Interrupted);
    }
    let measured = steering.measured(begin);
    let ticks = server.cpu_ticks().zip(ticks).map(|(after, before)| after.saturating_sub(before));
    Ok((arrived, Some(IdleTime { measured, ticks })))
}

/// Times of the pool's first connect, last upgrade and last echo.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    begun: Instant,
    opened: Instant,
    answered: Instant,
}

/// Sends one message on each connection as it opens, if asked to.
#[derive(Debug)]
struct Arrive {
    payload: Payload,
    echo: bool,
    times: Option<Times>,
    answered: u64,
}

impl Arrive {
    fn new(plan: &Plan, echo: bool) -> Self {
        Self { payload: Payload::of(plan, 0), echo, times: None, answered: 0 }
    }
}

impl Work for Arrive {
    type Outcome = Times;

    fn resource(&self, _: usize) -> &str {
        PATH
    }

    fn on_open(&mut self, pool: &mut ClientPool, cx: &mut Cx<'_>, index: usize, now: Instant) {
        let dialled = pool.times(index).dialled;
        let times = self.times.get_or_insert(Times { begun: dialled, opened: now, answered: now });
        times.begun = times.begun.min(dialled);
        times.opened = times.opened.max(now);
        if self.echo {
            let sent = cx.send(self.payload.message(index, 0));
            pool.note_sent(sent);
        }
    }

    fn on_message(
        &mut self,
        pool: &mut ClientPool,
        _: &mut Cx<'_>,
        index: usize,
        message: Message<'_>,
        now: Instant,
    ) {
        if !self.echo || !self.payload.is_answer(message, index, 0) {
            pool.note_wrong(|| self.payload.describe(message, index, 0));
        }
        if let Some(times) = &mut self.times {
            times.answered = times.answered.max(now);
        }
        self.answered += 1;
        pool.lane().done.store(self.answered, Ordering::Relaxed);
    }

    fn finish(&mut self, _: &mut ClientPool, _: Instant) -> Times {
        self.times.unwrap_or_default()
    }
}
