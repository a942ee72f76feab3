//! The Grafana dashboard and the alert rules of Prometheus, made from the metrics themselves.

use std::fmt::Write as _;

use serde_json::{Value, json};
use throng::openmetrics::{Family, Format, Type, Writer, families};
use throng::{Observer, process};

use crate::log;

/// An alert rule.
struct Alert {
    name: &'static str,
    expression: &'static str,
    /// The time for which the expression must hold before the alert fires.
    lasts: &'static str,
    severity: &'static str,
    summary: &'static str,
}

/// The certificates of servers, and of balancers where the program has them.
#[cfg(feature = "tls")]
const EXPIRY: &str = match cfg!(feature = "balance") {
    true => {
        "min by (instance, name) ({__name__=~\"throng_tls_certificate_expiry_seconds|\
         throng_balance_tls_certificate_expiry_seconds\"}) - time() < 7 * 86400"
    }
    false => "min by (instance, name) (throng_tls_certificate_expiry_seconds) - time() < 7 * 86400",
};

const ALERTS: &[Alert] = &[
    Alert {
        name: "ThrongNearlyFull",
        expression: "sum by (instance) (throng_connections) \
                     > 0.9 * max by (instance) (throng_max_connections)",
        lasts: "5m",
        severity: "warning",
        summary: "more than 90% of max_connections are open",
    },
    Alert {
        name: "ThrongRefusesConnections",
        expression: "sum by (instance) (rate(throng_connections_refused_total[5m])) > 0",
        lasts: "5m",
        severity: "warning",
        summary: "connections are refused at a limit",
    },
    Alert {
        name: "ThrongLoopLag",
        expression: "histogram_quantile(0.99, sum by (instance, le) \
                     (rate(throng_loop_lag_seconds_bucket[5m]))) > 0.1",
        lasts: "5m",
        severity: "warning",
        summary: "one turn in a hundred of the event loops takes longer than 100 ms; \
                  throng_stalls_total has the route",
    },
    Alert {
        name: "ThrongHandlerPanics",
        expression: "sum by (instance) (increase(throng_handler_panics_total[5m])) > 0",
        lasts: "0m",
        severity: "critical",
        summary: "a handler panics; the log has the route",
    },
    Alert {
        name: "ThrongWorkersBehind",
        expression: "histogram_quantile(0.99, sum by (instance, le) \
                     (rate(throng_worker_wait_duration_seconds_bucket[5m]))) > 1",
        lasts: "5m",
        severity: "warning",
        summary: "one offloaded job in a hundred waits longer than a second for a worker thread",
    },
    Alert {
        name: "ThrongSlowConsumers",
        expression: "sum by (instance) (rate(throng_slow_consumers_total[5m])) > 1",
        lasts: "10m",
        severity: "warning",
        summary: "sessions are closed because their clients read too slowly",
    },
    Alert {
        name: "ThrongDescriptorsNearlyUsedUp",
        expression: "process_open_fds > 0.9 * process_max_fds",
        lasts: "5m",
        severity: "critical",
        summary: "more than 90% of the file descriptors are open: raise LimitNOFILE",
    },
    #[cfg(feature = "tls")]
    Alert {
        name: "ThrongCertificateExpires",
        expression: EXPIRY,
        lasts: "1h",
        severity: "warning",
        summary: "a certificate expires within a week",
    },
    #[cfg(feature = "balance")]
    Alert {
        name: "ThrongBackendDown",
        expression: "throng_balance_backend_state{state=\"down\"} == 1",
        lasts: "1m",
        severity: "warning",
        summary: "a backend gets no new clients",
    },
    #[cfg(feature = "balance")]
    Alert {
        name: "ThrongNoBackend",
        expression: "sum by (instance) (throng_balance_backend_state{state=\"up\"}) == 0",
        lasts: "0m",
        severity: "critical",
        summary: "no backend is up: every client gets 503",
    },
    #[cfg(feature = "balance")]
    Alert {
        name: "ThrongTunnelsLost",
        expression: "sum by (instance) (rate(throng_balance_tunnels_lost_total[5m])) > 0",
        lasts: "5m",
        severity: "warning",
        summary: "backends end tunnels without a Close frame",
    },
];

/// The metrics of each part, with the title of its row of panels.
fn catalogue() -> Vec<(&'static str, Vec<Family>)> {
    let mut server = Writer::new("throng").format(Format::Prometheus);
    Observer::write_idle(&mut server);
    let mut all = vec![("Server", families(&server.finish()))];
    #[cfg(feature = "balance")]
    {
        let mut balancer = Writer::new("throng_balance").format(Format::Prometheus);
        crate::balance::write_idle_metrics(&mut balancer);
        all.push(("Balancer", families(&balancer.finish())));
    }
    let mut own = Writer::new("process").format(Format::Prometheus);
    log::write_dropped([("rate", 0), ("queue", 0), ("write", 0)], &mut own);
    process::write_metrics(&mut own);
    all.push(("Process", families(&own.finish())));
    all
}

/// Returns the metrics as a table in Markdown.
#[cfg(all(test, feature = "balance"))]
pub(crate) fn table() -> String {
    let mut text = String::from("| metric | type | meaning |\n|---|---|---|\n");
    for Family { name, help, kind } in catalogue().iter().flat_map(|(_, families)| families) {
        let _ = writeln!(text, "| `{name}` | {} | {} |", kind.name(), help.trim_end_matches('.'));
    }
    text
}

/// Returns the alert rules, as a file of rules for Prometheus.
pub(crate) fn alerts() -> String {
    let mut text = String::from("groups:\n  - name: throng\n    rules:\n");
    for Alert { name, expression, lasts, severity, summary } in ALERTS {
        // JSON's texts are YAML's, too.
        let [expression, summary] = [expression, summary].map(|text| json!(text));
        let _ = write!(
            text,
            "      - alert: {name}\n        expr: {expression}\n        for: {lasts}\n        \
             labels: {{severity: {severity}}}\n        annotations: {{summary: {summary}}}\n"
        );
    }
    text
}

/// Panels beside each other.
const COLUMNS: usize = 3;
const WIDTH: usize = 24 / COLUMNS;
const HEIGHT: usize = 7;

/// Returns the dashboard: a row for each part, with a panel for each metric.
pub(crate) fn dashboard() -> Value {
    let mut panels = Vec::new();
    let mut y = 0;
    for (title, families) in catalogue() {
        let place = json!({ "x": 0, "y": y, "w": 24, "h": 1 });
        panels.push(json!({ "type": "row", "title": title, "collapsed": false, "gridPos": place }));
        y += 1;
        for (at, family) in families.iter().enumerate() {
            let (column, row) = (at % COLUMNS, at / COLUMNS);
            let mut panel = panel(family);
            panel["gridPos"] =
                json!({ "x": column * WIDTH, "y": y + row * HEIGHT, "w": WIDTH, "h": HEIGHT });
            panels.push(panel);
        }
        y += families.len().div_ceil(COLUMNS) * HEIGHT;
    }
    for (id, panel) in (1..).zip(&mut panels) {
        panel["id"] = json!(id);
    }
    let variable = |name: &str, label: &str, query: &str| {
        json!({
            "name": name, "label": label, "type": "query", "query": query, "refresh": 2,
            "multi": true, "includeAll": true, "allValue": ".*", "current": {"value": "$__all"},
            "datasource": {"type": "prometheus", "uid": "${datasource}"},
        })
    };
    json!({
        "title": "Throng",
        "uid": "throng",
        "tags": ["throng"],
        "schemaVersion": 39,
        "refresh": "10s",
        "time": { "from": "now-1h", "to": "now" },
        "templating": { "list": [
            {
                "name": "datasource", "label": "Data source", "type": "datasource",
                "query": "prometheus",
            },
            variable("instance", "Instance", "label_values(process_start_time_seconds, instance)"),
        ] },
        "panels": panels,
    })
}

fn panel(Family { name, help, kind }: &Family) -> Value {
    let selector = "{instance=~\"$instance\"}";
    let rate = format!("rate({name}{selector}[$__rate_interval])");
    let target =
        |expression: String, legend: &str| json!({ "expr": expression, "legendFormat": legend });
    let targets: Vec<Value> = match kind {
        Type::Histogram => [("50", 0.5), ("99", 0.99), ("99.9", 0.999)]
            .into_iter()
            .map(|(percent, quantile)| {
                let rate = format!("rate({name}_bucket{selector}[$__rate_interval])");
                let of = format!("histogram_quantile({quantile}, sum by (le) ({rate}))");
                target(of, &format!("p{percent}"))
            })
            .collect(),
        Type::Counter => vec![target(format!("sum by (instance) ({rate})"), "{{instance}}")],
        _ => vec![target(format!("sum by (instance) ({name}{selector})"), "{{instance}}")],
    };
    let is_counter = *kind == Type::Counter;
    let subject = name.trim_end_matches("_total");
    let unit = match () {
        () if subject.ends_with("_bytes") && is_counter => "Bps",
        () if subject.ends_with("_bytes") => "bytes",
        // Seconds per second are a share of the time.
        () if subject.ends_with("_seconds") && is_counter => "percentunit",
        () if subject.ends_with("_time_seconds") => "dateTimeFromNow",
        () if subject.ends_with("_seconds") => "s",
        () if is_counter => "cps",
        () => "short",
    };
    json!({
        "type": "timeseries",
        "title": subject.replace('_', " "),
        "description": help,
        "datasource": { "type": "prometheus", "uid": "${datasource}" },
        "fieldConfig": { "defaults": { "unit": unit, "min": 0 }, "overrides": [] },
        "targets": targets,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words of `text` that are names of metrics.
    fn metrics_in(text: &str) -> Vec<&str> {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        words.filter(|word| word.starts_with("throng_") || word.starts_with("process_")).collect()
    }

    #[test]
    fn the_dashboard_and_the_alerts_name_existing_metrics_only() {
        let names: Vec<String> = catalogue()
            .into_iter()
            .flat_map(|(_, families)| families)
            .flat_map(|Family { name, kind, .. }| match kind {
                Type::Histogram => vec![format!("{name}_bucket")],
                _ => vec![name],
            })
            .collect();
        let dashboard = dashboard();
        let panels = dashboard["panels"].as_array().unwrap().iter();
        let targets = panels.flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
        let mut used: Vec<&str> =
            targets.flat_map(|target| metrics_in(target["expr"].as_str().unwrap())).collect();
        for name in &names {
            assert!(used.contains(&name.as_str()), "no panel shows {name}");
        }
        used.extend(ALERTS.iter().flat_map(|alert| metrics_in(alert.expression)));
        for name in used {
            assert!(names.iter().any(|known| known == name), "{name} does not exist");
        }
    }

    #[test]
    fn each_alert_has_metrics_and_a_name_of_its_own() {
        for (at, alert) in ALERTS.iter().enumerate() {
            assert!(!metrics_in(alert.expression).is_empty(), "{}", alert.name);
            assert!(ALERTS[at + 1..].iter().all(|other| other.name != alert.name));
        }
        assert_eq!(alerts().matches("- alert: ").count(), ALERTS.len());
    }
}
