//! Metrics of sites, routes and pools. Their labels come from the file, never from a client.

use std::time::Duration;

use throng::metrics::openmetrics::{Type, Writer};
use throng_balance::{FirstByteTimes, PoolRow, SiteRow};

/// The most sites, and the most pools, with metrics of their own. The rest are counted as one.
pub(super) const MOST: usize = 256;

/// The name of the rest.
const OTHER: &str = "other";

/// The classes of the status of responses.
pub(super) const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// Metrics with these labels.
type Labelled<'r, R> = (Vec<(&'static str, &'r str)>, R);

/// Writes the metrics of sites, and of the routes that have some.
pub(super) fn write_sites(rows: &[SiteRow], writer: &mut Writer) {
    let sites = rows.iter().filter(|row| row.route.is_none());
    let sites = grouped("site", sites.map(|row| (&*row.site, row.clone())), add_site);
    write_counted("site", "a site, or of all beyond 256 as \"other\"", &sites, writer);
    let route = |row: &'_ SiteRow| row.route.is_some();
    let routes = rows.iter().filter(|row| route(row)).map(|row| {
        let name = row.route.as_deref().unwrap_or_default();
        (vec![("site", &*row.site), ("route", name)], row.clone())
    });
    write_counted("route", "a route with metrics = true", &routes.collect::<Vec<_>>(), writer);
}

/// Writes the metrics of pools.
pub(super) fn write_pools(rows: &[PoolRow], writer: &mut Writer) {
    let pools = grouped("pool", rows.iter().map(|row| (&*row.name, row.clone())), add_pool);
    for (name, help, value) in OF_POOLS {
        let mut metric = writer.metric(name, help, Type::Gauge);
        for (labels, row) in &pools {
            metric.sample(labels, value(row));
        }
    }
    let help = "Responses of the backends of a pool by the class of their status";
    let mut metric = writer.metric("pool_responses", help, Type::Counter);
    for (labels, row) in &pools {
        write_classes(&mut metric, labels, row.statuses);
    }
}

type PoolFigure = (&'static str, &'static str, fn(&PoolRow) -> u64);

const OF_POOLS: [PoolFigure; 4] = [
    ("pool_backends", "Backends of a pool, or of all beyond 256 as \"other\"", |row| {
        row.backends as u64
    }),
    ("pool_backends_up", "Backends of a pool that are up", |row| row.up as u64),
    ("pool_tunnels", "Open tunnels of a pool", |row| row.tunnels),
    ("pool_requests", "Requests in progress at a pool, handshakes included", |row| row.requests),
];

/// Returns the rows with their labels, those beyond the most as one.
fn grouped<'r, R>(
    label: &'static str,
    rows: impl Iterator<Item = (&'r str, R)>,
    add: impl Fn(&mut R, &R),
) -> Vec<Labelled<'r, R>> {
    let (mut shown, mut rest) = (Vec::new(), None::<R>);
    for (name, row) in rows {
        match &mut rest {
            _ if shown.len() < MOST && name != OTHER => shown.push((vec![(label, name)], row)),
            Some(rest) => add(rest, &row),
            None => rest = Some(row),
        }
    }
    shown.extend(rest.map(|rest| (vec![(label, OTHER)], rest)));
    shown
}

fn write_counted(
    of: &'static str,
    what: &str,
    rows: &[Labelled<'_, SiteRow>],
    writer: &mut Writer,
) {
    let help = format!("Responses to requests of {what}, by the class of their status");
    let mut metric = writer.metric(&format!("{of}_responses"), &help, Type::Counter);
    for (labels, row) in rows {
        write_classes(&mut metric, labels, row.statuses);
    }
    let help = format!("Tunnels opened of {what}");
    let mut metric = writer.metric(&format!("{of}_tunnels_opened"), &help, Type::Counter);
    for (labels, row) in rows {
        metric.sample(labels, row.statuses[0]);
    }
    let help = format!("Requests of {what} that a rule or a limit refused, or without a route");
    let mut metric = writer.metric(&format!("{of}_refused"), &help, Type::Counter);
    for (labels, row) in rows {
        metric.sample(labels, row.refused);
    }
    let help = format!("Time from the head of a request of {what} to the head of its response");
    let mut metric = writer.metric(&format!("{of}_first_byte_seconds"), &help, Type::Histogram);
    for (labels, SiteRow { first_bytes: times, .. }) in rows {
        let buckets = times.up_to_micros.map(|(up_to, count)| (micros(up_to), count));
        metric.histogram(labels, buckets, times.count, micros(times.sum_micros));
    }
}

fn write_classes(
    metric: &mut throng::metrics::openmetrics::Samples<'_>,
    labels: &[(&'static str, &str)],
    statuses: [u64; 5],
) {
    for (class, count) in CLASSES.into_iter().zip(statuses) {
        metric.sample(&[labels, &[("status", class)]].concat(), count);
    }
}

fn micros(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

fn add_statuses(to: &mut [u64; 5], more: [u64; 5]) {
    to.iter_mut().zip(more).for_each(|(sum, count)| *sum += count);
}

fn add_site(to: &mut SiteRow, more: &SiteRow) {
    add_statuses(&mut to.statuses, more.statuses);
    to.refused += more.refused;
    let FirstByteTimes { up_to_micros, count, sum_micros } = &mut to.first_bytes;
    for (sum, (_, more)) in up_to_micros.iter_mut().zip(more.first_bytes.up_to_micros) {
        sum.1 += more;
    }
    *count += more.first_bytes.count;
    *sum_micros += more.first_bytes.sum_micros;
}

fn add_pool(to: &mut PoolRow, more: &PoolRow) {
    to.backends += more.backends;
    to.up += more.up;
    to.tunnels += more.tunnels;
    to.requests += more.requests;
    add_statuses(&mut to.statuses, more.statuses);
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use throng_balance::{Balancer, Config};

    use super::*;

    /// A balancer with this many sites, each with a pool of one backend.
    fn page(sites: usize) -> String {
        let mut text = "listen = \"127.0.0.1:0\"\nshards = 1\n".to_owned();
        for at in 0..sites {
            text.push_str(&format!(
                "[[pool]]\nname = \"pool-{at:04}\"\nbackends = [\"127.0.0.1:{}\"]\n\
                 [[site]]\nhosts = \"site-{at:04}.customers.example\"\npool = \"pool-{at:04}\"\n",
                10_000 + at
            ));
        }
        let balancer = Balancer::start(Config::parse(&text, "b.toml").unwrap()).unwrap();
        let mut writer = Writer::new("throng_balance");
        super::super::metrics::write(&balancer.status(), &mut writer);
        balancer.shut_down(Duration::ZERO, Duration::ZERO).unwrap();
        writer.finish()
    }

    #[test]
    fn a_thousand_sites_have_a_page_of_at_most_a_mebibyte() {
        let page = page(1_000);
        assert!(page.len() <= 1 << 20, "{} bytes", page.len());
        let count = |begin: &str| page.lines().filter(|line| line.starts_with(begin)).count();
        assert_eq!(count("throng_balance_site_refused_total{"), MOST + 1);
        assert_eq!(count("throng_balance_pool_tunnels{"), MOST + 1);
        assert!(page.contains("throng_balance_pool_backends{pool=\"other\"} 745\n"));
        assert!(!page.contains("metrics_left_out"));
        // Besides 255 pools, the default, which is empty. Each sample once.
        let mut samples = HashMap::new();
        for line in page.lines().filter(|line| !line.starts_with('#')) {
            let (sample, _) = line.rsplit_once(' ').unwrap();
            assert_eq!(samples.insert(sample, ()), None, "{sample}");
        }
    }

    #[test]
    fn the_rest_is_a_sum() {
        let rows = (0..300).map(|at| (if at == 3 { "other" } else { "site" }, at));
        let grouped = grouped("site", rows, |sum, more| *sum += more);
        assert_eq!(grouped.len(), MOST + 1);
        let expected = 3 + (257..300).sum::<u32>();
        assert_eq!(grouped.last().unwrap(), &(vec![("site", "other")], expected));
    }
}
