//! The report of one run, for any protocol.

use serde::Serialize;

use super::figures::Results;
use super::{Errors, Histogram, Measured, Origin, PlanReport, Render};
use crate::negotiated::TlsReport;
use crate::record::Summary;
use crate::sampler::{CpuUsage, Memory};
use crate::slo::SloReport;
use crate::verdict::Verdict;

/// Version of the JSON's shape. Fields may be added within one version, not renamed or removed.
pub const SCHEMA: &str = "throng-bench/1";

/// Everything about one run. `Display` prints the table.
///
/// `R` contains the measurements of WebSocket connections, or those in
/// [`http::HttpReport`](crate::http::HttpReport).
#[derive(Clone, Debug, Serialize)]
pub struct LoadReport<R = Measured> {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// The program, the time, the command line and the machine.
    pub run: Origin,
    /// Settings of the run.
    pub plan: PlanReport,
    /// Set-up of the connections; all zero where the set-up itself is measured: in connect mode,
    /// and with one connection a request.
    pub setup: SetupReport,
    /// The negotiated TLS, over the whole run; empty without TLS.
    pub tls: Vec<TlsReport>,
    /// Measurements; the shape depends on `plan.mode`.
    pub result: R,
    /// Outcome of the connections of HTTP requests; other modes do not have this key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections: Option<ConnectionsReport>,
    /// The server, if its processes could be watched.
    pub server: Option<ServerReport>,
    /// This generator.
    pub generator: GeneratorReport,
    /// Share (0 to 1) of the whole machine's CPU time that was busy during the measurement.
    pub machine_busy_share: Option<f64>,
    /// Counts of errors.
    pub errors: Errors,
    /// Thresholds and their outcome.
    pub slo: Vec<SloReport>,
    /// All times to which thresholds apply; `null` if there are no times.
    pub histogram: Option<Histogram>,
    /// Conclusion: whether the server or this generator limited the run.
    pub verdict: Verdict,
}

impl<R: Results> std::fmt::Display for LoadReport<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.to_text())
    }
}

/// Set-up of the plan's connections.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct SetupReport {
    /// Connections opened and upgraded.
    pub connections: u64,
    /// Time until the last was ready.
    pub took_s: f64,
    /// From the connect call to the established TCP connection.
    pub tcp: Option<Summary>,
    /// From there to the end of the TLS handshake; `null` without TLS.
    pub tls: Option<Summary>,
    /// From there to the accepted upgrade.
    pub upgrade: Option<Summary>,
    /// Connections whose server chose one of the subprotocols; `null` if none was offered.
    pub subprotocol_agreed: Option<u64>,
}

/// Counts of opened, reused and lost connections since the start.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct ConnectionsReport {
    /// Connections started.
    pub opened: u64,
    /// Connections that the server ended between two requests, as it may. They were made again.
    pub ended_by_server: u64,
    /// Requests that were sent again because of that.
    pub requests_resent: u64,
}

/// The watched server.
#[derive(Clone, Debug, Serialize)]
pub struct ServerReport {
    /// Its processes.
    pub pids: Vec<u32>,
    /// The command name of the first process.
    pub name: Option<String>,
    /// CPUs that it may use.
    pub cpus_allowed: Option<usize>,
    /// CPU during the measurement.
    pub cpu: Option<CpuUsage>,
    /// Memory at its end, with all connections still open.
    pub memory: Option<Memory>,
    /// Descriptors at its end.
    pub descriptors: Option<usize>,
    /// True if the server runs inside this very process.
    pub same_process: bool,
}

/// This generator.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct GeneratorReport {
    /// CPU during the measurement.
    pub cpu: CpuUsage,
    /// Memory at its end.
    pub memory: Option<Memory>,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::plan::{Mode, Plan};
    use crate::target::Target;
    use crate::verdict::Facts;

    /// Returns the top-level keys of an indented JSON document, in their order.
    fn keys(json: &str) -> Vec<&str> {
        let lines = json.lines().filter_map(|line| line.strip_prefix("  \""));
        lines.filter_map(|line| line.split_once('"')).map(|(key, _)| key).collect()
    }

    /// Programs read keys by name, and people read them in order.
    #[test]
    fn the_keys_of_all_modes_keep_their_names_and_order() {
        let target = Target::parse("ws://h:1").unwrap();
        let plan = Plan::new(target, Mode::Idle { hold: Duration::ZERO });
        let mut report = LoadReport {
            schema: SCHEMA,
            run: Origin::default(),
            plan: PlanReport::of(&plan, 1),
            setup: SetupReport::default(),
            tls: Vec::new(),
            result: (),
            connections: None,
            server: None,
            generator: GeneratorReport::default(),
            machine_busy_share: None,
            errors: Errors::default(),
            slo: Vec::new(),
            histogram: None,
            verdict: Verdict::of(&Facts::default()),
        };
        let (before, after) = (
            ["schema", "run", "plan", "setup", "tls", "result"],
            ["server", "generator", "machine_busy_share", "errors", "slo", "histogram", "verdict"],
        );
        let json = serde_json::to_string_pretty(&report).unwrap();
        assert_eq!(keys(&json), [&before[..], &after].concat());
        report.connections = Some(ConnectionsReport::default());
        let json = serde_json::to_string_pretty(&report).unwrap();
        assert_eq!(keys(&json), [&before[..], &["connections"], &after].concat());
    }
}
