//! A child process, which is controlled over its standard input and output.

use std::io::BufReader;
use std::process::{Child as Process, ChildStdin, Command, Stdio};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::{Duration, Instant};

use throng_load::Error;

use super::wire::{ChildMessage, read_line, write_line};

/// Time a child has to end by itself once its input has ended.
const GRACE: Duration = Duration::from_secs(3);

/// Event of a child.
#[derive(Debug)]
pub(crate) enum ChildEvent {
    /// A line.
    Message(ChildMessage),
    /// The end of its output: it has ended, or its output cannot be parsed.
    Ended(String),
}

/// A running child. Dropping it ends the process.
#[derive(Debug)]
pub(crate) struct Child {
    process: Process,
    input: Option<ChildStdin>,
}

impl Child {
    /// Starts `command`. Its messages, and last its end, are sent to `events` with `number`.
    pub(crate) fn start(
        mut command: Command,
        number: usize,
        events: Sender<(usize, ChildEvent)>,
    ) -> Result<Self, Error> {
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| Error::io("start a process of the benchmark", error))?;
        let input = process.stdin.take();
        if let Some(output) = process.stdout.take() {
            thread::spawn(move || {
                let mut output = BufReader::new(output);
                let reason = loop {
                    match read_line::<ChildMessage>(&mut output) {
                        Ok(Some(message)) => {
                            if events.send((number, ChildEvent::Message(message))).is_err() {
                                return;
                            }
                        }
                        Ok(None) => break "a process of the benchmark ended".to_owned(),
                        Err(error) => break format!("a process of the benchmark wrote: {error}"),
                    }
                };
                let _ = events.send((number, ChildEvent::Ended(reason)));
            });
        }
        Ok(Self { process, input })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Writes one line to its standard input.
    pub(crate) fn send(&mut self, what: &impl serde::Serialize) -> Result<(), Error> {
        match &mut self.input {
            Some(input) => write_line(input, what)
                .map_err(|error| Error::io("speak to a process of the benchmark", error)),
            None => Ok(()),
        }
    }

    /// Kills the process.
    pub(crate) fn kill(&mut self) {
        // An error means that the process has ended.
        let _ = self.process.kill();
    }

    /// Closes its input, upon which it ends.
    pub(crate) fn close_input(&mut self) {
        self.input = None;
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.close_input();
        let deadline = Instant::now() + GRACE;
        while matches!(self.process.try_wait(), Ok(None)) {
            if Instant::now() > deadline {
                let _ = self.process.kill();
                let _ = self.process.wait();
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}
