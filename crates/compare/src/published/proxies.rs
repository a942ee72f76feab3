//! A proxy before a WebSocket server: mostly idle tunnels, and bursts by message size.

use throng_load::page::{Axis, Plot};
use throng_load::report::model::Unit;
use throng_load::units::{grouped, show_bytes};
use throng_load::{Error, Limit};

use super::row::{Better, PublishedRow};
use super::{Run, Section, words_of};
use crate::figures::{BURST_GROWTH, BURST_SIZES, NGINX, TUNNEL_BOUNDS, TUNNELS};
use crate::proxies::{Figures, Peer, Proxies, ProxyReport, ProxyTest};
use crate::table::with_lines;

const PEERS: &str = "--peers throng,nginx,haproxy --rounds 1";
/// The server in the article.
const BY: &str = "nginx 1.7.0";
/// If a proxy waits for a CPU for at least this share of the time, the machine limits its figures.
const CONTENDED: f64 = 0.2;

/// Mostly idle tunnels.
pub(super) fn tunnels(run: &mut Run<'_>, section: &mut Section) -> Result<(), Error> {
    section.title = "Mostly idle tunnels through a proxy of one worker".to_owned();
    section.articles = vec![NGINX];
    section.notes = vec![
        "Each tunnel carries a message of 10 to 4,096 bytes every 0.1 to 10 s. Memory: all \
         processes of the proxy. The article has figures of the largest size only, as bounds \
         that nginx stayed below with 6 workers; the others are in its plots."
            .to_owned(),
    ];
    let sizes: &[usize] = run.choose(&TUNNELS, &[100]);
    let time = run.choose("10s", "1s");
    let mut skipped = Vec::new();
    for &tunnels in sizes {
        let name = format!("{} tunnels", grouped(tunnels as u64));
        let line = format!("{PEERS} --only mostly-idle --idle {tunnels} --mostly-idle {time}");
        let report = match proxies(run, &line) {
            Ok(report) => report,
            // This machine has a limit that is too low.
            Err(error @ Error::Usage(_)) => {
                let row = tunnel_rows(&name, tunnels);
                section.rows.extend(row.map(|row| row.missing(&error.to_string())));
                continue;
            }
            Err(error) => return Err(error),
        };
        for row in &report.rows {
            let case = format!("{name}, {}", row.peer);
            let Some(figures) = row.rounds.iter().find_map(|round| round.figures.as_ref()) else {
                failed(section, &case, row.failure());
                continue;
            };
            let limit = limit(figures);
            let [memory, cpu] = tunnel_rows(&case, tunnels);
            let bytes = figures.process_bytes.map(|bytes| bytes as f64);
            section.rows.push(memory.ours(bytes, limit).compared(Better::Less));
            section.rows.push(cpu.ours(figures.cores, limit).compared(Better::Less));
            let p99 = figures.latency.map(|latency| latency.p99_us);
            section.rows.push(PublishedRow::new(&case, "p99", Unit::Us).ours(p99, limit));
        }
        skipped = skips(&report);
    }
    section.notes.extend(skipped);
    section.plots = vec![plot("Memory of a proxy's tunnels", "tunnels", &section.rows, "memory")];
    Ok(())
}

/// Returns the rows of one size, with the published figures.
fn tunnel_rows(case: &str, tunnels: usize) -> [PublishedRow; 2] {
    let memory = PublishedRow::new(case, "memory", Unit::Bytes);
    let cpu = PublishedRow::new(case, "CPU", Unit::Share);
    if tunnels != TUNNELS[TUNNELS.len() - 1] {
        return [memory, cpu];
    }
    let (bytes, cores) = TUNNEL_BOUNDS;
    [memory.published(bytes, BY), cpu.published(cores, BY)]
}

/// Bursts.
pub(super) fn burst(run: &mut Run<'_>, section: &mut Section) -> Result<(), Error> {
    section.title = "500 connections x 50 messages through a proxy of one worker".to_owned();
    section.articles = vec![NGINX];
    section.notes = vec![
        "Memory: the most that was seen while they were under way, all processes of the proxy. \
         Growth: from the smallest message to the largest; the article's is a bound. Time: from \
         the first connect call to the last answer, generator and backend included, so it has no \
         ratio."
            .to_owned(),
    ];
    let sizes: &[usize] = run.choose(&BURST_SIZES, &[1, 4096]);
    let list: Vec<String> = sizes.iter().map(usize::to_string).collect();
    let few = run.choose("", " --burst-connections 50 --burst-messages 10");
    let line = format!("{PEERS} --only burst --burst-sizes {}{few}", list.join(","));
    let report = proxies(run, &line)?;
    for row in &report.rows {
        let ProxyTest::Burst { size_bytes } = row.test else { continue };
        let case = format!("{}, {}", show_bytes(size_bytes as i64), row.peer);
        let Some(figures) = row.rounds.iter().find_map(|round| round.figures.as_ref()) else {
            failed(section, &case, row.failure());
            continue;
        };
        let limit = limit(figures);
        let own = |figure, unit, ours| PublishedRow::new(&case, figure, unit).ours(ours, limit);
        section.rows.extend([
            own("memory", Unit::Bytes, figures.peak_resident_bytes.map(|bytes| bytes as f64)),
            own("time", Unit::Seconds, figures.seconds),
            own("CPU time", Unit::Seconds, figures.cpu_s),
        ]);
    }
    growth(&report, sizes, section);
    section.notes.extend(skips(&report));
    section.plots = vec![plot("Memory of a proxy under bursts", "B", &section.rows, "memory")];
    Ok(())
}

/// Adds the growth of each proxy's memory with the message size.
fn growth(report: &ProxyReport, sizes: &[usize], section: &mut Section) {
    let (Some(&least), Some(&largest)) = (sizes.first(), sizes.last()) else { return };
    for peer in report.peers.iter().map(|peer| peer.peer) {
        let memory = |size_bytes| {
            let same = |row: &&crate::proxies::ProxyRow| {
                (row.test, row.peer) == (ProxyTest::Burst { size_bytes }, peer)
            };
            let row = report.rows.iter().find(same)?;
            Some(row.rounds.first()?.figures.as_ref()?.peak_resident_bytes? as f64)
        };
        let grown = memory(least).zip(memory(largest)).map(|(least, most)| most / least - 1.0);
        let case = format!("1 B to {}, {peer}", show_bytes(largest as i64));
        let row = PublishedRow::new(&case, "memory's growth", Unit::Share);
        section.rows.push(row.published(BURST_GROWTH, BY).ours(grown, Limit::Neither));
    }
}

fn proxies(run: &mut Run<'_>, line: &str) -> Result<ProxyReport, Error> {
    let mut flags = words_of(line);
    flags.extend(["--throng".to_owned(), run.program.display().to_string()]);
    run.comparison::<Proxies>(&flags)
}

fn limit(figures: &Figures) -> Limit {
    match figures.waiting_share {
        Some(share) if share >= CONTENDED => Limit::Machine,
        _ => Limit::Neither,
    }
}

fn failed(section: &mut Section, case: &str, why: Option<&str>) {
    let why = why.unwrap_or("nothing was measured");
    section.rows.push(PublishedRow::new(case, "memory", Unit::Bytes).missing(why));
    section.failure = Some(format!("{case}: {why}"));
}

/// Returns notes on the skipped peers.
fn skips(report: &ProxyReport) -> Vec<String> {
    let sentence = |skipped: &crate::peers::Skipped| {
        format!("{} was left out: {}.", skipped.peer, skipped.why)
    };
    report.skipped.iter().map(sentence).collect()
}

/// Plots a figure by the number at the beginning of its case, with a line for each peer.
fn plot(title: &str, axis: &str, rows: &[PublishedRow], figure: &str) -> Plot {
    let plot = Plot::new(title, Axis::log(axis), Axis::log("memory in bytes"));
    let peers = [Peer::Throng, Peer::Nginx, Peer::Haproxy];
    let lines = peers.map(|peer| {
        let same = rows
            .iter()
            .filter(|row| row.figure == figure && row.case.ends_with(&format!(", {peer}")));
        let points = same.filter_map(|row| Some((leading(&row.case)?, row.ours?)));
        (peer.name(), points.collect())
    });
    with_lines(plot, lines)
}

/// Returns the number at the beginning of `4 KiB, nginx` or `1,000 tunnels, nginx`.
fn leading(case: &str) -> Option<f64> {
    let mut words = case.split([' ']);
    let number: f64 = words.next()?.replace(',', "").parse().ok()?;
    Some(if words.next()?.starts_with("KiB") { number * 1024.0 } else { number })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_begins_with_its_size() {
        assert_eq!(leading("1,000 tunnels, nginx"), Some(1_000.0));
        assert_eq!(leading("4 KiB, nginx"), Some(4_096.0));
        assert_eq!(leading("16 B, throng"), Some(16.0));
    }

    #[test]
    fn only_the_largest_size_has_published_bounds() {
        assert!(tunnel_rows("x", 1_000).iter().all(|row| row.published.is_none()));
        assert!(tunnel_rows("x", 50_000).iter().all(|row| row.published.is_some()));
    }
}
