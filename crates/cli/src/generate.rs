//! `throng generate`: completions for shells, manual pages, and what shows and watches metrics.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Subcommand};
use clap_complete::Shell;

use crate::{Cli, Failure, monitoring, terminal};

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

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let mut command = Cli::command();
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
                .and_then(|()| clap_mangen::generate_to(command, folder));
            written.map_err(|error: io::Error| {
                Failure::runtime(format!("cannot write to {}: {error}", folder.display()))
            })?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
