//! Rules for the channels that match a pattern: `prices.*=latest,max_backlog=64KiB,max_age=5s`.

use throng::{Backpressure, SlowPolicy};
use throng_load::units::parse_size;

use super::did_you_mean;

/// How a rule is written, for messages.
pub(super) const EXAMPLE: &str = "prices.*=latest,max_backlog=64KiB,max_age=5s";

/// The keys of a rule besides its pattern, in the order of its text.
pub(super) const KEYS: [&str; 3] = ["slow_policy", "max_backlog", "max_age"];

/// A pattern and the rules for the channels that match it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) pattern: String,
    pub(crate) rules: Backpressure,
}

/// Reads rules with `;` between them. What a rule leaves out is as in `general`.
pub(super) fn parse(text: &str, general: Backpressure) -> Result<Vec<Rule>, String> {
    let mut found: Vec<Rule> = Vec::new();
    for part in text.split(';').map(str::trim).filter(|part| !part.is_empty()) {
        let rule = parse_one(part, general)?;
        if found.iter().any(|earlier| earlier.pattern == rule.pattern) {
            return Err(format!(
                "{:?} is there twice, and only the first would rule; take one out",
                rule.pattern
            ));
        }
        found.push(rule);
    }
    Ok(found)
}

/// Reads one rule.
pub(super) fn parse_one(text: &str, general: Backpressure) -> Result<Rule, String> {
    let Some((pattern, rest)) = text.split_once('=') else {
        return Err(format!("{text:?} names no policy; write for example {EXAMPLE}"));
    };
    let pattern = pattern.trim();
    if pattern.is_empty() {
        return Err(format!("{text:?} names no channels; write for example {EXAMPLE}"));
    }
    let mut rules = general;
    for (at, part) in rest.split(',').map(str::trim).enumerate() {
        let (key, value) = match part.split_once('=') {
            Some((key, value)) => (key.trim(), value.trim()),
            // The policy needs no name at the front.
            None if at == 0 => (KEYS[0], part),
            None => {
                return Err(format!(
                    "{part:?} of {pattern:?} is no KEY=VALUE; write for example {EXAMPLE}"
                ));
            }
        };
        set(&mut rules, key, value).map_err(|why| format!("{key} of {pattern:?}: {why}"))?;
    }
    Ok(Rule { pattern: pattern.to_owned(), rules })
}

fn set(rules: &mut Backpressure, key: &str, value: &str) -> Result<(), String> {
    match key {
        "slow_policy" => rules.policy = policy(value)?,
        "max_backlog" => match parse_size(value)? {
            0 => {
                return Err("0 would let nothing wait; leave it out for the general one".to_owned());
            }
            bytes => rules.max_backlog = bytes,
        },
        "max_age" => rules.max_age = super::duration(value)?,
        _ => return Err(unknown(key)),
    }
    Ok(())
}

/// Returns the error of an unknown key.
pub(super) fn unknown(key: &str) -> String {
    let hint = did_you_mean(key, KEYS)
        .unwrap_or_else(|| "; a rule has slow_policy, max_backlog and max_age".to_owned());
    format!("unknown key `{}` in the rules for channels{hint}", key.escape_debug())
}

/// Reads a policy's name.
pub(super) fn policy(name: &str) -> Result<SlowPolicy, String> {
    name.parse().map_err(|why: String| {
        why + &did_you_mean(name, ["close", "drop_newest", "drop_oldest", "latest"])
            .unwrap_or_default()
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_a_rule_leaves_out_is_as_for_all() {
        let general = Backpressure::new(SlowPolicy::DropOldest).max_age(Duration::from_secs(9));
        let text =
            "prices.* = latest , max_backlog=64KiB, max_age=5s; news.>=drop_newest ;chat=max_age=0";
        let rules = parse(text, general).unwrap();
        let expected = [
            ("prices.*", SlowPolicy::Latest, 65_536, 5),
            ("news.>", SlowPolicy::DropNewest, 0, 9),
            ("chat", SlowPolicy::DropOldest, 0, 0),
        ];
        for (rule, (pattern, policy, bytes, secs)) in rules.iter().zip(expected) {
            let age = Duration::from_secs(secs);
            let wanted = Backpressure::new(policy).max_backlog(bytes).max_age(age);
            assert_eq!((rule.pattern.as_str(), rule.rules), (pattern, wanted));
        }
        assert_eq!(rules.len(), expected.len());
        assert_eq!(parse(" ; ", general), Ok(Vec::new()));
        assert_eq!(parse(EXAMPLE, general).unwrap()[0], rules[0], "the example is a rule");
    }

    #[test]
    fn mistakes_are_told_with_the_remedy() {
        for (text, parts) in [
            ("news", &["\"news\"", "prices.*=latest"][..]),
            ("=latest", &["names no channels"]),
            ("news=lates", &["\"news\"", "slow_policy", "\"lates\"", "did you mean latest?"]),
            ("news=zzz", &["drop_newest, drop_oldest or latest"]),
            ("news=latest,5s", &["\"5s\"", "KEY=VALUE"]),
            ("news=latest,max_ags=5s", &["max_ags", "did you mean max_age?"]),
            ("news=latest,colour=red", &["colour", "slow_policy, max_backlog and max_age"]),
            ("news=latest,max_age=5", &["max_age of \"news\"", "did you mean 5s?"]),
            ("news=latest,max_backlog=1M", &["max_backlog of \"news\"", "1MiB"]),
            ("news=latest,max_backlog=0", &["max_backlog of \"news\"", "leave it out"]),
            ("a=close;b=latest;a=latest", &["\"a\"", "twice"]),
        ] {
            let message = parse(text, Backpressure::default()).unwrap_err();
            for part in parts {
                assert!(message.contains(part), "{text}: {message:?} does not say {part:?}");
            }
        }
    }
}
