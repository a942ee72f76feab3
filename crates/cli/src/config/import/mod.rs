//! `throng config import`: the configuration of another balancer as one of `throng balance`.
//!
//! The command lists each directive that it cannot translate. A location whose access such a
//! directive may restrict answers with 503, so that no request gets further than before.

mod nginx;
mod output;
mod parse;
mod value;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Subcommand;

use crate::failure::Failure;
use crate::terminal;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    from: From,
}

#[derive(Subcommand)]
enum From {
    /// Translate a configuration of nginx for `throng balance`
    ///
    /// Prints the translation, with the line that each part is from, and then what is not
    /// translated, with the reason. Reads no file outside the folder of FILE. A location whose
    /// access cannot be restricted as before answers with 503.
    #[command(
        after_help = "Exit codes: 0 everything is translated, 3 a part is, 2 FILE cannot be \
        read.\n\nExamples:\n  throng config import nginx nginx.conf > balance.toml\n  \
        throng config check balance --config balance.toml"
    )]
    Nginx {
        /// The file, such as /etc/nginx/nginx.conf
        file: PathBuf,
    },
}

/// A translation.
pub(crate) struct Imported {
    /// The configuration, in TOML.
    pub(crate) toml: String,
    /// The directives that are not translated.
    pub(crate) left: Vec<Left>,
}

/// Something that is not translated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Left {
    /// The file, if it is not the first one, and the line.
    pub(crate) place: String,
    /// The directive as it is written.
    pub(crate) directive: String,
    /// Why, and what to do.
    pub(crate) why: String,
}

/// The exit code of a translation in part.
const IN_PART: u8 = 3;

pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    let From::Nginx { file } = args.from;
    let imported = import(&file).map_err(Failure::usage)?;
    terminal::report(&imported.toml)?;
    for Left { place, directive, why } in &imported.left {
        terminal::error_line(format_args!("not translated: {place}: {directive}: {why}"));
    }
    Ok(match imported.left.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(IN_PART),
    })
}

/// Reads and translates a file.
fn import(file: &Path) -> Result<Imported, String> {
    let (tree, left) = parse::read(file)?;
    Ok(nginx::translate(&tree, left))
}

#[cfg(test)]
mod tests;
