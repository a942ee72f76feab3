//! `throng demo --nodes`: a cluster on this machine. One server is killed and started again, and
//! every message is accounted for.

mod member;
mod processes;
mod view;

use std::process::ExitCode;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use throng_load::units::grouped;

use self::member::{Account, Member, MemberShared};
use self::processes::{Broker, Node};
use self::view::View;
use crate::failure::Failure;
use crate::signals::Stop;
use crate::terminal;

pub(crate) use processes::become_child;

/// Default number of clients, and its maximum: each has a thread.
const CLIENTS: usize = 120;
const MAX_CLIENTS: usize = 500;

/// Maximum messages of all clients in a second: a history must contain the messages that a client
/// misses.
const MAX_MESSAGES: f64 = 5_000.0;

/// Interval at which an endless run kills a server, and the time until it starts the server again.
const KILL: Duration = Duration::from_secs(10);
const RESTART: Duration = Duration::from_secs(15);

/// The time in which all clients join, and in which the last messages come.
const JOIN: Duration = Duration::from_secs(60);
const SETTLE: Duration = Duration::from_secs(30);

/// The interval at which these conditions are checked.
const LOOK: Duration = Duration::from_millis(50);

/// A cluster for a demonstration.
pub(crate) struct NodesPlan {
    pub(crate) nodes: usize,
    pub(crate) clients: Option<usize>,
    /// Messages a second that each client sends.
    pub(crate) rate: f64,
    pub(crate) duration: Option<Duration>,
    /// A running Redis server.
    pub(crate) url: Option<String>,
}

pub(crate) fn run(plan: &NodesPlan) -> Result<ExitCode, Failure> {
    let NodesPlan { nodes, clients, rate, duration, url } = plan;
    let clients = clients.unwrap_or(CLIENTS);
    if !(*nodes..=MAX_CLIENTS).contains(&clients) {
        return Err(Failure::usage(format!(
            "--clients is {clients}; with --nodes {nodes} expected {nodes} to {MAX_CLIENTS}"
        )));
    }
    let messages = clients as f64 * rate;
    if messages > MAX_MESSAGES {
        return Err(Failure::usage(format!(
            "--clients {clients} with --rate {rate} are {messages} messages per second; with \
             --nodes expected at most {MAX_MESSAGES}"
        )));
    }
    let stop = Stop::on_signals().map_err(Failure::runtime)?;
    let broker = if url.is_some() { None } else { Some(Broker::start()?) };
    let url = url.clone().or_else(|| broker.as_ref().map(Broker::url)).unwrap_or_default();
    if broker.is_some() {
        terminal::line(format_args!("redis listens on {url}, without persistence"));
    }
    let cluster = Cluster::start(url, *nodes)?;
    let shared = MemberShared::new(*nodes, clients, Duration::from_secs_f64(1.0 / rate));
    let outcome = cluster.serve(&shared, &stop, *duration);
    if let Some(broker) = broker {
        broker.end();
    }
    outcome
}

/// The servers; `None`: killed.
struct Cluster {
    nodes: Vec<Option<Node>>,
    url: String,
    prefix: String,
}

impl Cluster {
    fn start(url: String, nodes: usize) -> Result<Self, Failure> {
        // The channels of an earlier run disappear with the age of their histories.
        let prefix =
            format!("throng-demo-{}-{}", std::process::id(), throng_load::machine_now_ns());
        let start = |_| Node::start(&url, &prefix).map(Some);
        let nodes = (0..nodes).map(start).collect::<Result<_, _>>()?;
        Ok(Self { nodes, url, prefix })
    }

    /// Runs the demonstration, and ends all servers.
    fn serve(
        mut self,
        shared: &MemberShared,
        stop: &Stop,
        duration: Option<Duration>,
    ) -> Result<ExitCode, Failure> {
        for (at, (node, counts)) in self.nodes.iter().zip(&shared.nodes).enumerate() {
            let Some(node) = node else { continue };
            counts.set_address(Some(node.address));
            let (number, address) = (at + 1, node.address);
            terminal::line(format_args!("node {number} listens on http://{address}"));
        }
        let clients = shared.members.len();
        let channels = shared.channels();
        terminal::line(format_args!(
            "connecting {} clients, spread over the nodes and {channels} channels; Ctrl-C stops",
            grouped(clients as u64)
        ));
        let (accounts, result) = thread::scope(|scope| {
            let start = |number| {
                let member = Member::new(shared, number);
                thread::Builder::new().stack_size(256 << 10).spawn_scoped(scope, || member.run())
            };
            let members: Result<Vec<_>, _> = (0..clients).map(start).collect();
            let result = match &members {
                Ok(_) => self.perform(shared, stop, duration),
                Err(error) => Err(Failure::runtime(format!("cannot start a thread: {error}"))),
            };
            shared.ends.store(true, Relaxed);
            // A panic there has been printed by its own thread.
            let members = members.into_iter().flatten();
            let accounts: Vec<_> = members.filter_map(|member| member.join().ok()).collect();
            (accounts, result)
        });
        self.nodes.into_iter().flatten().for_each(Node::end);
        result?;
        Ok(verdict(&accounts, clients))
    }

    /// Lets all clients join and send, while one of the servers is killed and started again.
    fn perform(
        &mut self,
        shared: &MemberShared,
        stop: &Stop,
        duration: Option<Duration>,
    ) -> Result<(), Failure> {
        let joined = || shared.members.iter().filter(|member| member.has_joined.load(Relaxed));
        let all = shared.members.len();
        if !wait_until(JOIN, || stop.is_asked() || joined().count() == all) {
            let few = joined().count();
            return Err(Failure::runtime(format!("only {few} of {all} clients could join")));
        }
        shared.sends.store(true, Relaxed);
        let began = Instant::now();
        let ends = duration.and_then(|duration| began.checked_add(duration));
        let (kill, restart) = duration.map_or((KILL, RESTART), |time| (time / 3, time * 2 / 3));
        let mut steps = [(kill, true), (restart, false)].into_iter().peekable();
        let mut view = View::new(shared);
        loop {
            if let Some((_, kills)) = steps.next_if(|(at, _)| began.elapsed() >= *at) {
                let last = self.nodes.len() - 1;
                match kills {
                    true => self.kill(last, shared, &view),
                    false => self.restart(last, shared, &view)?,
                }
            }
            self.check()?;
            let left =
                ends.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
            let due = steps.peek().map_or(Duration::MAX, |(at, _)| *at);
            let step = due.saturating_sub(began.elapsed());
            let is_stopped = stop.wait(left.min(step).min(Duration::from_secs(1)));
            if is_stopped || (left.is_zero() && steps.peek().is_none()) {
                break;
            }
            view.show(shared);
        }
        view.finish();
        terminal::line("stopping: the clients send no more and wait for what is on its way");
        shared.sends.store(false, SeqCst);
        wait_until(SETTLE, || shared.is_settled());
        Ok(())
    }

    fn kill(&mut self, node: usize, shared: &MemberShared, view: &View) {
        shared.nodes[node].set_address(None);
        if let Some(node) = self.nodes[node].take() {
            node.kill();
        }
        let number = node + 1;
        view.note(format_args!("node {number} is killed; its clients continue on the others"));
    }

    fn restart(&mut self, at: usize, shared: &MemberShared, view: &View) -> Result<(), Failure> {
        let node = Node::start(&self.url, &self.prefix)?;
        let (number, address) = (at + 1, node.address);
        shared.nodes[at].set_address(Some(address));
        self.nodes[at] = Some(node);
        view.note(format_args!(
            "node {number} is started again, on http://{address}; its clients come back"
        ));
        Ok(())
    }

    /// # Errors
    /// A server has ended unexpectedly.
    fn check(&mut self) -> Result<(), Failure> {
        for (at, node) in self.nodes.iter_mut().enumerate() {
            if let Some(status) = node.as_mut().and_then(Node::ended) {
                return Err(Failure::runtime(format!("node {} ended: {status}", at + 1)));
            }
        }
        Ok(())
    }
}

/// Waits for a condition, for `most`; returns whether it became true.
fn wait_until(most: Duration, is_so: impl Fn() -> bool) -> bool {
    let latest = Instant::now() + most;
    while !is_so() {
        if Instant::now() > latest {
            return false;
        }
        thread::sleep(LOOK);
    }
    true
}

/// Prints the outcome of all messages.
fn verdict(accounts: &[Account], clients: usize) -> ExitCode {
    let sum = |of: fn(&Account) -> u64| accounts.iter().map(of).sum::<u64>();
    let (sent, accepted) = (sum(|one| one.sent), sum(|one| one.accepted));
    let broken_off = sum(|one| one.broken_off);
    let unanswered = sent - accepted - broken_off;
    let (delivered, lost) = (sum(|one| one.delivered), sum(|one| one.lost));
    let (doubled, over) = (sum(|one| one.doubled), sum(|one| one.started_over));
    let broken = match broken_off {
        0 => String::new(),
        some => format!(
            ", {} were on their way to a node when it was killed, and their senders know",
            grouped(some)
        ),
    };
    terminal::line(format_args!(
        "sent {} messages: {} accepted{broken}",
        grouped(sent),
        grouped(accepted)
    ));
    terminal::line(format_args!(
        "delivered {} of {}: {} lost, {} doubled; connections that moved: {}",
        grouped(delivered),
        grouped(delivered + lost),
        grouped(lost),
        grouped(doubled),
        grouped(sum(|one| one.moves)),
    ));
    let mut is_good = lost == 0 && doubled == 0;
    for (count, what) in [
        (unanswered, "messages have no outcome: no client got them"),
        (over, "times a client had to start over: Redis had lost the history"),
        ((clients - accounts.len()) as u64, "clients failed and could not account"),
    ] {
        if count > 0 {
            is_good = false;
            terminal::error_line(format_args!("{} {what}", grouped(count)));
        }
    }
    if is_good {
        terminal::line(
            "verdict: every message that was accepted reached every client once, in order",
        );
        return ExitCode::SUCCESS;
    }
    terminal::line("verdict: not every message reached every client once");
    ExitCode::FAILURE
}
