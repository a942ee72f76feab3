//! The settings of a program as JSON, without secrets.

use serde_json::{Value as Json, json};
use throng_config::{Key, Table, Value, ValueEntry, Values};

/// Returns each setting with its value, default, origin and meaning.
pub(crate) fn as_json(values: &Values) -> Json {
    let setting = |(key, entry): (&Key, &ValueEntry)| {
        json!({
            "key": key.name,
            "value": value(entry),
            "default": key.default,
            "origin": entry.origin().to_string(),
            "help": key.meaning(),
        })
    };
    let settings: Vec<_> = values.iter().map(setting).collect();
    json!({ "program": program(values), "settings": settings })
}

fn program(values: &Values) -> &'static str {
    let Table { program, .. } = values.table();
    program
}

fn value(entry: &ValueEntry) -> Json {
    match entry.value() {
        _ if entry.is_secret() && entry.origin().is_set() => json!("(secret)"),
        Value::Unset if entry.text().is_empty() => Json::Null,
        Value::Switch(is_on) => json!(is_on),
        Value::Number(number) if entry.text() == number.to_string() => json!(number),
        Value::List(items) => items.iter().map(value).collect(),
        Value::Record(fields) => {
            fields.written().map(|(name, field)| (name.to_owned(), value(field))).collect()
        }
        // An empty text is a value here.
        Value::Map(pairs) => {
            let item = |item: &ValueEntry| match value(item) {
                Json::Null => json!(""),
                value => value,
            };
            pairs.iter().map(|(name, entry)| (name.clone(), item(entry))).collect()
        }
        _ => json!(entry.text()),
    }
}
