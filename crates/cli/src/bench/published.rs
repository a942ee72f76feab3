//! `throng bench published`: the tables of five articles, each figure beside Throng's.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use throng_compare::CellProgress;
use throng_compare::published::{self, Published, PublishedTable, Section, Watch};
use throng_load::report::Render;

use super::output::{check_file, write_file};
use super::own::{launch, this_program};
use super::progress::CellLine;
use crate::failure::Failure;
use crate::signals::Stop;
use crate::terminal;

pub(super) const EXAMPLES: &str = "Examples:
  throng bench published                          all tables, in some thirty minutes
  throng bench published --quick                  a first look, in a minute or two; no figures
  throng bench published --only echo,broadcast
  throng bench published --only tunnels,burst --json tunnels.json --html tunnels.html

The tables:
  echo       100 B echoes at 10/s from 10,000, 50,000, 100,000 and 250,000 clients, or at the
             highest rate that server and generator hold on this machine
  broadcast  one message to 50,000 subscribers: a loop of sends, one encoded frame, a
             publication; with and without compression
  io-models  idle connections on a thread each, epoll and the portable loop; ceilings
  connect    time until so many are connected and have had an echo
  tunnels    memory and CPU of a proxy with 1,000 to 50,000 mostly idle tunnels
  burst      memory of a proxy under 500 connections x 50 messages, by size of message
  netbench   the six cases of NetBenchmarks
  stress     100,000 HTTP requests over 1 to 1,000 connections, by I/O threads
  size       size of this program, time to its first answer, memory at rest

What a row says:
  published  the article's figure, by which server; the article stands below the table
  ratio      how many times better ours is: above 1x ours is better; none where the rates differ,
             or where this generator or another process was the limit
  limit      what limited ours: server, neither, generator, both, machine

More connections than one descriptor table holds (ulimit -Hn) are measured
where the system gives a table to each thread; a size that this machine has no
room for is a row that says what is missing. Ctrl-C ends what was started and
keeps the tables so far.

Exit codes: 0 done, 1 a table is not complete, 2 a mistake in the command.";

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    published: Published,
    /// Write all figures to this file as well, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a page to this file as well, with plots; nothing in it is loaded from elsewhere
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Show no progress
    #[arg(long, short)]
    quiet: bool,
}

/// Measures, and prints each table when it is complete.
pub(super) fn run(args: &Args, stop: &Stop) -> Result<ExitCode, Failure> {
    let files = [("--json", &args.json), ("--html", &args.html)];
    for (flag, path) in files {
        path.as_deref().map_or(Ok(()), |path| check_file(flag, path))?;
    }
    let program = this_program();
    let mut screen = Screen { quiet: args.quiet, line: None, unprinted: None };
    let report =
        published::run(&args.published, Path::new(&program), &launch, stop.flag(), &mut screen);
    screen.line = None;
    if let Some(path) = &args.json {
        write_file("--json", path, &report.to_json())?;
    }
    if let Some(path) = &args.html {
        write_file("--html", path, &report.to_html())?;
    }
    if let Some(failure) = screen.unprinted {
        return Err(failure);
    }
    terminal::report(format_args!("\n{}", report.closing()))?;
    Ok(ExitCode::from(report.exit_code()))
}

/// The tables on standard output, and the progress between them.
struct Screen {
    quiet: bool,
    line: Option<(PublishedTable, CellLine)>,
    unprinted: Option<Failure>,
}

impl Watch for Screen {
    fn progress(&mut self, table: PublishedTable, progress: &CellProgress) {
        if self.line.as_ref().is_none_or(|(of, _)| *of != table) {
            self.line = Some((table, CellLine::new(table.name(), self.quiet)));
        }
        if let Some((_, line)) = &mut self.line {
            line.show(progress);
        }
    }

    fn finished(&mut self, section: &Section) {
        // Clears it.
        self.line = None;
        if self.unprinted.is_none() {
            self.unprinted = terminal::report(section.to_text()).err();
        }
    }
}
