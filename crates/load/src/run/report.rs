//! Makes the report of a run from its measurement, for any protocol.

use super::steer::Measured;
use crate::common::Common;
use crate::negotiated::TlsReport;
use crate::record::Record;
use crate::report::{
    ConnectionsReport, GeneratorReport, Histogram, Origin, RunReport, SCHEMA, ServerReport,
    SetupReport,
};
use crate::sampler::Processes;
use crate::slo::Slo;
use crate::verdict::{Facts, Verdict};

/// The times that the mode measures.
#[derive(Clone, Copy)]
pub(crate) struct Times<'a> {
    pub(crate) of: &'static str,
    pub(crate) record: &'a Record,
    /// Answers, connections or deliveries a second.
    pub(crate) rate_per_s: f64,
}

/// The end of a run, for any protocol: its measurement, and the facts for the verdict.
pub(crate) struct RunOutcome<'a> {
    pub(crate) common: &'a Common,
    /// The server's processes, if they are known.
    pub(crate) server: Option<&'a Processes>,
    pub(crate) measured: &'a Measured,
    /// Facts of the protocol for the verdict; the facts of the processes are added later.
    pub(crate) facts: Facts,
    pub(crate) times: Times<'a>,
}

/// The parts of a report that depend on the protocol.
pub(crate) struct ProtocolParts<P, R, E> {
    pub(crate) plan: P,
    pub(crate) setup: SetupReport,
    pub(crate) tls: Vec<TlsReport>,
    pub(crate) result: R,
    pub(crate) connections: Option<ConnectionsReport>,
    pub(crate) errors: E,
}

impl RunOutcome<'_> {
    /// Returns the report, with the verdict.
    pub(crate) fn report<P, R, E>(self, parts: ProtocolParts<P, R, E>) -> RunReport<P, R, E> {
        let Self { common, server, measured, facts, times } = self;
        let ProtocolParts { plan, setup, tls, result, connections, errors } = parts;
        let server = server.map(|processes| server_report(processes, measured));
        let generator = GeneratorReport { cpu: measured.generator(), memory: measured.own_memory };
        let facts = Facts {
            generator: generator.cpu,
            server: measured.server(),
            server_cpus: server.as_ref().and_then(|server| server.cpus_allowed),
            same_process: server.as_ref().is_some_and(|server| server.same_process),
            tolerates_failures: common.slos.iter().any(Slo::is_about_errors),
            ..facts
        };
        let figures = facts.figures(times.record, times.rate_per_s);
        RunReport {
            schema: SCHEMA,
            run: Origin::now(),
            plan,
            setup,
            tls,
            result,
            connections,
            server,
            generator,
            machine_busy_share: measured.machine_busy(),
            errors,
            slo: common.slos.iter().map(|slo| slo.judge(&figures)).collect(),
            histogram: Histogram::of(times.of, times.record),
            verdict: Verdict::of(&facts),
        }
    }
}

fn server_report(processes: &Processes, measured: &Measured) -> ServerReport {
    ServerReport {
        pids: processes.pids().to_vec(),
        name: processes.name(),
        cpus_allowed: processes.cpus_allowed(),
        cpu: measured.server(),
        memory: measured.server_memory,
        descriptors: measured.server_descriptors,
        same_process: processes.pids().contains(&std::process::id()),
    }
}
