//! The OpenMetrics text format, which Prometheus reads
//! ([version 1.0](https://prometheus.io/docs/specs/om/open_metrics_spec/)).

use std::fmt::{self, Write as _};

/// The media type of the text.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Writes metrics as text.
///
/// ```
/// use throng_http::openmetrics::{Type, Writer};
///
/// let mut metrics = Writer::new("shop");
/// let mut orders = metrics.metric("orders", "Orders taken", Type::Counter);
/// orders.sample(&[("country", "NL")], 7);
/// assert!(metrics.finish().contains("shop_orders_total{country=\"NL\"} 7\n"));
/// ```
#[derive(Debug)]
pub struct Writer {
    prefix: &'static str,
    text: String,
}

/// Type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Type {
    /// Goes up and down.
    Gauge,
    /// Only grows. Its samples have the suffix `_total`.
    Counter,
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
}

impl Writer {
    /// Creates a writer of metrics whose names begin with `prefix` and an underscore.
    #[must_use]
    pub const fn new(prefix: &'static str) -> Self {
        Self { prefix, text: String::new() }
    }

    /// Begins a metric; `help` is a phrase without a period. Write each metric once.
    pub fn metric(&mut self, name: &str, help: &str, kind: Type) -> Samples<'_> {
        let (word, suffix) = match kind {
            Type::Gauge => ("gauge", ""),
            Type::Counter => ("counter", "_total"),
        };
        let name = format!("{}_{name}", self.prefix);
        // A `String` takes everything.
        let _ = writeln!(self.text, "# HELP {name} {}.\n# TYPE {name} {word}", Escaped(help));
        Samples { name: name + suffix, text: &mut self.text }
    }

    /// Returns the text.
    #[must_use]
    pub fn finish(mut self) -> String {
        self.text.push_str("# EOF\n");
        self.text
    }
}

impl Samples<'_> {
    /// Writes a sample. The labels of each are different.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: impl Into<Value>) {
        self.text.push_str(&self.name);
        for (index, (name, value)) in labels.iter().enumerate() {
            let before = if index == 0 { '{' } else { ',' };
            let _ = write!(self.text, "{before}{name}=\"{}\"", Escaped(value));
        }
        let after = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.text, "{after} {}", value.into());
    }
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
}
