//! Redis and the servers of `throng demo --nodes`: processes that end with the demonstration, at
//! any end of it.

use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::failure::Failure;
use crate::folder::Folder;

/// Names of Redis server programs.
const BROKERS: [&str; 2] = ["redis-server", "valkey-server"];

/// The time that Redis has for its first answer, and each process for its end.
const START: Duration = Duration::from_secs(30);
const END: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(10);

/// The histories last longer than a client needs to find another server.
const CHANNELS: &str = "demo.>=close,history=10000/5m,while_down=buffer";

/// Becomes the program of `command`, which is killed when the process `parent` ends.
pub(crate) fn become_child(parent: u32, command: &[OsString]) -> Failure {
    let Some((program, words)) = command.split_first() else {
        return Failure::usage("there is no program to start");
    };
    if let Err(error) = end_with(parent) {
        return Failure::runtime(format!("cannot end with process {parent}: {error}"));
    }
    let error = Command::new(program).args(words).exec();
    Failure::runtime(format!("cannot start {}: {error}", program.display()))
}

/// Makes the kernel kill this process, and the program that it becomes, when its parent ends.
#[cfg(target_os = "linux")]
fn end_with(parent: u32) -> io::Result<()> {
    use rustix::process::{getppid, set_parent_process_death_signal};
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // The parent may have ended before.
    match getppid().map(|pid| pid.as_raw_nonzero().get().unsigned_abs()) {
        Some(pid) if pid == parent => Ok(()),
        _ => Err(io::Error::other("it has ended")),
    }
}

/// Does nothing: other kernels do not signal a process when its parent ends.
#[cfg(not(target_os = "linux"))]
fn end_with(_: u32) -> io::Result<()> {
    Ok(())
}

/// A process that ends when this is dropped, or with this process.
struct Owned(Child);

impl Owned {
    /// Starts a program. Only the main thread may: the kernel takes the end of the starting thread
    /// for the parent's end.
    fn start(program: &OsStr, set_up: impl FnOnce(&mut Command)) -> io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        let parent = std::process::id().to_string();
        command.args(["demo", "--end-with", &parent, "--"]).arg(program);
        // A terminal's Ctrl-C must reach only the demonstration, which ends the others in their
        // order.
        command.stdin(Stdio::null()).process_group(0);
        set_up(&mut command);
        command.spawn().map(Self)
    }

    fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().ok().flatten()
    }

    fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }

    /// Asks it to end, and kills it if it does not.
    fn end(&mut self) {
        if let Some(pid) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let latest = Instant::now() + END;
        while self.ended().is_none() && Instant::now() < latest {
            std::thread::sleep(PAUSE);
        }
        self.kill();
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A Redis server without persistence that only this user can reach.
pub(super) struct Broker {
    process: Owned,
    /// Removed after the end of the process.
    folder: Folder,
}

impl Broker {
    /// Starts the installed server, in a new folder for temporary files.
    ///
    /// # Errors
    /// None is installed, or it does not answer.
    pub(super) fn start() -> Result<Self, Failure> {
        let Some(program) = BROKERS.into_iter().find_map(find) else {
            return Err(Failure::usage(
                "--nodes needs a Redis server, and neither redis-server nor valkey-server is in \
                 PATH: install one (apt install redis-server), or name one that runs (--cluster \
                 redis://127.0.0.1:6379)",
            ));
        };
        let cannot = |error: io::Error| {
            Failure::runtime(format!("cannot start {}: {error}", program.display()))
        };
        let folder = Folder::make("throng-demo-nodes").map_err(cannot)?;
        let socket = folder.path().join(SOCKET);
        let process = Owned::start(program.as_os_str(), |command| {
            command.stdout(Stdio::null());
            command.args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"]);
            command.arg(&socket).arg("--dir").arg(folder.path());
            command.args(["--logfile", LOG, "--loglevel", "warning"]);
        });
        let mut broker = Self { process: process.map_err(cannot)?, folder };
        let latest = Instant::now() + START;
        while !broker.answers() {
            if let Some(status) = broker.process.ended() {
                let log = std::fs::read_to_string(broker.folder.path().join(LOG));
                let log = log.unwrap_or_default();
                let last = log.lines().last().unwrap_or("it has written no log");
                let program = program.display();
                return Err(Failure::runtime(format!("{program} ended ({status}): {last}")));
            }
            if Instant::now() > latest {
                return Err(cannot(io::ErrorKind::TimedOut.into()));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(broker)
    }

    fn answers(&self) -> bool {
        let ping = || {
            let mut stream = UnixStream::connect(self.folder.path().join(SOCKET))?;
            stream.set_read_timeout(Some(END))?;
            stream.write_all(b"PING\r\n")?;
            let mut answer = [0; 5];
            stream.read_exact(&mut answer).map(|()| answer == *b"+PONG")
        };
        ping().unwrap_or(false)
    }

    /// Returns the URL for the servers.
    pub(super) fn url(&self) -> String {
        format!("redis+unix://{}", self.folder.path().join(SOCKET).display())
    }

    pub(super) fn end(mut self) {
        self.process.end();
    }
}

const SOCKET: &str = "redis.sock";
const LOG: &str = "log";

/// Searches for a program in PATH.
fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// A server of the cluster.
pub(super) struct Node {
    process: Owned,
    pub(super) address: SocketAddr,
}

impl Node {
    /// Starts a server on a free port, and waits until it listens. Its complaints go to standard
    /// error.
    ///
    /// # Errors
    /// It ended instead.
    pub(super) fn start(url: &str, prefix: &str) -> Result<Self, Failure> {
        let cannot = |error| Failure::runtime(format!("cannot start a server: {error}"));
        let program = std::env::current_exe().map_err(cannot)?;
        let prefix = format!("cluster.prefix={prefix}");
        let mut process = Owned::start(program.as_os_str(), |command| {
            command.args(["serve", "--listen", "127.0.0.1:0", "--shards", "1"]);
            command.args(["--channel", CHANNELS, "--set", &prefix]).stdout(Stdio::piped());
            // The demonstration ends at once if there is no Redis.
            command.args(["--set", "cluster.require_at_start=true"]);
            for (name, _) in std::env::vars_os() {
                if name.to_string_lossy().starts_with("THRONG_") {
                    command.env_remove(name);
                }
            }
            // Not a flag: other users can see flags, and it may contain a password.
            command.env("THRONG_CLUSTER_URL", url).env("THRONG_LOG_LEVEL", "error");
        })
        .map_err(cannot)?;
        let mut line = String::new();
        if let Some(stdout) = process.0.stdout.take() {
            let _ = BufReader::new(stdout).read_line(&mut line);
        }
        let address = line.split(' ').find_map(|word| word.strip_prefix("http://"));
        match address.and_then(|address| address.parse().ok()) {
            Some(address) => Ok(Self { process, address }),
            None => Err(Failure::runtime("a server did not start; the line above has the reason")),
        }
    }

    /// Returns its exit status, if it has ended.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        self.process.ended()
    }

    /// Kills it, without closing its connections.
    pub(super) fn kill(mut self) {
        self.process.kill();
    }

    /// Ends it gracefully.
    pub(super) fn end(mut self) {
        self.process.end();
    }
}
