//! The `throng` binary, as a library so that `dev/lab` can share its flags, settings and output.
//!
//! * Duty: flags, settings, signals, output. Every command is a thin layer over a library.
//! * Not its duty: serving (`throng`), balancing (`throng-balance`), load (`throng-load`).
//! * Depends on: those three, and `throng-proto` for its own few requests.
//! * Start reading at: `ThrongCommand`.
#![forbid(unsafe_code)]

mod admin;
mod aside;
mod attend;
#[cfg(feature = "balance")]
mod balance;
pub mod bench;
mod build_labels;
mod changes;
mod checks;
mod cluster;
mod config;
mod demo;
mod doctor;
#[cfg(all(test, feature = "balance"))]
mod documents;
#[cfg(feature = "tls")]
mod expiry;
mod failure;
pub mod flags;
mod folder;
mod generate;
mod health;
mod hostile;
mod hosts;
mod http_client;
mod log;
mod monitoring;
#[cfg(all(unix, feature = "redis"))]
mod nodes;
mod register;
pub mod serve;
#[cfg_attr(windows, path = "service/windows.rs")]
mod service;
mod settings_json;
pub mod signals;
mod sockets;
pub mod terminal;
#[cfg(unix)]
mod tune;
mod upgrade;
mod wire;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use throng_config::Table;

use build_labels::VERSION;
pub use failure::Failure;

/// WebSocket and HTTP server, load balancer and load generator.
#[derive(Parser)]
#[command(name = "throng", version = VERSION, long_version = LONG_VERSION)]
#[command(propagate_version = true, max_term_width = 100, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: ThrongCommand,
}

const LONG_VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "\ncommit: ",
    env!("BUILD_COMMIT"),
    "\ntarget: ",
    env!("BUILD_TARGET"),
    "\nprofile: ",
    env!("BUILD_PROFILE"),
    "\nfeatures: ",
    env!("BUILD_FEATURES")
);

const EXAMPLES: &str = "Examples:
  throng demo                                   watch a server with 1,000 clients; Ctrl-C ends it
  throng serve --listen 0.0.0.0:9001            serve /echo and /ws/{channel} to the network
  throng balance --backend 127.0.0.1:9001 --backend 127.0.0.1:9002
                                                balance several servers
  throng cluster status 10.0.0.1:9001 10.0.0.2:9001
                                                ask the servers of a cluster
  throng doctor --for 250000                    is there room for so many connections?
  throng bench echo ws://127.0.0.1:9001/echo    measure any WebSocket server
  throng bench http http://127.0.0.1:9001/      measure any HTTP server
  throng tune --scenario chat                   which settings suit this load?

Exit codes: 0 success, 1 failed, for a reason that another start may not meet,
2 a flag or setting is invalid, 3 a shutdown had to be forced, 130 ended at
once by a second Ctrl-C or SIGTERM.";

/// The error if TLS is requested in a build without it.
#[cfg(not(feature = "tls"))]
pub(crate) const NO_TLS: &str =
    "this program was built without TLS: build it with its default features";

/// The error if a certificate of an authority is requested in a build without its client.
#[cfg(all(feature = "tls", not(feature = "acme")))]
pub(crate) const NO_ACME: &str =
    "this program was built without ACME: build it with its default features";

#[derive(Subcommand)]
enum ThrongCommand {
    /// Run a server with a web page and 1,000 simulated clients, and print statistics every second.
    Demo(demo::Args),
    /// Serve WebSocket channels, server-sent events, files, health checks and metrics.
    Serve(serve::Args),
    #[cfg(feature = "balance")]
    /// Load-balance WebSocket and HTTP traffic without dropping connections on reconfiguration.
    Balance(Box<balance::Args>),
    /// Measure the throughput, latency and memory of any WebSocket or HTTP server.
    Bench(Box<bench::Args>),
    /// Ask a running server or balancer whether it is healthy, as a container's health check.
    Health(health::Args),
    /// Ask the servers of a cluster whether it delivers to them.
    Cluster(cluster::Args),
    /// Make completions, manual pages, a Grafana dashboard and alert rules.
    Generate(generate::Args),
    /// Replace a running server or balancer by a new process, without refusing a connect.
    Upgrade(upgrade::Args),
    #[cfg(windows)]
    /// Register, remove and run `serve` or `balance` as a service of Windows.
    Service(service::Args),
    /// Report how many connections this machine holds, and which limits stop more of them.
    Doctor(Box<doctor::Args>),
    #[cfg(unix)]
    /// Find better settings of a server for a load, one setting at a time.
    Tune(Box<tune::Args>),
    /// Print and check the settings of `serve` and `balance`.
    Config(config::Args),
}

/// Runs the command line `arguments`, whose first word is the program's name.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let words: Vec<OsString> = arguments.into_iter().collect();
    let mut matches = with_negative_numbers(Cli::command())
        .try_get_matches_from(words.iter().cloned())
        .unwrap_or_else(|error| with_hint(error, &words).exit());
    let cli = Cli::from_arg_matches_mut(&mut matches).unwrap_or_else(|error| error.exit());
    let outcome = match cli.command {
        ThrongCommand::Demo(args) => demo::run(args),
        ThrongCommand::Serve(args) => serve::run(args),
        #[cfg(feature = "balance")]
        ThrongCommand::Balance(args) => balance::run(*args),
        ThrongCommand::Bench(args) => bench::run(*args),
        ThrongCommand::Cluster(args) => cluster::run(&args),
        ThrongCommand::Config(args) => config::run(args),
        ThrongCommand::Doctor(args) => doctor::run(*args),
        ThrongCommand::Generate(args) => generate::run(&args, Cli::command()),
        ThrongCommand::Health(args) => health::run(args),
        #[cfg(windows)]
        ThrongCommand::Service(args) => service::run(args),
        #[cfg(unix)]
        ThrongCommand::Tune(args) => tune::run(&args),
        ThrongCommand::Upgrade(args) => upgrade::run(&args),
    };
    match outcome {
        Ok(code) => code,
        Err(failure) => {
            terminal::error_line(failure.message);
            ExitCode::from(failure.code)
        }
    }
}

/// Returns the program with its flags of the command line `arguments`, if it is `serve` or
/// `balance`.
#[cfg(unix)]
pub(crate) fn program_of(arguments: impl IntoIterator<Item = OsString>) -> Option<config::Program> {
    let command = with_negative_numbers(Cli::command());
    let mut matches = command.try_get_matches_from(arguments).ok()?;
    match Cli::from_arg_matches_mut(&mut matches).ok()?.command {
        ThrongCommand::Serve(args) => Some(config::Program::Serve(Box::new(args.into_flags()))),
        #[cfg(feature = "balance")]
        ThrongCommand::Balance(args) => {
            Some(config::Program::Balance(Box::new(args.into_flags()?)))
        }
        _ => None,
    }
}

/// Checks that the command line `arguments` is `serve` or `balance`, with valid flags.
///
/// # Errors
/// It is another command, or has an invalid flag.
#[cfg(windows)]
pub(crate) fn check_server(arguments: &[OsString]) -> Result<(), Failure> {
    match arguments.get(1).and_then(|word| word.to_str()) {
        Some("serve") => {}
        #[cfg(feature = "balance")]
        Some("balance") => {}
        other => {
            let other = other.unwrap_or_default();
            return Err(Failure::usage(format!("a service runs serve or balance, not {other}")));
        }
    }
    let command = with_negative_numbers(Cli::command());
    command.try_get_matches_from(arguments).map(drop).map_err(Failure::usage)
}

/// Adds the hint for an unknown flag that other servers have as a setting.
fn with_hint(mut error: clap::Error, words: &[OsString]) -> clap::Error {
    if let Some(hint) = hint(&error, words) {
        // A flag that is spelled alike has another meaning.
        error.remove(ContextKind::SuggestedArg);
        let hint = ContextValue::StyledStrs(vec![StyledStr::from(hint)]);
        error.insert(ContextKind::Suggested, hint);
    }
    error
}

fn hint(error: &clap::Error, words: &[OsString]) -> Option<String> {
    let ErrorKind::UnknownArgument = error.kind() else { return None };
    let ContextValue::String(flag) = error.get(ContextKind::InvalidArg)? else { return None };
    let name = flag.strip_prefix("--")?.split('=').next()?;
    let hint = settings_of(words)?.foreign_hint(name)?;
    Some(match hint.starts_with("here it is ") {
        true => format!("{hint}; --set KEY=VALUE sets every setting, also one without a flag"),
        false => hint,
    })
}

/// Returns the settings that are flags of the command line; `None` for a command without settings.
fn settings_of(words: &[OsString]) -> Option<&'static Table> {
    let words = words.iter().skip(1).map(|word| word.to_string_lossy());
    let commands: Vec<_> = words.take_while(|word| !word.starts_with('-')).collect();
    let has = |name: &str| commands.iter().any(|word| word == name);
    match () {
        #[cfg(feature = "balance")]
        () if has("balance") => Some(throng_balance::Config::table()),
        () if has("serve") || has("config") || has("health") => Some(&serve::TABLE),
        () => None,
    }
}

/// Takes `-1` for a value, which has its own error, and not for a flag.
fn with_negative_numbers(command: clap::Command) -> clap::Command {
    let allow = |arg: clap::Arg| {
        let takes_values = arg.get_action().takes_values();
        arg.allow_negative_numbers(takes_values)
    };
    command.mut_args(allow).mut_subcommands(with_negative_numbers)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use clap::CommandFactory;
    use clap::error::ErrorKind;

    use super::{Cli, with_hint, with_negative_numbers};

    fn each(command: &clap::Command, see: &mut impl FnMut(&clap::Command)) {
        see(command);
        command.get_subcommands().for_each(|command| each(command, see));
    }

    #[test]
    fn no_paragraph_of_help_is_wrapped_again_in_80_columns() {
        each(&Cli::command(), &mut |command| {
            for help in [command.get_after_help(), command.get_after_long_help()] {
                let help = help.map(ToString::to_string).unwrap_or_default();
                for line in help.lines().filter(|line| !line.starts_with(' ')) {
                    assert!(line.chars().count() < 80, "{}: {line}", command.get_name());
                }
            }
        });
    }

    #[test]
    fn every_command_takes_a_negative_number_for_a_value() {
        let command = with_negative_numbers(Cli::command());
        command.clone().debug_assert();
        for words in ["serve --shards -1", "bench echo ws://a/ --connections -1"] {
            let words = ["throng"].into_iter().chain(words.split(' '));
            let error = command.clone().try_get_matches_from(words).err();
            let is_other = |error: clap::Error| error.kind() != ErrorKind::UnknownArgument;
            assert!(error.is_none_or(is_other));
        }
    }

    #[test]
    fn an_unknown_flag_in_the_words_of_another_server_gets_the_hint_of_the_setting() {
        let said = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let command = with_negative_numbers(Cli::command());
            let error = command.try_get_matches_from(words.iter().cloned()).unwrap_err();
            with_hint(error, &words).to_string()
        };
        for (line, words) in [
            ("throng serve --pool-size 3", "WorkerSettings::pool_size"),
            ("throng serve --worker-connections=3", "here it is max_connections"),
            ("throng config check --maxPayload 3", "here it is max_message_size"),
            ("throng health --maxPayload 3", "here it is max_message_size"),
            #[cfg(feature = "balance")]
            ("throng balance --pool-size 3", "WorkerSettings::pool_size"),
            #[cfg(feature = "balance")]
            ("throng config check balance --maxPayload=3", "`throng serve` has max_message_size"),
        ] {
            let said = said(line);
            assert!(said.contains(words) && said.contains("unexpected argument"), "{said}");
        }
        let said = said("throng bench echo ws://a/ --pool-size 3");
        assert!(!said.contains("WorkerSettings"), "{said}");
    }

    #[test]
    fn short_help_leaves_the_manual_to_long_help() {
        let all = ["serve", "balance"].into_iter();
        for name in all.filter(|name| *name == "serve" || cfg!(feature = "balance")) {
            let mut command = Cli::command();
            let command = command.find_subcommand_mut(name).unwrap();
            let [short, long] = [command.render_help(), command.render_long_help()];
            assert!(!short.to_string().contains("Signals:"), "{name}");
            assert!(long.to_string().contains("Signals:"), "{name}");
        }
    }

    #[test]
    fn short_help_has_the_everyday_options_and_examples_on_a_screen() {
        let mut command = Cli::command().term_width(80);
        command.build();
        let short = |path: &[&str]| {
            let mut command = command.clone();
            let found = path
                .iter()
                .fold(&mut command, |command, name| command.find_subcommand_mut(name).unwrap());
            found.render_help().to_string()
        };
        let serve = short(&["serve"]);
        assert!(serve.lines().count() <= 45, "{serve}");
        for words in ["--listen", "--config", "--set", "Examples:", "throng serve --help"] {
            assert!(serve.contains(words), "{words}: {serve}");
        }
        assert!(!serve.contains("--shards"), "{serve}");
        for path in [&["bench", "echo"], &["bench", "http"]] {
            let short = short(path);
            assert!(!short.contains("--setup-timeout") && !short.contains("--sni"), "{short}");
        }
    }
}
