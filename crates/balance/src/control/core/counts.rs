//! Counters that go on in a successor of the process, so that no counter of `/metrics` falls.

use std::collections::BTreeMap;

use throng_io::PeerAddress;

use serde::{Deserialize, Serialize};

use super::ControlCore;
use crate::backend::CarriedTotals;
use crate::limit::LimitRow;
use crate::pool::DEFAULT_POOL;
use crate::report::Metrics;
use crate::site::CarriedSite;
use crate::status::{Status, TlsStatus};

/// The counters of a process and its predecessors.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct CarriedCounts {
    metrics: Metrics,
    /// Backends of the default pool.
    backends: Vec<(PeerAddress, CarriedTotals)>,
    /// Backends of other pools, by the names of these.
    pools: Vec<(String, PeerAddress, CarriedTotals)>,
    panics: u64,
    limits: Vec<LimitRow>,
    sites: Vec<CarriedSite>,
    tls: CarriedTls,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
struct CarriedTls {
    full: u64,
    resumed: u64,
    failed: BTreeMap<String, u64>,
    sessions_failed: BTreeMap<String, u64>,
    issued: u64,
    issue_failures: u64,
}

impl CarriedCounts {
    /// Adds what the predecessors have counted, except for backends and sites, which have their own
    /// counters.
    pub(crate) fn add_to(&self, status: &mut Status) {
        status.metrics += self.metrics;
        status.panics += self.panics;
        for row in &mut status.limits {
            if let Some(before) = self.limits.iter().find(|before| before.name == row.name) {
                row.count_on(before);
            }
        }
        let Some(tls) = &mut status.tls else { return };
        tls.full += self.tls.full;
        tls.resumed += self.tls.resumed;
        tls.issued += self.tls.issued;
        tls.issue_failures += self.tls.issue_failures;
        let add = |counts: &mut Vec<(&'static str, u64)>, more: &BTreeMap<String, u64>| {
            for (cause, count) in counts {
                *count += more.get(*cause).copied().unwrap_or_default();
            }
        };
        add(&mut tls.failed, &self.tls.failed);
        add(&mut tls.sessions_failed, &self.tls.sessions_failed);
    }
}

impl ControlCore {
    /// Returns the counters of a status and of the backends, for a successor.
    pub(crate) fn counts(&self, status: &Status) -> CarriedCounts {
        let (mut backends, mut pools) = (Vec::new(), Vec::new());
        for entry in &self.entries {
            let (address, totals) = (entry.backend.address(), entry.backend.totals().carried());
            match entry.is_in(DEFAULT_POOL) {
                true => backends.push((address, totals)),
                false => pools.push((entry.pool.name.to_string(), address, totals)),
            }
        }
        CarriedCounts {
            metrics: status.metrics.carried(),
            backends,
            pools,
            panics: status.panics,
            limits: status.limits.clone(),
            sites: self.counters.carried(),
            tls: status.tls.as_ref().map(carried_tls).unwrap_or_default(),
        }
    }

    /// Counts on from the totals of a predecessor's backends and sites.
    pub(crate) fn count_on(&mut self, counts: &CarriedCounts) {
        self.counters.count_on(&counts.sites);
        let default = counts.backends.iter();
        let default = default.map(|(address, totals)| (DEFAULT_POOL, address, totals));
        let others = counts.pools.iter();
        let others = others.map(|(pool, address, totals)| (pool.as_str(), address, totals));
        for (pool, address, totals) in default.chain(others) {
            if let Some(at) = self.place_of(pool, *address) {
                self.entries[at].count_on(totals);
            }
        }
    }
}

fn carried_tls(tls: &TlsStatus) -> CarriedTls {
    let named = |counts: &[(&'static str, u64)]| {
        counts.iter().map(|(cause, count)| ((*cause).to_owned(), *count)).collect()
    };
    CarriedTls {
        full: tls.full,
        resumed: tls.resumed,
        failed: named(&tls.failed),
        sessions_failed: named(&tls.sessions_failed),
        issued: tls.issued,
        issue_failures: tls.issue_failures,
    }
}
