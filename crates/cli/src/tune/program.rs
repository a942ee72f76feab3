//! The program that is tuned: its kind, its address, and a process of it for each run.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use throng_config::{Listen, Origin, Sources, TUNED, Value, Values};
use throng_load::tune::{Assignment, Interruption, Program};

use super::target;
use crate::config;
use crate::failure::Failure;
use crate::folder::Folder;
use crate::signals::Stop;

/// The time until the program listens, and until it has ended.
const START: Duration = Duration::from_secs(30);
const END: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(10);
/// The time until a connect counts as failed.
const CONNECT: Duration = Duration::from_secs(1);

/// The program that is tuned.
pub(super) struct Subject {
    words: Vec<OsString>,
    /// Variables for it.
    variables: Vec<(&'static str, String)>,
    kind: Program,
    authority: String,
    address: SocketAddr,
    is_secure: bool,
    path: Option<String>,
    current: Assignment,
    fixed: BTreeSet<String>,
    /// For the file of the settings, and for complaints of the program.
    folder: Folder,
}

impl Subject {
    /// Finds out what is known about a command: nothing about a program other than this one.
    ///
    /// # Errors
    /// The environment has a file of tuned settings already; the address is not known, or something
    /// listens there; or the settings of the program are not valid.
    pub(super) fn of(words: &[OsString], url: Option<&str>) -> Result<Self, Failure> {
        if Sources::tuned_path().is_some() {
            return Err(Failure::usage(
                "THRONG_TUNED is set, and each try would replace it: unset it, and write its \
                 settings into the configuration file",
            ));
        }
        let mut variables: Vec<(&'static str, String)> = Vec::new();
        let mut words = words.to_vec();
        if words.is_empty() {
            let own = std::env::current_exe().map_err(Failure::runtime)?;
            words = vec![own.into(), "serve".into()];
            let port = free_port().map_err(Failure::runtime)?;
            variables.push(("THRONG_LISTEN", format!("127.0.0.1:{port}")));
        }
        let program = own_program(&words)?;
        let kind = match &program {
            Some(config::Program::Serve(_)) => Program::Serve,
            #[cfg(feature = "balance")]
            Some(config::Program::Balance(_)) => Program::Balance,
            None => Program::Library,
        };
        let values = match program {
            Some(program) => Some(program.draft()?.finish()?),
            None => None,
        };
        let (current, fixed) = values.as_ref().map(known).unwrap_or_default();
        let listen = variables.first().map(|(_, address)| address.clone());
        let listen = listen.or_else(|| values.as_ref().and_then(listens_at));
        let (authority, address, is_secure, path) = match (url, listen) {
            (Some(url), _) => {
                let target = target(url)?;
                let path = Some(target.resource("").to_owned()).filter(|path| !path.is_empty());
                let address = target.resolve()?;
                (target.host_header(), address, target.is_secure(), path)
            }
            (None, Some(listen)) => {
                let target = target(&format!("ws://{listen}"))?;
                (target.host_header(), target.resolve()?, false, None)
            }
            (None, None) => {
                return Err(Failure::usage(
                    "the program's address is not known: write for example --url \
                     ws://127.0.0.1:9001",
                ));
            }
        };
        if listens(address) {
            return Err(Failure::usage(format!(
                "something listens at {address} already: stop it, or tune at another port"
            )));
        }
        let folder = Folder::make("throng-tune").map_err(Failure::runtime)?;
        Ok(Self {
            words,
            variables,
            kind,
            authority,
            address,
            is_secure,
            path,
            current,
            fixed,
            folder,
        })
    }

    pub(super) fn kind(&self) -> Program {
        self.kind
    }

    /// The host and the port, as in a URL.
    pub(super) fn authority(&self) -> &str {
        &self.authority
    }

    pub(super) fn is_secure(&self) -> bool {
        self.is_secure
    }

    /// The path of the URL, if it has one.
    pub(super) fn path(&self) -> Option<&str> {
        self.path.as_deref()
    }

    /// The values that it has without a candidate, as far as they are known.
    pub(super) fn current(&self) -> &Assignment {
        &self.current
    }

    /// The keys that a candidate cannot change.
    pub(super) fn fixed(&self) -> &BTreeSet<String> {
        &self.fixed
    }

    /// Returns the command for people.
    pub(super) fn words(&self) -> String {
        let own = self.variables.first().map(|_| "throng".into());
        let first = own.or_else(|| self.words.first().map(|word| word.to_string_lossy()));
        let others = self.words.iter().skip(1).map(|word| word.to_string_lossy());
        first.into_iter().chain(others).collect::<Vec<_>>().join(" ")
    }

    /// Starts it with these settings, and waits until it listens.
    ///
    /// # Errors
    /// It does not start, or the user stopped the search.
    pub(super) fn start(
        &self,
        settings: &Assignment,
        stop: &Stop,
    ) -> Result<Process, Interruption> {
        self.wait_until_free()?;
        let failed = |error: std::io::Error| Interruption::Failed(error.to_string());
        let file = self.folder.path().join("candidate.toml");
        let complaints = self.folder.path().join("complaints.txt");
        std::fs::write(&file, settings.to_toml()).map_err(failed)?;
        let Some((program, words)) = self.words.split_first() else {
            return Err(Interruption::Failed("there is no program".to_owned()));
        };
        let mut command = Command::new(program);
        command.args(words).stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(File::create(&complaints).map_err(failed)?);
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        // Without a candidate, the program has the settings that it would have without this.
        if !settings.is_empty() {
            command.env(TUNED, &file);
        }
        let child = command.spawn().map_err(|error| {
            Interruption::Failed(format!("cannot start {}: {error}", program.display()))
        })?;
        let mut process = Process(child);
        let latest = Instant::now() + START;
        while !listens(self.address) {
            if stop.is_asked() {
                return Err(Interruption::Stopped);
            }
            if let Some(status) = process.ended() {
                let why = last_lines(&complaints);
                return Err(Interruption::Refused(format!("it ended with {status}: {why}")));
            }
            if Instant::now() > latest {
                let address = self.address;
                return Err(Interruption::Refused(format!("it does not listen at {address}")));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(process)
    }

    /// Waits until the process of the run before listens no more: its answers would be taken for
    /// the ones of the next process.
    fn wait_until_free(&self) -> Result<(), Interruption> {
        let latest = Instant::now() + END;
        while listens(self.address) {
            if Instant::now() > latest {
                return Err(Interruption::Failed(format!(
                    "something still listens at {} after the program has ended: a script must \
                     replace itself by the server, for example with exec",
                    self.address
                )));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Returns the end of what the program wrote to standard error.
    pub(super) fn complaints(&self) -> String {
        last_lines(&self.folder.path().join("complaints.txt"))
    }
}

/// Returns the settings of a command that starts this program; `None` for other programs.
///
/// # Errors
/// It is a command of this program that serves nothing.
fn own_program(words: &[OsString]) -> Result<Option<config::Program>, Failure> {
    let first = words.first().map(Path::new).unwrap_or(Path::new(""));
    let own = std::env::current_exe().ok();
    if first.file_stem().is_none_or(|name| name != "throng") && own.is_none_or(|own| own != first) {
        return Ok(None);
    }
    match crate::program_of(words.iter().cloned()) {
        Some(program) => Ok(Some(program)),
        None => Err(Failure::usage(
            "this is not a command line of `throng serve` or `throng balance`: try it without \
             `throng tune`",
        )),
    }
}

/// Returns the values of a program, and the keys whose origin has precedence over a candidate.
fn known(values: &Values) -> (Assignment, BTreeSet<String>) {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from).to_string();
    let shown = values.iter().filter(|(_, entry)| !entry.is_secret());
    let current = Assignment::of(shown.map(|(key, entry)| match (key.name, entry.text()) {
        // One for each CPU.
        ("shards", "0") => ("shards", cpus.as_str()),
        pair => pair,
    }));
    let is_fixed = |origin: &Origin| matches!(origin, Origin::Environment(_) | Origin::Flag(_));
    let fixed = values.iter().filter(|(_, entry)| is_fixed(entry.origin()));
    (current, fixed.map(|(key, _)| key.name.to_owned()).collect())
}

/// Returns the first address with a port at which a program listens.
fn listens_at(values: &Values) -> Option<String> {
    let Value::List(addresses) = values.entry("listen")?.value() else { return None };
    let mut all = addresses.iter().filter_map(|it| Listen::parse(it.text()).address()?.ok());
    let address = all.find(|address| address.port() != 0)?;
    let is_any = address.ip().is_unspecified();
    let reachable = match address {
        SocketAddr::V4(_) if is_any => SocketAddr::from((Ipv4Addr::LOCALHOST, address.port())),
        SocketAddr::V6(_) if is_any => SocketAddr::from((Ipv6Addr::LOCALHOST, address.port())),
        address => address,
    };
    Some(reachable.to_string())
}

/// Returns whether something accepts connections there. A socket can be connected with itself, if
/// the system happens to choose this port for it.
fn listens(address: SocketAddr) -> bool {
    let stream = TcpStream::connect_timeout(&address, CONNECT);
    stream.is_ok_and(|stream| stream.local_addr().ok() != Some(address))
}

/// Returns a port that nothing has. Another program could take it at once, which the start reports.
fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

fn last_lines(file: &Path) -> String {
    let text = std::fs::read(file).unwrap_or_default();
    let text = String::from_utf8_lossy(&text).into_owned();
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let lines = &lines[lines.len().saturating_sub(3)..];
    lines.join("; ").chars().take(300).collect()
}

/// A process of the program. Dropping it ends it. A terminal's Ctrl-C reaches it as well, and so
/// does a second one, after which this process could not end it.
pub(super) struct Process(Child);

impl Process {
    /// Returns its exit status, if it has ended.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().ok().flatten()
    }
}

/// Asks it to end, and kills it if it does not: its port must be free for the next run.
impl Drop for Process {
    fn drop(&mut self) {
        if let Some(pid) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw)
            && self.ended().is_none()
        {
            let _ = kill_process(pid, Signal::TERM);
        }
        let latest = Instant::now() + END;
        while self.ended().is_none() && Instant::now() < latest {
            std::thread::sleep(PAUSE);
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn the_settings_of_this_program_are_known() {
        let subject = Subject::of(&words("throng serve --listen 127.0.0.9:1 --shards 1"), None);
        let subject = subject.unwrap();
        assert_eq!((subject.kind(), subject.authority()), (Program::Serve, "127.0.0.9:1"));
        assert_eq!(subject.current().get("shards"), Some("1"));
        assert_eq!(subject.current().get("pin"), Some("none"));
        assert!(subject.fixed().contains("shards") && !subject.fixed().contains("pin"));
        assert_eq!(subject.words(), "throng serve --listen 127.0.0.9:1 --shards 1");
    }

    #[test]
    fn another_program_needs_an_address() {
        for (line, remedy) in [
            ("./server", "--url"),
            ("throng serve --shard 1", "not a command line of"),
            ("throng bench echo ws://127.0.0.1:1", "not a command line of"),
        ] {
            let error = Subject::of(&words(line), None).err().unwrap();
            assert!(error.code == 2 && error.message.contains(remedy), "{}", error.message);
        }
    }
}
