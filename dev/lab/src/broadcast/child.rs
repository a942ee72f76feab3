//! A process of ours, spoken to over its standard input and output.

use std::io::BufReader;
use std::process::{Child as Process, ChildStdin, Command, Stdio};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::{Duration, Instant};

use crate::servers::wire::{ChildMessage, hear, say};
use throng_load::Error;

/// Time a child has to end by itself once its input has ended.
const GRACE: Duration = Duration::from_secs(3);

/// What comes from a child.
#[derive(Debug)]
pub(super) enum ChildEvent {
    /// A line.
    Said(ChildMessage),
    /// No more: it has ended, or speaks another language.
    Ended(String),
}

/// A running child. Dropping it ends the process.
#[derive(Debug)]
pub(super) struct Child {
    process: Process,
    input: Option<ChildStdin>,
}

impl Child {
    /// Starts `command`; what it tells goes to `heard` with `number`, and last that it has ended.
    pub(super) fn start(
        mut command: Command,
        number: usize,
        heard: Sender<(usize, ChildEvent)>,
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
                    match hear::<ChildMessage>(&mut output) {
                        Ok(Some(told)) => {
                            if heard.send((number, ChildEvent::Said(told))).is_err() {
                                return;
                            }
                        }
                        Ok(None) => break "a process of the benchmark ended".to_owned(),
                        Err(error) => break format!("a process of the benchmark said: {error}"),
                    }
                };
                let _ = heard.send((number, ChildEvent::Ended(reason)));
            });
        }
        Ok(Self { process, input })
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Says one line to it.
    pub(super) fn say(&mut self, what: &impl serde::Serialize) -> Result<(), Error> {
        match &mut self.input {
            Some(input) => say(input, what)
                .map_err(|error| Error::io("speak to a process of the benchmark", error)),
            None => Ok(()),
        }
    }

    /// Ends its input, which tells it to end.
    pub(super) fn dismiss(&mut self) {
        self.input = None;
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.dismiss();
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
