//! The blank/work benchmark (NetBenchmarks) as a client, which runs the whole matrix on any server
//! command.
//!
//! For each number of connections and each mode, the benchmark starts the server, sends a few
//! requests and checks their answers in full. It then puts the server under
//! [`http`](throng_load::http) load with one request at a time on each connection, checks it again,
//! and ends it with all its child processes. If a server fails a case, only this row fails; the
//! others still run.

mod case;
mod check;
mod document;
mod flags;
mod ordered;
mod report;
mod server_command;

use std::fmt;
use std::time::Duration;

use throng_load::units::grouped;
use throng_load::{Error, descriptors};

pub use flags::{EXAMPLES, NetBench, Reuse};
pub use report::{CaseReport, NetBenchReport};

pub(crate) use self::case::answers;
use self::case::{Failed, run_case, taken};
use crate::bench::Bench;
use crate::blank_work::Mode;
use crate::comparison::{Comparison, Measured};

/// One case of the matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    connections: usize,
    mode: Mode,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} conn {}", grouped(self.connections as u64), self.mode)
    }
}

impl Comparison for NetBench {
    type Cell = Case;
    type Row = CaseReport;
    type Findings = NetBenchReport;

    const NAME: &'static str = "netbench";

    fn prepare(&mut self) -> Result<(), Error> {
        self.complete()?;
        if answers(self.listens_on()) {
            return Err(Error::Child(taken(self.listens_on())));
        }
        // Runs before the server starts, because the server inherits the limit and needs as many
        // descriptors.
        descriptors::make_room(self.connections.iter().copied().max().unwrap_or(0))?;
        Ok(())
    }

    /// Returns the cases in the suite's order.
    fn cells(&self) -> Vec<Case> {
        let of = |&connections| self.modes.iter().map(move |&mode| Case { connections, mode });
        self.connections.iter().flat_map(of).collect()
    }

    fn estimate(&self, _: &Case) -> Duration {
        Duration::from_secs(1) + self.warmup + self.duration
    }

    fn measure(&self, case: &Case, bench: &mut Bench<'_>) -> Result<CaseReport, Error> {
        let Case { connections, mode } = *case;
        match run_case(self, connections, mode, bench) {
            Ok(load) => Ok(CaseReport::measured(connections, mode, load)),
            Err(Failed::Interrupted) => Err(Error::Interrupted),
            Err(Failed::Because(reason, load)) => {
                Ok(CaseReport::failed(connections, mode, reason, load.map(|load| *load)))
            }
        }
    }

    fn report(self, measured: Measured<CaseReport>) -> NetBenchReport {
        NetBenchReport::new(&self, self.cells().len(), measured.rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comparison::{checked, from_flags};

    fn complete(words: &[&str]) -> Result<NetBench, String> {
        let mut bench: NetBench = from_flags(words).map_err(|error| error.to_string())?;
        bench.own = vec!["lab".to_owned(), "serve-netbench".to_owned()];
        bench.complete().map_err(|error| error.to_string())?;
        Ok(bench)
    }

    #[test]
    fn the_suites_matrix_in_its_order() {
        let usual = complete(&["--against", "node x.js"]).unwrap();
        assert_eq!(usual.listens_on().to_string(), "127.0.0.1:1234");
        assert_eq!((usual.name.as_deref(), usual.threads), (Some("x"), 1));
        let cases: Vec<String> = usual.cells().iter().map(Case::to_string).collect();
        assert_eq!(
            cases,
            [
                "1 conn blank",
                "1 conn work",
                "100 conn blank",
                "100 conn work",
                "10,000 conn blank",
                "10,000 conn work"
            ]
        );
        let work = usual.load(100, Mode::Work).unwrap();
        assert_eq!(
            (work.body.len(), work.common.connections, work.common.sources),
            (516, 100, None)
        );
        assert!(work.expect.accepts(200) && !work.expect.accepts(201) && work.keep_alive);
        let own = complete(&[]).unwrap();
        assert_ne!(own.listens_on().port(), 0);
        let command = own.server.as_ref().unwrap().words().join(" ");
        assert_eq!(command, format!("lab serve-netbench {}", own.listens_on()));
    }

    #[test]
    fn flags_are_read() {
        let line = "--against ./s --name S --reuse close -c 1,7 --modes work --port 80 --address \
             ::1 -d 1s -w 0s --timeout 2s --start-timeout 3s -t 2 --sources 1";
        let bench = complete(&line.split_whitespace().collect::<Vec<_>>()).unwrap();
        assert_eq!((bench.name.as_deref(), bench.threads), (Some("S"), 2));
        assert_eq!((&bench.connections, &bench.modes), (&vec![1, 7], &vec![Mode::Work]));
        assert_eq!((bench.listens_on().to_string().as_str(), bench.sources), ("[::1]:80", Some(1)));
        let close = complete(&["--against", "s", "--reuse", "close", "-t", "4"]).unwrap();
        let blank = close.load(1, Mode::Blank).unwrap();
        assert!(blank.body.is_empty() && blank.common.headers.is_empty() && !blank.keep_alive);
        assert_eq!((blank.common.threads, blank.common.sources), (1, Some(8)));
    }

    #[test]
    fn mistakes_teach() {
        for (words, hint) in [
            (&["--against", ""][..], "is empty"),
            (&["--against", "a | b"], "sh -c 'exec ...'"),
            (&["--against", "a", "--reuse", "no"], "keep-alive"),
            (&["--against", "a", "--modes", "idle"], "blank"),
            (&["--against", "a", "-c", "1,0"], "--connections is 0"),
            (&["--against", "a", "--port", "0"], "--port"),
            (&["--against", "a", "--duration", "5"], "write \"5s\" or \"5ms\""),
            (&["--against", "a", "--duration", "0s"], "--duration is 0s"),
            (&["--against", "a", "--threads", "0"], "--threads is 0"),
            (&["--address", "192.0.2.1"], "--address 192.0.2.1"),
        ] {
            let error = complete(words).unwrap_err();
            assert!(error.contains(hint), "{words:?}: {error}");
        }
        assert!(checked::<NetBench>("").unwrap_err().contains("is empty"), "no server of our own");
    }
}
