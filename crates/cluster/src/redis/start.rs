//! The start of a node, and the thread on which its parts run.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::task::{JoinSet, LocalSet, spawn_local};
use tokio::time::sleep;

use super::events::{Events, Relayed};
use super::link::RedisTarget;
use super::node::{Node, NodeEvent, PartContext};
use super::pool::SendBudget;
use super::reply;
use super::signals::Signals;
use super::status::Status;
use super::{Bus, Members, Parts, Settings, StartError};
use crate::held::Budget;
use crate::partition::servers_of;

/// Memory for publications that wait until the broker has answered a question about their channel.
const MAX_HELD_BYTES: usize = 16 << 20;

/// The time between attempts to find the masters of a Redis Cluster that was unreachable at the
/// start.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// A part of a node before its start.
#[derive(Debug)]
struct Part {
    target: RedisTarget,
    events: UnboundedSender<NodeEvent>,
    receiver: UnboundedReceiver<NodeEvent>,
}

/// A node before its start.
#[derive(Debug)]
pub struct Starter {
    bus: Bus,
    parts: Vec<Part>,
    held: Budget,
    relayed: Option<Relayed>,
}

impl Starter {
    pub(super) fn create(settings: Settings, is_relayed: bool) -> Result<(Bus, Self), StartError> {
        let targets = RedisTarget::all(settings)?;
        let names: Vec<_> = targets.iter().map(|target| target.shown().to_owned()).collect();
        let parts = match names.len() {
            _ if targets.iter().any(|target| target.masters().is_some()) => Parts::Partitions,
            1 => Parts::One,
            _ => Parts::Servers(servers_of(&names).into()),
        };
        let names = match parts {
            Parts::One | Parts::Partitions => vec![None; names.len()],
            Parts::Servers(_) => names.into_iter().map(Some).collect(),
        };
        let part = |target| {
            let (events, receiver) = unbounded_channel();
            Part { target, events, receiver }
        };
        let all: Vec<_> = targets.into_iter().map(part).collect();
        let direct = all.iter().map(|part| part.events.clone()).collect();
        let (events, relayed) = Events::new(direct, is_relayed);
        let (pool, held) = (Arc::new(SendBudget::new(names.len())), Budget::new(MAX_HELD_BYTES));
        let status = Arc::new(Status::new(names, Arc::clone(&pool), held.clone()));
        let bus = Bus { events, parts, status, pool, asks: Arc::default() };
        Ok((bus.clone(), Self { bus, parts: all, held, relayed }))
    }

    /// Connects, and starts the node's thread.
    ///
    /// # Errors
    /// A server is unreachable, refuses the node, or has an unsuitable kind.
    pub fn start(self, members: impl Members) -> Result<(), StartError> {
        self.start_with(Box::new(members), true)
    }

    /// Starts the node's thread, and waits for the first attempt to connect. A node that cannot
    /// connect yet keeps trying.
    ///
    /// # Errors
    /// A server refuses the node, or has an unsuitable kind: such an error
    /// [lasts](StartError::is_lasting).
    pub fn start_or_wait(self, members: impl Members) -> Result<(), StartError> {
        self.start_with(Box::new(members), false)
    }

    fn start_with(mut self, members: Box<dyn Members>, requires: bool) -> Result<(), StartError> {
        let (started, outcome) = std::sync::mpsc::channel();
        let cannot = |error: std::io::Error| {
            StartError::new(format!("cannot start the cluster's thread: {error}"))
        };
        if let Some(relayed) = self.relayed.take() {
            relayed.start().map_err(cannot)?;
        }
        let run = move || {
            reply::mark_thread();
            let _thread = Thread(self.bus.clone());
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            match runtime {
                Ok(runtime) => {
                    LocalSet::new().block_on(&runtime, self.run(members, requires, &started));
                }
                Err(error) => drop(started.send(Err(cannot(error)))),
            }
        };
        std::thread::Builder::new().name("cluster".to_owned()).spawn(run).map_err(cannot)?;
        outcome
            .recv()
            .unwrap_or_else(|_| Err(StartError::new("the cluster's thread ended".to_owned())))
    }

    /// Runs until all parts have ended, or one of them has panicked.
    async fn run(
        self,
        members: Box<dyn Members>,
        requires: bool,
        started: &Sender<Result<(), StartError>>,
    ) {
        let Self { bus, parts, held, .. } = self;
        let is_error = |error: &StartError| requires || error.is_lasting();
        let is_cluster = matches!(bus.parts, Parts::Partitions);
        let mut are_known = false;
        if is_cluster {
            let targets: Vec<_> = parts.iter().map(|part| part.target.clone()).collect();
            match try_masters(&targets).await {
                Err(error) if is_error(&error) => return drop(started.send(Err(error))),
                tried => {
                    are_known = tried.is_ok();
                    bus.status
                        .set_unused(tried.as_ref().map(drop).map_err(|error| &*error.message));
                }
            }
            if !are_known {
                spawn_local(find_masters(targets, Arc::clone(&bus.status)));
            }
        }
        let members = Rc::new(RefCell::new(members));
        let (mut all, mut attempts) = (JoinSet::new(), Vec::new());
        for (number, Part { target, events, receiver }) in parts.into_iter().enumerate() {
            let (status, pool) = (Arc::clone(&bus.status), Arc::clone(&bus.pool));
            let own = PartContext { part: number as u16, events, status, pool };
            let mut node = Node::new(target, own, Rc::clone(&members), held.clone());
            let (attempted, attempt) = oneshot::channel();
            if is_cluster {
                if are_known {
                    node.skip_checks();
                }
            } else {
                attempts.push(attempt);
            }
            all.spawn_local(async move {
                if !is_cluster {
                    let _ = attempted.send(node.connect().await);
                }
                node.run(receiver).await;
            });
        }
        for attempt in attempts {
            match attempt.await {
                Ok(Err(error)) if is_error(&error) => return drop(started.send(Err(error))),
                Ok(_) => {}
                Err(_) => return,
            }
        }
        if is_cluster {
            let _ = bus.events.send(bus.part_of_nodes(), NodeEvent::Begin);
        }
        let _ = started.send(Ok(()));
        while let Some(Ok(())) = all.join_next().await {}
    }
}

/// Keeps trying until a Redis Cluster is reachable. Partitions in use try on their own.
async fn find_masters(targets: Vec<RedisTarget>, status: Arc<Status>) {
    loop {
        sleep(TRY_AGAIN).await;
        let tried = try_masters(&targets).await;
        status.set_unused(tried.as_ref().map(drop).map_err(|error| &*error.message));
        if tried.is_ok() {
            return;
        }
    }
}

/// Connects to each master of a Redis Cluster, and checks that it supports everything that a node
/// needs.
async fn try_masters(targets: &[RedisTarget]) -> Result<(), StartError> {
    let Some(masters) = targets.first().and_then(RedisTarget::masters) else { return Ok(()) };
    for partition in masters.all().await? {
        let target = &targets[usize::from(partition)];
        let link = target.link(None, Signals::new(0, drop)).await?;
        link.check_rights(&target.names).await?;
    }
    Ok(())
}

/// A guard of the node's thread. When the thread ends for any reason, the node stops claiming to
/// deliver, and publishers stop waiting for it.
struct Thread(Bus);

impl Drop for Thread {
    fn drop(&mut self) {
        self.0.status.set_all_down("the cluster's thread has ended; start the server again");
        self.0.pool.close();
    }
}
