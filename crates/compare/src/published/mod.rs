//! The tables of five published articles, each figure beside the same measurement of Throng.
//!
//! `figures` has the figures of the articles. Each table is a [`Section`]: its rows, the articles
//! of its published figures, and notes about the measurement. If the generator or another process
//! limited a row, the row states this and has no ratio.
//!
//! Start reading at [`run()`].

mod broadcast;
mod echo;
mod http;
mod models;
mod program;
mod proxies;
mod row;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::ValueEnum as _;
use serde::Serialize;
use throng_load::page::Plot;
use throng_load::report::model::{Document, Render, Table};
use throng_load::report::{Origin, SCHEMA};
use throng_load::sampler::MachineSample;
use throng_load::{Error, Progress, descriptors};

pub use self::row::PublishedRow;
use crate::bench::Bench;
use crate::comparison::{Comparison, from_flags};
pub use crate::figures::Article;
use crate::parts::Launch;
use crate::run::CellProgress;
use crate::table::busy_words;
use crate::word::words;

words! {
    /// One of the tables.
    enum PublishedTable {
        /// Echoes of 100 B, ten a second from each of 10,000 to 250,000 clients
        Echo = "echo",
        /// One message to 50,000 subscribers: a loop of sends, one encoded frame, a publication
        Broadcast = "broadcast",
        /// Idle connections by I/O model, and the models' ceilings
        IoModels = "io-models",
        /// Time to connect and echo, by I/O model
        Connect = "connect",
        /// A proxy's memory and CPU of 1,000 to 50,000 mostly idle tunnels
        Tunnels = "tunnels",
        /// A proxy's memory under 500 connections x 50 messages, by size of message
        Burst = "burst",
        /// The six cases of NetBenchmarks
        NetBench = "netbench",
        /// 100,000 HTTP requests over 1 to 1,000 connections, by I/O threads
        Stress = "stress",
        /// Size of the program, and time from its start to its first answer
        Size = "size",
    }
}

/// The tables to measure, and how thoroughly.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Published {
    /// Only these tables, in this order
    #[arg(long, value_name = "TABLE", value_delimiter = ',')]
    pub only: Vec<PublishedTable>,
    /// Few connections and short times, for a first look: its figures show that all works, no more
    #[arg(long)]
    pub quick: bool,
}

impl Published {
    /// Returns the requested tables in order, each once.
    fn tables(&self) -> Vec<PublishedTable> {
        let mut tables = match &self.only[..] {
            [] => PublishedTable::value_variants().to_vec(),
            only => only.to_vec(),
        };
        let mut seen = Vec::new();
        tables.retain(|table| {
            !seen.contains(table) && {
                seen.push(*table);
                true
            }
        });
        tables
    }
}

/// One table.
#[derive(Clone, Debug, Serialize)]
pub struct Section {
    /// The table's name on the command line.
    pub table: PublishedTable,
    /// For people.
    pub title: String,
    /// The articles with the published figures.
    pub articles: Vec<Article>,
    /// Published figures, each beside Throng's figure.
    pub rows: Vec<PublishedRow>,
    /// Notes for readers, as sentences.
    pub notes: Vec<String>,
    /// Why the section is incomplete.
    pub failure: Option<String>,
    /// Tables for readers, if they differ from the rows.
    #[serde(skip)]
    tables: Vec<Table>,
    #[serde(skip)]
    plots: Vec<Plot>,
}

impl Section {
    fn new(table: PublishedTable) -> Self {
        Self {
            table,
            title: String::new(),
            articles: Vec::new(),
            rows: Vec::new(),
            notes: Vec::new(),
            failure: None,
            tables: Vec::new(),
            plots: Vec::new(),
        }
    }

    /// Nothing was measured.
    fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.tables.is_empty()
    }

    fn tables(&self) -> Vec<Table> {
        let articles = self.articles.iter().map(|article| {
            let Article { publisher, title, date, machine } = article;
            format!("Published: {publisher}, \"{title}\", {date}; on {machine}.")
        });
        let failure = self.failure.iter().map(|why| format!("Not complete: {why}."));
        let notes = articles.chain(self.notes.clone()).chain(failure);
        match &self.tables[..] {
            [] => vec![row::table(&self.title, &self.rows).plots(self.plots.clone()).notes(notes)],
            [before @ .., last] => {
                let last = last.clone().plots(self.plots.clone()).notes(notes);
                before.iter().cloned().chain([last]).collect()
            }
        }
    }

    /// The text for a terminal.
    #[must_use]
    pub fn to_text(&self) -> String {
        Document { tables: self.tables(), ..Document::default() }.to_text()
    }
}

/// All tables.
#[derive(Clone, Debug, Serialize)]
pub struct PublishedReport {
    /// The report's schema version, as in every report of `throng bench`.
    pub schema: &'static str,
    /// The program, the time, the command line and the machine of the run.
    pub run: Origin,
    /// Whether the run used small sizes and short times.
    pub quick: bool,
    /// Maximum descriptors of one process.
    pub descriptor_limit: Option<u64>,
    /// Share (0 to 1) of the machine's CPU time that all processes used during the run.
    pub machine_busy_share: Option<f64>,
    /// Whether the run was stopped.
    pub interrupted: bool,
    /// The tables.
    pub sections: Vec<Section>,
}

/// Explains how to read the tables.
const READING: &str = "Published figures are of other programs on other machines: they give scale, \
     no more. ratio: how many times better ours is, above 1x ours is better. A row that this \
     generator, both at once or another process on this machine limited has none.";
const QUICK: &str = "--quick: too few connections for too short a time; these are no figures.";

impl PublishedReport {
    /// Returns the lines below all tables, for a terminal.
    #[must_use]
    pub fn closing(&self) -> String {
        Document { tables: Vec::new(), ..self.document() }.to_text()
    }
}

impl Render for PublishedReport {
    fn document(&self) -> Document {
        let machine = &self.run.machine;
        let cpu = machine.cpu.as_deref().unwrap_or("unknown CPU");
        let limit = self.descriptor_limit.map_or_else(String::new, |limit| {
            format!(", {} descriptors a process", throng_load::units::grouped(limit))
        });
        let conditions = vec![format!(
            "{}, throng {}: {}, {cpu}, {} CPUs{limit}{}",
            self.run.date,
            self.run.version,
            machine.system,
            machine.cpus,
            busy_words(self.machine_busy_share),
        )];
        let interrupted = "Stopped before all tables were complete.";
        let notices =
            [Some(READING), self.quick.then_some(QUICK), self.interrupted.then_some(interrupted)];
        Document {
            kind: "published",
            title: "The tables of five articles, measured here".to_owned(),
            conditions,
            tables: self.sections.iter().flat_map(Section::tables).collect(),
            notices: notices.into_iter().flatten().map(str::to_owned).collect(),
            ..Document::default()
        }
    }

    fn exit_code(&self) -> u8 {
        let failed = self.sections.iter().any(|section| section.failure.is_some());
        u8::from(failed || self.interrupted)
    }
}

/// Receives the progress and the end of each table.
pub trait Watch {
    /// A table progresses.
    fn progress(&mut self, table: PublishedTable, progress: &CellProgress);
    /// A table is complete, or will not be continued.
    fn finished(&mut self, section: &Section);
}

/// Measures the tables, one after the other.
///
/// `program` is the `throng` binary, which is started as server and balancer; `launch` starts it as
/// a part. When `stop` becomes true, the run ends with the tables so far. If a table fails, its
/// section states why, and the others still run.
pub fn run(
    published: &Published,
    program: &Path,
    launch: Launch<'_>,
    stop: &AtomicBool,
    watch: &mut dyn Watch,
) -> PublishedReport {
    let machine = MachineSample::now();
    let mut sections = Vec::new();
    for table in published.tables() {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let mut section = Section::new(table);
        let mut run =
            Run { quick: published.quick, program, launch, stop, table, watch: &mut *watch };
        let outcome = match table {
            PublishedTable::Echo => echo::measure(&mut run, &mut section),
            PublishedTable::Broadcast => broadcast::measure(&mut run, &mut section),
            PublishedTable::IoModels => models::idle(&mut run, &mut section),
            PublishedTable::Connect => models::connect(&mut run, &mut section),
            PublishedTable::Tunnels => proxies::tunnels(&mut run, &mut section),
            PublishedTable::Burst => proxies::burst(&mut run, &mut section),
            PublishedTable::NetBench => http::netbench(&mut run, &mut section),
            PublishedTable::Stress => http::stress(&mut run, &mut section),
            PublishedTable::Size => program::measure(&mut run, &mut section),
        };
        if let Err(error) = outcome {
            section.failure = Some(error.to_string());
        }
        if !section.is_empty() || section.failure.is_some() {
            watch.finished(&section);
            sections.push(section);
        }
    }
    PublishedReport {
        schema: SCHEMA,
        run: Origin::now(),
        quick: published.quick,
        descriptor_limit: descriptors::hard_limit(),
        machine_busy_share: MachineSample::now()
            .zip(machine)
            .map(|(end, begin)| end.busy_since(&begin)),
        interrupted: stop.load(Ordering::Relaxed),
        sections,
    }
}

/// The means to measure a table.
struct Run<'a> {
    quick: bool,
    program: &'a Path,
    launch: Launch<'a>,
    stop: &'a AtomicBool,
    table: PublishedTable,
    watch: &'a mut dyn Watch,
}

impl Run<'_> {
    /// Returns `quick` with `--quick`, otherwise `usual`.
    fn choose<T>(&self, usual: T, quick: T) -> T {
        if self.quick { quick } else { usual }
    }

    /// Runs a comparison with these flags.
    fn comparison<C: Comparison>(&mut self, flags: &[String]) -> Result<C::Findings, Error> {
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let comparison =
            from_flags::<C>(&flags).map_err(|error| Error::Usage(error.to_string()))?;
        self.run(comparison)
    }

    fn run<C: Comparison>(&mut self, comparison: C) -> Result<C::Findings, Error> {
        let (table, watch) = (self.table, &mut *self.watch);
        crate::run::run(comparison, self.launch, self.stop, &mut |progress| {
            watch.progress(table, progress);
        })
    }

    /// Measures one of several cells that each take about this long.
    fn cell<R>(
        &mut self,
        name: &str,
        (done, cells): (usize, usize),
        each: Duration,
        measure: impl FnOnce(&mut Bench<'_>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let begun = Instant::now();
        let (table, watch) = (self.table, &mut *self.watch);
        let mut show = |within: Option<Progress>| {
            let all = each * (cells - done) as u32;
            let (cell, left) = (name.to_owned(), all.saturating_sub(begun.elapsed()));
            watch.progress(table, &CellProgress { cell, done, cells, left, within });
        };
        show(None);
        let mut watch = |within: &Progress| show(Some(*within));
        let mut bench = Bench { launch: self.launch, stop: self.stop, watch: &mut watch };
        let measured = measure(&mut bench)?;
        // An interrupted measurement has no figures.
        match bench.is_stopped() {
            true => Err(Error::Interrupted),
            false => Ok(measured),
        }
    }
}

/// Splits a command line into words.
fn words_of(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_come_as_they_are_asked_for() {
        let of = |words: &[&str]| -> Vec<PublishedTable> {
            let command = <Published as clap::Args>::augment_args(clap::Command::new("x"));
            let matches = command.no_binary_name(true).get_matches_from(words);
            <Published as clap::FromArgMatches>::from_arg_matches(&matches).unwrap().tables()
        };
        assert_eq!(of(&[]).len(), 9);
        let asked = of(&["--only", "size,echo,size"]);
        assert_eq!(asked, [PublishedTable::Size, PublishedTable::Echo]);
    }
}
