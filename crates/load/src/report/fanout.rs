//! What the fan-out mode measured: its rows, its CSV, its page.

use std::fmt;

use serde::Serialize;

use super::table::{LABEL, times};
use super::{Measured, Report, csv};
use crate::page::{Axis, Page, Plot};
use crate::record::Summary;
use crate::units::{grouped, rounded, show_bytes, show_duration, show_ns};

/// Messages to many channels, by a schedule.
#[derive(Clone, Debug, Serialize)]
pub struct FanoutReport {
    /// Time measured.
    pub measured_s: f64,
    /// Channels, each with a publisher of its own.
    pub channels: u64,
    /// Subscribers of each.
    pub subscribers_per_channel: u64,
    /// Messages planned within the measured time, all of which left.
    pub published: u64,
    /// The same, by the second.
    pub published_per_s: f64,
    /// Deliveries expected of them: one for each subscriber of the channel.
    pub expected: u64,
    /// Those that came, however late.
    pub received: u64,
    /// Those that came within the measured time, by the second.
    pub received_per_s: f64,
    /// Those that never came.
    pub lost: u64,
    /// Subscribers that lost any.
    pub subscribers_with_loss: u64,
    /// The most that one of them lost.
    pub most_lost_by_one_subscriber: u64,
    /// Deliveries of a message that had come before, at any time.
    pub duplicates: u64,
    /// Deliveries that came after a later message, at any time.
    pub reordered: u64,
    /// From the planned time of a publish to each subscriber.
    pub latency: Option<Summary>,
    /// How late messages left, whatever the reason.
    pub lateness: Option<Summary>,
    /// Server CPU time (all threads) by delivery.
    pub server_cpu_us_per_delivery: Option<f64>,
    /// The measured time, slice by slice.
    pub slices: Vec<Slice>,
}

/// A short while within the measured time.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Slice {
    /// Its end, since the measured time began.
    pub at_s: f64,
    /// Deliveries by the second.
    pub received_per_s: f64,
    /// Of the deliveries that came in it.
    pub latency: Option<Summary>,
    /// Server CPU; 1 is one core kept busy.
    pub server_cores: Option<f64>,
    /// The server's resident memory at its end.
    pub server_rss_bytes: Option<u64>,
    /// CPU of this generator's busiest thread.
    pub generator_cores: Option<f64>,
}

impl FanoutReport {
    pub(super) fn rows(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:LABEL$}{} a second to {} channels, {} in {}",
            "published",
            rounded(self.published_per_s),
            grouped(self.channels),
            grouped(self.published),
            show_ns((self.measured_s * 1e9) as u64),
        )?;
        write!(f, "{:LABEL$}{} a second", "delivered", rounded(self.received_per_s))?;
        if let Some(each) = self.server_cpu_us_per_delivery {
            write!(f, ", {} of server CPU each", show_ns((each * 1e3) as u64))?;
        }
        writeln!(f)?;
        writeln!(
            f,
            "{:LABEL$}{} of {} expected deliveries never came ({} subscribers, at most {} each); {} came twice, {} \
             out of order",
            "drops",
            grouped(self.lost),
            grouped(self.expected),
            grouped(self.subscribers_with_loss),
            grouped(self.most_lost_by_one_subscriber),
            grouped(self.duplicates),
            grouped(self.reordered),
        )?;
        times(f, &[("latency", self.latency), ("lateness", self.lateness)])?;
        writeln!(
            f,
            "{:LABEL$}latency counts from the planned time of the publish to each subscriber",
            ""
        )
    }
}

impl Report {
    /// The slices of a fan-out run as CSV, or the one row of an echo, after a line of names; empty for other modes.
    #[must_use]
    pub fn to_csv(&self) -> String {
        let fanout = match &self.result {
            Measured::Fanout(fanout) => fanout,
            Measured::Echo(echo) => return self.echo_csv(echo),
            _ => return String::new(),
        };
        let head = [
            "at_s",
            "received_per_s",
            "p50_us",
            "p99_us",
            "p999_us",
            "max_us",
            "server_cores",
            "server_rss_bytes",
            "generator_cores",
        ];
        let rows = fanout.slices.iter().map(|slice| {
            let of = |figure: fn(&Summary) -> f64| csv::number(slice.latency.as_ref().map(figure));
            vec![
                csv::number(Some(slice.at_s)),
                csv::number(Some(slice.received_per_s)),
                of(|latency| latency.p50_us),
                of(|latency| latency.p99_us),
                of(|latency| latency.p999_us),
                of(|latency| latency.max_us),
                csv::number(slice.server_cores),
                slice.server_rss_bytes.map_or_else(String::new, |bytes| bytes.to_string()),
                csv::number(slice.generator_cores),
            ]
        });
        csv::document(&head, rows)
    }

    /// The page of a fan-out run: latency, rate, CPU and memory over time; of an echo its figures; of others the
    /// verdict.
    #[must_use]
    pub fn to_html(&self) -> String {
        let Measured::Fanout(fanout) = &self.result else {
            return match &self.result {
                Measured::Echo(echo) => self.echo_html(echo),
                _ => Page::new(self.plan.mode).text(&self.verdict.line).to_html(),
            };
        };
        let line = |figure: &dyn Fn(&Slice) -> Option<f64>| -> Vec<(f64, f64)> {
            let point = |slice: &Slice| Some((slice.at_s, figure(slice)?));
            fanout.slices.iter().filter_map(point).collect()
        };
        let latency = |figure: fn(&Summary) -> f64| {
            line(&move |slice| Some(figure(slice.latency.as_ref()?) / 1e3))
        };
        let time = || Axis::new("time in s");
        let title = format!(
            "{} messages a second to {} channels of {} subscribers",
            rounded(self.plan.rate_per_s.unwrap_or(fanout.published_per_s)),
            grouped(fanout.channels),
            grouped(fanout.subscribers_per_channel)
        );
        let us = |us: f64| show_ns((us * 1e3).round() as u64);
        let mut figures = vec![
            vec!["published a second".to_owned(), rounded(fanout.published_per_s)],
            vec!["delivered a second".to_owned(), rounded(fanout.received_per_s)],
            vec!["deliveries expected".to_owned(), grouped(fanout.expected)],
            vec!["never came".to_owned(), grouped(fanout.lost)],
            vec!["came twice".to_owned(), grouped(fanout.duplicates)],
            vec!["out of order".to_owned(), grouped(fanout.reordered)],
        ];
        if let Some(latency) = fanout.latency {
            for (name, value) in [
                ("latency p50", latency.p50_us),
                ("latency p99", latency.p99_us),
                ("latency p99.9", latency.p999_us),
                ("latency max", latency.max_us),
            ] {
                figures.push(vec![name.to_owned(), us(value)]);
            }
        }
        if let Some(memory) = self.server.as_ref().and_then(|server| server.memory) {
            figures.push(vec!["server memory".to_owned(), show_bytes(memory.rss_bytes as i64)]);
        }
        let measured = show_duration(std::time::Duration::from_secs_f64(fanout.measured_s));
        Page::new(&title)
            .text(&format!(
                "{}, messages of {}, {measured} measured; an open loop: latency counts from the planned time of \
                 each publish to each subscriber",
                self.plan.url,
                show_bytes(self.plan.size_bytes as i64),
            ))
            .notice(&format!("Verdict: {}", self.verdict.line))
            .plot(
                &Plot::new("Delivery latency", time(), Axis::log("latency in ms"))
                    .captioned("Of the deliveries that came in each slice of time; the axis is logarithmic.")
                    .series("p50", &latency(|summary| summary.p50_us))
                    .series("p99", &latency(|summary| summary.p99_us))
                    .series("p99.9", &latency(|summary| summary.p999_us))
                    .series("max", &latency(|summary| summary.max_us)),
            )
            .plot(
                &Plot::new("CPU", time(), Axis::new("CPU in cores"))
                    .captioned("The server with all its threads; of the generator the busiest thread.")
                    .series("server", &line(&|slice| slice.server_cores))
                    .series("generator", &line(&|slice| slice.generator_cores)),
            )
            .plot(
                &Plot::new("Server memory", time(), Axis::new("resident memory in MiB"))
                    .series("resident", &line(&|slice| Some(slice.server_rss_bytes? as f64 / f64::from(1 << 20)))),
            )
            .plot(
                &Plot::new("Deliveries", time(), Axis::new("deliveries in 1/s"))
                    .series("received", &line(&|slice| Some(slice.received_per_s))),
            )
            .heading("Figures")
            .table(&["figure", "value"], &figures)
            .to_html()
    }
}
