//! I/O models: idle connections with the models' ceilings, and the time to connect.

use throng_engine::workers::usable_cpus;
use throng_load::report::model::{Cell, Render as _, Row, Table, Unit};
use throng_load::units::grouped;
use throng_load::{Error, Limit, descriptors, row};

use super::row::{Better, PublishedRow};
use super::{Run, Section, words_of};
use crate::figures::{self, CEILINGS, CONNECT, IDLE, LINUX, SCALING, WINDOWS};
use crate::io_models::{IoModel, IoModels, IoModelsReport, capacity};
use crate::table::columns;

/// Measures idle connections, and adds the ceilings.
pub(super) fn idle(run: &mut Run<'_>, section: &mut Section) -> Result<(), Error> {
    section.title = "Idle connections, by I/O model".to_owned();
    section.articles = vec![LINUX, WINDOWS, SCALING];
    let flags = run.choose("--only idle", "--only idle --connections 100 --window 500ms");
    let report = run.comparison::<IoModels>(&words_of(flags))?;
    section.rows = idle_rows(&report);
    section.tables = report.document().tables;
    section.tables.push(ceilings(&mut section.rows));
    section.notes.push(figures::NOTE.to_owned());
    failures(&report, section);
    Ok(())
}

/// Measures the time to connect.
pub(super) fn connect(run: &mut Run<'_>, section: &mut Section) -> Result<(), Error> {
    section.title = "Time to connect and echo, by I/O model".to_owned();
    section.articles = vec![LINUX, WINDOWS];
    let flags = run.choose("--only connect", "--only connect --connections 200");
    let report = run.comparison::<IoModels>(&words_of(flags))?;
    section.rows = connect_rows(&report);
    section.tables = report.document().tables;
    failures(&report, section);
    Ok(())
}

/// Records the cells that unexpectedly have no figures.
fn failures(report: &IoModelsReport, section: &mut Section) {
    if report.exit_code() != 0 {
        section.failure = Some("a cell failed; its row says why".to_owned());
    }
}

fn idle_rows(report: &IoModelsReport) -> Vec<PublishedRow> {
    let mut rows = Vec::new();
    for (server, stated) in IDLE {
        for &(connections, stated) in stated {
            let same = |row: &&_| {
                let row: &&crate::io_models::SizeRow<crate::io_models::IdleFigures> = row;
                (row.model, row.connections) == (server.ours, connections)
            };
            let Some(cell) = report.idle.iter().find(same).map(|row| &row.cell) else { continue };
            let case = format!("{} idle, {}", grouped(connections as u64), server.ours);
            let of = |figure, unit, stated: Option<f64>, ours: Option<f64>| {
                let mut row = PublishedRow::new(&case, figure, unit);
                (row.published, row.by) = (stated, Some(server.name));
                match (ours, &cell.missing) {
                    (None, Some(why)) => row.missing(why),
                    (ours, _) => row.ours(ours, Limit::Neither),
                }
            };
            let (cpu, bytes) = match stated {
                figures::Idle::Measured(percent, mb) => (Some(percent / 100.0), Some(mb * 1e6)),
                figures::Idle::Failed(_) => (None, None),
            };
            let ours = cell.figures.as_ref();
            let memory = ours.map(|figures| figures.process_bytes as f64);
            rows.push(of("memory", Unit::Bytes, bytes, memory).compared(Better::Less));
            // Both values are close to zero, so a ratio would be random.
            let used = ours.map(|figures| figures.cpu_percent / 100.0);
            rows.push(of("CPU", Unit::Share, cpu, used));
        }
    }
    rows
}

fn connect_rows(report: &IoModelsReport) -> Vec<PublishedRow> {
    let mut rows = Vec::new();
    for stated in &CONNECT {
        let model = stated.server.ours;
        let mut cells = report.connect.iter();
        let same = cells.find(|row| (row.model, row.connections) == (model, stated.connections));
        let Some(cell) = same.map(|row| &row.cell) else { continue };
        let case = format!("{} connections, {model}", grouped(stated.connections as u64));
        let figure = if stated.echoed { "connected and echoed" } else { "connected" };
        let mut row = PublishedRow::new(&case, figure, Unit::Seconds);
        (row.published, row.by) = (stated.took_s, Some(stated.server.name));
        rows.push(match (&cell.figures, &cell.missing) {
            (Some(ours), _) => {
                let took = if stated.echoed { ours.answered_s } else { ours.connected_s };
                row.ours(took, ours.verdict.limit).compared(Better::Less)
            }
            (None, why) => row.missing(why.as_deref().unwrap_or_default()),
        });
    }
    rows
}

/// Compares the ceilings of each model: published, and by the limits of this machine.
fn ceilings(rows: &mut Vec<PublishedRow>) -> Table {
    let columns = columns([
        ("table", Unit::Text, ""),
        ("server", Unit::Text, "I/O model"),
        ("", Unit::Text, "published for"),
        ("published", Unit::Count, "published ceiling"),
        ("ours", Unit::Text, "ours"),
        ("connections", Unit::Count, "capacity here"),
        ("", Unit::Text, "what bounds it"),
    ]);
    let shown = CEILINGS.iter().map(|&(name, model, usual, ceiling)| {
        let row = PublishedRow::new(name, "ceiling", Unit::Count).published(ceiling, name);
        let head = row!["ceiling", name, usual, ceiling];
        let (most, bound) = capacity_of(model);
        rows.push(match most {
            Some(most) => row.only(most),
            None => row.missing(bound),
        });
        let most: Cell = most.into();
        Row::from([head, row![model.name(), most, bound]].concat())
    });
    let note = "Capacity here: what the limits of this machine leave, not measured; above, each \
         size was. `throng serve --max-connections N` holds more than one descriptor table does, \
         with a table for each event loop: 1,000,000 where kernel memory allows. The portable loop \
         is what kqueue would run on, measured on Linux.";
    Table::new("Ceilings", columns).rows(shown.collect::<Vec<_>>()).notes([note.to_owned()])
}

/// Returns the maximum connections of a model in one descriptor table, and their bound.
fn capacity_of(model: IoModel) -> (Option<f64>, &'static str) {
    if !IoModel::HERE.contains(&model) {
        return (None, "not on this system");
    }
    let by_descriptors = capacity::max_connections(model, usable_cpus());
    let threads = capacity::thread_room().filter(|_| model == IoModel::Threads);
    match (by_descriptors, threads) {
        (Some(sockets), Some(threads)) if threads < sockets => {
            (Some(threads as f64), "the limit of threads")
        }
        (Some(sockets), _) => (Some(sockets as f64), "descriptors of one table"),
        (None, Some(threads)) => (Some(threads as f64), "the limit of threads"),
        (None, None) => {
            let known = descriptors::hard_limit().is_some();
            (None, if known { "nothing known" } else { "memory: descriptors have no limit here" })
        }
    }
}
