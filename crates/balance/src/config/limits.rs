//! The tables of limits.

use std::time::Duration;

use throng_config::{Defaults, Draft, Key, Kind, Rate, Record, Records};

use crate::limit::{LimitConfig, LimitedEvent, Refusal};

/// The bytes of a limit's keys: at least one set of keys, at most 4,194,304 keys.
const MEMORY: Kind = Kind::size(1 << 10, 64 << 20);

pub(super) static LIMITS: Records = Records {
    alias: Some("limit"),
    fields: &[
        Key::new(
            "name",
            Kind::Text("a name such as \"dial\""),
            "",
            "the name by which limits of sites and routes choose it",
        ),
        Key::new("rate", Kind::Rate, "", "what passes, for each key; at most 100k/s"),
        Key::new(
            "max",
            Kind::count(1, u32::MAX as u64),
            "",
            "with on = \"tunnels\": how many of each key may be open",
        ),
        Key::new(
            "burst",
            Kind::Or("auto", &Kind::COUNT),
            "auto",
            "what may come at once beyond the first one; auto = as many as in a second, at least 1",
        ),
        Key::new(
            "on",
            Kind::Word(&["requests", "handshakes", "tunnels"]),
            "requests",
            "what counts; requests = also handshakes, handshakes = of WebSockets, tunnels = open \
             WebSockets, with max in place of rate and burst",
        ),
        Key::new(
            "key",
            Kind::List(&Kind::Text("a part of the key such as \"address\"")),
            "address",
            "what is counted together: address (of the client, past trusted proxies; an IPv6 \
             network of 64 bits), site, route, host, certificate, header:NAME, cookie:NAME, \
             query:NAME; without the header and so on, the address",
        ),
        Key::new(
            "refuse",
            Kind::Word(&["status", "close"]),
            "status",
            "close = accept a WebSocket and close it with 1013, since browsers hide the status of \
             a failed handshake",
        ),
        Key::new("status", Kind::count(400, 599), "429", "status of a refusal"),
        Key::new("dry_run", Kind::Switch, "false", "only count, and refuse nothing"),
        Key::new(
            "memory",
            MEMORY,
            "1MiB",
            "memory for keys, 16 bytes each; when it is full, keys are forgotten",
        ),
    ],
    is_first_required: true,
    parse: None,
    defaults: Defaults::new(),
    example: "a table such as { name = \"dial\", on = \"handshakes\", rate = \"5/s\" }",
};

/// Reads all limits.
pub(super) fn limits(draft: &Draft) -> Vec<LimitConfig> {
    draft.records("limits").iter().filter_map(limit).collect()
}

fn limit(record: &Record<'_>) -> Option<LimitConfig> {
    let is = |field, word: &str| record.get::<String>(field) == word;
    let is_of_tunnels = is("on", "tunnels");
    let (needed, remedy) = match is_of_tunnels {
        true => ("max", "its max is missing: add max = 1000"),
        false => ("rate", "its rate is missing: add rate = \"5/s\""),
    };
    if !record.is_set(needed) {
        record.wrong(remedy);
        return None;
    }
    let others: &[_] = if is_of_tunnels { &["rate", "burst", "memory"] } else { &["max"] };
    for field in others.iter().filter(|field| record.is_set(field)) {
        let remedy = match is_of_tunnels {
            true => "a limit with on = \"tunnels\" has max instead: drop it",
            false => "it is for on = \"tunnels\": drop it, or write that",
        };
        record.wrong_field(field, remedy);
    }
    Some(LimitConfig {
        name: record.get("name"),
        on: match is("on", "handshakes") {
            true => LimitedEvent::Handshakes,
            false if is_of_tunnels => LimitedEvent::Tunnels,
            false => LimitedEvent::Requests,
        },
        key: record.parse_list("key"),
        rate: match is_of_tunnels {
            true => Rate { events: 1, time: Duration::from_secs(1) },
            false => record.get("rate"),
        },
        max: if is_of_tunnels { record.get("max") } else { 0 },
        burst: record.get("burst"),
        refuse: if is("refuse", "close") { Refusal::Close } else { Refusal::Status },
        status: u16::try_from(record.get::<u32>("status")).unwrap_or(u16::MAX),
        dry_run: record.get("dry_run"),
        memory: if is_of_tunnels { 0 } else { record.get("memory") },
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use throng_config::Rate;

    use crate::Config;
    use crate::limit::{LimitConfig, LimitKey, LimitedEvent, Refusal};

    #[test]
    fn limits_are_read_from_tables_and_lists() {
        let site = "[[site]]\nhosts = [\"a\"]\nrespond.text = \"a\"\nlimits = [\"dial\"]\n";
        let table = "[[limit]]\nname = \"dial\"\nrate = \"600/m\"\nburst = 20\n\
                     on = \"handshakes\"\nkey = [\"site\", \"cookie:id\"]\nrefuse = \"close\"\n\
                     status = 503\ndry_run = true\nmemory = \"64KiB\"\n";
        let list = "limits = [{ name = \"dial\", rate = \"600/m\", burst = 20, \
                    on = \"handshakes\", key = [\"site\", \"cookie:id\"], refuse = \"close\", \
                    status = 503, dry_run = true, memory = \"64KiB\" }]\n";
        let expected = LimitConfig {
            name: "dial".to_owned(),
            on: LimitedEvent::Handshakes,
            key: vec![LimitKey::Site, LimitKey::Cookie("id".to_owned())],
            rate: Rate { events: 600, time: Duration::from_secs(60) },
            max: 0,
            burst: Some(20),
            refuse: Refusal::Close,
            status: 503,
            dry_run: true,
            memory: 64 << 10,
        };
        for text in [format!("{table}{site}"), format!("{list}{site}")] {
            let config = Config::parse(&text, "b.toml").unwrap();
            assert_eq!(config.limits, std::slice::from_ref(&expected), "{text}");
            assert_eq!(config.sites[0].limits, ["dial"]);
        }
        let short = format!("[[limit]]\nname = \"dial\"\nrate = \"5/s\"\n{site}");
        let config = Config::parse(&short, "b.toml").unwrap();
        let limit = &config.limits[0];
        assert_eq!((limit.burst, &limit.key[..]), (None, &[LimitKey::Address][..]));
        assert_eq!((limit.status, limit.memory, limit.dry_run), (429, 1 << 20, false));
    }

    #[test]
    fn all_limits_together_take_at_most_a_gibibyte() {
        let site = "[[site]]\nhosts = \"a\"\nrespond.text = \"\"\n";
        let limits = |count: usize| {
            let limit =
                |at| format!("[[limit]]\nname = \"l{at}\"\nrate = \"1/s\"\nmemory = \"64MiB\"\n");
            (0..count).map(limit).collect::<String>() + site
        };
        assert!(Config::parse(&limits(16), "b.toml").is_ok());
        let message = Config::parse(&limits(17), "b.toml").unwrap_err().to_string();
        assert!(message.contains("at most 1GiB: lower their memory"), "{message}");
    }

    #[test]
    fn a_limit_that_nothing_names_is_a_warning() {
        let limits = "limits = [{ name = \"a\", rate = \"1/s\" }, \
                      { name = \"b\", rate = \"1/s\" }, { name = \"c\", rate = \"1/s\" }]\n";
        let site = "[[site]]\nhosts = [\"a\"]\nrespond.text = \"a\"\nlimits = [\"a\"]\n\
                    [[site.route]]\npath = \"/\"\nlimits = [\"c\"]\n";
        let config = Config::parse(&format!("{limits}{site}"), "b.toml").unwrap();
        let [warning] = config.warnings() else { panic!("{:?}", config.warnings()) };
        assert!(warning.starts_with("limit b counts nothing"), "{warning}");
    }

    #[test]
    fn mistakes_have_their_place() {
        let site = "[[site]]\nhosts = [\"a\"]\nrespond.text = \"a\"\nlimits = [\"dial\"]\n";
        for (limit, expected) in [
            ("", "sites[0].limits[0] is \"dial\": the file has no [[limit]]: write one"),
            ("name = \"a\"\nrate = \"1/s\"", "no limit has this name: write one of a"),
            ("name = \"dial\"", "its rate is missing: add rate = \"5/s\""),
            ("name = \"dial\"\non = \"tunnels\"", "its max is missing: add max = 1000"),
            ("name = \"dial\"\nrate = \"5/s\"\nmax = 5", "limits[0].max is 5: it is for on = "),
            (
                "name = \"dial\"\non = \"tunnels\"\nmax = 5\nrate = \"5/s\"",
                "limits[0].rate is \"5/s\": a limit with on = \"tunnels\" has max instead",
            ),
            ("name = \"dial\"\nrate = \"5\"", "limits[0].rate is \"5\": write a rate such as"),
            ("name = \"dial\"\nrate = \"1M/s\"", "limits[0].rate is 1000000/s: write at most"),
            (
                "name = \"dial\"\nrate = \"5/s\"\nkey = \"ip\"",
                "limits[0].key[0] is \"ip\": write address",
            ),
            (
                "name = \"dial\"\nrate = \"5/s\"\nkey = \"header:\"",
                "write the name behind the colon",
            ),
            ("name = \"dial\"\nrate = \"5/s\"\nstatus = 200", "limits[0].status is 200"),
            (
                "name = \"dial\"\nrate = \"1/h\"\nburst = 1000000",
                "limits[0].burst is 1000000: a year's events at this rate are the most: write at \
                 most 8760",
            ),
            (
                "name = \"dial\"\nrate = \"5/s\"\n[[limit]]\nname = \"dial\"\nrate = \"5/s\"",
                "limits[1].name is \"dial\": another limit has it",
            ),
        ] {
            let limit =
                if limit.is_empty() { String::new() } else { format!("[[limit]]\n{limit}\n") };
            let message =
                Config::parse(&format!("{limit}{site}"), "b.toml").unwrap_err().to_string();
            assert!(message.contains(expected), "{limit}: {message}");
        }
    }
}
