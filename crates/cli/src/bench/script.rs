//! `throng bench script`: clients that follow a script of messages.

use std::io::{Read, stdin};
use std::path::{Path, PathBuf};
use std::time::Duration;

use throng_config::units::{parse_count, parse_duration};
use throng_io::file::{MAX_LEN, read_text_once};
use throng_load::{Error, Mode, Plan, Script, Target};

use super::flags::Common;
use super::measurement::Measurement;

pub(super) const EXAMPLES: &str = "Examples:
  throng bench script wss://example.org/chat chat.txt --connections 200 --tokens tokens.txt
  throng bench script ws://127.0.0.1:9001/echo - --connections 50 --slo 'p99<5ms' <<'EOF'
  send {\"user\":\"{client}\"}
  expect {client}
  loop
  send {\"id\":{sequence}}
  expect \"id\":{sequence}
  pause 100ms
  repeat
  EOF

Steps, one a line; # begins a comment:
  send TEXT         a text message; {client}, {sequence}, {random}, {uuid} and {token}
                    stand for values of the client
  send-binary TEXT  the same as a binary message
  expect TEXT       the next message contains this text; {sequence} and {random} are
                    those of the last message sent
  await TEXT        a message contains this text; those before it are skipped
  pause TIME        such as 100ms
  loop              the following steps are repeated; without it those from the top on
  repeat [N]        N times in all, or without a number until the time is over

Exit codes: 0 success, 1 a mismatch, or the run failed, 2 a mistake in the
command or the script, 99 a threshold of --slo was not kept.";

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The server, as ws://host:port/path or wss://...
    #[arg(value_name = "URL")]
    url: String,
    /// The script, or - for standard input
    #[arg(value_name = "FILE")]
    script: PathBuf,
    /// Clients; each has a connection
    #[arg(long, short, value_name = "N", default_value_t = 100, value_parser = parse_count)]
    connections: usize,
    /// Longest time measured; the run is over when every client has come to the end of the script
    #[arg(long, short, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    duration: Duration,
    /// Warm-up time, which is not measured
    #[arg(long, short, value_name = "TIME", default_value = "0s", value_parser = parse_duration)]
    warmup: Duration,
    /// Longest wait for an expected message; then it is missing, and the client goes on
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    timeout: Duration,
    #[command(flatten)]
    common: Common,
}

impl Args {
    /// The measurement.
    ///
    /// # Errors
    /// The script cannot be read, or has a mistake; flags that contradict each other.
    pub(super) fn measurement(self) -> Result<Measurement, Error> {
        let script = read(&self.script)?;
        let Self { duration, warmup, timeout, .. } = self;
        let mode = Mode::Script { duration, warmup, timeout };
        let mut plan = Plan::new(Target::parse(&self.url)?, mode);
        plan.common.connections = self.connections;
        plan.script = Some(script.into());
        self.common.measurement(plan)
    }
}

fn read(path: &Path) -> Result<Script, Error> {
    let is_stdin = path.as_os_str() == "-";
    let name = if is_stdin { "standard input".to_owned() } else { path.display().to_string() };
    let cannot = |error: &dyn std::fmt::Display| Error::Usage(format!("the script {name} {error}"));
    let mut text = String::new();
    match is_stdin {
        true => {
            let read = stdin().lock().take(MAX_LEN).read_to_string(&mut text);
            read.map_err(|error| cannot(&format_args!("cannot be read: {error}")))?;
        }
        false => text = read_text_once(path, MAX_LEN).map_err(|error| cannot(&error))?,
    }
    Script::parse(&name, &text)
}
