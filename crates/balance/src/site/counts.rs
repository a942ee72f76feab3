//! Counters of sites, and of the routes that ask for counters of their own.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::ser::SerializeStruct;
use serde::{Deserialize, Serialize, Serializer};
use throng_io::Instant;

use super::Sites;
use crate::backend::{FirstByteTimes, FirstBytes};

/// The names of what is counted: a site, and one of its routes, or "" for the whole site.
pub(super) type CountedNames = (Arc<str>, Box<str>);

/// The counters of all sites, by the indexes that the names of routes have.
#[derive(Clone, Debug, Default)]
pub struct SiteCounters(Arc<[Arc<SiteCounts>]>);

/// The counters of a site or route, for all shards. They outlive a reload.
#[derive(Debug, Default)]
pub(crate) struct SiteCounts {
    names: CountedNames,
    /// Final responses by class.
    statuses: [AtomicU64; 5],
    refused: AtomicU64,
    first_bytes: FirstBytes,
    /// The site of a route, which counts its requests as well.
    site: Option<Arc<Self>>,
}

/// The counters of a site, or of a route, in [`Status`](crate::Status).
#[derive(Clone, Debug, Serialize)]
pub struct SiteRow {
    /// The name of the site.
    pub site: String,
    /// The name of the route; `None` for the site with all its routes.
    pub route: Option<String>,
    /// Final responses by class: 1xx to 5xx. The first are opened tunnels.
    pub statuses: [u64; 5],
    /// Requests that a rule of the site or a limit refused, or that have no route.
    pub refused: u64,
    /// The times from the head of a request to the head of a backend's response; serialized
    /// without the bounds.
    #[serde(serialize_with = "without_bounds")]
    pub first_bytes: FirstByteTimes,
}

/// A page of many sites would be long with bounds.
fn without_bounds<S: Serializer>(times: &FirstByteTimes, to: S) -> Result<S::Ok, S::Error> {
    let mut sums = to.serialize_struct("FirstByteTimes", 2)?;
    sums.serialize_field("count", &times.count)?;
    sums.serialize_field("sum_micros", &times.sum_micros)?;
    sums.end()
}

/// The counters of a site or route, for a successor of the process.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct CarriedSite {
    site: String,
    route: String,
    statuses: [u64; 5],
    refused: u64,
    first_bytes: Vec<u64>,
    micros: u64,
}

/// A request, to be counted when its answer is certain, and at the latest when it ends.
#[derive(Debug)]
pub(crate) struct CountedRequest {
    counts: Arc<SiteCounts>,
    began: Instant,
    /// The status, and the microseconds to the head if a backend answers.
    answer: Option<(u16, Option<u64>)>,
}

impl SiteCounters {
    /// Creates the counters of these sites. Names that `before` has keep theirs.
    pub(crate) fn new(sites: Option<&Sites>, before: &Self) -> Self {
        let Some(sites) = sites else { return Self::default() };
        let of_names = |counts: &Arc<SiteCounts>| (counts.names.clone(), Arc::clone(counts));
        let before: HashMap<_, _> = before.0.iter().map(of_names).collect();
        let mut known: HashMap<CountedNames, Arc<SiteCounts>> = HashMap::new();
        let mut all = Vec::new();
        // A site comes before its routes.
        for names in sites.counted() {
            let site = (Arc::clone(&names.0), Box::default());
            let site = known.get(&site).filter(|_| !names.1.is_empty()).map(Arc::clone);
            let new = || {
                let counts = before.get(names).map(Arc::clone);
                let names = names.clone();
                counts.unwrap_or_else(|| {
                    Arc::new(SiteCounts { names, site, ..SiteCounts::default() })
                })
            };
            all.push(Arc::clone(known.entry(names.clone()).or_insert_with(new)));
        }
        Self(all.into())
    }

    /// Returns the counters at an index of the names of a route.
    pub(crate) fn at(&self, index: u32) -> Option<&Arc<SiteCounts>> {
        self.0.get(index as usize)
    }

    /// Returns all counters, each once: sites with one name share theirs.
    fn all(&self) -> impl Iterator<Item = &Arc<SiteCounts>> {
        let mut shown = std::collections::HashSet::new();
        self.0.iter().filter(move |counts| shown.insert(Arc::as_ptr(counts)))
    }

    pub(crate) fn rows(&self) -> Vec<SiteRow> {
        self.all().map(|counts| counts.row()).collect()
    }

    /// Returns what a successor counts on from.
    pub(crate) fn carried(&self) -> Vec<CarriedSite> {
        self.all().map(|counts| counts.carried()).collect()
    }

    /// Counts on from the counters of a predecessor.
    pub(crate) fn count_on(&self, carried: &[CarriedSite]) {
        let of_names = |it: &Self, of: &CarriedSite| {
            let is_it = |counts: &&Arc<SiteCounts>| {
                *counts.names.0 == *of.site && *counts.names.1 == *of.route
            };
            it.0.iter().find(is_it).map(Arc::clone)
        };
        for of in carried {
            if let Some(counts) = of_names(self, of) {
                counts.add(of);
            }
        }
    }
}

impl SiteCounts {
    /// Counts a final response.
    fn note(&self, status: u16, micros: Option<u64>) {
        let class = usize::from(status / 100).clamp(1, 5) - 1;
        self.statuses[class].fetch_add(1, Relaxed);
        if let Some(micros) = micros {
            self.first_bytes.note(micros);
        }
        if let Some(site) = &self.site {
            site.note(status, micros);
        }
    }

    /// Counts an answer of the balancer's own, which may be a refusal.
    pub(crate) fn note_own(&self, status: u16, is_refusal: bool) {
        self.note(status, None);
        if is_refusal {
            self.refused.fetch_add(1, Relaxed);
            if let Some(site) = &self.site {
                site.refused.fetch_add(1, Relaxed);
            }
        }
    }

    fn row(&self) -> SiteRow {
        let (site, route) = &self.names;
        SiteRow {
            site: site.to_string(),
            route: Some(route.to_string()).filter(|route| !route.is_empty()),
            statuses: self.statuses.each_ref().map(|count| count.load(Relaxed)),
            refused: self.refused.load(Relaxed),
            first_bytes: FirstByteTimes::of(&self.first_bytes),
        }
    }

    fn carried(&self) -> CarriedSite {
        let (first_bytes, micros) = self.first_bytes.carried();
        CarriedSite {
            site: self.names.0.to_string(),
            route: self.names.1.to_string(),
            statuses: self.statuses.each_ref().map(|count| count.load(Relaxed)),
            refused: self.refused.load(Relaxed),
            first_bytes,
            micros,
        }
    }

    fn add(&self, carried: &CarriedSite) {
        for (count, more) in self.statuses.iter().zip(carried.statuses) {
            count.fetch_add(more, Relaxed);
        }
        self.refused.fetch_add(carried.refused, Relaxed);
        self.first_bytes.add(&carried.first_bytes, carried.micros);
    }
}

impl CountedRequest {
    /// Creates it for a request whose head has come.
    pub(crate) fn new(counts: Arc<SiteCounts>, began: Instant) -> Self {
        Self { counts, began, answer: None }
    }

    /// Records the head of a backend's final response.
    pub(crate) fn answered(&mut self, status: u16, now: Instant) {
        let micros = u64::try_from(now.since(self.began).as_micros()).unwrap_or(u64::MAX);
        self.answer = Some((status, Some(micros)));
    }

    /// Records an answer of the balancer's own.
    pub(crate) fn answered_itself(&mut self, status: u16) {
        self.answer = Some((status, None));
    }

    /// Discards an answer whose bytes have not left.
    pub(crate) fn unanswered(&mut self) {
        self.answer = None;
    }

    /// Counts the answer, which is certain.
    pub(crate) fn note(&mut self) {
        if let Some((status, micros)) = self.answer.take() {
            self.counts.note(status, micros);
        }
    }
}

impl Drop for CountedRequest {
    fn drop(&mut self) {
        self.note();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sites(names: &[(&str, &str)]) -> Sites {
        let names = names.iter().map(|(site, route)| ((*site).into(), (*route).into()));
        Sites { counted: names.collect(), ..Sites::default() }
    }

    fn statuses(counters: &SiteCounters) -> Vec<(String, [u64; 5], u64)> {
        let name = |row: &SiteRow| format!("{}{}", row.site, row.route.as_deref().unwrap_or(""));
        counters.rows().iter().map(|row| (name(row), row.statuses, row.refused)).collect()
    }

    #[test]
    fn a_route_counts_for_its_site_and_names_keep_their_counters() {
        let first = sites(&[("a", ""), ("b", ""), ("a", "/x")]);
        let counters = SiteCounters::new(Some(&first), &SiteCounters::default());
        let mut request = CountedRequest::new(Arc::clone(counters.at(2).unwrap()), Instant(0));
        request.answered(200, Instant(1_000_000));
        request.unanswered();
        request.answered(101, Instant(2_000_000));
        drop(request);
        counters.at(2).unwrap().note_own(429, true);
        counters.at(1).unwrap().note_own(503, false);
        let of = |name: &str, statuses, refused| (name.to_owned(), statuses, refused);
        let expected = [
            of("a", [1, 0, 0, 1, 0], 1),
            of("b", [0, 0, 0, 0, 1], 0),
            of("a/x", [1, 0, 0, 1, 0], 1),
        ];
        assert_eq!(statuses(&counters), expected);
        assert_eq!(counters.rows()[0].first_bytes.sum_micros, 2_000);
        // In another order, and two sites with one name.
        let second = sites(&[("c", ""), ("b", ""), ("b", "")]);
        let later = SiteCounters::new(Some(&second), &counters);
        assert_eq!(statuses(&later), [of("c", [0; 5], 0), of("b", [0, 0, 0, 0, 1], 0)]);
        // A successor, whose process has counted something already.
        let successor = SiteCounters::new(Some(&first), &SiteCounters::default());
        successor.at(0).unwrap().note_own(200, false);
        let text = serde_json::to_string(&counters.carried()).unwrap();
        successor.count_on(&serde_json::from_str::<Vec<CarriedSite>>(&text).unwrap());
        assert_eq!(statuses(&successor)[0], of("a", [1, 1, 0, 1, 0], 1));
        assert_eq!(statuses(&successor)[1..], expected[1..]);
        assert_eq!(successor.rows()[2].first_bytes.count, 1);
    }
}
