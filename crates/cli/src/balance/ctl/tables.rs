//! Tables of pools, sites and limits.

use std::time::{Duration, SystemTime};

use serde_json::Value;

/// Returns rows in columns; the first `texts` columns begin at the left, others end at the right.
pub(super) fn layout(rows: &[Vec<String>], texts: usize) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
            match column < texts {
                true => line.push_str(&format!("{cell:<width$}  ")),
                false => line.push_str(&format!("{cell:>width$}  ")),
            }
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

fn head(names: &[&str]) -> Vec<Vec<String>> {
    vec![names.iter().map(|name| (*name).to_owned()).collect()]
}

fn items<'v>(value: &'v Value, name: &str) -> impl Iterator<Item = &'v Value> {
    value[name].as_array().into_iter().flatten()
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Returns the sum of a field of backends.
fn sum(backends: &Value, field: &str) -> String {
    let backends = backends.as_array().into_iter().flatten();
    backends.filter_map(|row| row[field].as_u64()).sum::<u64>().to_string()
}

/// The pools in rows.
pub(super) fn pools(value: &Value) -> String {
    let mut rows = head(&["pool", "pick", "backends", "up", "tunnels", "requests", "queued"]);
    for pool in items(value, "pools") {
        let backends = &pool["backends"];
        rows.push(vec![
            text(&pool["name"]),
            text(&pool["pick"]),
            backends.as_array().map_or(0, Vec::len).to_string(),
            text(&pool["up"]),
            sum(backends, "tunnels"),
            sum(backends, "requests"),
            text(&pool["queued"]),
        ]);
    }
    layout(&rows, 2)
}

/// The sites in rows, with their counters.
pub(super) fn sites(value: &Value) -> String {
    let names = ["site", "action", "routes", "2xx", "3xx", "4xx", "5xx", "tunnels", "refused"];
    let mut rows = head(&names);
    for site in items(value, "sites") {
        let (counts, action) = (&site["counts"], &site["action"]);
        let status = |class: usize| text(&counts["statuses"][class]);
        let pool = action["pool"].as_str().map(|pool| format!("pool {pool}"));
        rows.push(vec![
            text(&site["name"]),
            match site["maintenance"] == true {
                true => "maintenance".to_owned(),
                false => pool.unwrap_or_else(|| text(&action["kind"])),
            },
            site["routes"].as_array().map_or(0, Vec::len).to_string(),
            status(1),
            status(2),
            status(3),
            status(4),
            status(0),
            text(&counts["refused"]),
        ]);
    }
    layout(&rows, 2)
}

/// The limits in rows.
pub(super) fn limits(value: &Value) -> String {
    let mut rows = head(&["limit", "passed", "refused", "forgotten keys"]);
    for limit in items(value, "limits") {
        let fields = ["name", "passed", "refused", "forgotten_keys"];
        rows.push(fields.map(|field| text(&limit[field])).to_vec());
    }
    layout(&rows, 1)
}

/// The blocked networks in rows.
pub(super) fn blocks(value: &Value) -> String {
    let mut rows = head(&["network", "until", "by"]);
    for block in items(value, "blocks") {
        let until = Duration::from_secs(block["until"].as_u64().unwrap_or_default());
        let until = humantime::format_rfc3339_seconds(SystemTime::UNIX_EPOCH + until);
        rows.push(vec![text(&block["network"]), until.to_string(), text(&block["by"])]);
    }
    layout(&rows, 3)
}

/// The shares of a split on one line.
pub(super) fn split(shares: &Value) -> String {
    let one = |share: &Value| {
        let points = |name: &str| share[name].as_u64().unwrap_or_default();
        let percent = points("to").saturating_sub(points("from")) as f64 / 655.36;
        format!("{}: weight {}, {percent:.2} %", text(&share["pool"]), share["weight"])
    };
    shares.as_array().into_iter().flatten().map(one).collect::<Vec<_>>().join("; ")
}
