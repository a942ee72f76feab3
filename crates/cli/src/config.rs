//! `throng config show`.

use std::process::ExitCode;

use clap::Subcommand;

use crate::serve::{SettingFlags, Settings};
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
    let draft = flags.draft("", &[])?;
    draft.take_warnings().iter().for_each(say::trouble);
    let values = draft.values().clone();
    let settings = Settings::from_draft(draft)?;
    site::check(&settings)?;
    for (key, entry) in values.iter() {
        let note = if origin { entry.origin().to_string() } else { key.help.to_owned() };
        let pair = format!("{} = {}", key.name, entry.to_toml());
        if !say::line(format_args!("{pair:<40} # {note}")) {
            // The reader has exited (`| head -1`).
            break;
        }
    }
    Ok(ExitCode::SUCCESS)
}
