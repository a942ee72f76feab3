//! The processes of one measurement: servers and their subscribers, and one broadcast through them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use throng_load::Error;
use throng_load::clock::machine_now_ns;
use throng_load::report::Errors;
use throng_load::sampler::{CpuUsage, Processes};
use throng_load::units::{grouped, show_duration};

use super::flags::Broadcast;
use crate::parts::{
    ALL, Child, ChildEvent, ChildMessage, Launch, Order, Part, ServerPart, SubscriberPart, Variant,
};

/// Interval at which a wait checks whether the run must end.
const TICK: Duration = Duration::from_millis(100);
/// After a broadcast: its last work is in the kernel's books once the threads sleep again.
const SETTLE: Duration = Duration::from_millis(2);

/// Longest wait for the subscribers' last counts.
const LAST_COUNTS_TIMEOUT: Duration = Duration::from_secs(10);

/// Servers and subscribers at work. Dropping it ends their processes.
pub(super) struct ProcessGroup<'a> {
    // In the order of dropping: subscribers go before their servers.
    clients: Vec<Child>,
    servers: Vec<Child>,
    events: Receiver<(usize, ChildEvent)>,
    plan: &'a Broadcast,
    stop: &'a AtomicBool,
    pub(super) subscribers: usize,
    round: u32,
    pub(super) server_processes: Processes,
    client_processes: Processes,
}

/// One broadcast, measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct OneBroadcast {
    /// From the call to the first subscriber that has it, and to the last; the length of the call.
    pub(super) first_us: f64,
    pub(super) last_us: f64,
    pub(super) call_us: f64,
    /// CPU use from before the call until the threads slept again.
    pub(super) server: CpuUsage,
    pub(super) clients: CpuUsage,
    /// Times that a mailbox was full.
    pub(super) waits: u64,
}

impl<'a> ProcessGroup<'a> {
    /// Starts servers with `shards` event loops and `subscribers` of them, and waits until all are
    /// connected.
    pub(super) fn gather(
        plan: &'a Broadcast,
        shards: usize,
        subscribers: usize,
        launch: Launch<'_>,
        stop: &'a AtomicBool,
    ) -> Result<Self, Error> {
        let (sender, events) = channel();
        let mut group = Self {
            clients: Vec::new(),
            servers: Vec::new(),
            events,
            plan,
            stop,
            subscribers,
            round: 0,
            server_processes: Processes::new(Vec::new()),
            client_processes: Processes::new(Vec::new()),
        };
        let address = group.start_servers(shards, launch, &sender)?;
        group.start_subscribers(&address, launch, &sender)?;
        // Each watches its own progress; this is for one that hangs.
        let timeout = plan.setup_timeout + Duration::from_secs(600);
        group.collect(group.clients.len(), timeout, "subscribers to connect", |_, message| {
            matches!(message, ChildMessage::Subscribed { .. })
        })?;
        let pids = |children: &[Child]| Processes::new(children.iter().map(Child::pid).collect());
        group.server_processes = pids(&group.servers);
        group.client_processes = pids(&group.clients);
        Ok(group)
    }

    /// Starts the servers, whose numbers come first; returns the address of all. The first finds
    /// the port that the others share.
    fn start_servers(
        &mut self,
        shards: usize,
        launch: Launch<'_>,
        events: &Sender<(usize, ChildEvent)>,
    ) -> Result<String, Error> {
        let plan = self.plan;
        let mut address = "127.0.0.1:0".to_owned();
        let share_port = plan.processes > 1;
        for number in 0..plan.processes {
            let server = ServerPart {
                address,
                share_port,
                shards,
                size: plan.size,
                deflate: plan.deflate.clone(),
                ..ServerPart::default()
            };
            let command = launch(&Part::Server(server));
            self.servers.push(Child::start(command, number, events.clone())?);
            let mut listening = String::new();
            let what = "a server to listen";
            self.collect(1, plan.setup_timeout, what, |_, message| match message {
                ChildMessage::Listening { address } => {
                    listening = address;
                    true
                }
                _ => false,
            })?;
            address = listening;
        }
        Ok(address)
    }

    /// Starts the processes of the subscribers, each with its part of them.
    fn start_subscribers(
        &mut self,
        address: &str,
        launch: Launch<'_>,
        events: &Sender<(usize, ChildEvent)>,
    ) -> Result<(), Error> {
        let plan = self.plan;
        let (clients, mut first) = (plan.processes * plan.clients, 0);
        for client in 0..clients {
            let part = share(self.subscribers, clients, client);
            let subscribers = Part::Subscribers(SubscriberPart {
                url: format!("ws://{address}{ALL}"),
                subscribers: part,
                of: self.subscribers,
                first,
                size: plan.size,
                deflate: plan.deflate.clone(),
                setup_timeout: plan.setup_timeout,
            });
            first += part;
            let number = plan.processes + client;
            self.clients.push(Child::start(launch(&subscribers), number, events.clone())?);
        }
        Ok(())
    }

    /// Sends one message to all subscribers in this variant; returns when the last one has it.
    pub(super) fn broadcast(&mut self, variant: Variant) -> Result<OneBroadcast, Error> {
        self.round += 1;
        let round = self.round;
        let sample = |processes: &Processes| processes.cpu(machine_now_ns()).unwrap_or_default();
        let (server, clients) = (sample(&self.server_processes), sample(&self.client_processes));
        for server in &mut self.servers {
            server.send(&Order { variant, round })?;
        }
        let (mut called, mut call, mut waits) = (u64::MAX, 0, 0);
        let (mut first, mut last) = (u64::MAX, 0);
        let parts = self.servers.len() + self.clients.len();
        let what = format!("broadcast {round} ({}) to reach all subscribers", variant.name());
        let collected = self.collect(parts, self.plan.timeout, &what, |_, message| match message {
            ChildMessage::Broadcast { round: of, called_ns, returned_ns, waits: waited }
                if of == round =>
            {
                called = called.min(called_ns);
                call = call.max(returned_ns.saturating_sub(called_ns));
                waits += waited;
                true
            }
            ChildMessage::Reached { round: of, first_ns, last_ns } if of == round => {
                (first, last) = (first.min(first_ns), last.max(last_ns));
                true
            }
            _ => false,
        });
        if let Err(error) = collected {
            return Err(self.explain(error, &what));
        }
        std::thread::sleep(SETTLE);
        let (server, clients) = (
            sample(&self.server_processes).since(&server),
            sample(&self.client_processes).since(&clients),
        );
        let us = |ns: u64| ns as f64 / 1e3;
        Ok(OneBroadcast {
            first_us: us(first.saturating_sub(called)),
            last_us: us(last.saturating_sub(called)),
            call_us: us(call),
            server,
            clients,
            waits,
        })
    }

    /// Ends all processes and returns the errors of the subscribers.
    pub(super) fn part(mut self) -> Result<Errors, Error> {
        let (errors, _) = self.close_clients()?;
        Ok(errors)
    }

    /// Ends the subscribers and receives their last counts: the errors, and how many had the last
    /// broadcast.
    fn close_clients(&mut self) -> Result<(Errors, usize), Error> {
        self.clients.iter_mut().for_each(Child::close_input);
        let (mut errors, mut had) = (Errors::default(), 0);
        let (deadline, mut left) = (Instant::now() + LAST_COUNTS_TIMEOUT, 0);
        while left < self.clients.len() {
            match self.events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok((
                    _,
                    ChildEvent::Message(ChildMessage::Left { wrong, lost, received, first }),
                )) => {
                    errors.wrong_answers += wrong;
                    errors.connections_lost += lost;
                    errors.first = errors.first.take().or(first);
                    had += received;
                }
                Ok((number, ChildEvent::Ended(_))) if number >= self.servers.len() => left += 1,
                Ok(_) => {}
                Err(_) => {
                    return Err(Error::Child("subscribers did not leave when asked".to_owned()));
                }
            }
        }
        Ok((errors, had))
    }

    /// A broadcast that was not complete in time: says how far it came.
    fn explain(&mut self, error: Error, what: &str) -> Error {
        if !matches!(error, Error::Child(_)) {
            return error;
        }
        match self.close_clients() {
            Ok((errors, had)) => Error::Child(format!(
                "waited {} for {what}: {} of {} subscribers have it{}; --timeout gives more time",
                show_duration(self.plan.timeout),
                grouped(had as u64),
                grouped(self.subscribers as u64),
                errors.first.map_or_else(String::new, |first| format!(" ({first})")),
            )),
            Err(_) => error,
        }
    }

    /// Receives messages of children until `take` has accepted `parts` of them.
    fn collect(
        &self,
        parts: usize,
        timeout: Duration,
        what: &str,
        mut take: impl FnMut(usize, ChildMessage) -> bool,
    ) -> Result<(), Error> {
        let deadline = Instant::now() + timeout;
        let mut taken = 0;
        while taken < parts {
            if self.stop.load(Ordering::Relaxed) {
                return Err(Error::Interrupted);
            }
            match self.events.recv_timeout(TICK) {
                Ok((
                    _,
                    ChildEvent::Message(ChildMessage::Failed { reason })
                    | ChildEvent::Ended(reason),
                )) => {
                    return Err(Error::Child(format!("{reason} (while waiting for {what})")));
                }
                Ok((number, ChildEvent::Message(message))) => {
                    taken += usize::from(take(number, message))
                }
                Err(RecvTimeoutError::Timeout) if Instant::now() < deadline => {}
                Err(_) => {
                    let after = show_duration(timeout);
                    return Err(Error::Child(format!("waited {after} for {what}, in vain")));
                }
            }
        }
        Ok(())
    }
}

/// Returns the size of part `index` of `total`, divided into `parts` parts whose sizes differ by at
/// most one.
fn share(total: usize, parts: usize, index: usize) -> usize {
    total / parts + usize::from(index < total % parts)
}

#[cfg(test)]
mod tests {
    use super::share;

    #[test]
    fn shares_add_up() {
        for (total, parts) in [(10, 1), (10, 3), (60_000, 4), (7, 7)] {
            let shares: Vec<_> = (0..parts).map(|index| share(total, parts, index)).collect();
            assert_eq!(shares.iter().sum::<usize>(), total);
            assert!(shares.iter().max().unwrap() - shares.iter().min().unwrap() <= 1);
        }
    }
}
