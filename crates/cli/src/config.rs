//! `throng config show`.

use std::process::ExitCode;

use clap::Subcommand;

use crate::serve::SettingFlags;
use crate::{Failure, say, site};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Print every setting with its value and meaning.
    Show {
        /// Print where each value comes from instead of its meaning
        #[arg(long)]
        origin: bool,
        #[command(flatten)]
        flags: SettingFlags,
    },
}

pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    let Command::Show { origin, flags } = args.command;
    let settings = flags.settings().map_err(Failure::usage)?;
    for (setting, value, from) in settings.each() {
        let note = if origin { from.to_string() } else { setting.help.to_owned() };
        let pair = format!("{} = {value:?}", setting.key);
        if !say::line(format_args!("{pair:<40} # {note}")) {
            // The reader has exited (`| head -1`).
            break;
        }
    }
    site::check(&settings.checked().map_err(Failure::usage)?)?;
    Ok(ExitCode::SUCCESS)
}
