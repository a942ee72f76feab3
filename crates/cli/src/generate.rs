//! `throng generate`: completions for shells, manual pages, a dashboard and alert rules.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Command, Subcommand};
use clap_complete::Shell;

use crate::failure::Failure;
use crate::{monitoring, terminal};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    artifact: Artifact,
}

#[derive(Subcommand)]
enum Artifact {
    /// Print the completions of a shell.
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Write the manual pages of all commands into a folder.
    Man {
        /// The folder, which is created
        folder: PathBuf,
    },
    /// Print a Grafana dashboard of all metrics.
    Dashboard,
    /// Print alert rules for Prometheus.
    Alerts,
}

/// Generates the output that `args` request for the program's `command`.
pub(crate) fn run(args: &Args, mut command: Command) -> Result<ExitCode, Failure> {
    match &args.artifact {
        Artifact::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(*shell, &mut command, "throng", &mut text);
            terminal::report(String::from_utf8_lossy(&text))?;
        }
        Artifact::Dashboard => {
            terminal::report_line(format_args!("{:#}", monitoring::dashboard()))?
        }
        Artifact::Alerts => terminal::report(monitoring::alerts())?,
        Artifact::Man { folder } => {
            let written = std::fs::create_dir_all(folder)
                .and_then(|()| clap_mangen::generate_to(for_manual(command), folder));
            written.map_err(|error: io::Error| {
                Failure::runtime(format!("cannot write to {}: {error}", folder.display()))
            })?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Shows all options, including those without a text in the short help: manual pages would have no
/// text for them.
fn for_manual(command: Command) -> Command {
    command.mut_args(|arg| arg.hide_short_help(false)).mut_subcommands(for_manual)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::Cli;

    fn each(command: &Command, check: &mut impl FnMut(&Command)) {
        check(command);
        command.get_subcommands().for_each(|command| each(command, check));
    }

    #[test]
    fn every_option_has_a_text_in_the_manual_pages() {
        let mut command = for_manual(Cli::command());
        command.build();
        let mut options = 0;
        each(&command, &mut |command| {
            let mut page = Vec::new();
            clap_mangen::Man::new(command.clone()).render(&mut page).unwrap();
            let page = String::from_utf8(page).unwrap();
            let lines: Vec<&str> = page.lines().collect();
            for [option, text] in lines.array_windows() {
                if option.starts_with("\\fB\\-") {
                    options += 1;
                    let has_text = !text.is_empty() && !text.starts_with('.');
                    assert!(has_text, "{}: {option}", command.get_name());
                }
            }
        });
        assert!(options > 100, "only {options}");
    }

    #[test]
    fn help_names_every_command() {
        each(&Cli::command(), &mut |command| {
            // Only other commands of this program start it.
            let is_internal = ["part", "blank-work"].contains(&command.get_name());
            assert_eq!(command.is_hide_set(), is_internal, "{}", command.get_name());
        });
    }
}
