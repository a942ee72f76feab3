//! Lines of the log: records as text, JSON or for the journal.

use std::fmt::Write;
use std::time::SystemTime;
use throng_io::PeerAddress;

use throng_config::LogLevel;
use throng_proto::escape::Escaped;

use super::events::LogEvent;

/// An event that happened.
#[derive(Debug)]
pub(crate) struct Record {
    pub(super) event: &'static LogEvent,
    pub(super) at: SystemTime,
    /// The message for people; may be empty.
    pub(super) message: String,
    pub(super) fields: Vec<(&'static str, Value)>,
}

/// The value of a field.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Text(String),
    Number(u64),
    /// In seconds.
    Seconds(f64),
    /// The field is left out.
    None,
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl From<u32> for Value {
    fn from(number: u32) -> Self {
        Self::Number(number.into())
    }
}

impl From<u16> for Value {
    fn from(number: u16) -> Self {
        Self::Number(number.into())
    }
}

impl From<usize> for Value {
    fn from(number: usize) -> Self {
        Self::Number(number as u64)
    }
}

impl From<std::time::Duration> for Value {
    fn from(duration: std::time::Duration) -> Self {
        Self::Seconds(duration.as_secs_f64())
    }
}

impl From<std::net::SocketAddr> for Value {
    fn from(address: std::net::SocketAddr) -> Self {
        Self::Text(address.to_string())
    }
}

impl From<PeerAddress> for Value {
    fn from(address: PeerAddress) -> Self {
        Self::Text(address.to_string())
    }
}

impl From<std::net::IpAddr> for Value {
    fn from(address: std::net::IpAddr) -> Self {
        Self::Text(address.to_string())
    }
}

impl<T: Into<Self>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::None, Into::into)
    }
}

/// The form of lines, with everything determined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// For people; clears the status line first, if there may be one.
    Text {
        replaces_line: bool,
    },
    Json,
    Journald,
}

/// Appends the line of a record.
pub(super) fn render(record: &Record, form: Form, line: &mut String) {
    match form {
        Form::Json => json(record, line),
        Form::Text { replaces_line } => {
            if replaces_line {
                line.push_str("\r\x1b[2K");
            }
            let time = humantime::format_rfc3339_millis(record.at);
            let level = record.event.level.word().to_ascii_uppercase();
            let _ = write!(line, "{time} {level:<5} ");
            text(record, line);
        }
        Form::Journald => {
            let _ = write!(line, "<{}>", priority(record.event.level));
            text(record, line);
        }
    }
    line.push('\n');
}

/// The priority of syslog(3).
fn priority(level: LogLevel) -> u8 {
    match level {
        LogLevel::Error => 3,
        LogLevel::Warn => 4,
        LogLevel::Info => 6,
        LogLevel::Debug => 7,
    }
}

fn text(record: &Record, line: &mut String) {
    line.push_str(record.event.name);
    if !record.message.is_empty() {
        line.push_str(": ");
        let _ = write!(line, "{}", Escaped(&record.message));
    }
    for (name, value) in &record.fields {
        match value {
            Value::None => {}
            Value::Text(text) if is_plain(text) => {
                let _ = write!(line, " {name}={text}");
            }
            Value::Text(text) => {
                let _ = write!(line, " {name}=");
                quote(text, line);
            }
            Value::Number(number) => {
                let _ = write!(line, " {name}={number}");
            }
            Value::Seconds(seconds) => {
                let _ = write!(line, " {name}={seconds:.6}");
            }
        }
    }
}

fn json(record: &Record, line: &mut String) {
    let time = humantime::format_rfc3339_micros(record.at);
    let (level, name) = (record.event.level.word(), record.event.name);
    let _ = write!(line, r#"{{"time":"{time}","level":"{level}","event":"{name}""#);
    if !record.message.is_empty() {
        line.push_str(r#","message":"#);
        quote(&record.message, line);
    }
    for (name, value) in &record.fields {
        match value {
            Value::None => {}
            Value::Text(text) => {
                let _ = write!(line, r#","{name}":"#);
                quote(text, line);
            }
            Value::Number(number) => {
                let _ = write!(line, r#","{name}":{number}"#);
            }
            Value::Seconds(seconds) => {
                let _ = write!(line, r#","{name}":{seconds:.6}"#);
            }
        }
    }
    line.push('}');
}

/// Returns whether a value needs no quotes in text.
fn is_plain(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"\"\\=".contains(&byte);
    !text.is_empty() && text.bytes().all(is_plain)
}

/// Appends a JSON string.
fn quote(text: &str, line: &mut String) {
    line.push('"');
    for piece in text.split_inclusive(['"', '\\']) {
        let (plain, special) = match piece.as_bytes().last() {
            Some(b'"' | b'\\') => piece.split_at(piece.len() - 1),
            _ => (piece, ""),
        };
        let _ = write!(line, "{}", Escaped(plain));
        if !special.is_empty() {
            line.push('\\');
            line.push_str(special);
        }
    }
    line.push('"');
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use proptest::prelude::*;
    use throng_proto::escape::is_special;

    use super::super::events;
    use super::*;

    fn record(message: &str, path: &str) -> Record {
        Record {
            event: &events::REQUEST_FAILED,
            at: UNIX_EPOCH + Duration::from_micros(1_700_000_000_123_456),
            message: message.to_owned(),
            fields: vec![
                ("client", "127.0.0.1".into()),
                ("path", path.into()),
                ("status", 502u16.into()),
                ("backend", Value::None),
                ("duration", Duration::from_micros(1500).into()),
                ("reason", "the backend refused".into()),
            ],
        }
    }

    fn line(record: &Record, form: Form) -> String {
        let mut line = String::new();
        render(record, form, &mut line);
        line
    }

    #[test]
    fn a_record_has_the_same_fields_in_every_form() {
        let record = record("", "/a");
        let fields = "client=127.0.0.1 path=/a status=502 duration=0.001500 \
                      reason=\"the backend refused\"\n";
        assert_eq!(
            line(&record, Form::Text { replaces_line: false }),
            format!("2023-11-14T22:13:20.123Z WARN  request.failed {fields}")
        );
        assert!(line(&record, Form::Text { replaces_line: true }).starts_with("\r\x1b[2K2023"));
        assert_eq!(line(&record, Form::Journald), format!("<4>request.failed {fields}"));
        assert_eq!(
            line(&record, Form::Json),
            "{\"time\":\"2023-11-14T22:13:20.123456Z\",\"level\":\"warn\",\
             \"event\":\"request.failed\",\"client\":\"127.0.0.1\",\"path\":\"/a\",\"status\":502,\
             \"duration\":0.001500,\"reason\":\"the backend refused\"}\n"
        );
    }

    proptest! {
        #[test]
        fn no_value_ends_its_line_or_leaves_its_field(
            message in any::<String>(),
            path in any::<String>(),
        ) {
            let record = record(&message, &path);
            let forms = [Form::Json, Form::Journald, Form::Text { replaces_line: false }];
            for form in forms {
                let line = line(&record, form);
                let text = line.strip_suffix('\n').unwrap();
                prop_assert!(!text.chars().any(is_special), "{text:?}");
            }
            let json: serde_json::Value = serde_json::from_str(&line(&record, Form::Json)).unwrap();
            prop_assert_eq!(json["path"].as_str().unwrap(), &path);
            prop_assert_eq!(json["message"].as_str().unwrap_or_default(), &message);
            prop_assert_eq!(json["status"].as_u64(), Some(502));
        }
    }
}
