//! Metrics of a running server: the text format of Prometheus, and JSON.

use std::fmt;
use std::sync::{Arc, OnceLock};

use serde_json::{Map, Value};
use throng_engine::workers::{WorkerMetrics, Workers};
use throng_engine::{
    Admission, ClassCounters, HistoryCounts, Kind, PresenceCounts, Remote, RemoteCounts,
    SlowPolicy, Snapshot, Stats,
};
use throng_http::openmetrics::{Earlier, Format, Type, Writer};
use throng_http::{Request, Response};

use crate::app::MetricsFn;
use crate::cluster::Node;
use crate::panics::Panics;
use crate::process;
use crate::readiness::Readiness;
use crate::stalls::Stalls;
use crate::system::System;
use crate::tls::Security;
use crate::workers::WorkerPool;

mod durations;
mod history;
mod load;
mod panics;
mod presence;
mod workers;

/// The metrics of a server, for its own routes or another server's, such as a server for operators
/// alone; from [`Bound::observer`](crate::server::Bound::observer).
#[derive(Clone)]
pub struct Observer {
    pub(crate) snapshots: Arc<[Arc<Snapshot>]>,
    pub(crate) admission: Arc<Admission>,
    pub(crate) remote: Remote,
    pub(crate) pool: WorkerPool,
    pub(crate) stalls: Arc<Stalls>,
    pub(crate) security: Security,
    pub(crate) node: Node,
    pub(crate) build: &'static [(&'static str, &'static str)],
    pub(crate) warnings: Arc<[String]>,
    /// The counters of the process before this one.
    pub(crate) earlier: Arc<OnceLock<Arc<Earlier>>>,
}

impl Observer {
    /// Counts on from the metrics that the process before this one had, a text of
    /// [`write`](Self::write), so that no counter falls. It concerns all observers of the server,
    /// once, and not [`stats`](Self::stats).
    pub fn count_on(&self, earlier: &str) {
        // The first one counts.
        let _ = self.earlier.set(Arc::new(Earlier::read(earlier)));
    }

    /// Returns the metrics of every shard and of the process, in the format that `request` accepts:
    /// Prometheus or OpenMetrics.
    pub fn metrics(&self, request: &Request<'_>) -> Response {
        self.metrics_with(request, &|_| {})
    }

    /// Returns the metrics, followed by the metrics that `own` writes.
    pub(crate) fn metrics_with(&self, request: &Request<'_>, own: &MetricsFn) -> Response {
        let mut writer = Writer::new("throng").format(Format::accepted(request));
        self.write(&mut writer);
        writer.set_prefix("app");
        own(&mut writer);
        writer.into_response()
    }

    /// Writes the metrics of a server that has just started, for lists of them.
    pub fn write_idle(writer: &mut Writer) {
        let history = Some(HistoryCounts::default());
        let presence = Some(PresenceCounts::default());
        let panics = panics::Figures::of(&Panics::default());
        Figures { history, presence, panics, ..Figures::default() }.write(writer);
        Node::write_idle(writer);
        Security::write_idle(writer);
        write_build(writer, &[]);
    }

    /// Writes the metrics of every shard and of the process.
    pub fn write(&self, writer: &mut Writer) {
        writer.set_prefix("throng");
        writer.count_on(self.earlier.get().cloned());
        let workers = self.workers();
        let snapshots = &self.snapshots;
        let figures = Figures {
            shards: snapshots.iter().map(|snapshot| snapshot.read()).collect(),
            classes: snapshots.iter().map(|snapshot| classes(snapshot)).collect(),
            max_connections: self.admission.max_connections(),
            readiness: Some(self.state()),
            durations: durations::Figures::of(snapshots, workers.waits.clone()),
            workers,
            hub: self.remote.counts(),
            history: self.remote.history_counts(),
            presence: self.remote.presence_counts(),
            load: load::Figures::of(snapshots, &self.stalls),
            panics: panics::Figures::of(self.stalls.panics()),
        };
        figures.write(writer);
        self.node.write(writer);
        self.security.write(writer);
        write_build(writer, self.build);
        // These are the process's own, and the machine's.
        let earlier = writer.count_on(None);
        process::write_metrics(writer);
        writer.count_on(earlier);
    }

    /// Returns the metrics summed over all shards as JSON, for pages and scripts.
    pub fn stats(&self) -> Response {
        let mut sum = Stats::default();
        for snapshot in &*self.snapshots {
            sum.add(&snapshot.read());
        }
        let mut figures = Map::new();
        sum.each(|name, _, _, value| {
            figures.insert(name.to_owned(), value.into());
        });
        let (admission, hub) = (&self.admission, self.remote.counts());
        let limit = Some(admission.max_connections()).filter(|&limit| limit != usize::MAX);
        figures.insert("max_connections".to_owned(), limit.into());
        figures.insert("hub_publishes".to_owned(), hub.publishes.into());
        figures.insert("hub_commands_dropped".to_owned(), hub.commands_dropped.into());
        if let Some(history) = self.remote.history_counts() {
            figures.insert("history".to_owned(), history::to_json(&history));
        }
        if let Some(presence) = self.remote.presence_counts() {
            figures.insert("presence".to_owned(), presence::to_json(&presence));
        }
        if let Some(cluster) = self.node.to_json() {
            figures.insert("cluster".to_owned(), cluster);
        }
        figures.insert("shards".to_owned(), self.snapshots.len().into());
        let readiness = self.state();
        let is_ready = !matches!(readiness, Readiness::NotReady(_));
        figures.insert("ready".to_owned(), is_ready.into());
        figures.insert("readiness".to_owned(), readiness.name().into());
        figures.insert("readiness_reason".to_owned(), readiness.reason().into());
        figures.insert("warnings".to_owned(), self.warnings.iter().cloned().collect());
        figures.insert("resident_bytes".to_owned(), process::resident_bytes().into());
        let mut sums: Vec<Class> = Vec::new();
        for class in self.snapshots.iter().flat_map(|snapshot| classes(snapshot)) {
            merge(&mut sums, class);
        }
        figures.insert("classes".to_owned(), sums.iter().map(Class::to_json).collect());
        let workers = self.workers();
        let of_workers =
            workers::each(&workers).map(|figure| (figure.name.to_owned(), figure.to_json()));
        figures.insert("workers".to_owned(), Value::Object(of_workers.collect()));
        let by_shard = |snapshot: &Arc<Snapshot>| snapshot.read().connections;
        figures
            .insert("shard_connections".to_owned(), self.snapshots.iter().map(by_shard).collect());
        load::Figures::of(&self.snapshots, &self.stalls).add_to(&mut figures);
        durations::Figures::of(&self.snapshots, workers.waits).add_to(&mut figures);
        panics::Figures::of(self.stalls.panics()).add_to(&mut figures);
        figures.insert("system".to_owned(), System::read().to_json());
        Response::json(Value::Object(figures).to_string())
    }

    /// Returns the answer of the server's `/readyz`: 200 while the server is ready or
    /// [degraded](Readiness::Degraded), otherwise 503.
    pub fn readiness(&self) -> Response {
        self.state().response()
    }

    /// Returns whether the server is ready for clients, and if not, why.
    #[must_use]
    pub fn state(&self) -> Readiness {
        Readiness::of(&self.admission, &self.node, self.stalls.panics())
    }

    fn workers(&self) -> WorkerMetrics {
        self.pool.get().map(Workers::metrics).unwrap_or_default()
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer").field("shards", &self.snapshots.len()).finish_non_exhaustive()
    }
}

fn write_build(writer: &mut Writer, labels: &[(&str, &str)]) {
    let version = [("version", env!("CARGO_PKG_VERSION"))];
    let labels: Vec<_> = version.into_iter().chain(labels.iter().copied()).collect();
    let help = "The version of the server, as labels; the value is 1";
    writer.metric("build_info", help, Type::Gauge).sample(&labels, 1);
}

/// Returns the metric name of a counter of [`Stats`]. The metric's name contains the subject that a
/// field's name omits.
fn name_of(field: &'static str) -> &'static str {
    match field {
        "accepted" => "connections_accepted",
        "refused" => "connections_refused",
        "handed_over" => "connections_handed_over",
        "thread_failures" => "connection_thread_failures",
        "proxy_errors" => "proxy_protocol_errors",
        "requests" => "http_requests",
        "bad_requests" => "http_requests_refused",
        "server_errors" => "http_server_errors",
        "opened" => "sessions_opened",
        "closed_clean" => "sessions_closed_cleanly",
        "closed_abnormally" => "sessions_closed_abnormally",
        "memory_ended" => "connections_ended_for_memory",
        "timeouts" => "connection_timeouts",
        "messages_in" => "messages_received",
        "messages_out" => "messages_sent",
        "bytes_in" => "received_bytes",
        "bytes_out" => "sent_bytes",
        "pings" => "pings_sent",
        "publishes" => "publications",
        "turns" => "loop_turns",
        "repeated_sends" => "repeated_hub_sends",
        "commands_dropped" => "shard_commands_dropped",
        other => other,
    }
}

/// A back-pressure class and its metrics.
#[derive(Debug)]
struct Class {
    name: String,
    policy: SlowPolicy,
    figures: ClassCounters,
}

/// Returns the classes of one shard. Classes with the same name and policy, which a repeated
/// pattern creates, are merged: Prometheus rejects two samples with the same labels.
fn classes(snapshot: &Snapshot) -> Vec<Class> {
    let mut classes = Vec::new();
    for (name, policy, figures) in snapshot.classes() {
        merge(&mut classes, Class { name: name.as_ref().to_owned(), policy, figures });
    }
    classes
}

fn merge(into: &mut Vec<Class>, class: Class) {
    let same = |other: &&mut Class| other.name == class.name && other.policy == class.policy;
    match into.iter_mut().find(same) {
        Some(other) => other.figures.add(&class.figures),
        None => into.push(class),
    }
}

impl Class {
    fn to_json(&self) -> Value {
        let mut object = Map::new();
        object.insert("name".to_owned(), self.name.as_str().into());
        object.insert("policy".to_owned(), self.policy.name().into());
        self.figures.each(|name, _, _, value| {
            object.insert(name.to_owned(), value.into());
        });
        Value::Object(object)
    }
}

/// The metric that a class's counter belongs to: outcomes of publishing, or lost messages.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Family {
    Published,
    Dropped,
}

impl Family {
    /// Returns the metric of a counter, and the counter's label there. The sum of a metric over
    /// this label is meaningful.
    fn of(figure: &'static str) -> (Self, &'static str) {
        match figure {
            "delivered" | "queued" | "closed" | "filtered" => (Self::Published, figure),
            "slow_consumers" => (Self::Dropped, "slow_consumer"),
            "dropped_newest" => (Self::Dropped, "newest"),
            "dropped_oldest" => (Self::Dropped, "oldest"),
            other => (Self::Dropped, other),
        }
    }
}

#[derive(Debug, Default)]
struct Figures {
    shards: Vec<Stats>,
    /// By shard.
    classes: Vec<Vec<Class>>,
    max_connections: usize,
    readiness: Option<Readiness>,
    workers: WorkerMetrics,
    hub: RemoteCounts,
    /// `None`: no channel has one.
    history: Option<HistoryCounts>,
    presence: Option<PresenceCounts>,
    load: load::Figures,
    panics: panics::Figures,
    durations: durations::Figures,
}

impl Figures {
    fn write(&self, writer: &mut Writer) {
        Stats::default().each(|name, help, kind, _| self.write_figure(writer, name, help, kind));
        let help = "Messages published or broadcast, counted per receiver by outcome: delivered to \
                    a receiver that keeps up, queued behind output it has not taken, closed \
                    because the connection was closing, or filtered out by the receiver";
        self.write_classes(writer, ("class_published", help), Family::Published, "outcome");
        let help = "Messages lost on their way to a slow receiver, by reason: slow_consumer was \
                    closed, newest or oldest dropped at the limit, conflated with a newer value, \
                    expired after max_age, or discarded with the receiver";
        self.write_classes(writer, ("class_dropped", help), Family::Dropped, "reason");
        if self.max_connections != usize::MAX {
            let mut limit = writer.metric("max_connections", "Limit on connections", Type::Gauge);
            limit.sample(&[], self.max_connections as u64);
        }
        for figure in workers::each(&self.workers) {
            figure.write(writer);
        }
        for (name, help, value) in [
            ("hub_publishes", "Publications and broadcasts through hubs", self.hub.publishes),
            (
                "hub_commands_dropped",
                "Commands through hubs that a shard's queue had no room for",
                self.hub.commands_dropped,
            ),
        ] {
            writer.metric(name, help, Type::Counter).sample(&[], value);
        }
        if let Some(history) = &self.history {
            history::write(history, writer);
        }
        if let Some(presence) = &self.presence {
            presence::write(presence, writer);
        }
        self.load.write(writer);
        self.panics.write(writer);
        self.durations.write(writer);
        let help = "Whether /readyz answers 200: 0 while draining, or without the cluster";
        let is_ready = matches!(self.readiness, Some(Readiness::Ready | Readiness::Degraded(_)));
        writer.metric("ready", help, Type::Gauge).sample(&[], u64::from(is_ready));
        let help = "Whether the server serves and something is wrong, which /readyz says";
        let is_degraded = matches!(self.readiness, Some(Readiness::Degraded(_)));
        writer.metric("degraded", help, Type::Gauge).sample(&[], u64::from(is_degraded));
    }

    fn write_classes(
        &self,
        writer: &mut Writer,
        (name, help): (&str, &str),
        family: Family,
        label: &'static str,
    ) {
        let mut metric = writer.metric(name, help, Type::Counter);
        let all = || self.classes.iter().enumerate();
        for (shard, class) in
            all().flat_map(|(shard, of)| of.iter().map(move |class| (shard, class)))
        {
            let shard = shard.to_string();
            class.figures.each(|figure, _, _, value| {
                let (its, name) = Family::of(figure);
                if its == family {
                    let labels = [
                        ("class", class.name.as_str()),
                        ("policy", class.policy.name()),
                        (label, name),
                        ("shard", shard.as_str()),
                    ];
                    metric.sample(&labels, value);
                }
            });
        }
    }

    fn write_figure(&self, writer: &mut Writer, name: &'static str, help: &str, kind: Kind) {
        let kind = match kind {
            Kind::Gauge => Type::Gauge,
            Kind::Counter => Type::Counter,
        };
        let mut metric = writer.metric(name_of(name), help.trim_end_matches('.'), kind);
        for (shard, stats) in self.shards.iter().enumerate() {
            let shard = shard.to_string();
            stats.each(|other, _, _, value| {
                if other == name {
                    metric.sample(&[("shard", &shard)], value);
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(name: &str, policy: SlowPolicy, delivered: u64) -> Class {
        let mut figures = ClassCounters::default();
        (figures.delivered, figures.dropped_oldest) = (delivered, 7);
        Class { name: name.to_owned(), policy, figures }
    }

    fn text(classes: Vec<Vec<Class>>) -> String {
        let shards = classes.iter().map(|_| Stats::default()).collect();
        let workers = WorkerMetrics::default();
        let (load, panics) = (load::Figures::default(), panics::Figures::default());
        let hub = RemoteCounts::default();
        let durations = durations::Figures::default();
        let figures = Figures {
            shards,
            classes,
            max_connections: 10,
            readiness: Some(Readiness::Ready),
            workers,
            hub,
            history: None,
            presence: None,
            load,
            panics,
            durations,
        };
        let mut writer = Writer::new("throng");
        figures.write(&mut writer);
        writer.finish()
    }

    #[test]
    fn classes_are_two_families_of_counters_with_labels_that_are_escaped() {
        let prices = || class("prices.*", SlowPolicy::Latest, 3);
        let odd = class("say \"hi\" \\ now\nplease", SlowPolicy::Close, 0);
        let text = text(vec![vec![prices(), odd], vec![prices()]]);
        for line in [
            "# TYPE throng_class_published counter",
            "# TYPE throng_class_dropped counter",
            "throng_class_published_total{class=\"prices.*\",policy=\"latest\",\
             outcome=\"delivered\",shard=\"0\"} 3",
            "throng_class_published_total{class=\"prices.*\",policy=\"latest\",\
             outcome=\"delivered\",shard=\"1\"} 3",
            "throng_class_dropped_total{class=\"prices.*\",policy=\"latest\",\
             reason=\"oldest\",shard=\"1\"} 7",
            "throng_class_published_total{class=\"say \\\"hi\\\" \\\\ now\\nplease\",\
             policy=\"close\",outcome=\"queued\",shard=\"0\"} 0",
        ] {
            assert!(text.lines().any(|found| found == line), "no {line} in {text}");
        }
        let mut samples: Vec<&str> = text
            .lines()
            .filter_map(|line| line.rsplit_once(' ').map(|(sample, _)| sample))
            .collect();
        samples.retain(|sample| sample.starts_with("throng_class_"));
        // Four outcomes and eight reasons, of two classes on one shard and one on the other.
        assert_eq!(samples.len(), 12 * 3);
    }

    #[test]
    fn every_figure_of_a_class_is_in_a_family_under_a_name_of_its_own() {
        let mut names = Vec::new();
        ClassCounters::default().each(|figure, _, kind, _| {
            assert_eq!(kind, Kind::Counter, "{figure}");
            names.push(Family::of(figure).1);
        });
        let expected = [
            "delivered",
            "queued",
            "closed",
            "filtered",
            "slow_consumer",
            "newest",
            "oldest",
            "conflated",
            "expired",
            "discarded",
            "too_large",
            "lost",
        ];
        assert_eq!(names, expected);
    }

    #[test]
    fn classes_of_one_name_and_policy_are_one() {
        let mut merged = Vec::new();
        for (name, policy) in
            [("a", SlowPolicy::Close), ("a", SlowPolicy::Latest), ("a", SlowPolicy::Close)]
        {
            merge(&mut merged, class(name, policy, 1));
        }
        let delivered: Vec<u64> = merged.iter().map(|class| class.figures.delivered).collect();
        assert_eq!(delivered, [2, 1]);
        let json = merged[0].to_json();
        assert_eq!((&json["name"], &json["policy"]), (&"a".into(), &"close".into()));
        assert_eq!((&json["delivered"], &json["dropped_oldest"]), (&2.into(), &14.into()));
    }
}
