//! Metrics of the shards' load, and of stalls by route.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use throng_engine::Snapshot;
use throng_http::openmetrics::{Type, Writer};

use crate::stalls::{StallCount, Stalls};

#[derive(Debug, Default)]
pub(super) struct Figures {
    /// By shard: the time of all its turns, and the time of the longest turn.
    shards: Vec<(Duration, Duration)>,
    stalls: Vec<StallCount>,
}

impl Figures {
    pub(super) fn of(snapshots: &[Arc<Snapshot>], stalls: &Stalls) -> Self {
        let load = |snapshot: &Arc<Snapshot>| (snapshot.busy(), snapshot.longest_turn());
        Self { shards: snapshots.iter().map(load).collect(), stalls: stalls.counts().collect() }
    }

    pub(super) fn add_to(&self, figures: &mut Map<String, Value>) {
        let each = |of: fn(&(Duration, Duration)) -> Duration| -> Value {
            self.shards.iter().map(|load| of(load).as_secs_f64()).collect()
        };
        figures.insert("shard_busy_seconds".to_owned(), each(|load| load.0));
        figures.insert("shard_longest_turn_seconds".to_owned(), each(|load| load.1));
        let stalls = self.stalls.iter().map(|StallCount { route, stalls, longest }| {
            json!({"route": route, "stalls": stalls, "longest_seconds": longest.as_secs_f64()})
        });
        figures.insert("stalls".to_owned(), stalls.collect());
    }

    pub(super) fn write(&self, writer: &mut Writer) {
        let each_shard = |writer: &mut Writer, name, help, kind, of: fn(&(_, _)) -> Duration| {
            let mut metric = writer.metric(name, help, kind);
            for (shard, load) in self.shards.iter().enumerate() {
                metric.sample(&[("shard", &shard.to_string())], of(load).as_secs_f64());
            }
        };
        let help = "Seconds that the turns of a shard have taken: a shard that is always busy adds \
                    one second per second";
        each_shard(writer, "shard_busy_seconds", help, Type::Counter, |load| load.0);
        let help = "The longest turn of a shard since the last scrape, or of the last second if \
                    that is longer: how long an event may have waited for others";
        each_shard(writer, "shard_longest_turn_seconds", help, Type::Gauge, |load| load.1);
        let help = "Times handlers of a route held their shard for stall_warning or longer";
        let mut metric = writer.metric("stalls", help, Type::Counter);
        for StallCount { route, stalls, .. } in &self.stalls {
            metric.sample(&[("route", route)], *stalls);
        }
        let help = "The longest stall of a route since the server started";
        let mut metric = writer.metric("longest_stall_seconds", help, Type::Gauge);
        for StallCount { route, longest, .. } in &self.stalls {
            metric.sample(&[("route", route)], longest.as_secs_f64());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures() -> Figures {
        let ms = Duration::from_millis;
        let stall = |route: &str, stalls, longest| StallCount {
            route: route.to_owned(),
            stalls,
            longest: ms(longest),
        };
        Figures {
            shards: vec![(ms(1500), ms(80)), (ms(250), ms(0))],
            stalls: vec![stall("/ws/{channel}", 2, 75), stall("(several)", 0, 0)],
        }
    }

    #[test]
    fn seconds_by_shard_and_stalls_by_route_are_metrics() {
        let mut writer = Writer::new("throng");
        figures().write(&mut writer);
        let text = writer.finish();
        for line in [
            "# TYPE throng_shard_busy_seconds counter",
            "throng_shard_busy_seconds_total{shard=\"0\"} 1.5",
            "throng_shard_busy_seconds_total{shard=\"1\"} 0.25",
            "throng_shard_longest_turn_seconds{shard=\"0\"} 0.08",
            "throng_stalls_total{route=\"/ws/{channel}\"} 2",
            "throng_longest_stall_seconds{route=\"/ws/{channel}\"} 0.075",
            "throng_stalls_total{route=\"(several)\"} 0",
        ] {
            assert!(text.lines().any(|found| found == line), "no {line} in {text}");
        }
    }

    #[test]
    fn the_same_is_json() {
        let mut json = Map::new();
        figures().add_to(&mut json);
        assert_eq!(json["shard_busy_seconds"], json!([1.5, 0.25]));
        assert_eq!(json["shard_longest_turn_seconds"], json!([0.08, 0.0]));
        let stall = json!({"route": "/ws/{channel}", "stalls": 2, "longest_seconds": 0.075});
        assert_eq!(json["stalls"][0], stall);
    }
}
