//! The Grafana dashboard and the alert rules of Prometheus, generated from the metrics themselves.

use std::fmt::Write as _;

use serde_json::{Value, json};
use throng::metrics::openmetrics::{Family, Format, Type, Writer, families};
use throng::metrics::{Observer, process};

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

/// The certificates of servers, and of balancers if the program has them.
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
        name: "ThrongDown",
        expression: "up{job=~\"throng.*\"} == 0",
        lasts: "1m",
        severity: "critical",
        summary: "a server or balancer does not answer its scrape; name its job throng",
    },
    Alert {
        name: "ThrongNotReady",
        expression: "throng_ready == 0",
        lasts: "10m",
        severity: "warning",
        summary: "a server takes no new connections: it drains, or is not ready",
    },
    Alert {
        name: "ThrongLogIncomplete",
        expression: "sum by (instance, reason) (increase(throng_log_lines_dropped_total[5m])) > 0",
        lasts: "0m",
        severity: "warning",
        summary: "lines of the log are lost: its disk is full, its reader slow, or log.max_rate \
                  reached",
    },
    #[cfg(feature = "redis")]
    Alert {
        name: "ThrongClusterDown",
        expression: "min by (instance) (throng_cluster_up) == 0",
        lasts: "30s",
        severity: "critical",
        summary: "a server gets nothing from its cluster; throng cluster status has the reason",
    },
    #[cfg(feature = "redis")]
    Alert {
        name: "ThrongClusterLosesMessages",
        expression: "sum by (instance, outcome) (increase(throng_cluster_publications_total\
                     {outcome=~\"refused|unknown\"}[5m])) > 0",
        lasts: "0m",
        severity: "critical",
        summary: "publications were refused by the cluster, or their outcome is unknown",
    },
    Alert {
        name: "ThrongRequestsFail",
        expression: "sum by (instance) (rate(throng_http_server_errors_total[5m])) \
                     > 0.01 * sum by (instance) (rate(throng_http_requests_total[5m]))",
        lasts: "5m",
        severity: "warning",
        summary: "a server answers more than one request in a hundred with 5xx; the access log \
                  has them",
    },
    #[cfg(feature = "balance")]
    Alert {
        name: "ThrongServerErrors",
        expression: "sum by (instance) (rate(throng_balance_backend_errors_total[5m])) \
                     + sum by (instance) \
                     (rate(throng_balance_backend_responses_total{status=\"5xx\"}[5m])) \
                     > 0.01 * sum by (instance) (rate(throng_balance_requests_total[5m]))",
        lasts: "5m",
        severity: "critical",
        summary: "the balancer answers more than one request in a hundred with 5xx",
    },
    #[cfg(feature = "balance")]
    Alert {
        name: "ThrongBackendFails",
        expression: "sum by (instance, backend) (rate(throng_balance_backend_failures_total[5m])) \
                     > 0.1",
        lasts: "5m",
        severity: "warning",
        summary: "connects, handshakes or answers of a backend fail",
    },
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
        expression: "sum by (instance) (increase(throng_handler_panics_total[5m])) > 0 or \
                     sum by (instance) (increase(throng_callback_panics_total[5m])) > 0",
        lasts: "0m",
        severity: "critical",
        summary: "a handler or another function of the program panics; the log has which",
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

/// Returns the names of all metrics.
#[cfg(all(test, feature = "balance"))]
pub(crate) fn names() -> Vec<String> {
    let families = catalogue().into_iter().flat_map(|(_, families)| families);
    families.map(|family| family.name).collect()
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
        // A JSON string is also a YAML string.
        let [expression, summary] = [expression, summary].map(|text| json!(text));
        let _ = write!(
            text,
            "      - alert: {name}\n        expr: {expression}\n        for: {lasts}\n        \
             labels: {{severity: {severity}}}\n        annotations: {{summary: {summary}}}\n"
        );
    }
    text
}

/// A panel that answers a question.
struct Question {
    title: &'static str,
    unit: &'static str,
    /// Expressions and legends. `$i` stands for the selector of the instances.
    targets: &'static [(&'static str, &'static str)],
}

/// The questions that operators ask first. Values without a meaningful sum are not added up:
/// quantiles, states, times.
const QUESTIONS: &[Question] = &[
    Question {
        title: "Which processes are up?",
        unit: "short",
        targets: &[("min by (instance) (up{$i})", "{{instance}}")],
    },
    Question {
        title: "How many connections are open, and how many may be?",
        unit: "short",
        targets: &[
            ("sum by (instance) (throng_connections{$i})", "{{instance}}"),
            ("max by (instance) (throng_max_connections{$i})", "{{instance}} at most"),
            #[cfg(feature = "balance")]
            ("sum by (instance) (throng_balance_connections{$i})", "{{instance}} balancer"),
        ],
    },
    Question {
        title: "How many messages come and go?",
        unit: "cps",
        targets: &[
            ("sum(rate(throng_messages_received_total{$i}[$__rate_interval]))", "received"),
            ("sum(rate(throng_messages_sent_total{$i}[$__rate_interval]))", "sent"),
        ],
    },
    Question {
        title: "Which event loop is busy?",
        unit: "percentunit",
        targets: &[(
            "sum by (instance, shard) \
             (rate(throng_shard_busy_seconds_total{$i}[$__rate_interval]))",
            "{{instance}} shard {{shard}}",
        )],
    },
    Question {
        title: "How long do events wait for others?",
        unit: "s",
        targets: &[
            (
                "histogram_quantile(0.5, sum by (instance, le) \
                 (rate(throng_loop_lag_seconds_bucket{$i}[$__rate_interval])))",
                "{{instance}} p50",
            ),
            (
                "histogram_quantile(0.99, sum by (instance, le) \
                 (rate(throng_loop_lag_seconds_bucket{$i}[$__rate_interval])))",
                "{{instance}} p99",
            ),
        ],
    },
    Question {
        title: "With which codes do sessions end?",
        unit: "cps",
        targets: &[(
            "sum by (code) (rate(throng_sessions_closed_total{$i}[$__rate_interval]))",
            "{{code}}",
        )],
    },
    Question {
        title: "What do servers end, and why?",
        unit: "cps",
        targets: &[
            (
                "sum by (reason) (rate(throng_connections_ended_total{$i}[$__rate_interval]))",
                "{{reason}}",
            ),
            (
                "sum by (class, reason) (rate(throng_class_dropped_total{$i}[$__rate_interval]))",
                "messages of {{class}}: {{reason}}",
            ),
            #[cfg(feature = "balance")]
            (
                "sum by (reason) \
                 (rate(throng_balance_connections_ended_total{$i}[$__rate_interval]))",
                "balancer: {{reason}}",
            ),
        ],
    },
    Question {
        title: "Which requests are refused or fail?",
        unit: "cps",
        targets: &[
            ("sum(rate(throng_http_requests_total{$i}[$__rate_interval]))", "answered"),
            ("sum(rate(throng_http_requests_refused_total{$i}[$__rate_interval]))", "refused"),
            ("sum(rate(throng_http_server_errors_total{$i}[$__rate_interval]))", "5xx"),
            #[cfg(feature = "balance")]
            ("sum(rate(throng_balance_client_errors_total{$i}[$__rate_interval]))", "balancer 4xx"),
            #[cfg(feature = "balance")]
            (
                "sum(rate(throng_balance_backend_errors_total{$i}[$__rate_interval]))",
                "balancer 5xx",
            ),
            #[cfg(feature = "balance")]
            (
                "sum(rate(throng_balance_backend_responses_total{status=\"5xx\",$i}\
                 [$__rate_interval]))",
                "backends' 5xx",
            ),
        ],
    },
    #[cfg(feature = "balance")]
    Question {
        title: "Which backend fails or loses tunnels?",
        unit: "cps",
        targets: &[
            (
                "sum by (backend) (rate(throng_balance_backend_failures_total{$i}\
                 [$__rate_interval]))",
                "{{backend}} failures",
            ),
            (
                "sum by (backend) (rate(throng_balance_backend_tunnels_lost_total{$i}\
                 [$__rate_interval]))",
                "{{backend}} tunnels lost",
            ),
        ],
    },
    #[cfg(feature = "balance")]
    Question {
        title: "Which backend is slow?",
        unit: "s",
        targets: &[(
            "max by (backend) (throng_balance_backend_handshake_p99_seconds{$i})",
            "{{backend}} p99",
        )],
    },
    #[cfg(feature = "redis")]
    Question {
        title: "Does the cluster deliver?",
        unit: "short",
        targets: &[
            ("min by (instance) (throng_cluster_up{$i})", "{{instance}} up"),
            (
                "sum by (outcome) \
                 (rate(throng_cluster_publications_total{$i}[$__rate_interval]))",
                "{{outcome}} a second",
            ),
        ],
    },
    Question {
        title: "How much of the memory and descriptors is used?",
        unit: "percentunit",
        targets: &[
            (
                "max by (instance) (process_open_fds{$i}) \
                 / max by (instance) (process_max_fds{$i})",
                "{{instance}} descriptors",
            ),
            (
                "max by (instance) (process_resident_memory_bytes{$i}) / 1073741824",
                "{{instance}} GiB resident",
            ),
        ],
    },
];

/// Panels beside each other.
const COLUMNS: usize = 3;
const WIDTH: usize = 24 / COLUMNS;
const HEIGHT: usize = 7;

/// Returns the dashboard: the questions, and below them a collapsed row for each part, with a panel
/// for each metric.
pub(crate) fn dashboard() -> Value {
    let mut panels: Vec<Value> = QUESTIONS.iter().map(question).collect();
    let below = arrange(&mut panels, 0);
    for (y, (title, families)) in (below..).zip(catalogue()) {
        let place = json!({ "x": 0, "y": y, "w": 24, "h": 1 });
        let mut inner: Vec<Value> = families.iter().map(panel).collect();
        arrange(&mut inner, y + 1);
        panels.push(json!({
            "type": "row", "title": title, "collapsed": true, "gridPos": place, "panels": inner,
        }));
    }
    let mut id = 0;
    for panel in &mut panels {
        number(panel, &mut id);
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

/// Arranges panels in rows from `y` on; returns the position below them.
fn arrange(panels: &mut [Value], y: usize) -> usize {
    for (at, panel) in panels.iter_mut().enumerate() {
        let (x, y) = (at % COLUMNS * WIDTH, y + at / COLUMNS * HEIGHT);
        panel["gridPos"] = json!({ "x": x, "y": y, "w": WIDTH, "h": HEIGHT });
    }
    y + panels.len().div_ceil(COLUMNS) * HEIGHT
}

/// Numbers a panel, and the panels in it.
fn number(panel: &mut Value, id: &mut u64) {
    *id += 1;
    panel["id"] = json!(*id);
    for inner in panel.get_mut("panels").and_then(Value::as_array_mut).into_iter().flatten() {
        number(inner, id);
    }
}

/// Selects the chosen instances.
const SELECTED: &str = "instance=~\"$instance\"";

fn question(Question { title, unit, targets }: &Question) -> Value {
    let target = |&(expression, legend): &(&str, &str)| {
        let expression = expression.replace("$i", SELECTED);
        json!({ "expr": expression, "legendFormat": legend })
    };
    time_series(title, "", unit, targets.iter().map(target).collect())
}

/// Returns the panel of a metric, with each of its labels: only histograms are added up.
fn panel(Family { name, help, kind }: &Family) -> Value {
    let selector = format!("{{{SELECTED}}}");
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
        Type::Counter => {
            vec![target(format!("rate({name}{selector}[$__rate_interval])"), "__auto")]
        }
        _ => vec![target(format!("{name}{selector}"), "__auto")],
    };
    let is_counter = *kind == Type::Counter;
    let subject = name.trim_end_matches("_total");
    let unit = match () {
        () if subject.ends_with("_bytes") && is_counter => "Bps",
        () if subject.ends_with("_bytes") => "bytes",
        // Seconds per second are a share of the time.
        () if subject.ends_with("_seconds") && is_counter => "percentunit",
        () if subject.ends_with("_time_seconds") => "dateTimeFromNow",
        // In seconds since 1970; Grafana wants milliseconds.
        () if subject.ends_with("_expiry_seconds") => "dateTimeFromNow",
        () if subject.ends_with("_seconds") => "s",
        () if is_counter => "cps",
        () => "short",
    };
    let targets = match unit {
        "dateTimeFromNow" => vec![target(format!("{name}{selector} * 1000"), "__auto")],
        _ => targets,
    };
    time_series(&subject.replace('_', " "), help, unit, targets)
}

fn time_series(title: &str, help: &str, unit: &str, targets: Vec<Value>) -> Value {
    json!({
        "type": "timeseries",
        "title": title,
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
        let mut targets = Vec::new();
        expressions(&dashboard, &mut targets);
        let mut used: Vec<&str> = targets.iter().flat_map(|text| metrics_in(text)).collect();
        for name in &names {
            assert!(used.contains(&name.as_str()), "no panel shows {name}");
        }
        used.extend(ALERTS.iter().flat_map(|alert| metrics_in(alert.expression)));
        for name in used {
            assert!(names.iter().any(|known| known == name), "{name} does not exist");
        }
    }

    /// Collects the expressions of all panels, including panels in rows.
    fn expressions(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(fields) => {
                found.extend(fields.get("expr").and_then(Value::as_str).map(str::to_owned));
                fields.values().for_each(|value| expressions(value, found));
            }
            Value::Array(values) => values.iter().for_each(|value| expressions(value, found)),
            _ => {}
        }
    }

    #[test]
    fn nothing_without_a_sum_is_added_up() {
        let mut found = Vec::new();
        expressions(&dashboard(), &mut found);
        for text in found.iter().filter(|text| text.contains("sum")) {
            let words = ["p99", "longest", "expiry", "state", "share", "info", "_up", "ready"];
            assert!(!words.iter().any(|word| text.contains(word)), "{text}");
        }
    }

    #[test]
    fn the_questions_come_first_and_all_else_is_collapsed() {
        let dashboard = dashboard();
        let panels = dashboard["panels"].as_array().unwrap();
        let (rows, open): (Vec<_>, Vec<_>) = panels.iter().partition(|it| it["type"] == "row");
        assert_eq!(open.len(), QUESTIONS.len());
        #[cfg(all(feature = "balance", feature = "redis"))]
        assert_eq!(QUESTIONS.len(), 12);
        assert!(panels[..open.len()].iter().all(|panel| panel["type"] != "row"));
        assert!(rows.iter().all(|row| row["collapsed"] == true && row["panels"].is_array()));
        for label in ["backend", "shard", "code", "reason"] {
            let by = |text: &str| {
                text.contains(&format!("{label})")) || text.contains(&format!("{label},"))
            };
            let mut found = Vec::new();
            expressions(&json!(open), &mut found);
            let has_it = found.iter().any(|text| by(text));
            assert!(has_it || label == "backend" && cfg!(not(feature = "balance")), "{label}");
        }
    }

    #[test]
    fn each_alert_has_metrics_and_a_name_of_its_own() {
        for (at, alert) in ALERTS.iter().enumerate() {
            let has_metrics = !metrics_in(alert.expression).is_empty();
            assert!(has_metrics || alert.expression.starts_with("up{"), "{}", alert.name);
            assert!(ALERTS[at + 1..].iter().all(|other| other.name != alert.name));
        }
        assert_eq!(alerts().matches("- alert: ").count(), ALERTS.len());
    }
}
