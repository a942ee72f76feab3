//! Connections that all come, may each say something once, and stay for a while.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use throng_engine::{Cx, Message};
use throng_io::Instant;

use throng_load::client::{self, Crew, Payload, Shared, Start, Timeline, Work, clock};
use throng_load::report::Errors;
use throng_load::run::{FinishOnPanic, Measured, Steering};
use throng_load::sampler::{CpuSample, CpuUsage, Memory, Processes};
use throng_load::{Error, Mode, Plan, Progress, Sources, Stage, Target, descriptors, sources};

/// Where they go.
const PATH: &str = "/echo";
/// Between the last connection and the idle time that counts: a server tidies up a second after something happened.
pub(super) const SETTLE: Duration = Duration::from_secs(2);
/// Connections being made at a time: a server's accept queue is finite.
const WINDOW: usize = 100;

/// What is asked of a crowd.
#[derive(Clone, Copy, Debug)]
pub(super) struct Visit<'a> {
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

/// What became of it.
#[derive(Debug)]
pub(super) struct Visited {
    /// From the first connect call to the last upgrade.
    pub(super) connected: Duration,
    /// From there too, to the last echo.
    pub(super) answered: Option<Duration>,
    /// The server's CPU until then.
    pub(super) cpu: Option<CpuUsage>,
    /// The idle time.
    pub(super) idle: Option<IdleTime>,
    pub(super) before: Before,
    pub(super) errors: Errors,
}

/// The server while nothing happened.
#[derive(Debug)]
pub(super) struct IdleTime {
    pub(super) measured: Measured,
    /// CPU in the kernel's ticks.
    pub(super) ticks: Option<u64>,
}

/// The server before anybody came.
#[derive(Clone, Copy, Debug)]
pub(super) struct Before {
    pub(super) memory: Option<Memory>,
    pub(super) threads: usize,
}

/// Sends a crowd, and has it reset in the end.
///
/// # Errors
/// A connection that could not be made or was lost while all were set up, and [`Error::Interrupted`].
pub(super) fn visit(
    visit: &Visit<'_>,
    stop: &AtomicBool,
    watch: &mut dyn FnMut(&Progress),
) -> Result<Visited, Error> {
    let target = Target::parse(&format!("ws://{}{PATH}", visit.address))?;
    let peer = target.resolve()?;
    let sources = Sources::plan(peer, visit.connections, sources::ephemeral_ports(), None)?;
    descriptors::make_room(visit.connections)?;
    let plan = Plan::new(target, Mode::Idle { hold: Duration::ZERO });
    let (clock, server) = (clock()?, Processes::new(vec![visit.pid]));
    let shared = Arc::new(Shared::new(1));
    let start = Start {
        shared: Arc::clone(&shared),
        clock,
        thread: 0,
        peer,
        host: plan.target.host_header(),
        deflate: None,
        connections: visit.connections,
        wanted: visit.connections,
        first: 0,
        sources,
        window: WINDOW,
        ramp: Duration::ZERO,
        setup_timeout: visit.setup_timeout,
        size: plan.size,
        backlog: 1 << 20,
        exact: false,
    };
    let arrive = Arrive::new(&plan, visit.echo);
    let cpu = server.cpu(clock.now().0);
    let before = Before { memory: server.memory(), threads: threads(cpu.as_ref()) };
    let mut steering =
        Steering::new(clock, &shared, Some(&server), visit.setup_timeout, stop, watch);
    thread::scope(|scope| {
        let finish = Arc::clone(&shared);
        let crowd = thread::Builder::new()
            .name("throng-crowd".to_owned())
            .spawn_scoped(scope, move || {
                let finish = FinishOnPanic(finish);
                let ran = client::run(start, arrive);
                ran.map_err(|error| finish.0.fail(error)).ok()
            })
            .map_err(|error| Error::io("start a thread", error))?;
        let steered = steer(visit, &shared, &server, &mut steering);
        shared.finish();
        // A panic of ours: it has been printed; pass it on.
        let finished = crowd.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        // The crowd's failure explains why the steering ended, if both did.
        if let Some(error) = shared.take_failure() {
            return Err(error);
        }
        let (arrived_cpu, idle) = steered?;
        let (setup, times) = finished.ok_or(Error::Interrupted)?;
        Ok(Visited {
            connected: times.opened.since(times.begun),
            answered: visit.echo.then(|| times.answered.since(times.begun)),
            cpu: arrived_cpu.zip(cpu).map(|(after, before)| after.since(&before)),
            idle,
            before,
            errors: setup.errors,
        })
    })
}

fn threads(sample: Option<&CpuSample>) -> usize {
    sample.map_or(0, |sample| sample.since(sample).threads)
}

/// Waits until all are there and answered, then through the idle time.
fn steer(
    visit: &Visit<'_>,
    shared: &Shared,
    server: &Processes,
    steering: &mut Steering<'_>,
) -> Result<(Option<CpuSample>, Option<IdleTime>), Error> {
    let wanted = visit.connections;
    steering.ready(wanted)?;
    let answered = || shared.sum(|lane| &lane.done);
    let waiting = || Stage::Draining { waiting: (wanted as u64).saturating_sub(answered()) };
    let all = || !visit.echo || answered() >= wanted as u64;
    if !steering.wait_for(visit.setup_timeout.max(Duration::from_secs(10)), all, waiting) {
        return Err(match steering.is_over() {
            true => Error::Interrupted,
            false => Error::SetupTimeout {
                ready: answered() as usize,
                wanted,
                after: visit.setup_timeout,
            },
        });
    }
    let cpu = server.cpu(steering.clock.now().0);
    let Some(hold) = visit.hold else { return Ok((cpu, None)) };
    let start = steering.clock.now();
    let from = start.after(SETTLE);
    // From here on a connection that is lost is counted.
    shared.begin(Timeline { start, from, to: from.after(hold) });
    if !steering.until(from, start, |elapsed| Stage::WarmingUp { elapsed, total: SETTLE }) {
        return Err(Error::Interrupted);
    }
    let (ticks, begin) = (server.cpu_ticks(), steering.moment());
    // Not from `from`: reading the times of thousands of threads takes its time.
    let to = begin.at.after(hold);
    if !steering.until(to, begin.at, |elapsed| Stage::Measuring { elapsed, total: hold }) {
        return Err(Error::Interrupted);
    }
    let measured = steering.measured(begin);
    let ticks = server.cpu_ticks().zip(ticks).map(|(after, before)| after.saturating_sub(before));
    Ok((cpu, Some(IdleTime { measured, ticks })))
}

/// When the crowd came.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    begun: Instant,
    opened: Instant,
    answered: Instant,
}

/// What each connection does.
#[derive(Debug)]
struct Arrive {
    payload: Payload,
    echo: bool,
    times: Option<Times>,
    answered: u64,
}

impl Arrive {
    fn new(plan: &Plan, echo: bool) -> Self {
        Self { payload: Payload::of(plan), echo, times: None, answered: 0 }
    }
}

impl Work for Arrive {
    type Outcome = Times;

    fn resource(&self, _: usize) -> &str {
        PATH
    }

    fn on_open(&mut self, crew: &mut Crew, cx: &mut Cx<'_>, index: usize, now: Instant) {
        let dialled = crew.times(index).dialled;
        let times = self.times.get_or_insert(Times { begun: dialled, opened: now, answered: now });
        times.begun = times.begun.min(dialled);
        times.opened = times.opened.max(now);
        if self.echo {
            let sent = cx.send(self.payload.message(index, 0));
            crew.note_sent(sent);
        }
    }

    fn on_message(
        &mut self,
        crew: &mut Crew,
        _: &mut Cx<'_>,
        index: usize,
        message: Message<'_>,
        now: Instant,
    ) {
        if !self.echo || !self.payload.is_answer(message, index, 0) {
            crew.note_wrong(|| self.payload.describe(message, index, 0));
        }
        if let Some(times) = &mut self.times {
            times.answered = times.answered.max(now);
        }
        self.answered += 1;
        crew.lane().done.store(self.answered, Ordering::Relaxed);
    }

    fn finish(&mut self, _: &mut Crew, _: Instant) -> Times {
        self.times.unwrap_or_default()
    }
}
