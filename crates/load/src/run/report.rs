//! Makes the report of a run from its measurement, for any protocol.

use std::time::Duration;

use super::Base;
use crate::client::Setup;
use crate::common::Common;
use crate::record::Record;
use crate::report::{
    ConnectionsReport, GeneratorReport, Histogram, LoadReport, Origin, PlanReport, SCHEMA,
    ServerReport, SetupReport,
};
use crate::sampled::Sampled;
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
pub(crate) struct RunEnd<'a, R> {
    pub(crate) common: &'a Common,
    pub(crate) plan: PlanReport,
    /// The time until this many connections were set up; `None` if the set-up itself is measured.
    pub(crate) took: Option<(Duration, usize)>,
    pub(crate) setup: Setup,
    /// Whether subprotocols were offered.
    pub(crate) has_subprotocols: bool,
    pub(crate) connections: Option<ConnectionsReport>,
    pub(crate) sampled: &'a Sampled,
    pub(crate) result: R,
    /// Facts of the mode for the verdict. Failures and facts of the processes are added later.
    pub(crate) facts: Facts,
    pub(crate) times: Times<'a>,
}

impl<R> RunEnd<'_, R> {
    /// Returns the report, with the verdict.
    pub(crate) fn report(self, base: &Base) -> LoadReport<R> {
        let Self { common, plan, took, setup, sampled, result, facts, times, .. } = self;
        let server = base.server.as_ref().map(|processes| server_report(processes, sampled));
        let generator = GeneratorReport { cpu: sampled.generator(), memory: sampled.own_memory };
        let facts = Facts {
            failures: setup.errors.total(),
            generator: generator.cpu,
            server: sampled.server(),
            server_cpus: server.as_ref().and_then(|server| server.cpus_allowed),
            same_process: server.as_ref().is_some_and(|server| server.same_process),
            tolerates_failures: common.slos.iter().any(Slo::is_about_errors),
            ..facts
        };
        let figures = facts.figures(times.record, times.rate_per_s);
        let set_up = |(took, connections): (Duration, usize)| SetupReport {
            connections: connections as u64,
            took_s: took.as_secs_f64(),
            tcp: setup.tcp.summary(),
            tls: setup.tls.summary(),
            upgrade: setup.upgrade.summary(),
            subprotocol_agreed: self.has_subprotocols.then_some(setup.subprotocols),
        };
        LoadReport {
            schema: SCHEMA,
            run: Origin::now(),
            plan,
            setup: took.map(set_up).unwrap_or_default(),
            tls: setup.negotiated.into_report(),
            result,
            connections: self.connections,
            server,
            generator,
            machine_busy_share: sampled.machine_busy(),
            errors: setup.errors,
            slo: common.slos.iter().map(|slo| slo.judge(&figures)).collect(),
            histogram: Histogram::of(times.of, times.record),
            verdict: Verdict::of(&facts),
        }
    }
}

fn server_report(processes: &Processes, sampled: &Sampled) -> ServerReport {
    ServerReport {
        pids: processes.pids().to_vec(),
        name: processes.name(),
        cpus_allowed: processes.cpus_allowed(),
        cpu: sampled.server(),
        memory: sampled.server_memory,
        descriptors: sampled.server_descriptors,
        same_process: processes.pids().contains(&std::process::id()),
    }
}
