//! The real binary with a configuration file and a log that a test can change and read.
#![allow(dead_code, reason = "each test file uses a part")]

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use throng_testkit::{TempFolder, poll};

use crate::support::throng;

/// A process with a configuration file and a log, which ends with the test.
pub(crate) struct Started {
    process: Child,
    pub(crate) file: PathBuf,
    pub(crate) log: PathBuf,
    _folder: TempFolder,
    /// The rest of its output.
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Started {
    /// Starts a command with these settings, besides the settings of its log.
    pub(crate) fn start(command: &str, settings: &str) -> Self {
        Self::start_at(Path::new(throng().get_program()), command, settings)
    }

    /// Does the same with the program at `path`.
    pub(crate) fn start_at(path: &Path, command: &str, settings: &str) -> Self {
        let mut program = Command::new(path);
        program.args(throng().get_args()).stdin(Stdio::null());
        Self::start_by(program, command, settings)
    }

    /// Does the same with a program whose standard input may be set.
    pub(crate) fn start_by(mut program: Command, command: &str, settings: &str) -> Self {
        let folder = TempFolder::new(command);
        let [file, log] = ["toml", "log"].map(|name| folder.join(name));
        write(&file, &log, settings);
        let mut process = program
            .args([command, "--config", file.to_str().unwrap()])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { process, file, log, _folder: folder, lines }
    }

    /// The process that was started.
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn configure(&self, settings: &str) {
        write(&self.file, &self.log, settings);
    }

    /// The address after `before` on a line of its output.
    pub(crate) fn address(&mut self, before: &str) -> SocketAddr {
        let mut lines = self.lines.by_ref().map(Result::unwrap);
        let line = lines.find(|line| line.contains(before)).unwrap();
        let rest = line.split(before).nth(1).unwrap();
        rest.split([' ', '/']).next().unwrap().parse().unwrap()
    }

    pub(crate) fn signal(&self, name: &str) {
        signal(&self.process, name);
    }

    /// Waits for the event with this name in the log, after skipping `skip` of them.
    pub(crate) fn logged(&self, name: &str, skip: usize) -> serde_json::Value {
        poll(name, || events(&self.log, name).into_iter().nth(skip))
    }

    pub(crate) fn exit(&mut self) -> Option<i32> {
        self.process.wait().unwrap().code()
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn write(file: &Path, log: &Path, settings: &str) {
    std::fs::write(file, format!("log.file = {log:?}\n{settings}\n")).unwrap();
}

pub(crate) fn signal(process: &Child, name: &str) {
    let kill = format!("kill -{name} {}", process.id());
    assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
}

/// The events of this name in a log.
pub(crate) fn events(log: &Path, name: &str) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let whole = &text[..text.rfind('\n').map_or(0, |end| end + 1)];
    let events = whole.lines().map(|line| serde_json::from_str(line).unwrap());
    events.filter(|event: &serde_json::Value| event["event"] == name).collect()
}
