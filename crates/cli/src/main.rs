//! The `throng` binary; everything is in the library of this crate.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    throng_io::memory::return_large_blocks();
    throng_cli::run(std::env::args_os())
}
