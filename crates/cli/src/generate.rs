//! `throng generate`: completions for shells, manual pages, and what shows and watches metrics.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Subcommand};
use clap_complete::Shell;

use crate::{Cli, Failure, monitoring, say};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
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
    match &args.what {
        What::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(*shell, &mut command, "throng", &mut text);
            say::report(String::from_utf8_lossy(&text))?;
        }
        What::Dashboard => say::report_line(format_args!("{:#}", monitoring::dashboard()))?,
        What::Alerts => say::report(monitoring::alerts())?,
        What::Man { folder } => {
            let written = std::fs::create_dir_all(folder)
                .and_then(|()| clap_mangen::generate_to(command, folder));
            written.map_err(|error: io::Error| {
                Failure::runtime(format!("cannot write to {}: {error}", folder.display()))
            })?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
