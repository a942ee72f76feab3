//! Checks that `docs/configuration.md` and `docs/operations.md`, whose tables are made from the
//! program's own tables, are current, and that the commands in all documents exist.

use std::fmt::Write;
use std::path::Path;

use clap::{CommandFactory, Parser};
use throng_balance::Config;
use throng_config::{Kind, Records, Table, units};

use crate::{log, monitoring, serve};

/// Set this variable to write the document instead.
const WRITE: &str = "UPDATE_DOCUMENTS";

#[test]
fn the_document_has_all_keys() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let text = include_str!("config/configuration.in.md")
        .replace("{{serve}}", table(&serve::TABLE).trim_end())
        .replace("{{balance}}", table(Config::table()).trim_end());
    is_current(&docs.join("configuration.md"), &text);
}

#[test]
fn the_document_has_all_keys_events_and_metrics() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let text = include_str!("log/operations.in.md");
    let text = text
        .replace("{{events}}", events().trim_end())
        .replace("{{metrics}}", monitoring::table().trim_end());
    is_current(&docs.join("operations.md"), &text);
}

#[test]
fn the_schema_of_the_admin_api_is_beside_the_documents() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    is_current(&docs.join("balance-api.schema.json"), include_str!("balance/api.schema.json"));
}

/// Compares the help with the text that was reviewed.
#[test]
fn the_help_of_each_command_is_the_golden_one() {
    let mut all = crate::Cli::command().term_width(80);
    all.build();
    let all_names = ["serve", "balance", "bench", "doctor", "tune"].into_iter();
    for name in all_names.filter(|name| *name != "tune" || cfg!(unix)) {
        let command = all.find_subcommand_mut(name).unwrap();
        let mut text = String::new();
        add_help(&format!("throng {name} -h"), &command.render_help(), &mut text);
        add_long_help(command, &format!("throng {name}"), &mut text);
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/golden");
        is_current(&golden.join(format!("{name}.txt")), &text);
    }
}

/// Writes the long help of a command and of those below it.
fn add_long_help(command: &mut clap::Command, path: &str, text: &mut String) {
    add_help(&format!("{path} --help"), &command.render_long_help(), text);
    let is_shown = |below: &&mut clap::Command| !below.is_hide_set() && below.get_name() != "help";
    for below in command.get_subcommands_mut().filter(is_shown) {
        let path = format!("{path} {}", below.get_name());
        add_long_help(below, &path, text);
    }
}

fn add_help(command: &str, help: &clap::builder::StyledStr, text: &mut String) {
    let _ = writeln!(text, "$ {command}");
    for line in help.to_string().lines() {
        let _ = writeln!(text, "{}", line.trim_end());
    }
}

/// Returns the words of a command as a shell has them, up to what follows the command.
fn words(command: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quote = None;
    for byte in command.chars() {
        match byte {
            '\'' | '"' if quote.is_none() => quote = Some(byte),
            _ if quote == Some(byte) => quote = None,
            ' ' if quote.is_none() => words.push(String::new()),
            _ => words.last_mut().unwrap().push(byte),
        }
    }
    words.retain(|word| !word.is_empty());
    let ends = |word: &String| matches!(word.as_str(), "&" | ">" | "|" | "#");
    words.truncate(words.iter().position(ends).unwrap_or(words.len()));
    words
}

/// Returns the commands of a document: whole lines of code blocks, and code in sentences.
fn commands(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut is_code = false;
    for line in text.lines() {
        if line.starts_with("```") {
            is_code = !is_code;
        } else if is_code {
            // Also at the end of a pipe.
            let command = line.rsplit("| ").next().unwrap_or_default();
            found.extend(command.starts_with("throng ").then(|| command.to_owned()));
        } else {
            let spans = line.split('`').skip(1).step_by(2);
            found.extend(spans.filter(|span| span.starts_with("throng ")).map(str::to_owned));
        }
    }
    let is_command = |command: &String| {
        let words = words(command);
        let second = words.get(1).map_or("", String::as_str);
        // Lines that the program prints begin with its name, and `throng bench MODE` is a form.
        let is_printed = matches!(second, "listens" | "balances");
        let is_word = second.starts_with(|first: char| first.is_ascii_lowercase() || first == '-');
        is_word && !is_printed && !command.contains("MODE") && !command.contains('[')
    };
    found.retain(is_command);
    found
}

#[test]
fn every_command_in_the_documents_exists() {
    use clap::error::ErrorKind::{InvalidSubcommand, UnknownArgument};
    let mut checked = 0;
    for (page, text) in pages() {
        for command in commands(&text) {
            // Sentences leave arguments out.
            if let Err(error) = crate::Cli::try_parse_from(words(&command))
                && matches!(error.kind(), InvalidSubcommand | UnknownArgument)
            {
                panic!("{page}: {command}\n{error}");
            }
            checked += 1;
        }
    }
    assert!(checked > 50, "only {checked} commands were found");
}

/// Returns the pages for users, each with its name.
fn pages() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let files = |folder: &str| {
        let entries = std::fs::read_dir(root.join(folder)).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect::<Vec<_>>()
    };
    let others = ["README.md", "BENCHMARKING.md", "SECURITY.md"].map(|page| root.join(page));
    let docs = ["docs", "docs/bench", "docs/design"].into_iter().flat_map(files);
    docs.chain(others)
        .filter(|page| page.extension().is_some_and(|it| it == "md"))
        .filter_map(|page| Some((page.display().to_string(), std::fs::read_to_string(page).ok()?)))
        .collect()
}

#[test]
fn every_metric_in_the_documents_exists() {
    let names = monitoring::names();
    let parts = ["_bucket", "_sum", "_count"];
    let is_crate = |word: &str| {
        let name = word.trim_start_matches("throng_");
        Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name).is_dir()
    };
    let mut checked = 0;
    for (page, text) in pages() {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        // Not names of packages, such as throng_0.1.0.
        let is_metric = |word: &&str| word.starts_with("throng_") && !word.contains("_0");
        for word in words.filter(is_metric) {
            // A group of them: `throng_cluster_*`.
            let is_group = word.ends_with('_') && names.iter().any(|name| name.starts_with(word));
            let plain = parts.iter().find_map(|part| word.strip_suffix(part)).unwrap_or(word);
            let exists = names.iter().any(|name| name == word || name == plain);
            assert!(exists || is_group || is_crate(word), "{page}: {word} is no metric");
            checked += 1;
        }
    }
    assert!(checked > 100, "only {checked} metrics were found");
}

#[test]
fn every_setting_and_event_with_a_section_in_the_documents_exists() {
    let keys = serve::TABLE.keys.iter().chain(Config::table().keys).map(|key| key.name);
    let known: Vec<&str> = keys.chain(log::events::ALL.iter().map(|event| event.name)).collect();
    let section = |name: &str| name.split_once('.').map(|(section, _)| section.to_owned());
    let mut checked = 0;
    for (page, text) in pages() {
        for span in text.split('`').skip(1).step_by(2) {
            let word = span.split([' ', '=', ',']).next().unwrap_or_default();
            let is_name = word.bytes().all(|b| b.is_ascii_lowercase() || b"._".contains(&b));
            let Some(its) = section(word).filter(|_| is_name) else { continue };
            if !known.iter().any(|name| section(name).as_deref() == Some(&*its)) {
                continue;
            }
            let is_group = known.iter().any(|name| name.starts_with(&format!("{word}.")));
            assert!(
                known.contains(&word) || is_group,
                "{page}: {word} is neither a setting nor an event"
            );
            checked += 1;
        }
    }
    assert!(checked > 50, "only {checked} names were found");
}

#[test]
fn settings_of_other_servers_are_documented_and_ours_exist() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let page = std::fs::read_to_string(docs.join("moving.md")).unwrap();
    for foreign in throng_config::foreign::ALL {
        for name in foreign.names {
            assert!(page.contains(name), "docs/moving.md does not have {name}");
        }
        for key in foreign.keys {
            let (name, value) = key.split_once('=').unwrap_or((*key, ""));
            let key = serve::TABLE.key(name).or_else(|| Config::table().key(name));
            let key = key.unwrap_or_else(|| panic!("{name} is not a setting"));
            let is_word = matches!(key.kind, Kind::Word(words) if words.contains(&value));
            assert!(value.is_empty() || is_word, "{name} cannot be {value}");
        }
    }
}

/// Words of published guides and benchmarks of WebSocket servers, as their readers look for them.
const VOCABULARY: &str = "\
    sgcWebSockets|Delphi|Indy|IndyPool|TsgcWebSocketServer|TsgcWebSocketHTTPServer|\
    TsgcWebSocketHTTPServer_LoadBalancer|IOHandlerOptions|IOHandlerType|iohEPOLL|iohIOCP|IOCP|\
    epoll|kqueue|EPOLLThreads|IOCPThreads|WorkOpThreads|thread for each connection|ThreadPool|\
    PoolSize|CPUCount|QueueSize|MaxConnections|OnMessage|queue depth|PerMessage_Deflate|\
    ServerMaxWindow|MemLevel|Threshold|RFC 7692|WriteOptions|FragmentEnabled|FragmentSize|\
    ReadOptions|MaxFrameSize|Connections[i]|WriteData|Broadcast|EncodeFrame|BroadcastEncoded|\
    ulimit -n|somaxconn|backlog|TIME_WAIT|tcp_tw_reuse|TcpTimedWaitDelay|SO_REUSEPORT|\
    ephemeral port|ip_local_port_range|MaxUserPort|TcpMaxConnectResponseRetransmissions|HeartBeat|\
    half-open|keepalive|Stickiness|X-Forwarded-For|HAProxy|nginx|ALB|OCSP|AES|RSS|NUMA|ethtool -L|\
    set_irq_affinity.sh|Get-NetAdapterRss|interrupt coalescing|softirq|DPC|head-of-line|kbmMW|\
    WebBroker|NetCom7|RealThinClient|RTC|Synopse|mORMot|Sparkle|NetBenchmarks|IIS|Apache|thor|\
    mostly-idle|burst|p99";

#[test]
fn the_documents_have_the_words_that_readers_look_for() {
    let pages: Vec<String> = pages().into_iter().map(|(_, text)| text).collect();
    for word in VOCABULARY.split('|') {
        assert!(pages.iter().any(|page| page.contains(word)), "no page has {word}");
    }
}

/// Checks or writes a document that is made of tables.
fn is_current(path: &Path, text: &str) {
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(path, text).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        written == text,
        "{} is not what the tables say; write it with \
         `{WRITE}=1 cargo test -p throng-cli --lib documents`",
        path.display()
    );
}

/// Returns the keys of a program as a table in Markdown.
fn table(of: &Table) -> String {
    let mut text = String::from("| setting | type | default | meaning |\n|---|---|---|---|\n");
    for key in of.keys {
        let default = match key.default {
            "" => "not set".to_owned(),
            default => format!("`{}`", default.replace(',', ", ")),
        };
        let restart = if key.at_start { "; needs a restart" } else { "" };
        let meaning = key.meaning().replace('|', "\\|");
        let flag = key.flag.map_or(String::new(), |flag| format!(", `{}`", flag.name));
        let (name, kind) = (key.name, kind(&key.kind));
        let _ = writeln!(text, "| `{name}`{flag} | {kind} | {default} | {meaning}{restart} |");
    }
    text
}

/// Returns the events as a table in Markdown.
fn events() -> String {
    let mut text = String::from("| event | level | fields | meaning |\n|---|---|---|---|\n");
    for event in log::events::ALL {
        let fields: Vec<String> = event.fields.iter().map(|field| format!("`{field}`")).collect();
        let (name, level, help) = (event.name, event.level.word(), event.help);
        let _ = writeln!(text, "| `{name}` | {level} | {} | {help} |", fields.join(", "));
    }
    text
}

fn kind(of: &Kind) -> String {
    let words = |words: &[&str]| format!("`{}`", words.join("`, `"));
    match of {
        Kind::Switch => "`true`, `false`".to_owned(),
        Kind::Count { min: 0, .. } => "count".to_owned(),
        Kind::Count { min, max } if *max <= i32::MAX as u64 => format!("count, {min} to {max}"),
        Kind::Count { min, .. } => format!("count, at least {min}"),
        Kind::Size { min: 0 | 1, .. } => "size".to_owned(),
        Kind::Size { min, max: units::LARGEST } => {
            format!("size, at least {}", units::show_size(*min))
        }
        Kind::Size { min, max } => {
            format!("size, {} to {}", units::show_size(*min), units::show_size(*max))
        }
        Kind::Duration { .. } => "duration".to_owned(),
        Kind::Word(known) => words(known),
        Kind::Tagged { words: known, tags } => {
            format!("{}, `{}:NAME`", words(known), tags.join(":NAME`, `"))
        }
        Kind::Text(_) => "text".to_owned(),
        Kind::Secret => "secret".to_owned(),
        Kind::Path => "path".to_owned(),
        Kind::Address => "IP:PORT".to_owned(),
        Kind::Host => "HOST:PORT".to_owned(),
        Kind::Peer => "HOST:PORT, `unix:PATH`".to_owned(),
        Kind::Listener => "HOST:PORT, `unix:PATH`, `fd:N`, `systemd`".to_owned(),
        Kind::List(item) => format!("list of {}", kind(item)),
        Kind::Or(word, inner) => format!("`{word}`, {}", kind(inner)),
        Kind::Records(Records { parse: Some(_), .. }) => "list of tables or texts".to_owned(),
        Kind::Records(_) => "list of tables".to_owned(),
        Kind::Map(item) => format!("table of NAME = {}", kind(item)),
        Kind::Rate => "rate".to_owned(),
    }
}
