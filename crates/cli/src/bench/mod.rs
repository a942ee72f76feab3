//! `throng bench`: the command line around `throng-load`.

mod args;
mod progress;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use throng_load::Error;

pub(crate) use args::Args;

/// Runs the load that was asked for, prints its report on standard output, and returns the exit code.
///
/// Ctrl-C ends the run early with a report of what was measured until then; a second one ends the process.
pub(crate) fn run(args: Args) -> ExitCode {
    match measure(args) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("throng: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

fn measure(args: Args) -> Result<u8, Error> {
    let (plan, output) = args.plan()?;
    let stop = stop_on_interrupt();
    let mut bar = progress::Bar::new(&plan, output.quiet);
    let outcome = throng_load::run(&plan, &stop, &mut |progress| bar.show(progress));
    bar.finish();
    let report = outcome?;
    if output.json {
        print!("{}", report.to_json());
    } else {
        print!("{report}");
    }
    Ok(report.exit_code())
}

/// A flag that Ctrl-C and SIGTERM set.
fn stop_on_interrupt() -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // The order matters: the second signal finds the flag set and exits, the first one only sets it. Without
        // handlers the default action ends the process, which is good enough.
        let _ = signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&stop));
        let _ = signal_hook::flag::register(signal, Arc::clone(&stop));
    }
    stop
}
