//! `promtool`: the metrics of a server and the alert rules, by Prometheus's own rules.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use crate::command::run_step;
use crate::outcome::{Stop, Tally};
use crate::provision;
use crate::server::Server;
use crate::site::Site;

const LIMIT: Duration = Duration::from_secs(60);

/// One response in ten of a backend has a status of 5xx, and the balancer itself has no error; the
/// server `c` answers one request in ten with 5xx, and `d` one in a thousand.
const FIRES: &str = r#"
rule_files: [alerts.yaml]
tests:
  - interval: 1m
    input_series:
      - series: throng_balance_requests_total{instance="a"}
        values: 0+60x20
      - series: throng_balance_backend_errors_total{instance="a",reason="connect"}
        values: 0+0x20
      - series: throng_balance_backend_responses_total{instance="a",backend="b",status="5xx"}
        values: 0+6x20
      - series: throng_http_requests_total{instance="c"}
        values: 0+60x20
      - series: throng_http_server_errors_total{instance="c"}
        values: 0+6x20
      - series: throng_http_requests_total{instance="d"}
        values: 0+6000x20
      - series: throng_http_server_errors_total{instance="d"}
        values: 0+6x20
    promql_expr_test:
      - expr: ALERTS{alertname="ThrongRequestsFail"}
        eval_time: 15m
        exp_samples:
          - labels: >-
              ALERTS{alertname="ThrongRequestsFail",alertstate="firing",
              instance="c",severity="warning"}
            value: 1
      - expr: ALERTS{alertname="ThrongServerErrors"}
        eval_time: 15m
        exp_samples:
          - labels: >-
              ALERTS{alertname="ThrongServerErrors",alertstate="firing",
              instance="a",severity="critical"}
            value: 1
"#;

/// Checks the output of a server and of `throng generate`.
pub(super) fn run(site: &Site) -> Result<Tally, Stop> {
    let tool = provision::unpacked(site, "promtool", "prometheus")?;
    let folder = site.target.join("promtool");
    std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
    let server = Server::start(site, &[])?;
    let metrics = folder.join("metrics.txt");
    let write =
        |path, text: &str| File::create(path).and_then(|mut file| file.write_all(text.as_bytes()));
    write(&metrics, &scrape(&server)?).map_err(|error| error.to_string())?;
    server.stop()?;
    let mut tally = Tally::default();
    let mut check =
        |name: &str, command: &mut Command| tally.record(name, run_step(command, LIMIT));
    let input = File::open(&metrics).map_err(|error| error.to_string())?;
    check("metrics", Command::new(&tool).args(["check", "metrics"]).stdin(input));
    let rules = folder.join("alerts.yaml");
    write(&rules, &generated(site, "alerts")?).map_err(|error| error.to_string())?;
    check("alert rules", Command::new(&tool).args(["check", "rules"]).arg(&rules));
    let fires = folder.join("fires.yaml");
    write(&fires, FIRES).map_err(|error| error.to_string())?;
    check("alert of 5xx", Command::new(&tool).args(["test", "rules"]).arg(&fires));
    let expressions = folder.join("dashboard.yaml");
    write(&expressions, &as_tests(&generated(site, "dashboard")?)?)
        .map_err(|error| error.to_string())?;
    check("dashboard", Command::new(&tool).args(["test", "rules"]).arg(&expressions));
    Ok(tally)
}

/// Returns the output of `throng generate`.
fn generated(site: &Site, what: &str) -> Result<String, String> {
    let mut command = Command::new(site.target.join("dist/throng"));
    let printed = command.args(["generate", what]).output().map_err(|error| error.to_string())?;
    String::from_utf8(printed.stdout).map_err(|error| error.to_string())
}

/// Returns a file for `promtool test rules` in which Prometheus evaluates each expression of a
/// dashboard over no series: each must be valid and have an empty result.
fn as_tests(dashboard: &str) -> Result<String, String> {
    let mut text = String::from("tests:\n  - interval: 1m\n    promql_expr_test:\n");
    let mut count = 0;
    for part in dashboard.split("\"expr\":").skip(1) {
        // The expression is a JSON string that ends at its closing quote.
        let part = part.trim_start();
        let end = (1..part.len())
            .find(|&at| part.as_bytes()[at] == b'"' && part.as_bytes()[at - 1] != b'\\')
            .ok_or("an expression has no end")?;
        let expression = part[..=end].replace("$__rate_interval", "5m").replace("$instance", ".*");
        text += &format!("      - expr: {expression}\n        eval_time: 10m\n");
        count += 1;
    }
    match count {
        0..=50 => Err(format!("only {count} expressions in the dashboard")),
        _ => Ok(text),
    }
}

/// Returns the metrics in the format of Prometheus.
fn scrape(server: &Server) -> Result<String, String> {
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(server.address)?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    let answer = ask().map_err(|error| format!("/metrics: {error}"))?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.starts_with("HTTP/1.1 200") => Ok(body.to_owned()),
        _ => Err(format!("/metrics answered {answer}")),
    }
}
