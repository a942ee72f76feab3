//! Runs programs. Each has a time limit, and is killed when the limit expires.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::site::{Site, clean_cargo_environment};

/// The interval at which a running child is polled.
const POLL: Duration = Duration::from_millis(20);

/// The result of a finished program.
pub(crate) struct Finished {
    pub(crate) status: ExitStatus,
    /// Its standard output.
    pub(crate) stdout: String,
}

/// Arguments that select everything. An inner cargo uses them even if one package would suffice:
/// features are unified over the selected packages, and other features would recompile every
/// dependency, which takes more than a minute.
pub(crate) const EVERYTHING: [&str; 3] = [
    "--workspace",
    "--features",
    "throng/gzip,throng/http,throng/settings,throng/test,throng/tls,throng/tokio,throng/tower",
];

/// Returns a cargo command in the repository's root, as a user would type it.
pub(crate) fn cargo(site: &Site) -> Command {
    let mut command = Command::new("cargo");
    command.current_dir(&site.root);
    clean_cargo_environment(&mut command);
    command
}

/// Runs a program to its end, shows its output as it arrives, and captures standard output.
///
/// # Errors
/// The program cannot be started, or did not end within `limit`. In the latter case it is killed
/// with its children.
pub(crate) fn run_shown(command: &mut Command, limit: Duration) -> Result<Finished, String> {
    println!("$ {}", display(command));
    run_to_the_end(command.stderr(Stdio::inherit()), limit, |line| println!("{line}"))
}

/// Runs to the end without showing anything.
///
/// # Errors
/// As for [`run_shown`].
pub(crate) fn run_quietly(command: &mut Command, limit: Duration) -> Result<Finished, String> {
    run_to_the_end(command.stderr(Stdio::null()), limit, |_| {})
}

/// The end of a program that is run until it prints a certain line.
pub(crate) enum Ended {
    /// It printed this line, and was killed.
    Line(String),
    /// The program ended without such a line.
    Finished(Finished),
}

/// Runs until the program prints a line for which `is_last`, without showing anything.
///
/// # Errors
/// As for [`run_shown`].
pub(crate) fn run_until(
    command: &mut Command,
    limit: Duration,
    is_last: impl Fn(&str) -> bool,
) -> Result<Ended, String> {
    run(command.stderr(Stdio::null()), limit, is_last)
}

/// Runs a step that must succeed, and shows its output only when it does not.
///
/// # Errors
/// The step failed; the error has its last lines of output.
pub(crate) fn run_step(command: &mut Command, limit: Duration) -> Result<(), String> {
    let name = display(command);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("cannot run `{name}`: {error}"))?;
    let readers =
        [read_in_background(child.stdout.take()), read_in_background(child.stderr.take())];
    let status = wait(&mut child, limit).map_err(|error| format!("`{name}` {error}"))?;
    let printed: String = readers.into_iter().filter_map(|reader| reader.join().ok()).collect();
    if status.success() {
        return Ok(());
    }
    Err(format!("`{name}` ended with {status}:\n{}", last_lines(&printed, 25)))
}

/// Returns the program of this name on PATH.
pub(crate) fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| is_executable(file))
}

/// Returns the last `count` lines of a text.
pub(crate) fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

/// Waits, at most `limit`; then kills the child and all its descendants.
pub(crate) fn wait(child: &mut Child, limit: Duration) -> Result<ExitStatus, String> {
    wait_until(child, Instant::now() + limit, limit)
}

/// Waits until the `deadline`, which the child has reached after `limit`; then kills it.
fn wait_until(child: &mut Child, deadline: Instant, limit: Duration) -> Result<ExitStatus, String> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Ok(None) if Instant::now() >= deadline => {
                end_tree(child);
                return Err(format!(
                    "did not end within {} seconds and was stopped",
                    limit.as_secs()
                ));
            }
            Ok(None) => thread::sleep(POLL),
            Err(error) => return Err(format!("cannot be waited for: {error}")),
        }
    }
}

/// Kills a child and all its descendants, because a hanging test is a grandchild of cargo. A
/// process group would also work, but a child in its own group does not get the terminal's Ctrl-C.
pub(crate) fn end_tree(child: &mut Child) {
    let mut doomed = vec![child.id()];
    let mut next = 0;
    while let Some(&parent) = doomed.get(next) {
        doomed.extend(children_of(parent));
        next += 1;
    }
    let _ = child.kill();
    for process in &doomed[1..] {
        let _ = Command::new("kill")
            .args(["-KILL", &process.to_string()])
            .stderr(Stdio::null())
            .status();
    }
    let _ = child.wait();
}

/// Runs to the end, or until a line of standard output is the last that is wanted.
fn run(
    command: &mut Command,
    limit: Duration,
    is_last: impl Fn(&str) -> bool,
) -> Result<Ended, String> {
    let name = display(command);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("cannot run `{name}`: {error}"))?;
    let deadline = Instant::now() + limit;
    let lines = lines_of(child.stdout.take());
    let mut stdout = String::new();
    while let Ok(line) = lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        if is_last(&line) {
            end_tree(&mut child);
            return Ok(Ended::Line(line));
        }
        stdout.push_str(&line);
        stdout.push('\n');
    }
    let status =
        wait_until(&mut child, deadline, limit).map_err(|error| format!("`{name}` {error}"))?;
    Ok(Ended::Finished(Finished { status, stdout }))
}

/// Runs to the end, with each line of standard output passed to `on_line`.
fn run_to_the_end(
    command: &mut Command,
    limit: Duration,
    on_line: impl Fn(&str),
) -> Result<Finished, String> {
    let go_on = |line: &str| {
        on_line(line);
        false
    };
    match run(command, limit, go_on)? {
        Ended::Finished(finished) => Ok(finished),
        Ended::Line(_) => unreachable!("no line is the last"),
    }
}

fn read_in_background(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            let _ = pipe.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Reads lines in a thread that ends with the pipe.
fn lines_of(pipe: Option<impl Read + Send + 'static>) -> Receiver<String> {
    let (sender, lines) = channel();
    thread::spawn(move || {
        let Some(mut pipe) = pipe.map(BufReader::new) else { return };
        let mut line = Vec::new();
        while pipe.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            if sender.send(text).is_err() {
                return;
            }
            line.clear();
        }
    });
    lines
}

fn display(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    std::iter::once(program)
        .chain(command.get_args())
        .map(|part| part.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(target_os = "linux")]
fn children_of(parent: u32) -> Vec<u32> {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{parent}/task")) else { return Vec::new() };
    tasks
        .flatten()
        .filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok())
        .flat_map(|list| {
            list.split_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<_>>()
        })
        .collect()
}

#[cfg(not(target_os = "linux"))]
fn children_of(_parent: u32) -> Vec<u32> {
    Vec::new()
}

#[cfg(unix)]
fn is_executable(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    file.metadata().is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o111 != 0)
}

#[cfg(not(unix))]
fn is_executable(file: &Path) -> bool {
    file.is_file()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hanging_grandchild_does_not_outlive_its_deadline() {
        let mut shell = Command::new("sh");
        shell.args(["-c", "sleep 600 & wait"]).stdout(Stdio::null());
        let mut child = shell.spawn().unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        let grandchild = loop {
            match children_of(child.id()).first() {
                Some(&grandchild) => break grandchild,
                None if Instant::now() < deadline => thread::yield_now(),
                None => panic!("the shell started no child"),
            }
        };
        assert!(wait(&mut child, Duration::from_millis(1)).is_err());
        // It may stay a zombie until init reaps it; the test is that it no longer runs.
        while Instant::now() < deadline {
            let stat =
                std::fs::read_to_string(format!("/proc/{grandchild}/stat")).unwrap_or_default();
            if stat.is_empty() || stat.contains(") Z ") {
                return;
            }
            thread::yield_now();
        }
        panic!("the grandchild still runs");
    }

    #[test]
    fn a_program_ends_at_the_line_that_is_waited_for() {
        let run = |script: &str, limit| {
            let mut shell = Command::new("sh");
            run_until(shell.args(["-c", script]), limit, |line| line.ends_with("FAILED"))
        };
        let long = Duration::from_secs(60);
        let ended = run("echo a; echo 'b FAILED'; sleep 600", long);
        assert!(matches!(ended, Ok(Ended::Line(line)) if line == "b FAILED"));
        let ended = run("echo a; echo b; exit 3", long);
        let Ok(Ended::Finished(Finished { status, stdout })) = ended else { panic!("no end") };
        assert_eq!((status.code(), stdout.as_str()), (Some(3), "a\nb\n"));
        assert!(run("echo a; sleep 600", Duration::from_millis(50)).is_err());
    }

    #[test]
    fn a_failing_step_shows_what_it_printed() {
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo because; exit 3"]);
        let error = run_step(&mut shell, Duration::from_secs(10)).unwrap_err();
        assert!(error.contains("because") && error.contains('3'), "{error}");
    }
}
