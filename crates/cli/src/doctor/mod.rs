//! `throng doctor`: the machine, or a running server.

pub(crate) mod live;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

#[cfg(feature = "balance")]
use throng_balance::Config;
use throng_config::units;
use throng_doctor::{
    Finding, LIVE_RULES, Question, ReadOptions, Role, Settings, Status, diagnose, explain,
    explain_live, facts, find_live, fix_script, json, report, rules, undo_script,
};

#[cfg(feature = "balance")]
use crate::balance::{Flags, checked_settings};
use crate::failure::Failure;
use crate::serve::{self, SettingFlags};
use crate::terminal;

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Program that the machine is for: serve, balance or bench
    #[arg(long, value_name = "ROLE", value_parser = ["serve", "balance", "bench"],
        default_value = "serve", hide_possible_values = true)]
    role: String,
    /// Number of connections wanted, as max_connections [default: as many as possible]
    #[arg(long = "for", value_name = "N", value_parser = units::parse_count)]
    connections: Option<usize>,
    /// Settings of `serve` or `balance` in a TOML file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Set any setting, for example --set listen=0.0.0.0:80; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Judge a running server by its statistics, read twice: the address of /stats.json, or of a
    /// balancer's admin API
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = MACHINE)]
    live: Option<String>,
    #[command(flatten)]
    live_flags: live::Flags,
    /// Explain a rule: its reason, its formula, and how to undo its remedy
    #[arg(long, value_name = "ID", conflicts_with_all = ["json", "all"])]
    explain: Option<String>,
    /// List all rules, with those that pass or were skipped
    #[arg(long)]
    all: bool,
    /// Print JSON, with the formula, the remedies and the source of each rule
    #[arg(long, conflicts_with = "all")]
    json: bool,
    /// Exit with 1 for a warning, too
    #[arg(long)]
    strict: bool,
    /// Write a shell script with remedies; it is not run
    #[arg(long, value_name = "FILE")]
    fix_script: Option<PathBuf>,
    /// Write a shell script that undoes the other one; it is not run
    #[arg(long, value_name = "FILE")]
    undo_script: Option<PathBuf>,
}

/// Flags about the machine, which --live does not read.
const MACHINE: [&str; 7] =
    ["role", "connections", "config", "set", "explain", "fix_script", "undo_script"];

const EXAMPLES: &str = "Limits come from the shell that starts it: in a container or a unit,
run it there. Counters are read twice, a second apart. Nothing is changed.
With --live it asks a server, and the machine that it runs on does not matter.

Exit codes: 0 nothing fails, 1 something fails (with --strict: or warns), or
the server does not answer, 2 a flag or setting is invalid.

Examples:
  throng doctor                            connections, and the first limit
  throng doctor --for 250000               is there room for so many?
  throng doctor --role balance --config balance.toml
  throng doctor --explain syn-backlog
  throng doctor --live 127.0.0.1:9101      what is wrong with this server?
  throng doctor --live 127.0.0.1:8081 --interval 60s --token-file token
  throng doctor --for 250000 --fix-script fix.sh --undo-script undo.sh";

/// The time between two readings of the counters.
const SAMPLE: Duration = Duration::from_secs(1);

pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    if let Some(id) = &args.explain {
        terminal::report(explained(id)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(address) = &args.live {
        let findings = live::run(address, &args.live_flags, args.json, args.all)?;
        return Ok(exit_code(&findings, args.strict));
    }
    let question = question(&args)?;
    let options = ReadOptions { sample: Some(SAMPLE), measures: true, ..ReadOptions::default() };
    let diagnosis = diagnose(&facts::read(&options), &question);
    let scripts =
        [(&args.fix_script, fix_script(&diagnosis)), (&args.undo_script, undo_script(&diagnosis))];
    for (file, text) in scripts {
        if let Some(file) = file {
            write_script(file, &text)?;
        }
    }
    match args.json {
        true => terminal::report_line(format_args!("{:#}", json(&diagnosis)))?,
        false => terminal::report(report(&diagnosis, args.all))?,
    }
    Ok(exit_code(&diagnosis.findings, args.strict))
}

fn exit_code(findings: &[Finding], is_strict: bool) -> ExitCode {
    let is_bad = |status| findings.iter().any(|finding| finding.status == status);
    let fails = is_bad(Status::Fail) || is_strict && is_bad(Status::Warn);
    ExitCode::from(u8::from(fails))
}

fn explained(id: &str) -> Result<String, Failure> {
    let of_machine = || rules::find(id).map(explain);
    of_machine().or_else(|| find_live(id).map(explain_live)).ok_or_else(|| {
        let known = rules::RULES.iter().flat_map(|of| *of).map(|rule| rule.id);
        let known = known.chain(LIVE_RULES.iter().flat_map(|of| *of).map(|rule| rule.id));
        let hint = units::did_you_mean(id, known)
            .unwrap_or_else(|| "`throng doctor --all` lists the rules".to_owned());
        Failure::usage(format!("there is no rule {id}: {hint}"))
    })
}

/// Writes a script that only its owner can change, and that can be run.
fn write_script(file: &Path, text: &str) -> Result<(), Failure> {
    let failed = |error| Failure::runtime(format!("{} cannot be written: {error}", file.display()));
    fs::write(file, text).map_err(failed)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(file, fs::Permissions::from_mode(0o755)).map_err(failed)?;
    }
    Ok(())
}

/// Returns the question of the flags.
fn question(args: &Args) -> Result<Question, Failure> {
    let Args { role, connections, config, set, .. } = args;
    let role = Role::ALL.into_iter().find(|it| it.word() == role).unwrap_or_default();
    let settings = match role {
        Role::Serve => {
            let flags = SettingFlags::of_file(config.clone(), set.clone());
            let draft = flags.draft("", &[])?;
            let is_given = is_given(draft.values());
            let checked = serve::Settings::from_draft(draft)?.checked;
            without_defaults(checked, is_given)
        }
        #[cfg(feature = "balance")]
        Role::Balance => {
            let draft = Flags::of_file(config.clone(), set.clone()).sources()?.finish();
            let is_given = is_given(draft.values());
            without_defaults(checked_settings(&Config::from_draft(draft)?), is_given)
        }
        _ if config.is_some() || !set.is_empty() => {
            return Err(Failure::usage(format!("`throng {}` has no settings here", role.word())));
        }
        _ => Settings::default(),
    };
    let connections = connections.map(|wanted| wanted as u64);
    Ok(Question { role, connections, settings })
}

/// Returns whether a setting has another source than its default.
fn is_given(values: &throng_config::Values) -> bool {
    values.iter().any(|(_, entry)| entry.origin().is_set())
}

/// Forgets the addresses if there are no settings: the default address is for a first try.
fn without_defaults(settings: Settings, given: bool) -> Settings {
    match given {
        true => settings,
        false => Settings { listen: Vec::new(), ..settings },
    }
}
