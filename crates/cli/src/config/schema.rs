//! JSON Schema of configuration files, made from a table of keys.

use serde_json::{Value as Json, json};
use throng_config::{Key, Kind, Records, Table};

/// Returns the schema of the files of a program.
pub(super) fn of(table: &Table) -> Json {
    let mut root = object();
    root["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    root["title"] = json!(format!("throng {}", table.program));
    add_keys(&mut root, table.keys);
    root
}

/// Adds the keys to an object, each in the objects of its sections.
fn add_keys(root: &mut Json, keys: &[Key]) {
    for key in keys {
        let mut object = &mut *root;
        let (sections, name) = key.name.rsplit_once('.').unwrap_or(("", key.name));
        for section in sections.split('.').filter(|section| !section.is_empty()) {
            object = &mut object["properties"][section];
            if object.is_null() {
                *object = self::object();
            }
        }
        object["properties"][name] = property(key);
        if let Kind::Records(Records { alias: Some(alias), .. }) = key.kind {
            object["properties"][alias] = property(key);
        }
    }
}

fn object() -> Json {
    json!({ "type": "object", "additionalProperties": false, "properties": {} })
}

fn property(key: &Key) -> Json {
    let mut property = kind(&key.kind);
    property["description"] = json!(key.meaning());
    if !key.default.is_empty() {
        property["default"] = match key.kind {
            Kind::Switch => json!(key.default == "true"),
            Kind::Count { .. } => json!(key.default.parse::<u64>().ok()),
            _ => json!(key.default),
        };
    }
    property
}

fn kind(of: &Kind) -> Json {
    let text = || json!({ "type": "string" });
    match of {
        Kind::Switch => json!({ "type": "boolean" }),
        Kind::Count { min, max } => json!({
            "anyOf": [
                { "type": "integer", "minimum": min, "maximum": max },
                { "type": "string", "pattern": "^[0-9][0-9._]* ?[kKmM]?$" },
            ]
        }),
        Kind::Size { min, max } => json!({
            "anyOf": [
                { "type": "integer", "minimum": min, "maximum": max },
                { "type": "string", "pattern": "^[0-9][0-9._]* ?([kKmMgG][iI]?)?[bB]?$" },
            ]
        }),
        Kind::Duration { .. } => {
            json!({ "type": "string", "pattern": "^(0|[0-9][0-9._]* ?(us|µs|ms|s|m|min|h))$" })
        }
        Kind::Word(words) => json!({ "enum": words }),
        Kind::Tagged { words, tags } => {
            let pattern = format!("^({}|({}):.*)$", words.join("|"), tags.join("|"));
            let tag = |tag: &&str| {
                json!({
                    "type": "object",
                    "properties": { *tag: { "type": "string" } },
                    "required": [tag],
                    "additionalProperties": false,
                })
            };
            let mut any = vec![json!({ "type": "string", "pattern": pattern })];
            any.extend(tags.iter().map(tag));
            json!({ "anyOf": any })
        }
        Kind::Text(_) | Kind::Secret | Kind::Path => text(),
        Kind::Address | Kind::Host => json!({ "type": "string", "pattern": ":[0-9]+$" }),
        Kind::Peer => json!({ "type": "string", "pattern": "(:[0-9]+|^unix:/.+)$" }),
        Kind::Listener => json!({ "type": "string", "pattern": "(:[0-9]+|^systemd|^unix:.+)$" }),
        Kind::List(item) => {
            json!({ "anyOf": [{ "type": "array", "items": kind(item) }, { "type": "string" }] })
        }
        Kind::Or(word, inner) => json!({ "anyOf": [{ "const": word }, kind(inner)] }),
        Kind::Records(records) => {
            let mut item = object();
            add_keys(&mut item, records.fields);
            if let [first, ..] = records.fields
                && records.is_first_required
            {
                item["required"] = json!([first.name]);
            }
            match records.parse {
                None => json!({ "type": "array", "items": item }),
                Some(_) => {
                    let items = json!({ "anyOf": [text(), item] });
                    json!({ "anyOf": [{ "type": "array", "items": items }, text()] })
                }
            }
        }
        Kind::Map(item) => json!({ "type": "object", "additionalProperties": kind(item) }),
        Kind::Rate => json!({ "type": "string", "pattern": "^[0-9][0-9_]*[kKmM]? ?/ ?[smh]$" }),
    }
}
