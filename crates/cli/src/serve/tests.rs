use std::time::Duration;

use clap::Parser;
use throng::Limits;
use throng::channel::{Backpressure, History, HistoryMode, SlowPolicy};
use throng::server::{CpuAffinity, DrainPlan, Observe, Proxies, Shards, SocketOptions};
use throng::ws::{Deflate, DeflateMode};

use throng_config::{ConfigErrors, Sources, Values};

use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    flags: SettingFlags,
}

/// The settings of a command line.
fn line(words: &[&str]) -> Result<Settings, String> {
    let line = std::iter::once("serve").chain(words.iter().copied());
    let line = Line::try_parse_from(line).map_err(|error| error.to_string())?;
    line.flags.settings("", &[]).map_err(|failure| failure.message)
}

/// The settings of these pairs.
fn with(pairs: &[&str]) -> Result<Settings, String> {
    layered("", &[], pairs).map_err(|errors| errors.to_string())
}

fn layered(
    file: &str,
    variables: &[(&str, &str)],
    pairs: &[&str],
) -> Result<Settings, ConfigErrors> {
    Settings::from_draft(sources(file, variables, pairs).finish())
}

fn sources(file: &str, variables: &[(&str, &str)], pairs: &[&str]) -> Sources {
    let mut sources = Sources::new(&TABLE);
    sources.file("t.toml", file);
    sources.environment(variables.iter().map(|(name, value)| (name.into(), value.into())));
    pairs.iter().for_each(|pair| sources.set(pair));
    sources.raise("max_frame_size", "max_message_size");
    sources
}

fn origin(values: &Values, key: &str) -> String {
    values.entry(key).unwrap().origin().to_string()
}

#[test]
fn the_table_has_the_defaults_of_the_library() {
    let settings = with(&[]).unwrap();
    assert_eq!(format!("{:?}", settings.limits), format!("{:?}", Limits::default()));
    assert_eq!(format!("{:?}", settings.drain), format!("{:?}", DrainPlan::default()));
    assert_eq!(settings.deflate, Deflate::default());
    assert_eq!(format!("{:?}", settings.shards), format!("{:?}", Shards::new()));
    assert_eq!(format!("{:?}", settings.sockets), format!("{:?}", SocketOptions::new()));
    assert_eq!(format!("{:?}", settings.proxies), format!("{:?}", Proxies::new()));
    assert_eq!(format!("{:?}", site::observe(&settings)), format!("{:?}", Observe::new()));
    #[cfg(feature = "tls")]
    assert!(settings.tls.is_none());
    assert!(settings.channels.is_empty() && settings.files.is_none());
}

#[test]
fn later_sources_win_and_are_named() {
    let file = "max_backlog = \"2MiB\"\nshards = 3\n[heartbeat]\ninterval = \"9s\"\n";
    let variables = [("THRONG_HEARTBEAT_INTERVAL", "8s"), ("THRONG_SHARDS", "2"), ("HOME", "/")];
    let draft = sources(file, &variables, &["shards=1"]).finish();
    for (key, expected) in [
        ("max_backlog", "t.toml:1"),
        ("heartbeat.interval", "environment THRONG_HEARTBEAT_INTERVAL"),
        ("shards", "flag --set"),
        ("io", "default"),
    ] {
        assert_eq!(origin(draft.values(), key), expected);
    }
    let settings = Settings::from_draft(draft).unwrap();
    assert_eq!(settings.limits.max_backlog, 2 << 20);
    assert_eq!(format!("{:?}", settings.shards), format!("{:?}", Shards::new().count(1)));
    assert_eq!(settings.limits.heartbeat_interval, Some(Duration::from_secs(8)));
}

#[test]
fn larger_messages_mean_larger_frames_unless_those_are_set() {
    let sizes = |pairs: &[&str]| {
        let ws = with(pairs).unwrap().limits.ws;
        (ws.max_message_size >> 20, ws.max_frame_size >> 20)
    };
    assert_eq!(sizes(&["max_message_size=8MiB"]), (8, 8));
    assert_eq!(sizes(&["max_message_size=8MiB", "max_message_size=1MiB"]), (1, 4));
    assert_eq!(sizes(&["max_frame_size=2MiB", "max_message_size=8MiB"]), (8, 2));
    assert_eq!(sizes(&["max_message_size=8MiB", "max_frame_size=4MiB"]), (8, 4));
    let draft = sources("", &[], &["max_message_size=8MiB"]).finish();
    let entry = draft.values().entry("max_frame_size").unwrap();
    let shown = (entry.to_toml(), entry.origin().to_string());
    assert_eq!(shown, ("\"8MiB\"".to_owned(), "follows max_message_size".to_owned()));
}

#[test]
fn several_addresses_have_commas_between_them() {
    let addresses = |text: &str| with(&[&format!("listen={text}")]).map(|own| own.listen);
    assert_eq!(addresses(":80").unwrap(), ["0.0.0.0:80"]);
    let all = ["127.0.0.1:80", "[::1]:80", "0.0.0.0:81"];
    assert_eq!(addresses("127.0.0.1:80, [::1]:80,:81").unwrap(), all);
    for text in ["", "127.0.0.1:80,", ",", "127.0.0.1:80 [::1]:80"] {
        assert!(addresses(text).unwrap_err().contains("HOST:PORT"), "{text}");
    }
    let flags = ["--listen", "127.0.0.1:80,[::1]:80", "--shards", "2"];
    assert_eq!(line(&flags).unwrap().listen, all[..2]);
    let flags = ["--listen", "127.0.0.1:80", "--listen", "[::1]:80"];
    assert_eq!(line(&flags).unwrap().listen, all[..2]);
    // An interface's name becomes its number, which the loopback interface has on Linux.
    if cfg!(target_os = "linux") {
        assert_eq!(addresses("[fe80::1%lo]:80").unwrap(), ["[fe80::1%1]:80"]);
    }
    for (text, remedy) in [
        ("[fe80::1%nosuch0]:80", "no interface \"nosuch0\""),
        ("::1:80", "write \"[::1]:80\""),
        ("tcp://127.0.0.1:80", "write \"127.0.0.1:80\""),
        ("127.0.0.1:80,127.0.0.1:80", "give it once"),
        ("0.0.0.0:80,127.0.0.1:80", "0.0.0.0:80 has its connections"),
    ] {
        let error = addresses(text).unwrap_err();
        assert!(error.contains(remedy), "{text}: {error}");
    }
}

#[test]
fn a_default_of_a_program_yields_to_what_is_set() {
    let mut sources = sources("", &[], &["listen=127.0.0.1:5"]);
    sources.default_to("listen", "127.0.0.1:1234", "--netbench");
    sources.default_to("max_backlog", "2MiB", "--probe");
    let settings = Settings::from_draft(sources.finish()).unwrap();
    assert_eq!(settings.listen, ["127.0.0.1:5"]);
    assert_eq!(settings.limits.max_backlog, 2 << 20);
}

#[test]
fn rates_and_lifetimes_are_passed_on() {
    let settings = with(&[
        "max_messages_per_second=1k",
        "max_bytes_per_second=1MiB",
        "max_lifetime=2h",
        "drain.delay=3s",
        "stall_warning=20ms",
        "pin=cores",
        "max_connections=\"10k\"",
    ])
    .unwrap();
    let pinned = format!("{:?}", Shards::new().pin(CpuAffinity::Cores));
    assert_eq!(format!("{:?}", settings.shards), pinned);
    assert_eq!(settings.stall_warning, Some(Duration::from_millis(20)));
    assert_eq!(settings.limits.max_messages_per_second, Some(1000));
    assert_eq!(settings.limits.max_bytes_per_second, Some(1 << 20));
    assert_eq!(settings.limits.max_lifetime, Some(Duration::from_secs(7200)));
    assert_eq!(settings.limits.max_connections, Some(10_000));
    assert_eq!(settings.drain.delay, Duration::from_secs(3));
}

#[test]
fn mistakes_name_the_setting_the_value_the_place_and_the_remedy() {
    for (pairs, parts) in [
        (&["max_backlog=lots"][..], &["max_backlog", "lots", "--set", "16KiB"][..]),
        (&["handshake_timeout=10"], &["handshake_timeout", "10", "10s"]),
        (&["handshake_timeout=0s"], &["handshake_timeout", "0", "1s"]),
        (&["handshake_timeout=19h"], &["handshake_timeout", "at most"]),
        (&["max_mesage_size=1"], &["max_mesage_size", "did you mean max_message_size?"]),
        (&["zzz=1"], &["zzz", "config show"]),
        (&["shards"], &["key=value"]),
        (&["io=kqueue"], &["io", "kqueue", "epoll"]),
        (&["pin=sockets"], &["pin", "sockets", "\"none\" or \"cores\""]),
        (&["stall_warning=50"], &["stall_warning", "50", "50s"]),
        (&["listen=9001"], &["listen", "9001", "127.0.0.1:9001"]),
        (&["heartbeat.always=maybe"], &["heartbeat.always", "true or false"]),
        (&["max_message_size=0"], &["max_message_size is \"0\"", "at least"]),
        (&["slow_policy=lates"], &["slow_policy", "--set", "did you mean latest?"]),
        (&["channels=news"], &["channels", "\"news\"", "--set", "prices.*=latest"]),
        (&["channel=news=close"], &["did you mean channels?"]),
        (&["wildcards=maybe"], &["wildcards", "true or false"]),
        (&["backlog=0"], &["backlog", "write 1 to"]),
        (&["workers.pool_size=1"], &["workers.pool_size is an unknown key", "WorkerSettings"]),
        // As other servers call them.
        (&["ThreadPool.MaxConnections=9"], &["here it is max_connections"]),
        (&["maxPayload=1"], &["here it is max_message_size"]),
        (&["least_conn=true"], &["`throng balance` has pick=least_connections"]),
    ] {
        let message = with(pairs).unwrap_err();
        for part in parts {
            assert!(message.contains(part), "{message:?} does not say {part:?}");
        }
        assert!(!message.contains('\n'), "{message:?} is not one line");
    }
    for pair in ["io=foo", "pin=foo"] {
        let message = with(&[pair]).unwrap_err();
        for part in [pair.split('=').next().unwrap(), "foo"] {
            let words = message.split(|c: char| !c.is_alphanumeric());
            assert_eq!(words.filter(|word| *word == part).count(), 1, "{part:?} in {message:?}");
        }
    }
}

#[test]
fn all_mistakes_of_all_sources_are_reported_at_once() {
    let file = "shards = \"many\"\n[heartbeat]\nintervall = \"1s\"\ntimeout = 5\n";
    let errors = layered(file, &[("THRONG_MAX_BACKLOG", "x")], &["io=foo"]).unwrap_err();
    let shown: Vec<String> = errors.all().iter().map(ToString::to_string).collect();
    for (shown, start) in shown.iter().zip([
        "t.toml:1:10: shards is \"many\": ",
        "t.toml:3:1: heartbeat.intervall is an unknown key: did you mean heartbeat.interval?",
        "t.toml:4:11: heartbeat.timeout is 5: ",
        "environment THRONG_MAX_BACKLOG: max_backlog is \"x\": ",
        "--set: io is \"foo\": ",
    ]) {
        assert!(shown.starts_with(start), "{shown}");
    }
    assert_eq!(shown.len(), 5, "{errors}");
    let message = layered("shards = 1\nmax_backlog = \n", &[], &[]).unwrap_err().to_string();
    assert!(message.starts_with("t.toml:2:"), "{message:?}");
}

#[cfg(unix)]
#[test]
fn a_variable_that_is_not_text_is_a_mistake_only_if_it_is_a_setting() {
    use std::os::unix::ffi::OsStringExt;

    let errors = |name: &str| {
        let mut sources = Sources::new(&TABLE);
        sources.environment([(name.into(), OsStringExt::from_vec(vec![b'2', 0xff]))]);
        Settings::from_draft(sources.finish()).map_err(|errors| errors.to_string())
    };
    let message = errors("THRONG_SHARDS").unwrap_err();
    assert!(message.contains("THRONG_SHARDS") && message.contains("UTF-8"), "{message}");
    assert!(errors("LESS").is_ok() && errors("THRONG_OTHER").is_ok());
}

#[test]
fn channels_have_rules_from_every_source_and_the_last_source_has_them_all() {
    let text = "slow_policy = \"drop_oldest\"\nmax_age = \"2s\"\nwildcards = true\n\
                [[channel]]\nname = \"prices.*\"\nslow_policy = \"latest\"\n\
                [[channel]]\nname = \">\"\nmax_backlog = 65_536\n";
    let draft = sources(text, &[], &[]).finish();
    assert_eq!(origin(draft.values(), "channels"), "t.toml:4");
    let settings = Settings::from_draft(draft).unwrap();
    assert!(settings.wildcards);
    let general = Backpressure::new(SlowPolicy::DropOldest).max_age(Duration::from_secs(2));
    assert_eq!(settings.backpressure, general);
    let latest = general.policy(SlowPolicy::Latest);
    let all = general.max_backlog(65_536);
    let rule = |pattern: &str, rules| Rule {
        pattern: pattern.to_owned(),
        rules,
        history: None,
        presence: None,
        scope: None,
        rights: [None; 3],
    };
    assert_eq!(settings.channels, [rule("prices.*", latest), rule(">", all)]);
    let variable = [("THRONG_CHANNELS", "a.*=close;b=drop_newest")];
    let settings = layered(text, &variable, &[]).unwrap();
    let patterns: Vec<&str> = settings.channels.iter().map(|rule| rule.pattern.as_str()).collect();
    assert_eq!(patterns, ["a.*", "b"]);
    assert!(layered(text, &variable, &["channels="]).unwrap().channels.is_empty());
}

#[test]
fn a_rule_without_a_value_has_the_general_one() {
    let rules = |text: &str| {
        let pair = format!("channels={text}");
        with(&["slow_policy=drop_oldest", "max_age=9s", &pair]).unwrap().channels
    };
    let found = rules(
        "prices.* = latest , max_backlog=64KiB, max_age=5s; news.>=drop_newest ;chat=max_age=0",
    );
    let expected = [
        ("prices.*", SlowPolicy::Latest, Some(65_536), Some(5)),
        ("news.>", SlowPolicy::DropNewest, None, Some(9)),
        ("chat", SlowPolicy::DropOldest, None, None),
    ];
    assert_eq!(found.len(), expected.len());
    for (rule, (pattern, policy, bytes, secs)) in found.iter().zip(expected) {
        let age = secs.map(Duration::from_secs);
        let wanted = Backpressure::new(policy).max_backlog(bytes).max_age(age);
        assert_eq!((rule.pattern.as_str(), rule.rules), (pattern, wanted));
    }
    assert_eq!(rules(" ; "), []);
    let flags = ["--channel", "a=latest", "--channel", "b.>=drop_oldest,max_backlog=4KiB"];
    assert_eq!(line(&flags).unwrap().channels.len(), 2);
}

#[test]
fn a_rule_may_have_a_history() {
    let text = "[[channel]]\nname = \"chat.>\"\nhistory = \"100/5m\"\n[[channel]]\nname = \
                \"state\"\nhistory = \"1/1h\"\nrecovery = \"cache\"\n";
    let history: Vec<_> =
        layered(text, &[], &[]).unwrap().channels.iter().map(|rule| rule.history).collect();
    let five_minutes = History::new(100, Duration::from_secs(300));
    let hour = History::new(1, Duration::from_secs(3600)).mode(HistoryMode::Cache);
    assert_eq!(history, [Some(five_minutes), Some(hour)]);
    let flag = line(&["--channel", "chat.>=close,history=100/5m"]).unwrap();
    assert_eq!(flag.channels[0].history, Some(five_minutes));
}

#[test]
fn mistakes_in_rules_name_the_rule_and_the_remedy() {
    for (text, parts) in [
        ("news", &["\"news\"", "prices.*=latest"][..]),
        ("=latest", &["names no channels"]),
        ("news=lates", &["channels[0].slow_policy", "\"lates\"", "did you mean latest?"]),
        ("news=zzz", &["one of close, drop_newest, drop_oldest, latest"]),
        ("news=latest,5s", &["\"5s\"", "KEY=VALUE"]),
        ("news=latest,max_ags=5s", &["max_ags", "did you mean max_age?"]),
        ("news=latest,colour=red", &["colour", "presence, join_leave and max_announced"]),
        ("news=close,presence=true,max_announced=5", &["max_announced needs join_leave"]),
        ("news=latest,max_age=5", &["channels[0].max_age", "\"5s\""]),
        ("news=latest,max_age=25h", &["channels[0].max_age", "at most"]),
        ("news=latest,max_backlog=1M", &["channels[0].max_backlog", "1MiB"]),
        ("news=latest,max_backlog=0", &["channels[0].max_backlog", "at least"]),
        ("a=close,history=100", &["channels[0].history", "\"100\"", "COUNT/AGE", "100/5m"]),
        ("a=close,history=0/5m", &["channels[0].history", "at least 1"]),
        ("a=close,history=5/200h", &["channels[0].history", "168h"]),
        ("a=latest,history=5/1m", &["channels[0]", "slow_policy = \"close\""]),
        ("a=close,max_age=5s,history=5/1m", &["channels[0]", "max_age = \"0s\""]),
        ("a=close,max_backlog=5KiB,history=5/1m", &["channels[0]", "leave it out"]),
        ("a=close,recovery=cache", &["recovery needs a history"]),
        ("a=close,history=5/1m,recovery=all", &["channels[0].recovery", "stream"]),
        ("a=close;b=latest;a=latest", &["channels[2]", "\"a\"", "twice"]),
        ("chat.>=close;chat.a=close,history=5/1m", &["channels[1]", "\"chat.a\"", "\"chat.>\""]),
        ("*.a=close;b=latest;chat.a=latest", &["channels[2]", "\"*.a\"", "never apply"]),
    ] {
        let message = with(&[&format!("channels={text}")]).unwrap_err();
        for part in parts {
            assert!(message.contains(part), "{text}: {message:?} does not say {part:?}");
        }
    }
    let head = "[[channel]]\nname = \"a\"\nslow_policy = \"latest\"\n[[channel]]\n";
    for (text, parts) in [
        ("name = \"b\"\nslow_polcy = \"close\"", &["t.toml:6:", "did you mean slow_policy?"][..]),
        ("name = \"b\"\nslow_policy = \"lates\"", &["t.toml:6:", "did you mean latest?"]),
        ("name = \"b\"\nmax_age = \"5\"", &["t.toml:6:", "channels[1].max_age", "5s"]),
        ("name = \"b\"\nmax_backlog = [1]", &["t.toml:6:", "max_backlog", "a size"]),
        ("slow_policy = \"close\"", &["t.toml:4:", "name is missing", "prices.*"]),
        ("name = \"b\"", &["t.toml:4:", "no rules"]),
        ("name = \"b=c\"\nmax_age = \"5s\"", &["t.toml:4:", "* stands for"]),
    ] {
        let message = layered(&format!("{head}{text}"), &[], &[]).unwrap_err().to_string();
        assert!(parts.iter().all(|part| message.contains(part)), "{text}: {message:?}");
        assert!(!message.contains('\n'), "{message:?}");
    }
    for text in ["channel = \"a=close\"", "[channel]\nname = \"a\"", "channel = [1]"] {
        let message = layered(text, &[], &[]).unwrap_err().to_string();
        assert!(message.starts_with("t.toml:1:") && message.contains("[[channel]]"), "{message}");
    }
    let both = format!("channels = \"a=close\"\n{head}name = \">\"\nmax_age = \"1s\"");
    let message = layered(&both, &[], &[]).unwrap_err().to_string();
    assert!(message.contains("channels is there, too"), "{message}");
}

#[test]
fn lists_are_arrays_or_texts_and_other_values_are_neither_list_nor_table() {
    let origins = |text: &str| {
        let draft = sources(text, &[], &[]).finish();
        draft.get::<Vec<String>>("allowed_origins")
    };
    assert_eq!(origins("allowed_origins = [\"https://a\", \"b\"]"), ["https://a", "b"]);
    assert_eq!(origins("allowed_origins = \"https://a, b\""), ["https://a", "b"]);
    assert!(origins("allowed_origins = []").is_empty());
    for (text, parts) in [
        ("\nshards = [1,\n 2]", &["t.toml:2:", "shards is [1, 2]", "a whole number"][..]),
        ("[[shards]]\nx = 1", &["t.toml:1:", "shards is [[shards]]", "a whole number"]),
        ("[shards]\nx = 1", &["t.toml:1:", "shards is [shards]", "a whole number"]),
        ("shards = {}", &["t.toml:1:", "shards is {}", "a whole number"]),
        ("[hartbeat]", &["t.toml:1:", "hartbeat", "did you mean heartbeat?"]),
        ("heartbeat = 5", &["t.toml:1:", "[heartbeat], and below it interval = \"25s\""]),
    ] {
        let message = layered(text, &[], &[]).unwrap_err().to_string();
        assert!(parts.iter().all(|part| message.contains(part)), "{message:?}");
        assert!(!message.contains('\n'));
    }
    assert!(layered("[heartbeat]", &[], &[]).is_ok());
}

#[test]
fn the_flag_deflate_stands_for_three_settings() {
    let with = |words: &[&str]| line(words).map(|settings| settings.deflate);
    let on = Deflate::default().enabled(true);
    assert_eq!(with(&["--deflate", "shared"]).unwrap(), on);
    let window = |bits| on.mode(DeflateMode::Window { bits });
    assert_eq!(with(&["--deflate", "window:12"]).unwrap(), window(12));
    let set = ["--set", "deflate.enabled=true", "--set", "deflate.mode=window"];
    assert_eq!(with(&set).unwrap(), window(10));
    assert!(!with(&["--deflate", "off"]).unwrap().enabled);
    for (value, parts) in [
        ("on", &["--deflate: it is \"on\"", "window:BITS"][..]),
        ("window", &["--deflate: it is \"window\"", "9 to 15"]),
        ("window:8", &["--deflate: deflate.window_bits is \"8\"", "9 to 15"]),
        ("window:x", &["deflate.window_bits is \"x\"", "whole number"]),
    ] {
        let message = with(&["--deflate", value]).unwrap_err();
        assert!(parts.iter().all(|part| message.contains(part)), "{message}");
    }
}

#[test]
fn every_source_has_every_setting_of_deflate() {
    let file = "[deflate]\nenabled = true\nmode = \"window\"\nwindow_bits = 11\nlevel = 6\n\
                mem_level = 7\nthreshold = \"1KiB\"\n";
    let variables = [
        ("THRONG_DEFLATE_SERVER_MAX_WINDOW_BITS", "12"),
        ("THRONG_DEFLATE_CLIENT_MAX_WINDOW_BITS", "13"),
        ("THRONG_DEFLATE_SERVER_NO_CONTEXT_TAKEOVER", "true"),
        ("THRONG_DEFLATE_CLIENT_NO_CONTEXT_TAKEOVER", "false"),
    ];
    let all = Deflate::new(DeflateMode::Window { bits: 11 })
        .level(6)
        .mem_level(7)
        .threshold(1024)
        .server_max_window_bits(12)
        .client_max_window_bits(13)
        .server_no_context_takeover(true)
        .client_no_context_takeover(false);
    assert_eq!(layered(file, &variables, &[]).unwrap().deflate, all);
    for (pair, parts) in [
        ("deflate.window_bits=16", &["deflate.window_bits is \"16\"", "9 to 15"][..]),
        ("deflate.mode=dedicated", &["\"dedicated\"", "\"shared\" or \"window\""]),
        ("deflate.level=0", &["--set: deflate.level is \"0\"", "1 to 9"]),
        ("deflate.mem_level=300", &["deflate.mem_level", "1 to 9"]),
        ("deflate.threshold=some", &["deflate.threshold", "16KiB", "or \"auto\""]),
        ("deflate.server_max_window_bits=8", &["deflate.server_max_window_bits", "9 to 15"]),
        (
            "deflate.server_no_context_takeover=false",
            &["deflate.server_no_context_takeover is \"false\"", "window mode"],
        ),
        ("deflate.client_no_context_takeover=no", &["true or false, or \"auto\""]),
        ("deflate.windowbits=9", &["did you mean deflate.window_bits?"]),
    ] {
        let message = with(&[pair]).unwrap_err();
        assert!(parts.iter().all(|part| message.contains(part)), "{message}");
        assert!(!message.contains('\n'), "{message:?} is not one line");
    }
}

#[cfg(feature = "tls")]
#[test]
fn each_certificate_has_its_key() {
    let tls = |pairs: &[&str]| with(pairs).map(|settings| settings.tls);
    assert!(tls(&["tls.cert= ", "tls.key=,"]).unwrap().is_none());
    assert!(tls(&["tls.cert=a.pem, b.pem", "tls.key=a.key,b.key"]).unwrap().is_some());
    for (pairs, words) in [
        (&["tls.cert=a.pem"][..], &["tls.cert", "tls.key 0", "needs its private key"][..]),
        (&["tls.key=a.key"], &["tls.cert names 0", "needs its private key"]),
        (&["tls.cert=a.pem,b.pem", "tls.key=a.key"], &["same order"]),
        (&["tls.min_version=1.1"], &["tls.min_version", "1.1", "\"1.2\" or \"1.3\""]),
        (&["tls.prefer=aes"], &["tls.prefer", "\"client\" or \"aes128\""]),
        (&["tls.client_auth=maybe"], &["tls.client_auth", "\"required\""]),
        (&["tls.client_auth=optional"], &["tls.client_auth", "it needs tls.client_ca"]),
        (&["tls.client_crl=a.pem"], &["tls.client_crl", "it needs tls.client_ca"]),
        (&["tls.client_ca=a.pem"], &["tls.client_ca", "it needs TLS", "tls.cert and tls.key"]),
        (&["tls.ticket_keys=a"], &["tls.ticket_keys", "it needs TLS"]),
        (&["tls.hsts=1y"], &["tls.hsts", "it needs TLS"]),
        (&["tls.hsts=31536000"], &["tls.hsts", "has no unit", "31536000s"]),
        (&["tls.hsts=500ms"], &["tls.hsts", "at least 1s"]),
        (&["tls.hsts_subdomains=true"], &["tls.hsts_subdomains", "it needs tls.hsts"]),
    ] {
        let error = tls(pairs).unwrap_err();
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }
}

#[cfg(not(feature = "tls"))]
#[test]
fn a_build_without_tls_ignores_no_setting_of_its_safety() {
    for key in ["cert", "key", "client_ca", "client_crl", "client_auth", "ticket_keys"] {
        let error = with(&[&format!("tls.{key}=required")]).unwrap_err();
        assert!(error.contains(key) && error.contains("built without TLS"), "{error}");
    }
    assert!(with(&["tls.hsts=1y"]).unwrap_err().contains("built without TLS"));
}

#[cfg(feature = "acme")]
#[test]
fn each_mistake_in_the_settings_of_an_authority_names_the_remedy() {
    let with = |changed: &[&str]| {
        let good = ["domains=a.example", "dir=kept", "agree_tos=true"];
        let pairs = good.iter().chain(changed).map(|pair| format!("tls.acme.{pair}"));
        let pairs: Vec<String> = pairs.collect();
        with(&pairs.iter().map(String::as_str).collect::<Vec<_>>()).map(|settings| settings.tls)
    };
    assert!(with(&["challenge=http-01", "email=me@a.example"]).unwrap().is_some());
    let asking = |challenge: &str, policy: &str| {
        let (challenge, policy) =
            (format!("tls.acme.challenge={challenge}"), format!("tls.client_auth={policy}"));
        let acme = ["tls.acme.domains=a.example", "tls.acme.dir=kept", "tls.acme.agree_tos=true"];
        let all = [&acme[..], &[&challenge, "tls.client_ca=a.pem", &policy]].concat();
        self::with(&all).map(|settings| settings.tls)
    };
    assert!(asking("http-01", "required").unwrap().is_some());
    assert!(asking("tls-alpn-01", "optional").unwrap().is_some());
    let error = asking("tls-alpn-01", "required").unwrap_err();
    assert!(error.contains("tls.acme.challenge") && error.contains("write \"http-01\""), "{error}");
    for (pair, words) in [
        ("agree_tos=false", &["tls.acme.agree_tos is \"false\"", "agree_tos = true"][..]),
        ("domains=*.a.example", &["tls.acme.domains is", "dns-01"]),
        ("domains=", &["tls.acme.dir is", "name the domains"]),
        ("directory=http://ca.example", &["tls.acme.directory is", "begins with https://"]),
        ("challenge=dns-01", &["tls.acme.challenge is", "\"tls-alpn-01\" or \"http-01\""]),
        ("email=me", &["tls.acme.email is \"me\"", "admin@example.org"]),
    ] {
        let error = with(&[pair]).unwrap_err();
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }
}

#[test]
fn a_file_may_have_the_line_ends_of_windows() {
    let mut sources = Sources::new(&TABLE);
    let text =
        "shards = 3\r\n# A comment.\r\ndir = \"public\"\r\n\r\n[log]\r\nlevel = \"warn\"\r\n";
    sources.file("t.toml", text);
    let settings = Settings::from_draft(sources.finish()).unwrap();
    assert!(settings.files.unwrap().root().ends_with("public"));
    let mut sources = Sources::new(&TABLE);
    sources.file("t.toml", "shards = 3\r\n\r\nshard = 4\r\n");
    let error = Settings::from_draft(sources.finish()).unwrap_err().with_lines();
    assert!(error.contains("t.toml:3:1"), "{error}");
}

#[test]
fn a_path_in_a_file_is_relative_to_the_file() {
    let mut sources = Sources::new(&TABLE);
    let here = std::env::current_dir().unwrap();
    let folder = here.join("etc");
    sources.file(&folder.join("t.toml").display().to_string(), "dir = \"public\"\n");
    let settings = Settings::from_draft(sources.finish()).unwrap();
    let root = |settings: Settings| settings.files.unwrap().root().clone();
    assert_eq!(root(settings), folder.join("public"));
    assert_eq!(root(with(&["dir=public"]).unwrap()), here.join("public"));
}

#[test]
fn files_have_the_caching_of_the_settings_and_their_compressed_forms() {
    use std::io::{Read, Write};

    let dir = throng_testkit::TempFolder::new("caching");
    dir.write("app.js", "as it is");
    dir.write("app.js.gz", "compressed");
    let ask = |pairs: &[&str]| {
        let dir = format!("dir={}", dir.display());
        let settings = with(&[&["listen=127.0.0.1:0", &*dir][..], pairs].concat()).unwrap();
        let running = site::bind(&settings).unwrap().start().unwrap();
        let mut stream = std::net::TcpStream::connect(running.local_addr()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let request = "GET /app.js HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: gzip\r\n\
                       Connection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let usual = ask(&[]);
    assert!(!usual.contains("Cache-Control") && usual.ends_with("\r\n\r\nas it is"), "{usual}");
    let set = ask(&["cache_control=public, max-age=60", "precompressed=true"]);
    assert!(set.contains("\r\nCache-Control: public, max-age=60\r\n"), "{set}");
    assert!(set.ends_with("\r\n\r\ncompressed"), "{set}");
    let error = with(&["cache_control=a\u{1}b"]).unwrap_err();
    assert!(error.contains("cache_control") && error.contains("--set"), "{error}");
}

/// Warnings of a conversion are not lost, as the warnings of a secret's file were.
#[test]
fn settings_that_are_hardly_intended_are_warnings() {
    let warnings = |pairs: &[&str]| with(pairs).unwrap().warnings;
    assert_eq!(warnings(&["max_message_size=8MiB"]), [""; 0]);
    assert_eq!(
        warnings(&["max_message_size=10", "max_frame_size=4MiB"]),
        ["max_frame_size is 4MiB, and max_message_size only 10, which comes first"]
    );
    let of_memory = warnings(&["max_message_size=2GiB", "max_memory=1GiB"]);
    assert_eq!(of_memory.len(), 1, "{of_memory:?}");
    assert!(of_memory[0].starts_with("max_message_size is 2GiB"), "{of_memory:?}");
    let useless = warnings(&["max_memory=1KiB"]);
    assert!(useless.iter().any(|line| line.starts_with("max_message_size is 4MiB")), "{useless:?}");
    let quarter = warnings(&["max_backlog=9999GiB"]);
    assert!(quarter[0].starts_with("max_backlog is 9999GiB, and max_memory only"), "{quarter:?}");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let folder = throng_testkit::TempFolder::new("token");
        let path = folder.write("token", "a".repeat(40));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        let file = format!("admin.token_file={}", path.display());
        let of_file = warnings(&["admin.listen=127.0.0.1:9101", &file]);
        assert!(of_file[0].contains("can be read by every user"), "{of_file:?}");
    }
}
