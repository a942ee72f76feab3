//! `throng config`: the settings of `serve` and `balance`, their check and their schema.

#[cfg(feature = "balance")]
mod import;
mod schema;

use std::fmt::Write;
use std::process::ExitCode;

use clap::Subcommand;
#[cfg(feature = "balance")]
use throng_balance::Config;
use throng_config::{Draft, Value, ValueEntry, Values};

#[cfg(feature = "balance")]
use crate::balance::{Flags, checked};
use crate::failure::Failure;
use crate::serve::{self, ServeFlags, Settings, site};
use crate::settings_json::as_json;
use crate::terminal;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Subcommand)]
enum ConfigCommand {
    /// Print every setting with its value and meaning, in the form of a file.
    Show {
        /// Print where each value comes from instead of its meaning
        #[arg(long, global = true)]
        origin: bool,
        /// Print JSON, with value, default, origin and meaning of each setting
        #[arg(long, global = true)]
        json: bool,
        #[command(flatten)]
        of: ProgramArgs,
    },
    /// Check the settings, and report all mistakes.
    Check {
        #[command(flatten)]
        of: ProgramArgs,
    },
    /// Translate the configuration of another balancer for `throng balance`.
    #[cfg(feature = "balance")]
    Import(import::Args),
    /// Print the JSON Schema of a configuration file, for editors.
    Schema {
        #[command(subcommand)]
        program: Option<Name>,
    },
}

/// The settings to read: those of `serve`, unless a program is named.
#[derive(clap::Args)]
pub(crate) struct ProgramArgs {
    #[command(subcommand)]
    program: Option<Program>,
    #[command(flatten)]
    flags: ServeFlags,
}

#[derive(Subcommand)]
pub(crate) enum Program {
    /// The settings of `throng serve`, with its flags.
    Serve(Box<ServeFlags>),
    #[cfg(feature = "balance")]
    /// The settings of `throng balance`, with its flags.
    Balance(Box<Flags>),
}

#[derive(Subcommand)]
enum Name {
    /// The settings of `throng serve`.
    Serve,
    #[cfg(feature = "balance")]
    /// The settings of `throng balance`.
    Balance,
}

impl ProgramArgs {
    /// Returns whether a program or one of its flags is named.
    pub(crate) fn are_given(&self) -> bool {
        self.program.is_some() || self.flags.is_given()
    }

    pub(crate) fn program(self) -> Result<Program, Failure> {
        match self.program {
            None => Ok(Program::Serve(Box::new(self.flags))),
            Some(_) if self.flags.is_given() => Err(Failure::usage(
                "flags before the program's name have no effect: write them after it, for example \
                 throng config show balance --config balance.toml",
            )),
            Some(program) => Ok(program),
        }
    }
}

impl Program {
    /// Returns the values of all sources.
    pub(crate) fn draft(&self) -> Result<Draft, Failure> {
        match self {
            Self::Serve(flags) => flags.draft(),
            #[cfg(feature = "balance")]
            Self::Balance(flags) => Ok(flags.sources()?.finish()),
        }
    }
}

pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    match args.command {
        ConfigCommand::Show { origin, json, of } => {
            let values = values(&of.program()?)?;
            if json {
                terminal::report_line(format_args!("{:#}", as_json(&values)))?;
            } else {
                terminal::report(listing(&values, origin))?;
            }
        }
        ConfigCommand::Check { of } => {
            terminal::report_line(match of.program()? {
                Program::Serve(flags) => {
                    let settings = flags.check()?;
                    format!("the configuration is valid: listen: {}", settings.listen.join(", "))
                }
                #[cfg(feature = "balance")]
                Program::Balance(flags) => checked(flags.config()?)?,
            })?;
        }
        #[cfg(feature = "balance")]
        ConfigCommand::Import(args) => return import::run(args),
        ConfigCommand::Schema { program } => {
            let table = match program {
                #[cfg(feature = "balance")]
                Some(Name::Balance) => Config::table(),
                None | Some(Name::Serve) => &serve::TABLE,
            };
            terminal::report_line(format_args!("{:#}", schema::of(table)))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the values of a program. A missing value does not count as an error here.
fn values(program: &Program) -> Result<Values, Failure> {
    let (values, errors) = match program {
        Program::Serve(_) => {
            let draft = program.draft()?;
            let values = draft.values().clone();
            let settings = Settings::from_draft(draft);
            if let Ok(settings) = &settings {
                settings.warnings.iter().for_each(terminal::error_line);
                site::check(settings)?;
            }
            (values, settings.err())
        }
        #[cfg(feature = "balance")]
        Program::Balance(_) => {
            let draft = program.draft()?;
            let values = draft.values().clone();
            let config = Config::from_draft(draft);
            if let Ok(config) = &config {
                config.warnings().iter().for_each(terminal::error_line);
            }
            (values, config.err())
        }
    };
    match errors {
        Some(errors) if errors.all().iter().any(|error| error.origin().is_set()) => {
            Err(errors.into())
        }
        _ => Ok(values),
    }
}

fn listing(values: &Values, origin: bool) -> String {
    let mut text = String::new();
    for (key, entry) in values.iter() {
        let note = if origin { entry.origin().to_string() } else { key.help.to_owned() };
        // A file could not give an unset key its value.
        let is_set = entry.origin().is_set() || !key.default.is_empty() || is_list(entry);
        let comment = if is_set { "" } else { "# " };
        let pair = format!("{comment}{} = {}", key.name, entry.to_toml());
        let _ = writeln!(text, "{pair:<40} # {note}");
    }
    text
}

fn is_list(entry: &ValueEntry) -> bool {
    matches!(entry.value(), Value::List(_))
}

#[cfg(test)]
mod tests;
