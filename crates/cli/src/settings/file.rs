//! Settings in TOML: `[heartbeat] interval = "25s"` is `heartbeat.interval`.

use toml::de::{DeTable, DeValue};

use super::SETTINGS;

/// A value as it was written, and where.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) key: String,
    pub(super) value: String,
    pub(super) line: usize,
}

/// All values of the file `name` with the content `text`.
pub(super) fn read(name: &str, text: &str) -> Result<Vec<Found>, String> {
    let document = DeTable::parse(text).map_err(|error| {
        let line = error.span().map_or(1, |span| line_at(text, span.start));
        format!("{name}:{line}: {}", error.message().replace('\n', "; "))
    })?;
    let mut found = Vec::new();
    flatten(name, text, "", document.get_ref(), &mut found)?;
    Ok(found)
}

fn line_at(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1
}

fn flatten(
    name: &str,
    text: &str,
    prefix: &str,
    table: &DeTable<'_>,
    found: &mut Vec<Found>,
) -> Result<(), String> {
    for (key, value) in table {
        let key_name = match prefix {
            "" => key.get_ref().to_string(),
            _ => format!("{prefix}.{}", key.get_ref()),
        };
        let line = line_at(text, key.span().start);
        let wrong = |what: &str, default: &str| {
            Err(format!(
                "{key_name} is {what} ({name}:{line}): write one value, for example {key_name} = {default:?}"
            ))
        };
        let setting = SETTINGS.iter().find(|setting| setting.key == key_name);
        let value = match (value.get_ref(), setting) {
            (DeValue::Table(_), Some(setting)) => return wrong("a table", setting.default),
            (DeValue::Table(inner), None) if is_section(&key_name) => {
                flatten(name, text, &key_name, inner, found)?;
                continue;
            }
            // Not known, which whoever takes the values will say.
            (_, None) => String::new(),
            (DeValue::Array(items), Some(setting)) if setting.key == "allowed_origins" => {
                let mut list = Vec::new();
                for item in items.iter() {
                    let DeValue::String(origin) = item.get_ref() else {
                        return Err(format!(
                            "allowed_origins has {} ({name}:{line}): write texts, for example \
                             [\"https://example.com\"]",
                            written(text, item.span())
                        ));
                    };
                    list.push(origin.to_string());
                }
                list.join(",")
            }
            (DeValue::Array(_), Some(setting)) => {
                return wrong(
                    &format!("the array {}", written(text, value.span())),
                    setting.default,
                );
            }
            (value, Some(_)) => plain(value),
        };
        found.push(Found { key: key_name, value, line });
    }
    Ok(())
}

/// `heartbeat` of `heartbeat.interval`.
fn is_section(name: &str) -> bool {
    SETTINGS
        .iter()
        .any(|setting| setting.key.strip_prefix(name).is_some_and(|rest| rest.starts_with('.')))
}

/// A value as the file has it, on one line.
fn written(text: &str, span: std::ops::Range<usize>) -> String {
    let words: Vec<&str> = text.get(span).unwrap_or_default().split_whitespace().collect();
    words.join(" ").chars().take(60).collect()
}

fn plain(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => text.to_string(),
        // `as_str` has no 0x, 0o or 0b in front.
        DeValue::Integer(number) => i128::from_str_radix(number.as_str(), number.radix())
            .map_or_else(|_| number.to_string(), |number| number.to_string()),
        DeValue::Float(number) => number.as_str().to_owned(),
        DeValue::Boolean(value) => value.to_string(),
        DeValue::Datetime(value) => value.to_string(),
        DeValue::Array(_) | DeValue::Table(_) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> String {
        read("t.toml", text).unwrap().pop().unwrap().value
    }

    #[test]
    fn integers_of_any_radix_are_read_as_numbers() {
        for (text, number) in [
            ("0x10", "16"),
            ("0o7_7", "63"),
            ("0b11", "3"),
            ("1_000", "1000"),
            ("+5", "5"),
            ("-5", "-5"),
            ("0xFFFF_FFFF_FFFF_FFFF", "18446744073709551615"),
        ] {
            assert_eq!(value(&format!("shards = {text}")), number);
        }
    }

    #[test]
    fn only_origins_may_be_a_list() {
        assert_eq!(value("allowed_origins = [\"https://a\", \"b\"]"), "https://a,b");
        assert_eq!(value("allowed_origins = []"), "");
        for (text, parts) in [
            (
                "\nshards = [1,\n 2]",
                &["shards is the array [1, 2]", "t.toml:2", "shards = \"0\""][..],
            ),
            ("[[shards]]\nx = 1", &["shards is the array", "shards = \"0\""]),
            ("allowed_origins = [\"a\", 1]", &["allowed_origins has 1", "https://"]),
        ] {
            let message = read("t.toml", text).unwrap_err();
            assert!(parts.iter().all(|part| message.contains(part)), "{message:?}");
            assert!(!message.contains('\n'));
        }
    }

    #[test]
    fn a_table_is_no_value() {
        for text in ["[shards]", "[shards]\nx = 1", "shards.x = 1", "shards = {}"] {
            let message = read("t.toml", text).unwrap_err();
            assert!(message.contains("shards is a table (t.toml:1)"), "{message:?}");
            assert!(message.contains("shards = \"0\""), "{message:?}");
        }
        assert!(read("t.toml", "[heartbeat]").unwrap().is_empty());
        let found = read("t.toml", "[hartbeat]").unwrap();
        assert_eq!(found[0].key, "hartbeat", "left to whoever knows the settings");
    }
}
