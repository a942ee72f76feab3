//! What a running server shows of itself: `/metrics` for Prometheus, `/stats.json` for the page.

use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use serde_json::{Map, Value};
use throng_engine::{Admission, Kind, Snapshot, Stats};
use throng_http::{Response, Status};

use crate::process;

/// The figures of every shard, in the OpenMetrics text format.
pub(crate) fn metrics(snapshots: &[Arc<Snapshot>], admission: &Admission) -> Response {
    let mut registry = Registry::with_prefix("throng");
    registry.register_collector(Box::new(Figures {
        shards: snapshots.iter().map(|snapshot| snapshot.read()).collect(),
        max_connections: admission.max_connections(),
        ready: admission.is_ready(),
    }));
    let mut text = String::new();
    if prometheus_client::encoding::text::encode(&mut text, &registry).is_err() {
        return Response::error(Status::INTERNAL_SERVER_ERROR, "the metrics could not be written");
    }
    Response::new(Status::OK)
        .with_body("application/openmetrics-text; version=1.0.0; charset=utf-8", text)
}

/// The sums over all shards, for people's pages and scripts.
pub(crate) fn stats(snapshots: &[Arc<Snapshot>], admission: &Admission) -> Response {
    let mut sum = Stats::default();
    for snapshot in snapshots {
        sum.add(&snapshot.read());
    }
    let mut figures = Map::new();
    sum.each(|name, _, _, value| {
        figures.insert(name.to_owned(), value.into());
    });
    let limit = Some(admission.max_connections()).filter(|&limit| limit != usize::MAX);
    figures.insert("max_connections".to_owned(), limit.into());
    figures.insert("shards".to_owned(), snapshots.len().into());
    figures.insert("ready".to_owned(), admission.is_ready().into());
    figures.insert("resident_bytes".to_owned(), process::resident_bytes().into());
    Response::json(Value::Object(figures).to_string())
}

#[derive(Debug)]
struct Figures {
    shards: Vec<Stats>,
    max_connections: usize,
    ready: bool,
}

impl Collector for Figures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let mut outcome = Ok(());
        Stats::default().each(|name, help, kind, _| {
            outcome = outcome.and_then(|()| self.encode_figure(&mut encoder, name, help, kind));
        });
        outcome?;
        if self.max_connections != usize::MAX {
            let limit = ConstGauge::new(self.max_connections as i64);
            let help = "Connections this process may hold";
            let metric =
                encoder.encode_descriptor("max_connections", help, None, MetricType::Gauge)?;
            limit.encode(metric)?;
        }
        let ready = ConstGauge::new(i64::from(self.ready));
        let help = "1 while new connections are taken, 0 while draining";
        ready.encode(encoder.encode_descriptor("ready", help, None, MetricType::Gauge)?)
    }
}

impl Figures {
    fn encode_figure(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        name: &str,
        help: &str,
        kind: Kind,
    ) -> std::fmt::Result {
        let help = help.trim_end_matches('.');
        let metric_type = match kind {
            Kind::Gauge => MetricType::Gauge,
            Kind::Counter => MetricType::Counter,
        };
        let mut metric = encoder.encode_descriptor(name, help, None, metric_type)?;
        for (shard, stats) in self.shards.iter().enumerate() {
            let mut value = 0;
            stats.each(|other, _, _, v| {
                if other == name {
                    value = v;
                }
            });
            let labels = [("shard", shard.to_string())];
            let sample = metric.encode_family(&labels)?;
            match kind {
                Kind::Gauge => ConstGauge::new(value as i64).encode(sample)?,
                Kind::Counter => ConstCounter::new(value).encode(sample)?,
            }
        }
        Ok(())
    }
}
