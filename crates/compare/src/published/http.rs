//! HTTP servers: the six cases of NetBenchmarks, and calls over a growing number of connections.

use std::time::Duration;

use throng_engine::workers::usable_cpus;
use throng_load::http::{self, HttpPlan};
use throng_load::page::{Axis, Plot};
use throng_load::report::model::{Cell, Column, Row, Table, Unit};
use throng_load::units::grouped;
use throng_load::{Common, Error, Limit, Target, row};

use super::row::{Better, PublishedRow};
use super::{Run, Section};
use crate::blank_work::Mode;
use crate::comparison::from_flags;
use crate::figures::{CALLS, HTTP, NETBENCH, NETBENCH_SERVERS, STRESS, STRESS_SERVERS};
use crate::netbench::NetBench;
use crate::parts::{OwnServer, ServerPart};
use crate::table::{s, with_lines};

/// Maximum time of the calls, which normally end by their number.
const MAX_TIME: Duration = Duration::from_secs(3600);

/// Throng's figure in one case.
struct Ours {
    per_s: Option<f64>,
    limit: Limit,
    missing: Option<String>,
}

/// The six cases.
pub(super) fn netbench(run: &mut Run<'_>, section: &mut Section) -> Result<(), Error> {
    section.title = "NetBenchmarks, requests a second".to_owned();
    section.articles = vec![HTTP];
    section.notes = vec![
        "A connection for each request, as the suite's client does; our generator instead of the \
         suite's, which was the limit of most published figures by the article's own words. ratio: \
         to the best published figure of the case."
            .to_owned(),
    ];
    let line = run.choose(
        "--reuse close --duration 5s",
        "--reuse close --duration 300ms --warmup 100ms --connections 1,100",
    );
    let flags: Vec<&str> = line.split(' ').collect();
    let mut bench: NetBench =
        from_flags(&flags).map_err(|error| Error::Usage(error.to_string()))?;
    let program = run.program.display().to_string();
    bench.own = [&program, "bench", "blank-work", "{mode}"].map(str::to_owned).to_vec();
    let report = run.run(bench)?;
    let mut lines = Vec::new();
    for case in &report.cases {
        let same = |of: &&(usize, Mode, _)| (of.0, of.1) == (case.connections, case.mode);
        let Some((_, _, stated)) = NETBENCH.iter().find(same) else { continue };
        let name = format!("{}, {}", grouped(case.connections as u64), case.mode);
        let limit = case.limit.unwrap_or(Limit::Invalid);
        let ours = Ours { per_s: case.throughput_per_s, limit, missing: case.failure.clone() };
        lines.push(wide(&name, stated, &[&ours]));
        let servers = NETBENCH_SERVERS.iter().zip(stated);
        section
            .rows
            .extend(servers.map(|(by, &stated)| long(&name, "requests/s", stated, by, &ours)));
        if let Some(why) = &case.failure {
            section.failure = Some(format!("{name}: {why}"));
        } else {
            section.notes.push(format!("{name}: {}.", case.line()));
        }
    }
    section.tables =
        vec![table(&section.title, "connections", &NETBENCH_SERVERS, &["ours".to_owned()], lines)];
    Ok(())
}

/// Measures calls over a growing number of connections, for several numbers of I/O threads.
pub(super) fn stress(run: &mut Run<'_>, section: &mut Section) -> Result<(), Error> {
    let calls = run.choose(CALLS, 1_000);
    section.title = format!("{} calls, blank, calls a second", grouped(calls));
    section.articles = vec![HTTP];
    section.notes = vec![
        "Connections stay open. Ours by event loops; kbmMW had 6 I/O threads. Of the article's \
         servers those without a gap in their column. ratio: ours with most event loops to the \
         best published figure of the row."
            .to_owned(),
    ];
    let mut threads = vec![1, usable_cpus()];
    threads.dedup();
    let stated: &[_] = run.choose(&STRESS[..], &STRESS[..2]);
    let cells = stated.len() * threads.len();
    let (mut lines, mut done) = (Vec::new(), 0);
    let mut points = vec![Vec::new(); threads.len()];
    for &(connections, published) in stated {
        let name = grouped(connections as u64);
        let mut all = Vec::new();
        for (at, &shards) in threads.iter().enumerate() {
            let case =
                format!("{name} connection{}, {shards} I/O thread{}", s(connections), s(shards));
            let each = Duration::from_secs(run.choose(4, 1));
            let report = run.cell(&case, (done, cells), each, |bench| {
                let server = OwnServer::start(bench.launch, ServerPart::with_shards(shards))?;
                let target = Target::parse_http(&format!("http://{}/", server.address))?;
                let common = Common {
                    connections,
                    number: Some(calls),
                    server_pids: vec![server.pid()],
                    ..Common::from(target)
                };
                let plan = HttpPlan {
                    warmup: Duration::ZERO,
                    duration: MAX_TIME,
                    ..HttpPlan::new(common)
                };
                http::run(&plan, bench.stop, bench.watch)
            })?;
            done += 1;
            let per_s = report.result.requests_per_s;
            points[at].push((connections as f64, per_s));
            let limit = report.verdict.limit;
            let ours = Ours { per_s: Some(per_s), limit, missing: None };
            let servers = STRESS_SERVERS.iter().zip(published);
            section
                .rows
                .extend(servers.map(|(by, stated)| long(&case, "calls/s", stated, by, &ours)));
            section.notes.push(format!("{case}: {}.", report.verdict.line));
            all.push(ours);
        }
        lines.push(wide(&name, &published, &all.iter().collect::<Vec<_>>()));
    }
    let ours: Vec<String> = threads.iter().map(|n| format!("ours, {n}")).collect();
    section.tables = vec![table(&section.title, "connections", &STRESS_SERVERS, &ours, lines)];
    let plot = Plot::new("Calls a second", Axis::log("connections"), Axis::log("calls a second"));
    let theirs = STRESS_SERVERS.iter().enumerate().map(|(at, name)| {
        let points = stated.iter().map(|(n, per_s)| (*n as f64, per_s[at])).collect();
        ((*name).to_owned(), points)
    });
    section.plots = vec![with_lines(plot, theirs.chain(ours.iter().cloned().zip(points)))];
    Ok(())
}

/// Returns a row for programs, with one published figure.
fn long(
    case: &str,
    figure: &'static str,
    stated: f64,
    by: &'static str,
    ours: &Ours,
) -> PublishedRow {
    let row = PublishedRow::new(case, figure, Unit::Number).published(stated, by);
    match &ours.missing {
        Some(why) => row.missing(why),
        None => row.ours(ours.per_s, ours.limit).compared(Better::More),
    }
}

/// Returns a row for readers: all published figures, Throng's, and the ratio of Throng's last
/// figure to the best published one.
fn wide(case: &str, stated: &[f64], ours: &[&Ours]) -> Row {
    let mut cells = row![case];
    cells.extend(stated.iter().map(|&per_s| Cell::from(per_s)));
    let Some(last) = ours.last() else { return cells.into() };
    if let Some(why) = &last.missing {
        return Row::without_figures(cells, why.clone());
    }
    cells.extend(ours.iter().map(|ours| Cell::from(ours.per_s)));
    let best = stated.iter().copied().fold(0.0, f64::max);
    let ratio = last.per_s.filter(|_| last.limit.is_sound()).map(|per_s| per_s / best);
    cells.extend(row![ratio, last.limit.name()]);
    cells.into()
}

fn table(
    title: &str,
    first: &'static str,
    servers: &[&'static str],
    ours: &[String],
    rows: Vec<Row>,
) -> Table {
    let mut columns = vec![Column::new("", Unit::Text, first)];
    columns.extend(servers.iter().map(|&name| Column::new("", Unit::Count, name)));
    columns.extend(ours.iter().map(|name| Column::new("", Unit::Count, name.as_str())));
    columns.push(Column::new("", Unit::Times, "ratio"));
    columns.push(Column::new("", Unit::Text, "limit"));
    Table::new(title, columns).rows(rows)
}
