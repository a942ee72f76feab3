//! Settings in TOML: `[heartbeat] interval = "25s"` is `heartbeat.interval`, `[[channel]]` tables
//! are `channels`.

use toml::de::{DeTable, DeValue};

use throng::Backpressure;

use super::{SETTINGS, channels};

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
    if let Some(twice) = found.iter().filter(|found| found.key == "channels").nth(1) {
        return Err(format!(
            "channels is there twice ({name}:{}): write [[channel]] tables, or channels = \"...\"",
            twice.line
        ));
    }
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
        if prefix.is_empty() && key.get_ref() == "channel" {
            let value = channel_rules(&Place { name, text, line }, value.get_ref())?;
            found.push(Found { key: "channels".to_owned(), value, line });
            continue;
        }
        let value = match (value.get_ref(), setting) {
            (DeValue::Table(_), Some(setting)) => return wrong("a table", setting.default),
            (DeValue::Table(inner), None) if is_section(&key_name) => {
                flatten(name, text, &key_name, inner, found)?;
                continue;
            }
            // An unknown key, which is reported when the values are set.
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

/// Where something is in a file.
struct Place<'a> {
    name: &'a str,
    text: &'a str,
    line: usize,
}

impl Place<'_> {
    fn at(&self, span: std::ops::Range<usize>) -> Self {
        Self { line: line_at(self.text, span.start), ..*self }
    }

    fn wrong(&self, why: impl std::fmt::Display) -> String {
        format!("{}:{}: {why}", self.name, self.line)
    }
}

/// `[[channel]]` tables as the text of the setting `channels`.
fn channel_rules(place: &Place<'_>, value: &DeValue<'_>) -> Result<String, String> {
    let example = "[[channel]], and below it name = \"prices.*\" and slow_policy = \"latest\"";
    let DeValue::Array(tables) = value else {
        return Err(place.wrong(format_args!("channel is no list of tables; write {example}")));
    };
    let mut rules = Vec::new();
    for item in tables.iter() {
        let place = place.at(item.span());
        let DeValue::Table(table) = item.get_ref() else {
            return Err(place
                .wrong(format_args!("channel has something else than tables; write {example}")));
        };
        rules.push(channel_rule(&place, table)?);
    }
    Ok(rules.join("; "))
}

fn channel_rule(place: &Place<'_>, table: &DeTable<'_>) -> Result<String, String> {
    let (mut pattern, mut parts) = (None, Vec::new());
    for (key, value) in table {
        let here = place.at(key.span());
        let value = match value.get_ref() {
            DeValue::Array(_) | DeValue::Table(_) => {
                return Err(
                    here.wrong(format_args!("{} of a channel has one value", key.get_ref()))
                );
            }
            value => plain(value),
        };
        match key.get_ref().as_ref() {
            "name" if value.trim() != value || value.is_empty() || value.contains(['=', ';']) => {
                return Err(here.wrong(format_args!(
                    "name is {value:?}: it may not be empty, have spaces around it, or have = or ; in it; \
                     * stands for any token between dots, > for all that follow"
                )));
            }
            "name" => pattern = Some(value),
            known if channels::KEYS.contains(&known) => {
                let rule = format!("{known}={value}");
                parts.push((here, rule));
            }
            other => return Err(here.wrong(channels::unknown(other))),
        }
    }
    let pattern = pattern.ok_or_else(|| {
        place.wrong("this channel has no name; write for example name = \"prices.*\"")
    })?;
    if parts.is_empty() {
        return Err(place.wrong(format_args!(
            "channel {pattern:?} has no rules; write for example slow_policy = \"latest\""
        )));
    }
    for (here, rule) in &parts {
        // The reader of the whole list no longer has the line.
        channels::parse_one(&format!("{pattern}={rule}"), Backpressure::default())
            .map_err(|why| here.wrong(why))?;
    }
    let parts: Vec<String> = parts.into_iter().map(|(_, rule)| rule).collect();
    Ok(format!("{pattern}={}", parts.join(",")))
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
    fn tables_of_channels_are_one_setting_in_their_order() {
        let text = "[[channel]]\nname = \"prices.*\"\nslow_policy = \"latest\"\nmax_age = \"5s\"\n\
                    [[channel]]\nname = \">\"\nmax_backlog = 65_536\n";
        let found = read("t.toml", text).unwrap();
        assert_eq!((found[0].key.as_str(), found[0].line), ("channels", 1));
        assert_eq!(found[0].value, "prices.*=max_age=5s,slow_policy=latest; >=max_backlog=65536");
        let rules = channels::parse(&found[0].value, Backpressure::default()).unwrap();
        assert_eq!((rules[0].pattern.as_str(), rules[1].pattern.as_str()), ("prices.*", ">"));
        assert_eq!(rules[1].rules.max_backlog, 65_536);
    }

    #[test]
    fn mistakes_in_tables_of_channels_have_their_own_line() {
        let head = "[[channel]]\nname = \"a\"\nslow_policy = \"latest\"\n[[channel]]\n";
        for (text, parts) in [
            (
                "name = \"b\"\nslow_polcy = \"close\"",
                &["t.toml:6", "did you mean slow_policy?"][..],
            ),
            (
                "name = \"b\"\nslow_policy = \"lates\"",
                &["t.toml:6", "\"b\"", "did you mean latest?"],
            ),
            ("name = \"b\"\nmax_age = \"5\"", &["t.toml:6", "max_age of \"b\"", "5s"]),
            ("name = \"b\"\nmax_backlog = [1]", &["t.toml:6", "max_backlog", "one value"]),
            ("slow_policy = \"close\"", &["t.toml:4", "no name", "prices.*"]),
            ("name = \"b\"", &["t.toml:4", "\"b\"", "no rules"]),
            ("name = \"b=c\"\nmax_age = \"5s\"", &["t.toml:5", "\"b=c\"", "* stands for"]),
        ] {
            let message = read("t.toml", &format!("{head}{text}")).unwrap_err();
            assert!(parts.iter().all(|part| message.contains(part)), "{text}: {message:?}");
            assert!(!message.contains('\n'), "{message:?}");
        }
        for text in ["channel = \"a=close\"", "[channel]\nname = \"a\"", "channel = [1]"] {
            let message = read("t.toml", text).unwrap_err();
            assert!(
                message.starts_with("t.toml:1: ") && message.contains("[[channel]]"),
                "{message}"
            );
        }
        let both = read(
            "t.toml",
            &format!("channels = \"a=close\"\n{head}name = \">\"\nmax_age = \"1s\""),
        );
        assert!(both.unwrap_err().contains("twice"));
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
        assert_eq!(found[0].key, "hartbeat", "checked against the settings later");
    }
}
