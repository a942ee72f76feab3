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

fn main() -> ExitCode {
    match parse(std::env::args().skip(1)) {
        Ok(Action::Help) => {
            print!("{}", arguments::HELP);
            ExitCode::SUCCESS
        }
        Ok(Action::List) => {
            for layer in layers::LAYERS {
                println!("{:<20} {}", layer.name, layer.about);
            }
            ExitCode::SUCCESS
        }
        Ok(Action::Test(selection)) => match site::Site::find(selection.server) {
            Ok(site) => report::run_layers(&site, &selection),
            Err(problem) => {
                eprintln!("xtask: {problem}");
                ExitCode::from(1)
            }
        },
        Ok(Action::Dist { binary }) => {
            let made = site::Site::find(None)
                .map_err(outcome::Stop::Failed)
                .and_then(|site| dist::run(&site, binary));
            match made {
                Ok(()) => ExitCode::SUCCESS,
                Err(outcome::Stop::Failed(why) | outcome::Stop::Missing(why)) => {
                    eprintln!("xtask: {why}");
                    ExitCode::from(1)
                }
            }
        }
        Err(problem) => {
            eprintln!("xtask: {problem}\n\n{}", arguments::HELP);
            ExitCode::from(2)
        }
    }
}
