//! `throng generate`: completions for shells, and manual pages, for packages.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Subcommand};
use clap_complete::Shell;

use crate::{Cli, Failure, say};

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
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let mut command = Cli::command();
    match &args.what {
        What::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(*shell, &mut command, "throng", &mut text);
            if !say::text_as_is(String::from_utf8_lossy(&text)) {
                return Err(Failure::runtime("the completions could not be written"));
            }
        }
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
