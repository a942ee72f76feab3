//! The schema of the admin API's answers, against which each answer in these tests is checked.
//!
//! A crate for JSON Schema would bring some forty others for this one use; this knows every word
//! in the schema.

use serde_json::{Map, Value};

use crate::support::Answer;

const SCHEMA: &str = include_str!("../../../src/balance/api.schema.json");

/// Checks the answer to a request, if the schema has it; it has all of version 1.
pub(super) fn check(method: &str, path: &str, answer: &Answer) {
    let schema: Value = serde_json::from_str(SCHEMA).unwrap();
    let is_json = answer.header("content-type").is_some_and(|it| it.contains("json"));
    let path = path.split('?').next().unwrap();
    let expected = match answer.status() {
        200 | 201 => answer_to(&schema, method, path),
        _ if is_json => Some(&schema["$defs"]["Error"]),
        _ => None,
    };
    let Some(expected) = expected else {
        assert!(answer.status() >= 400 || !path.starts_with("/v1/"), "{method} {path}");
        return;
    };
    let value: Value = serde_json::from_str(answer.text()).unwrap();
    if let Err(why) = fits(&schema, expected, &value) {
        panic!("{method} {path}: {why}\n{}", answer.text());
    }
}

fn answer_to<'s>(schema: &'s Value, method: &str, path: &str) -> Option<&'s Value> {
    let is_it = |name: &&String| {
        let (of, pattern) = name.split_once(' ').unwrap();
        let mut pairs = pattern.split('/').zip(path.split('/'));
        of == method
            && pattern.split('/').count() == path.split('/').count()
            && pairs.all(|(wanted, found)| wanted.starts_with('{') || wanted == found)
    };
    let answers = schema["answers"].as_object().unwrap();
    answers.keys().find(is_it).map(|name| &answers[name])
}

fn fits(root: &Value, schema: &Value, value: &Value) -> Result<(), String> {
    let rules = schema.as_object().unwrap();
    for (rule, wanted) in rules {
        match rule.as_str() {
            "$ref" => {
                let name = wanted.as_str().and_then(|it| it.strip_prefix("#/$defs/")).unwrap();
                fits(root, &root["$defs"][name], value)?;
            }
            "type" => {
                let kinds = wanted.as_array().map_or(std::slice::from_ref(wanted), Vec::as_slice);
                if !kinds.iter().any(|kind| is_of(value, kind.as_str().unwrap())) {
                    return Err(format!("{value} is not of the type {wanted}"));
                }
            }
            "enum" if !wanted.as_array().unwrap().contains(value) => {
                return Err(format!("{value} is not one of {wanted}"));
            }
            "items" => {
                for item in value.as_array().into_iter().flatten() {
                    fits(root, wanted, item)?;
                }
            }
            "required" if value.is_object() => {
                let names = wanted.as_array().unwrap().iter().map(|name| name.as_str().unwrap());
                if let Some(name) = { names }.find(|name| value.get(name).is_none()) {
                    return Err(format!("{name} is missing in {value}"));
                }
            }
            "properties" => {
                for (name, schema) in wanted.as_object().unwrap() {
                    if let Some(value) = value.get(name) {
                        fits(root, schema, value).map_err(|why| format!("{name}: {why}"))?;
                    }
                }
            }
            "additionalProperties" => {
                let known = rules["properties"].as_object().unwrap();
                let mut names = value.as_object().into_iter().flat_map(Map::keys);
                if let Some(name) = names.find(|name| !known.contains_key(*name)) {
                    return Err(format!("{name} is unknown in {value}"));
                }
            }
            "enum" | "required" => {}
            other => panic!("the checker does not know {other}"),
        }
    }
    Ok(())
}

fn is_of(value: &Value, kind: &str) -> bool {
    match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "number" => value.is_number(),
        "integer" => value.is_i64() || value.is_u64(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("the checker does not know the type {other}"),
    }
}
