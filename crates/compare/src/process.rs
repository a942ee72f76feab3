//! The server as a process of ours: started, watched, and ended with everything it started.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use throng_load::sampler::{GroupMember, process_group};

/// Time a server has to end by itself once it was asked to.
const GRACE: Duration = Duration::from_secs(2);
/// Bytes of its last output that are kept.
const TAIL: usize = 2048;
/// Time to read what a process that has ended left behind: all of it is there, but others that it
/// started may go on writing.
const READ_OUT: Duration = Duration::from_secs(1);

/// A running server. Dropping it ends it and its descendants.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    tail: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl Process {
    /// Starts the program `words[0]`, as leader of a process group of its own: what a terminal's
    /// Ctrl-C ends is then this program, which ends the server in turn.
    ///
    /// # Errors
    /// Why it cannot be started, in words.
    pub(crate) fn start(words: &[String]) -> Result<Self, String> {
        let Some((program, arguments)) = words.split_first() else {
            return Err("there is no program to start".to_owned());
        };
        let no_pipe = |error: std::io::Error| format!("cannot start {program:?}: no pipe: {error}");
        // One for both, so that its last output is known.
        let (output, errors_end) = std::io::pipe().map_err(no_pipe)?;
        let output_end = errors_end.try_clone().map_err(no_pipe)?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(output_end).stderr(errors_end);
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let child = command.spawn().map_err(|error| {
            let hint = match error.kind() {
                std::io::ErrorKind::NotFound if program.contains('=') => {
                    "; variables go to env: 'env NAME=value program'"
                }
                std::io::ErrorKind::NotFound => "; is it installed, and in the PATH?",
                _ => "",
            };
            format!("cannot start {program:?}: {error}{hint}")
        })?;
        // It holds our ends for writing.
        drop(command);
        let tail = Arc::default();
        // Read all the time: a server that logs must not wait for a reader.
        let reader = keep_tail(output, &tail);
        Ok(Self { child, tail, reader })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its process and those it started, as far as they are known.
    pub(crate) fn pids(&self) -> Vec<u32> {
        let members: Vec<u32> = process_group(self.pid()).iter().map(|member| member.pid).collect();
        if members.is_empty() { vec![self.pid()] } else { members }
    }

    /// Returns its exit status with its last output; `None` while it runs.
    pub(crate) fn ended(&mut self) -> Option<String> {
        let how = self.exit()?;
        let until = Instant::now() + READ_OUT;
        while !self.reader.is_finished() && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
        let tail = self.last_output();
        Some(match tail.is_empty() {
            true => how,
            false => format!("{how}; it said last: {tail}"),
        })
    }

    /// The status is read without freeing its id, so that no other process gets the id until the
    /// end.
    #[cfg(all(unix, not(target_os = "netbsd")))]
    fn exit(&mut self) -> Option<String> {
        use rustix::process::{WaitId, WaitIdOptions, waitid};

        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let status = waitid(WaitId::Pid(unix::pid(self.pid())?), options).ok()??;
        Some(match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => format!("exit status {code}"),
            (None, Some(signal)) => format!("killed by signal {signal}"),
            (None, None) => "ended".to_owned(),
        })
    }

    #[cfg(not(all(unix, not(target_os = "netbsd"))))]
    fn exit(&mut self) -> Option<String> {
        self.child.try_wait().ok().flatten().map(|status| status.to_string())
    }

    /// The last line it wrote, of its output and its errors.
    pub(crate) fn last_output(&self) -> String {
        let tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(&tail);
        let line = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
        line.trim().chars().filter(|c| !c.is_control()).take(200).collect()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let before = process_group(self.pid());
        self.ask_to_end(&before);
        let until = Instant::now() + GRACE;
        let mut rest = self.remaining(&before);
        while !rest.is_empty() && Instant::now() < until {
            thread::sleep(Duration::from_millis(5));
            rest = self.remaining(&before);
        }
        self.kill(&rest);
        let _ = self.child.wait();
        // Who was killed ends when the machine gets round to it.
        let until = Instant::now() + GRACE;
        while rest.iter().any(|member| member.is_alive()) && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Process {
    /// Returns the members that are left, and those that have joined since.
    fn remaining(&self, before: &[GroupMember]) -> Vec<GroupMember> {
        let mut alive = process_group(self.pid());
        alive.extend(before.iter().filter(|member| member.is_alive()));
        alive.sort_unstable();
        alive.dedup();
        alive
    }

    #[cfg(unix)]
    fn ask_to_end(&self, members: &[GroupMember]) {
        unix::signal(self.pid(), members, rustix::process::Signal::TERM);
    }

    #[cfg(unix)]
    fn kill(&self, members: &[GroupMember]) {
        unix::signal(self.pid(), members, rustix::process::Signal::KILL);
    }

    /// There is no way to ask.
    #[cfg(not(unix))]
    fn ask_to_end(&self, _members: &[GroupMember]) {}

    #[cfg(not(unix))]
    fn kill(&mut self, _members: &[GroupMember]) {
        let _ = self.child.kill();
    }
}

#[cfg(unix)]
mod unix {
    use rustix::process::{Pid, Signal, kill_process, kill_process_group};

    use super::GroupMember;

    pub(crate) fn pid(id: u32) -> Option<Pid> {
        i32::try_from(id).ok().and_then(Pid::from_raw)
    }

    /// Sends a signal to the group of `leader`, which has not been waited for yet, and to the
    /// members that left it.
    pub(crate) fn signal(leader: u32, members: &[GroupMember], signal: Signal) {
        // An error means that no process is left.
        if let Some(group) = pid(leader) {
            let _ = kill_process_group(group, signal);
        }
        for member in members.iter().filter(|member| member.is_alive()) {
            if let Some(id) = pid(member.pid) {
                let _ = kill_process(id, signal);
            }
        }
    }
}

/// Reads `from` to its end, and keeps the last of it. The thread ends with the last process that
/// can write there.
fn keep_tail(mut from: impl Read + Send + 'static, tail: &Arc<Mutex<Vec<u8>>>) -> JoinHandle<()> {
    let tail = Arc::clone(tail);
    thread::spawn(move || {
        let mut piece = [0; TAIL];
        while let Ok(n @ 1..) = from.read(&mut piece) {
            let mut tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
            tail.extend_from_slice(&piece[..n]);
            let surplus = tail.len().saturating_sub(TAIL);
            tail.drain(..surplus);
        }
    })
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    fn shell(script: &str) -> Process {
        Process::start(&["sh", "-c", script].map(str::to_owned)).unwrap()
    }

    fn wait_for<T>(mut what: impl FnMut() -> Option<T>) -> T {
        for _ in 0..1000 {
            if let Some(found) = what() {
                return found;
            }
            thread::sleep(Duration::from_millis(10));
        }
        panic!("it never came");
    }

    #[test]
    fn all_are_ended_also_who_left_the_group_and_who_does_not_listen() {
        let process =
            shell("setsid sleep 600 & trap '' TERM; sleep 600 & while :; do sleep 600; done");
        let members = wait_for(|| {
            let members = process_group(process.pid());
            (members.len() == 4).then_some(members)
        });
        drop(process);
        assert!(!members.iter().any(|member| member.is_alive()), "{members:?}");
    }

    #[test]
    fn an_end_is_announced_with_the_last_output() {
        // Whatever the order in which its readers would run.
        for _ in 0..100 {
            let mut process = shell("echo first; echo cannot bind >&2; exit 3");
            let how = wait_for(|| process.ended());
            assert_eq!(how, "exit status 3; it said last: cannot bind");
        }
        let mut process = shell("kill -9 $$");
        assert_eq!(wait_for(|| process.ended()), "killed by signal 9");
        assert_eq!(shell("exec sleep 600").ended(), None);
    }

    #[test]
    fn a_command_that_cannot_be_started_is_reported() {
        let start = |word: &str| Process::start(&[word.to_owned()]).unwrap_err();
        assert!(start("/nowhere/at/all").contains("in the PATH?"));
        assert!(start("PORT=1").contains("env NAME=value"));
        assert!(start("/").contains("cannot start"));
    }
}
