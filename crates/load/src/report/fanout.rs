//! The figures of the fan-out mode.

use serde::Serialize;

use super::document::times;
use super::model::{Cell, Column, Table, Unit};
use crate::page::{Axis, Plot};
use crate::record::Summary;
use crate::row;
use crate::units::{grouped, rounded};

/// Messages to many channels, by a schedule.
#[derive(Clone, Debug, Serialize)]
pub struct FanoutReport {
    /// Measured time.
    pub measured_s: f64,
    /// Channels, each with a publisher of its own.
    pub channels: u64,
    /// Subscribers of each.
    pub subscribers_per_channel: u64,
    /// Messages planned within the measured time; all were sent.
    pub published: u64,
    /// Published messages a second.
    pub published_per_s: f64,
    /// Expected deliveries of these: one for each subscriber of the channel.
    pub expected: u64,
    /// Deliveries that were received, even if late.
    pub received: u64,
    /// Deliveries received within the measured time, a second.
    pub received_per_s: f64,
    /// Deliveries that never came.
    pub lost: u64,
    /// Subscribers that lost any.
    pub subscribers_with_loss: u64,
    /// The maximum that one of them lost.
    pub most_lost_by_one_subscriber: u64,
    /// Deliveries of a message that had come before, at any time.
    pub duplicates: u64,
    /// Deliveries that came after a later message, at any time.
    pub reordered: u64,
    /// From the planned time of a publish to each subscriber.
    pub latency: Option<Summary>,
    /// Lateness of sent messages, for any reason.
    pub lateness: Option<Summary>,
    /// Server CPU time (all threads) for each delivery.
    pub server_cpu_us_per_delivery: Option<f64>,
    /// The measured time, slice by slice.
    pub slices: Vec<Slice>,
}

/// A short slice of the measured time.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Slice {
    /// Its end, from the beginning of the measured time.
    pub at_s: f64,
    /// Deliveries a second.
    pub received_per_s: f64,
    /// Latency of the deliveries received in the slice.
    pub latency: Option<Summary>,
    /// Server CPU; 1 is one core kept busy.
    pub server_cores: Option<f64>,
    /// The server's resident memory at its end.
    pub server_rss_bytes: Option<u64>,
    /// CPU of this generator's busiest thread.
    pub generator_cores: Option<f64>,
}

impl FanoutReport {
    pub(super) fn title(&self) -> String {
        format!(
            "{} messages a second to {} channels of {} subscribers",
            rounded(self.published_per_s),
            grouped(self.channels),
            grouped(self.subscribers_per_channel)
        )
    }

    pub(super) fn tables(&self) -> Vec<Table> {
        let figure = |unit, label: &str, value: Cell| (Column::new("", unit, label), value);
        let figures = Table::list(vec![
            figure(Unit::Count, "channels", self.channels.into()),
            figure(Unit::Count, "subscribers of each", self.subscribers_per_channel.into()),
            figure(Unit::Count, "published", self.published.into()),
            figure(Unit::Seconds, "measured", self.measured_s.into()),
            figure(Unit::Number, "published a second", self.published_per_s.into()),
            figure(Unit::Number, "delivered a second", self.received_per_s.into()),
            figure(Unit::Us, "server CPU by delivery", self.server_cpu_us_per_delivery.into()),
            figure(Unit::Count, "deliveries expected", self.expected.into()),
            figure(Unit::Count, "never came", self.lost.into()),
            figure(Unit::Count, "subscribers with loss", self.subscribers_with_loss.into()),
            figure(Unit::Count, "most lost by one", self.most_lost_by_one_subscriber.into()),
            figure(Unit::Count, "came twice", self.duplicates.into()),
            figure(Unit::Count, "out of order", self.reordered.into()),
        ]);
        let note = "latency counts from the planned time of the publish to each subscriber";
        let times = times(&[("latency", self.latency), ("lateness", self.lateness)]);
        vec![figures, times.notes([note.to_owned()]), self.slice_table()]
    }

    /// The slices: rows in CSV, plots on a page.
    fn slice_table(&self) -> Table {
        let columns = [
            ("at_s", Unit::Seconds),
            ("received_per_s", Unit::Number),
            ("p50_us", Unit::Us),
            ("p99_us", Unit::Us),
            ("p999_us", Unit::Us),
            ("max_us", Unit::Us),
            ("server_cores", Unit::Number),
            ("server_rss_bytes", Unit::Bytes),
            ("generator_cores", Unit::Number),
        ];
        let columns = columns.map(|(key, unit)| Column::new(key, unit, ""));
        let rows = self.slices.iter().map(|slice| {
            let of = |figure: fn(&Summary) -> f64| slice.latency.as_ref().map(figure);
            row![
                slice.at_s,
                slice.received_per_s,
                of(|latency| latency.p50_us),
                of(|latency| latency.p99_us),
                of(|latency| latency.p999_us),
                of(|latency| latency.max_us),
                slice.server_cores,
                slice.server_rss_bytes,
                slice.generator_cores,
            ]
        });
        Table::new("", columns.to_vec()).rows(rows).plots(self.plots())
    }

    fn plots(&self) -> [Plot; 4] {
        let line = |figure: &dyn Fn(&Slice) -> Option<f64>| -> Vec<(f64, f64)> {
            let point = |slice: &Slice| Some((slice.at_s, figure(slice)?));
            self.slices.iter().filter_map(point).collect()
        };
        let latency = |figure: fn(&Summary) -> f64| {
            line(&move |slice| Some(figure(slice.latency.as_ref()?) / 1e3))
        };
        let time = || Axis::new("time in s");
        let mib = |slice: &Slice| Some(slice.server_rss_bytes? as f64 / f64::from(1 << 20));
        [
            Plot::new("Delivery latency", time(), Axis::log("latency in ms"))
                .captioned(
                    "Of the deliveries that came in each slice of time; the axis is logarithmic.",
                )
                .series("p50", &latency(|summary| summary.p50_us))
                .series("p99", &latency(|summary| summary.p99_us))
                .series("p99.9", &latency(|summary| summary.p999_us))
                .series("max", &latency(|summary| summary.max_us)),
            Plot::new("CPU", time(), Axis::new("CPU in cores"))
                .captioned("The server with all its threads; of the generator the busiest thread.")
                .series("server", &line(&|slice| slice.server_cores))
                .series("generator", &line(&|slice| slice.generator_cores)),
            Plot::new("Server memory", time(), Axis::new("resident memory in MiB"))
                .series("resident", &line(&mib)),
            Plot::new("Deliveries", time(), Axis::new("deliveries in 1/s"))
                .series("received", &line(&|slice| Some(slice.received_per_s))),
        ]
    }
}
