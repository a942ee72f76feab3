//! Plan of the runs on one server.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use super::{Mode, ServerCommand, document};
use throng_load::http::{self, Expect};
use throng_load::{Common, Error, Target};

/// The suite's port.
pub(crate) const PORT: u16 = 1234;
/// Source addresses without keep-alive: the port of a connection that we closed first is not free
/// for a second.
const SOURCES: u32 = 8;

/// The whole matrix.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Command that starts the server.
    pub command: ServerCommand,
    /// The server's name in the table. Default [`ServerCommand::name`].
    pub name: String,
    /// Where it listens. Default 127.0.0.1:1234.
    pub address: SocketAddr,
    /// Numbers of connections. Default 1, 100 and 10,000.
    pub connections: Vec<usize>,
    /// Default both.
    pub modes: Vec<Mode>,
    /// Use a connection for many requests; else one for each, as the published figures do. Default
    /// true.
    pub keep_alive: bool,
    /// Time measured in each case. Default 10 s.
    pub duration: Duration,
    /// Time run before, not counted. Default 1 s.
    pub warmup: Duration,
    /// Threads of this generator; never more than connections. Default 1.
    pub threads: usize,
    /// Source addresses. Default: with `keep_alive` as many as the ports need, else eight on IPv4
    /// loopback.
    pub sources: Option<usize>,
    /// Longest wait for an answer or a connection. Default 30 s.
    pub timeout: Duration,
    /// Longest wait until a started server listens. Default 10 s; the suite gives a server one.
    pub start_timeout: Duration,
}

impl Plan {
    /// The suite's matrix on the server that `command` starts.
    #[must_use]
    pub(crate) fn new(command: ServerCommand) -> Self {
        Self {
            name: command.name(),
            command,
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, PORT)),
            connections: vec![1, 100, 10_000],
            modes: vec![Mode::Blank, Mode::Work],
            keep_alive: true,
            duration: Duration::from_secs(10),
            warmup: Duration::from_secs(1),
            threads: 1,
            sources: None,
            timeout: Duration::from_secs(30),
            start_timeout: Duration::from_secs(10),
        }
    }

    /// Refuses what makes no sense.
    ///
    /// # Errors
    /// [`Error::Usage`] naming the flag, the value and what to write instead.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.connections.is_empty() || self.modes.is_empty() {
            return Err(Error::Usage(
                "--connections and --modes need at least one value each".to_owned(),
            ));
        }
        if self.threads == 0 {
            return Err(Error::Usage("--threads is 0; it must be at least 1".to_owned()));
        }
        self.cases().try_for_each(|(connections, mode)| self.load(connections, mode)?.check())
    }

    /// The cases in the suite's order.
    pub(super) fn cases(&self) -> impl Iterator<Item = (usize, Mode)> {
        self.connections
            .iter()
            .flat_map(|&connections| self.modes.iter().map(move |&mode| (connections, mode)))
    }

    /// The load of one case.
    pub(super) fn load(&self, connections: usize, mode: Mode) -> Result<http::Plan, Error> {
        let is_work = mode == Mode::Work;
        let loopback = self.address.is_ipv4() && self.address.ip().is_loopback();
        let taking_turns = (!self.keep_alive && loopback).then_some(SOURCES as usize);
        let content_type = ("Content-Type".to_owned(), "application/json".to_owned());
        let common = Common {
            headers: is_work.then_some(content_type).into_iter().collect(),
            connections,
            threads: self.threads.min(connections.max(1)),
            sources: self.sources.or(taking_turns),
            ..Target::parse_http(&format!("http://{}/", self.address))?.into()
        };
        Ok(http::Plan {
            body: if is_work { document::Document::of_the_suite().request } else { Vec::new() },
            duration: self.duration,
            warmup: self.warmup,
            keep_alive: self.keep_alive,
            // The contract's, and no other.
            expect: Expect::parse("200").map_err(Error::Usage)?,
            timeout: self.timeout,
            ..http::Plan::new(common)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_suites_matrix_in_its_order() {
        let plan = Plan::new(ServerCommand::parse("server").unwrap());
        plan.check().unwrap();
        let cases: Vec<_> = plan.cases().map(|(n, mode)| format!("{n} {mode}")).collect();
        assert_eq!(
            cases,
            ["1 blank", "1 work", "100 blank", "100 work", "10000 blank", "10000 work"]
        );
        let work = plan.load(100, Mode::Work).unwrap();
        assert_eq!(
            (work.body.len(), work.common.connections, work.common.sources),
            (516, 100, None)
        );
        assert!(work.expect.accepts(200) && !work.expect.accepts(201));
        let plan = Plan { keep_alive: false, threads: 4, ..plan };
        let blank = plan.load(1, Mode::Blank).unwrap();
        assert!(blank.body.is_empty() && blank.common.headers.is_empty() && !blank.keep_alive);
        assert_eq!((blank.common.threads, blank.common.sources), (1, Some(8)));
    }

    #[test]
    fn nonsense_is_refused() {
        let refusal = |change: fn(&mut Plan)| {
            let mut plan = Plan::new(ServerCommand::parse("server").unwrap());
            change(&mut plan);
            plan.check().unwrap_err().to_string()
        };
        assert!(refusal(|plan| plan.connections = vec![1, 0]).contains("--connections is 0"));
        assert!(refusal(|plan| plan.connections.clear()).contains("at least one"));
        assert!(refusal(|plan| plan.modes.clear()).contains("at least one"));
        assert!(refusal(|plan| plan.threads = 0).contains("--threads is 0"));
        assert!(refusal(|plan| plan.duration = Duration::ZERO).contains("--duration is 0s"));
    }
}
