//! `throng bench compare`: two sides of runs, figure by figure.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use throng_io::file::read_text_once;
use throng_load::Error;
use throng_load::compare::{Options, Runs, compare};

use super::MAX_FILE;
use super::output::OutputArgs;
use crate::failure::Failure;

pub(super) const EXAMPLES: &str = "Examples:
  throng bench echo ws://127.0.0.1:9001/echo --json >> before.json     several times, for intervals
  throng bench compare before.json after.json
  throng bench compare a1.json a2.json a3.json -- b1.json b2.json b3.json
  throng bench compare before.json after.json --threshold 2 --csv

A file may hold several reports, one after the other; options go before --.
With two runs or more on each side a change has a 95 % confidence interval
(Welch's t-test), and counts only if that excludes 0.

Exit codes: 0 no regression, 2 what was given cannot be compared, 99 a figure
that decides became worse.";

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Reports of --json: of the first side, and without -- the last file is the second side
    #[arg(value_name = "FILE", required = true)]
    base: Vec<PathBuf>,
    /// Reports of the second side
    #[arg(value_name = "FILE", last = true)]
    new: Vec<PathBuf>,
    /// Changes of up to so many per cent never count
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0)]
    threshold: f64,
    /// Compare runs of different plans, too
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    output: OutputArgs,
}

/// Compares, and shows the result.
pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    args.output.check()?;
    let (base, new) = args.sides()?;
    let options = Options { threshold: args.threshold / 100.0, force: args.force };
    args.output.show(&compare(&base, &new, options)?)
}

impl Args {
    fn sides(&self) -> Result<(Runs, Runs), Error> {
        let (base, new) = match (&self.base[..], &self.new[..]) {
            ([base @ .., new], []) if !base.is_empty() => (base, std::slice::from_ref(new)),
            (_, []) => {
                let what = "one file has nothing to be compared with: give two, or both sides \
                            with -- between them";
                return Err(Error::Usage(what.to_owned()));
            }
            (base, new) => (base, new),
        };
        Ok((read_all(base)?, read_all(new)?))
    }
}

fn read_all(paths: &[PathBuf]) -> Result<Runs, Error> {
    let mut runs = paths.iter().map(|path| read(path));
    let first =
        runs.next().unwrap_or_else(|| Err(Error::Usage("a side has no file".to_owned())))?;
    runs.try_fold(first, |all, more| Ok(all.and(more?)))
}

fn read(path: &Path) -> Result<Runs, Error> {
    let name = path.display().to_string();
    let text =
        read_text_once(path, MAX_FILE).map_err(|error| Error::Usage(format!("{name} {error}")))?;
    Runs::parse(&name, &text)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Bench {
        #[command(flatten)]
        args: Args,
    }

    fn parse(line: &str) -> Args {
        let words = std::iter::once("compare").chain(line.split_whitespace());
        Bench::try_parse_from(words).unwrap().args
    }

    #[test]
    fn sides_are_the_last_file_or_stand_behind_dashes() {
        let error = |line: &str| parse(line).sides().unwrap_err().to_string();
        assert!(error("/no/a").contains("nothing to be compared with"));
        assert!(error("/no/a /no/b").contains("/no/a cannot be read"));
        let args = parse("a1 a2 --threshold 2 -- b1");
        assert_eq!((args.base.len(), args.new.len(), args.threshold), (2, 1, 2.0));
    }
}
