//! `throng tune`: finds better settings of a server for a load.
//!
//! The search is in `throng_load::tune`. Here are the flags, the program that is started again for
//! each run, and the files.

mod program;
mod runs;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use throng_config::units::parse_duration;
use throng_load::report::Render;
use throng_load::scenario::{Objective, SCENARIOS, Scenario};
use throng_load::tune::{
    Refusal, Rules, Situation, Trial, TuneEvent, TuneReport, Tuning, knobs, tune,
};
use throng_load::units::{grouped, rounded};
use throng_load::{Slo, Target};

use self::program::Subject;
use self::runs::Runs;
use crate::bench::output::{check_file, write_file};
use crate::bench::progress::StatusLine;
use crate::failure::Failure;
use crate::signals::Stop;
use crate::terminal;

const EXAMPLES: &str = "Examples:
  throng tune                                      throng serve with its defaults, as a chat
  throng tune --scenario dashboard -- throng serve --config throng.toml
  throng tune --scenario ours.toml --slo 'p99<10ms' -- throng serve --config throng.toml
  throng tune --url ws://127.0.0.1:9001/ask --scenario game -- ./my-server
  throng tune --only shards,pin --for 5m
  throng tune --scenario api --try backlog=128,4096
  throng bench --record 127.0.0.1:9001 > ours.toml     your load as a scenario

Scenarios that come with it: chat, ticker, game, dashboard, api.

The program is started for each run, with the candidate in the file that
THRONG_TUNED names. `throng serve` and `throng balance` read it after their
configuration file, and a program with the library if it calls
Server::settings_from_env. What a variable or a flag of the program sets
cannot be tried.

How a change is judged:
  noise     six runs with the program's own settings come first
  a gain    runs alternate with the best so far; the interval of the ratio must
            exclude 1, and the gain be 2 % or more; all tries share an error
            of 10 %
  at last   what was kept is compared with the start in new runs

`No change is worth it` is a usual result. Ctrl-C ends it and keeps the best
so far; a second one ends it at once.

Exit codes: 0 done, also without a change; 1 the generator or the machine is
the limit, equal runs differ too much, or the program failed; 2 a mistake in
the command or the scenario.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The load: a name, or a file
    #[arg(long, value_name = "NAME|FILE", default_value = "chat")]
    scenario: String,
    /// The address at which the program listens, as ws://host:port or http://host:port; a path is
    /// the one of the load. Not needed for `throng serve`
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// The figure to improve, in place of the scenario's: rate, cpu or latency
    #[arg(long, value_name = "WHAT", value_parser = ["rate", "cpu", "latency"])]
    maximize: Option<String>,
    /// A threshold that a change must keep, such as p99<10ms; repeatable
    #[arg(long, value_name = "THRESHOLD", value_parser = Slo::parse)]
    slo: Vec<Slo>,
    /// Measured time of each run, in place of the scenario's
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    each: Option<Duration>,
    /// Begin no further try after this time
    #[arg(long = "for", value_name = "TIME", default_value = "15m", value_parser = parse_duration)]
    time: Duration,
    /// Try only these settings, with commas between them
    #[arg(long, value_name = "KEYS", value_delimiter = ',')]
    only: Vec<String>,
    /// Try these values of a setting, in place of the usual ones; repeatable
    #[arg(long = "try", value_name = "KEY=VALUE,...", value_parser = parse_try)]
    own: Vec<(String, Vec<String>)>,
    /// Write the settings to this file, if a change is worth it
    #[arg(long, short, value_name = "FILE", default_value = "throng.tuned.toml")]
    out: PathBuf,
    /// Write a page with all tries to this file
    #[arg(long, value_name = "FILE", default_value = "throng.tuned.html")]
    html: PathBuf,
    /// Print the report as JSON instead of a table
    #[arg(long)]
    json: bool,
    /// Show no progress
    #[arg(long, short)]
    quiet: bool,
    /// The program and its arguments [default: throng serve on a free port]
    #[arg(last = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Parses `shards=1,2`.
fn parse_try(text: &str) -> Result<(String, Vec<String>), String> {
    let wrong = || format!("{text:?}: write a setting and its values, such as shards=1,2");
    let (key, values) = text.split_once('=').ok_or_else(wrong)?;
    let values: Vec<String> = values.split(',').map(|value| value.trim().to_owned()).collect();
    match key.trim() {
        "" => Err(wrong()),
        _ if values.iter().any(String::is_empty) => Err(wrong()),
        key => Ok((key.to_owned(), values)),
    }
}

/// Tunes, and writes the files.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    check_file("--out", &args.out)?;
    check_file("--html", &args.html)?;
    let mut scenario = scenario(args)?;
    let subject = Subject::of(&args.program, args.url.as_deref())?;
    if let Some(path) = subject.path() {
        scenario.set_path(path);
    }
    // Refuses a load that is not possible before anything is started.
    scenario.load(subject.authority(), subject.is_secure())?;
    let mut situation = Situation {
        program: subject.kind(),
        cpus: std::thread::available_parallelism().map_or(1, usize::from),
        size: scenario.size(),
        offers_deflate: scenario.offers_deflate(),
        has_rate: scenario.has_rate(),
        current: subject.current().clone(),
        fixed: subject.fixed().clone(),
        findings: None,
    };
    let knobs_of = |it: &Situation| knobs(it, &args.only, &args.own).map_err(Failure::usage);
    knobs_of(&situation)?;
    let stop = Stop::on_signals().map_err(Failure::runtime)?;
    let status = StatusLine::new("tune", args.quiet);
    let latest = Instant::now() + args.time;
    let mut runs = Runs::new(&subject, &scenario, &stop, latest)?;
    status.show_text("a first run, for the server's own statistics");
    situation.findings = runs.findings()?;
    let knobs = knobs_of(&situation)?;
    let mut screen = Screen { status, is_quiet: args.json, place: String::new(), number: 0 };
    screen.status.show_text("runs with the program's own settings, for the noise");
    let searched = tune(&knobs, &Rules::default(), &mut runs, &mut |event| screen.show(&event));
    drop(screen);
    let tuning = searched.map_err(refused)?;
    let maximize = scenario.objective.name();
    finish(args, &TuneReport::of(scenario.words(), maximize, subject.words(), tuning))
}

/// Reads the scenario, and changes it by the flags.
fn scenario(args: &Args) -> Result<Scenario, Failure> {
    let name = args.scenario.as_str();
    let mut scenario = match Scenario::builtin(name) {
        Some(scenario) => scenario,
        None if Path::new(name).exists() => {
            let read = throng_io::file::read_text(Path::new(name));
            let text =
                read.map_err(|error| Failure::usage(format!("--scenario {name} {error}")))?;
            Scenario::parse(name, &text)?
        }
        None => {
            let names: Vec<&str> = SCENARIOS.iter().map(|(name, _)| *name).collect();
            return Err(Failure::usage(format!(
                "--scenario {name}: there is no such file, and no scenario of that name: write \
                 one of {}",
                names.join(", ")
            )));
        }
    };
    if let Some(what) = &args.maximize {
        scenario.objective = Objective::parse(what).map_err(Failure::usage)?;
        scenario.check_objective()?;
    }
    if let Some(each) = args.each {
        scenario.duration = each;
    }
    scenario.add_slos(&args.slo);
    Ok(scenario)
}

fn refused(why: Refusal) -> Failure {
    Failure::runtime(match why {
        Refusal::Stopped => "stopped before there was anything to keep".to_owned(),
        Refusal::Limited(verdict) => {
            format!("nothing can be tuned while the server is not the limit: {verdict}")
        }
        Refusal::Noisy(why) | Refusal::Failed(why) => why,
    })
}

/// Writes the files and the report.
fn finish(args: &Args, report: &TuneReport) -> Result<ExitCode, Failure> {
    write_file("--html", &args.html, &report.to_html())?;
    let Tuning { kept, .. } = &report.tuning;
    if !kept.is_empty() {
        write_file("--out", &args.out, &report.to_toml())?;
    }
    if args.json {
        terminal::report(report.to_json())?;
        return Ok(ExitCode::from(report.exit_code()));
    }
    for line in report.closing() {
        terminal::report_line(line)?;
    }
    if !kept.is_empty() {
        let out = args.out.display();
        terminal::report(format_args!("\nSettings, written to {out}:\n{}", kept.to_toml()))?;
        terminal::report_line(format_args!("\nUse them: THRONG_TUNED={out} {}", report.program))?;
    }
    terminal::report_line(format_args!("All tries: {}", args.html.display()))?;
    Ok(ExitCode::from(report.exit_code()))
}

/// The tries as lines of a table on standard output, and the progress between them.
struct Screen {
    status: StatusLine,
    /// Standard output is for the JSON.
    is_quiet: bool,
    /// The try that is in progress.
    place: String,
    number: usize,
}

impl Screen {
    fn show(&mut self, event: &TuneEvent<'_>) {
        match event {
            TuneEvent::Noise(noise) => self.line(&format!(
                "noise: {} runs with the program's own settings, {}, {:.1} % between two runs",
                noise.figures.len(),
                rounded(noise.mean()),
                noise.deviation * 100.0
            )),
            TuneEvent::Begins { number, of, settings } => {
                self.number = *number;
                self.place = format!("{number} of {}: {settings}", grouped(*of as u64));
                self.status.show_text(&self.place);
            }
            TuneEvent::Compared(Some(ratio)) => {
                let pairs = ratio.pairs;
                let text = format!("{}, {} after {pairs} pairs", self.place, ratio.words());
                self.status.show_text(text);
            }
            TuneEvent::Compared(None) => {}
            TuneEvent::Tried(trial) => self.line(&tried(self.number, trial)),
            TuneEvent::Confirming(settings) => {
                self.place = format!("all together against the start: {settings}");
                self.status.show_text(&self.place);
            }
        }
    }

    fn line(&self, text: &str) {
        if !self.is_quiet {
            self.status.clear();
            let _ = terminal::report_line(text);
        }
    }
}

/// Returns the line of a try.
fn tried(number: usize, trial: &Trial) -> String {
    let settings = trial.settings.to_string();
    let ratio = trial.ratio.map_or_else(|| "-".to_owned(), |ratio| ratio.words());
    let result = trial.judgement.words();
    let reason = trial.reason.split_whitespace().collect::<Vec<_>>().join(" ");
    format!("{number:>2}  {settings:<32}  {ratio:<18}  {result:<14}  {reason}")
}

/// Returns the address of a URL of a WebSocket or HTTP server.
fn target(url: &str) -> Result<Target, Failure> {
    let is_http = url.starts_with("http://") || url.starts_with("https://");
    let target = if is_http { Target::parse_http(url) } else { Target::parse(url) };
    target.map_err(|error| Failure::usage(format!("--url: {error}")))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Tune {
        #[command(flatten)]
        args: Args,
    }

    fn args(words: &[&str]) -> Result<Args, String> {
        let words = std::iter::once("tune").chain(words.iter().copied());
        Tune::try_parse_from(words).map(|it| it.args).map_err(|error| error.to_string())
    }

    #[test]
    fn the_program_follows_two_dashes() {
        let args = args(&["--try", "shards=1, 2", "--", "throng", "serve", "--shards", "1"]);
        let args = args.unwrap();
        assert_eq!(args.program, ["throng", "serve", "--shards", "1"]);
        assert_eq!(args.own, [("shards".to_owned(), vec!["1".to_owned(), "2".to_owned()])]);
        assert_eq!(args.time, Duration::from_secs(900));
    }

    #[test]
    fn flags_change_the_scenario() {
        let with = |words: &[&str]| scenario(&args(words).unwrap());
        let it = with(&["--scenario", "game", "--each", "2s", "--maximize", "cpu"]).unwrap();
        assert_eq!((it.objective, it.duration), (Objective::Cpu, Duration::from_secs(2)));
        let error = with(&["--scenario", "chat", "--maximize", "rate"]).unwrap_err();
        assert!(error.code == 2 && error.message.contains("no rate"), "{}", error.message);
        let error = with(&["--scenario", "chess"]).unwrap_err();
        assert!(error.message.contains("one of chat, ticker"), "{}", error.message);
    }

    #[test]
    fn mistakes_in_flags_have_a_remedy() {
        for words in [["--try", "shards"], ["--try", "=1"], ["--try", "shards=1,"]] {
            let error = args(&words).unwrap_err();
            assert!(error.contains("such as shards=1,2"), "{error}");
        }
        assert!(args(&["--maximize", "speed"]).unwrap_err().contains("latency"));
    }
}
