//! `cargo xtask test`: runs every test and check of Throng with one command. `cargo xtask dist`:
//! makes the files of a release.
//!
//! * Duty: run every layer of tests in order, fetch the programs that they need, and report the
//!   results; make and check the files of a release.
//! * Not its duty: the tests themselves (they are beside the code, in `conformance/` and in
//!   `fuzz/`).
//! * Depends on: cargo, and per layer on the programs that the layer names.
//! * Start reading at: `layers::LAYERS`, then `report::run_layers`.

#![forbid(unsafe_code)]

mod arguments;
mod certificate;
mod check;
mod command;
mod dist;
mod layers;
mod outcome;
mod provision;
mod report;
mod server;
mod site;
mod tidy;

use std::process::ExitCode;

use arguments::{Action, parse};
use outcome::Stop;
use site::Site;

fn main() -> ExitCode {
    match parse(std::env::args().skip(1)) {
        Ok(Action::Help) => {
            print!("{}", arguments::HELP);
            ExitCode::SUCCESS
        }
        Ok(Action::List) => {
            for layer in layers::LAYERS {
                let night = if layer.night { " (--night)" } else { "" };
                println!("{:<24} {}{night}", layer.name, layer.about);
            }
            ExitCode::SUCCESS
        }
        Ok(Action::Test(selection)) => match Site::find(selection.server) {
            Ok(site) => report::run_layers(&site, &selection),
            Err(problem) => {
                eprintln!("xtask: {problem}");
                ExitCode::from(1)
            }
        },
        Ok(Action::Check { packages }) => run(|site| check::run(site, &packages)),
        Ok(Action::Dist { binary, windows }) => run(|site| dist::run(site, binary, windows)),
        Err(problem) => {
            eprintln!("xtask: {problem}\n\n{}", arguments::HELP);
            ExitCode::from(2)
        }
    }
}

/// Runs a task in the repository.
fn run(task: impl FnOnce(&Site) -> Result<(), Stop>) -> ExitCode {
    match Site::find(None).map_err(Stop::Failed).and_then(|site| task(&site)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Stop::Failed(why) | Stop::Missing(why)) => {
            eprintln!("xtask: {why}");
            ExitCode::from(1)
        }
    }
}
