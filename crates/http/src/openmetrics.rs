//! The text formats that Prometheus reads: its own, and OpenMetrics
//! ([version 1.0](https://prometheus.io/docs/specs/om/open_metrics_spec/)).

use std::collections::{HashMap, HashSet};
use std::fmt::{self, Write as _};
use std::ops::Add;
use std::sync::Arc;
use std::time::Duration;

use crate::request::Request;
use crate::response::Response;
use crate::status::Status;

/// A text format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// The format of Prometheus, version 0.0.4, which other programs also read.
    Prometheus,
    /// OpenMetrics 1.0.
    #[default]
    OpenMetrics,
}

impl Format {
    /// Returns the format for the answer to `request`: OpenMetrics if its Accept header has it.
    #[must_use]
    pub fn accepted(request: &Request<'_>) -> Self {
        let mut accepted = request.header_values("accept");
        match accepted.any(|value| value.contains("application/openmetrics-text")) {
            true => Self::OpenMetrics,
            false => Self::Prometheus,
        }
    }

    /// Returns the media type.
    #[must_use]
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Writes metrics as text.
///
/// Prometheus rejects a whole text with a mistake in one line. So the writer leaves out a metric
/// whose name is invalid or was already written, and a sample with an invalid label or the labels
/// of another sample. The gauge `PREFIX_metrics_left_out` counts them.
///
/// ```
/// # mod throng { pub use throng_http as metrics; }
/// use throng::metrics::openmetrics::{Type, Writer};
///
/// let mut metrics = Writer::new("shop");
/// let mut orders = metrics.metric("orders", "Orders taken", Type::Counter);
/// orders.sample(&[("country", "NL")], 7);
/// assert!(metrics.finish().contains("shop_orders_total{country=\"NL\"} 7\n"));
/// ```
#[derive(Debug)]
pub struct Writer {
    prefix: &'static str,
    format: Format,
    text: String,
    written: HashSet<String>,
    /// Receives the samples of metrics that are left out.
    discarded: String,
    left_out: u64,
    earlier: Option<Arc<Earlier>>,
    /// Samples that an earlier process has of the metric that is being written, and this one has
    /// not yet.
    waiting: Vec<(String, Value)>,
}

/// The counters and histograms of an earlier process, for a [`Writer`] to count on from them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Earlier {
    /// Names with labels and values of samples, in order, by the metric's name without the suffix
    /// of a counter.
    metrics: HashMap<String, Vec<(String, Value)>>,
}

impl Earlier {
    /// Reads a text that a [`Writer`] has written.
    #[must_use]
    pub fn read(text: &str) -> Self {
        let mut metrics = HashMap::<String, Vec<_>>::new();
        let mut metric = None;
        for line in text.lines() {
            if let Some(kind) = line.strip_prefix("# TYPE ") {
                let (name, kind) = kind.split_once(' ').unwrap_or_default();
                let name = name.strip_suffix("_total").unwrap_or(name);
                metric = (kind != Type::Gauge.name()).then(|| name.to_owned());
            } else if let (Some(metric), Some((sample, value))) = (&metric, line.rsplit_once(' '))
                && !line.starts_with('#')
                && let Some(value) = Value::read(value)
            {
                metrics.entry(metric.clone()).or_default().push((sample.to_owned(), value));
            }
        }
        Self { metrics }
    }
}

/// Type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Type {
    /// Goes up and down.
    Gauge,
    /// Only grows. Its samples have the suffix `_total`.
    Counter,
    /// Durations by buckets, for [`Samples::histogram`].
    Histogram,
}

impl Type {
    /// Returns the name of the type.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gauge => "gauge",
            Self::Counter => "counter",
            Self::Histogram => "histogram",
        }
    }
}

/// Value of a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Value {
    /// A number of things.
    Integer(u64),
    /// A measure, such as seconds.
    Float(f64),
}

impl From<u64> for Value {
    fn from(value: u64) -> Self {
        Self::Integer(value)
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Self::Float(value)
    }
}

impl Value {
    fn read(text: &str) -> Option<Self> {
        match text.parse() {
            Ok(value) => Some(Self::Integer(value)),
            Err(_) => text.parse().ok().filter(|value: &f64| value.is_finite()).map(Self::Float),
        }
    }

    const fn as_f64(self) -> f64 {
        match self {
            Self::Integer(value) => value as f64,
            Self::Float(value) => value,
        }
    }
}

impl Add for Value {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        match (self, other) {
            (Self::Integer(one), Self::Integer(other)) => Self::Integer(one.saturating_add(other)),
            _ => Self::Float(self.as_f64() + other.as_f64()),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer(value) => write!(f, "{value}"),
            // An empty sum is -0.0, which adding 0.0 turns into 0.0.
            Self::Float(value) => write!(f, "{:?}", value + 0.0),
        }
    }
}

/// The samples of a metric.
#[derive(Debug)]
pub struct Samples<'w> {
    name: String,
    text: &'w mut String,
    written: HashSet<String>,
    left_out: &'w mut u64,
    waiting: &'w mut Vec<(String, Value)>,
}

impl Writer {
    /// Creates a writer of metrics whose names begin with `prefix` and an underscore.
    #[must_use]
    pub fn new(prefix: &'static str) -> Self {
        Self {
            prefix,
            format: Format::OpenMetrics,
            text: String::new(),
            written: HashSet::new(),
            discarded: String::new(),
            left_out: 0,
            earlier: None,
            waiting: Vec::new(),
        }
    }

    /// Sets the format. Default: OpenMetrics.
    #[must_use]
    pub fn format(mut self, format: Format) -> Self {
        self.format = format;
        self
    }

    /// Sets the prefix of the metrics that follow.
    pub fn set_prefix(&mut self, prefix: &'static str) {
        self.prefix = prefix;
    }

    /// Adds the values of an earlier process to the counters and histograms that follow, so that
    /// they never fall from one process to the next; `None`: they are this process's own, or the
    /// machine's. Returns what was set before.
    pub fn count_on(&mut self, earlier: Option<Arc<Earlier>>) -> Option<Arc<Earlier>> {
        std::mem::replace(&mut self.earlier, earlier)
    }

    /// Ends a metric with the samples that only an earlier process has.
    fn end_metric(&mut self) {
        for (sample, value) in self.waiting.drain(..) {
            let _ = writeln!(self.text, "{sample} {value}");
        }
    }

    /// Begins a metric. `help` is a phrase without a period. The name consists of letters, digits
    /// and `_`. Write each metric once.
    pub fn metric(&mut self, name: &str, help: &str, kind: Type) -> Samples<'_> {
        self.end_metric();
        let (word, suffix) = (kind.name(), if kind == Type::Counter { "_total" } else { "" });
        let family = format!("{}_{name}", self.prefix);
        let sample = format!("{family}{suffix}");
        let (written, left_out) = (HashSet::new(), &mut self.left_out);
        let is_valid = !name.is_empty() && is_name(&family);
        if !is_valid || !self.written.insert(family.clone()) {
            *left_out += 1;
            self.discarded.clear();
            let (text, waiting) = (&mut self.discarded, &mut self.waiting);
            return Samples { name: sample, text, written, left_out, waiting };
        }
        if let Some(samples) = self.earlier.as_ref().and_then(|it| it.metrics.get(&family))
            && kind != Type::Gauge
        {
            self.waiting.clone_from(samples);
        }
        // In OpenMetrics, the suffix is not part of a counter's name.
        let name = if self.format == Format::OpenMetrics { &family } else { &sample };
        // A `String` takes everything.
        let _ = writeln!(self.text, "# HELP {name} {}.\n# TYPE {name} {word}", Escaped(help));
        let (text, waiting) = (&mut self.text, &mut self.waiting);
        Samples { name: sample, text, written, left_out, waiting }
    }

    /// Returns the text.
    #[must_use]
    pub fn finish(mut self) -> String {
        if self.left_out > 0 {
            let help = "Metrics and samples that are left out here, since a name is wrong, or was \
                        written twice";
            let left_out = self.left_out;
            self.metric("metrics_left_out", help, Type::Gauge).sample(&[], left_out);
        }
        self.end_metric();
        if self.format == Format::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }

    /// Returns the text as a response.
    pub fn into_response(self) -> Response {
        let content_type = self.format.content_type();
        Response::new(Status::OK).with_body(content_type, self.finish())
    }
}

impl Samples<'_> {
    /// Writes a sample. Each sample needs different labels; a label's name consists of letters,
    /// digits and `_`.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: impl Into<Value>) {
        self.write("", labels, value.into());
    }

    /// Writes a histogram with these labels: for each bound the number of durations up to it, then
    /// the total number and the sum.
    pub fn histogram(
        &mut self,
        labels: &[(&str, &str)],
        buckets: impl IntoIterator<Item = (Duration, u64)>,
        count: u64,
        sum: Duration,
    ) {
        let mut bucket = |bound: &str, count: u64| {
            self.write("_bucket", &[labels, &[("le", bound)]].concat(), count.into());
        };
        for (bound, count) in buckets {
            bucket(&bound.as_secs_f64().to_string(), count);
        }
        bucket("+Inf", count);
        self.write("_sum", labels, sum.as_secs_f64().into());
        self.write("_count", labels, count.into());
    }

    fn write(&mut self, suffix: &str, labels: &[(&str, &str)], value: Value) {
        let mut sample = format!("{}{suffix}", self.name);
        for (index, (name, value)) in labels.iter().enumerate() {
            let before = if index == 0 { '{' } else { ',' };
            let _ = write!(sample, "{before}{name}=\"{}\"", Escaped(value));
        }
        sample.push_str(if labels.is_empty() { "" } else { "}" });
        let is_label = |(index, (name, _)): (usize, &(&str, &str))| {
            is_name(name) && labels[..index].iter().all(|(other, _)| other != name)
        };
        if !labels.iter().enumerate().all(is_label) || self.written.contains(&sample) {
            *self.left_out += 1;
            return;
        }
        let earlier = self.waiting.iter().position(|(other, _)| *other == sample);
        let value = earlier.map_or(value, |at| self.waiting.remove(at).1 + value);
        let _ = writeln!(self.text, "{sample} {value}");
        self.written.insert(sample);
    }
}

/// Returns whether this is a valid name of a metric or label.
fn is_name(name: &str) -> bool {
    let is_letter = |c: char| c.is_ascii_alphabetic() || c == '_';
    name.starts_with(is_letter) && name.chars().all(|c| is_letter(c) || c.is_ascii_digit())
}

/// A metric, as [`families`] finds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Family {
    /// The name, in the format of Prometheus with the suffix of a counter.
    pub name: String,
    /// The meaning, as a sentence.
    pub help: String,
    /// The type.
    pub kind: Type,
}

/// Returns the metrics of a text that a [`Writer`] has written.
#[must_use]
pub fn families(text: &str) -> Vec<Family> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("# "));
    let mut families = Vec::new();
    while let (Some(help), Some(kind)) = (lines.next(), lines.next()) {
        let help = help.strip_prefix("HELP ").and_then(|help| help.split_once(' '));
        let word = kind.rsplit(' ').next().unwrap_or_default();
        let kinds = [Type::Gauge, Type::Counter, Type::Histogram];
        if let (Some((name, help)), Some(kind)) =
            (help, kinds.into_iter().find(|kind| kind.name() == word))
        {
            families.push(Family { name: name.to_owned(), help: help.to_owned(), kind });
        }
    }
    families
}

/// A text in which a quote, a backslash and the end of a line are escaped.
struct Escaped<'t>(&'t str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '"' => f.write_str("\\\"")?,
                '\\' => f.write_str("\\\\")?,
                '\n' => f.write_str("\\n")?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_prometheus_would_refuse_are_left_out_and_counted() {
        let mut writer = Writer::new("app");
        for name in ["a b", "a-b", "ä", ""] {
            writer.metric(name, "Not a name", Type::Gauge).sample(&[], 1);
        }
        let mut metric = writer.metric("a", "A", Type::Counter);
        for labels in [
            &[("l a", "x")][..],
            &[("1", "x")],
            &[("l", "x"), ("l", "y")],
            &[("l", "x")],
            &[("l", "x")],
            &[("l", "y")],
        ] {
            metric.sample(labels, 1);
        }
        writer.metric("a", "Again", Type::Gauge).sample(&[], 2);
        let text = writer.finish();
        let expected = "# HELP app_a A.\n# TYPE app_a counter\n\
                        app_a_total{l=\"x\"} 1\napp_a_total{l=\"y\"} 1\n\
                        # HELP app_metrics_left_out ";
        assert!(text.starts_with(expected), "{text}");
        assert!(text.ends_with("\napp_metrics_left_out 9\n# EOF\n"), "{text}");
    }

    #[test]
    fn metrics_are_written_with_escaped_labels() {
        let mut writer = Writer::new("p");
        let mut metric = writer.metric("a", "Help", Type::Counter);
        metric.sample(&[("x", "say \"hi\" \\ now\nplease"), ("y", "1")], 3);
        metric.sample(&[], 1.5);
        let empty: [f64; 0] = [];
        writer.metric("b", "Zero", Type::Gauge).sample(&[], empty.iter().sum::<f64>());
        let text = "# HELP p_a Help.\n# TYPE p_a counter\n\
                    p_a_total{x=\"say \\\"hi\\\" \\\\ now\\nplease\",y=\"1\"} 3\n\
                    p_a_total 1.5\n\
                    # HELP p_b Zero.\n# TYPE p_b gauge\np_b 0.0\n# EOF\n";
        assert_eq!(writer.finish(), text);
    }

    #[test]
    fn a_histogram_has_buckets_a_sum_and_a_count() {
        let mut writer = Writer::new("p");
        writer.set_prefix("q");
        let buckets = [(Duration::from_millis(1), 2), (Duration::from_secs(2), 3)];
        let mut metric = writer.metric("wait_seconds", "Waits", Type::Histogram);
        metric.histogram(&[], buckets, 4, Duration::from_millis(7500));
        let text = "# HELP q_wait_seconds Waits.\n# TYPE q_wait_seconds histogram\n\
                    q_wait_seconds_bucket{le=\"0.001\"} 2\n\
                    q_wait_seconds_bucket{le=\"2\"} 3\n\
                    q_wait_seconds_bucket{le=\"+Inf\"} 4\n\
                    q_wait_seconds_sum 7.5\nq_wait_seconds_count 4\n# EOF\n";
        assert_eq!(writer.finish(), text);
    }

    #[test]
    fn a_writer_counts_on_from_what_an_earlier_process_has_written() {
        fn text(format: Format, earlier: Option<&str>, factor: u64) -> String {
            let earlier = earlier.map(|text| Arc::new(Earlier::read(text)));
            let mut writer = Writer::new("p").format(format);
            writer.count_on(earlier);
            let mut requests = writer.metric("requests", "Requests", Type::Counter);
            for shard in 0..3 - factor {
                requests.sample(&[("shard", &shard.to_string())], 10 * factor);
            }
            let seconds = 0.5 * factor as f64;
            writer.metric("busy_seconds", "Busy", Type::Counter).sample(&[], seconds);
            writer.metric("open", "Open now", Type::Gauge).sample(&[], factor);
            let buckets = [(Duration::from_secs(1), factor)];
            let mut waits = writer.metric("waits", "Waits", Type::Histogram);
            waits.histogram(&[], buckets, 2 * factor, Duration::from_secs(factor));
            let earlier = writer.count_on(None);
            writer.metric("cpu", "Of the process", Type::Counter).sample(&[], factor);
            writer.count_on(earlier);
            writer.metric("new", "New", Type::Counter).sample(&[], factor);
            writer.finish()
        }
        let samples = |text: &str| -> Vec<String> {
            text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
        };
        for format in [Format::Prometheus, Format::OpenMetrics] {
            let first = text(format, None, 1);
            let second = text(format, Some(&first), 2);
            let expected = [
                "p_requests_total{shard=\"0\"} 30",
                // This process has fewer shards.
                "p_requests_total{shard=\"1\"} 10",
                "p_busy_seconds_total 1.5",
                "p_open 2",
                "p_waits_bucket{le=\"1\"} 3",
                "p_waits_bucket{le=\"+Inf\"} 6",
                "p_waits_sum 3.0",
                "p_waits_count 6",
                "p_cpu_total 2",
                "p_new_total 3",
            ];
            assert_eq!(samples(&second), expected);
            // One more process counts on from both.
            let third = samples(&text(format, Some(&second), 1));
            assert_eq!(third[0], "p_requests_total{shard=\"0\"} 40");
            assert_eq!(third[2], "p_busy_seconds_total 2.0");
        }
        let nothing = Earlier::read("# TYPE a counter\na_total x\na_total\n# TYPE\n\na 1 NaN\n");
        assert_eq!(nothing, Earlier::default());
    }

    #[test]
    fn families_are_found_in_a_text() {
        let mut writer = Writer::new("p").format(Format::Prometheus);
        writer.metric("a", "Things", Type::Counter).sample(&[], 3);
        let _ = writer.metric("b", "Waits", Type::Histogram);
        let family = |name: &str, help: &str, kind| Family {
            name: name.to_owned(),
            help: help.to_owned(),
            kind,
        };
        let expected = [
            family("p_a_total", "Things.", Type::Counter),
            family("p_b", "Waits.", Type::Histogram),
        ];
        assert_eq!(families(&writer.finish()), expected);
    }

    #[test]
    fn in_the_format_of_prometheus_a_counter_has_its_suffix_in_its_name() {
        let mut writer = Writer::new("p").format(Format::Prometheus);
        writer.metric("a", "Help", Type::Counter).sample(&[], 3);
        let text = "# HELP p_a_total Help.\n# TYPE p_a_total counter\np_a_total 3\n";
        assert_eq!(writer.finish(), text);
    }
}
