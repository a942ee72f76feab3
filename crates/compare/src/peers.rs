//! Proxies that are started here: their programs, configurations and processes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use throng_load::Error;

use crate::process::Process;
use crate::word::words;

const NGINX: &str = include_str!("nginx.conf");
const HAPROXY: &str = include_str!("haproxy.cfg");
/// Longest wait for a proxy's first tunnel.
const START: Duration = Duration::from_secs(10);

words! {
    /// A proxy to measure.
    enum Peer {
        /// The backend without any proxy
        Direct = "direct",
        /// `throng balance`
        Throng = "throng",
        /// nginx with its usual buffers
        Nginx = "nginx",
        /// nginx with buffers of 64 KiB
        Nginx64k = "nginx-64k",
        /// HAProxy with its usual buffers
        Haproxy = "haproxy",
        /// HAProxy with buffers of 64 KiB
        Haproxy64k = "haproxy-64k",
        /// A proxy that runs already
        #[value(skip)]
        Running = "proxy",
    }
}

/// A peer that is not measured, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Skipped {
    /// The peer.
    pub peer: Peer,
    /// Why, with what to do about it.
    pub why: String,
}

impl Peer {
    /// Returns the program and the Debian package that contains it.
    fn program(self) -> Option<&'static str> {
        match self {
            Self::Nginx | Self::Nginx64k => Some("nginx"),
            Self::Haproxy | Self::Haproxy64k => Some("haproxy"),
            Self::Direct | Self::Throng | Self::Running => None,
        }
    }
}

/// A peer's program, found.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    /// As it says itself.
    pub(crate) version: Option<String>,
}

/// Finds a peer's program; `Ok(None)` for the backend itself, which has none.
///
/// # Errors
/// Why it cannot be measured, in a line.
pub(crate) fn find(peer: Peer, throng: &Path) -> Result<Option<Program>, String> {
    if let Some(name) = peer.program() {
        let path = on_path(name)
            .ok_or_else(|| format!("{name} is not installed; Debian: apt-get install {name}"))?;
        let version = first_line(Command::new(&path).arg("-v")).as_deref().and_then(version);
        return Ok(Some(Program { path, version }));
    }
    if peer != Peer::Throng {
        return Ok(None);
    }
    let help = first_line(Command::new(throng).args(["balance", "--help"]));
    if help.is_none() {
        return Err("this build of throng has no `throng balance`".to_owned());
    }
    let version = first_line(Command::new(throng).arg("--version")).as_deref().and_then(version);
    Ok(Some(Program { path: throng.to_owned(), version }))
}

/// Where a program is: on PATH, or where Debian keeps those that its users have not on theirs.
fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    let places = std::env::split_paths(&path).chain(usual);
    places.map(|place| place.join(program)).find(|path| path.is_file())
}

/// The number in what a program says of its version: `1.22.1` of `nginx version: nginx/1.22.1`.
fn version(line: &str) -> Option<String> {
    let words = line.split([' ', '/']);
    let is_number =
        |word: &&str| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.');
    words.into_iter().find(is_number).map(str::to_owned)
}

/// The first line that a command says, on whichever of its outputs; `None` if it fails.
fn first_line(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).output().ok()?;
    let said = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&said);
    let line = text.lines().find(|line| !line.trim().is_empty())?.trim();
    output.status.success().then(|| line.chars().filter(|c| !c.is_control()).take(80).collect())
}

/// A proxy of ours. Dropping it ends its processes and removes its files.
#[derive(Debug)]
pub(crate) struct Proxy {
    process: Process,
    pub(crate) address: SocketAddr,
    // Dropped after the process, which has ended then and writes there no more.
    _folder: Folder,
}

/// Settings of a proxy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProxySettings<'a> {
    /// The backend, as `127.0.0.1:9001`.
    pub(crate) backend: &'a str,
    /// Tunnels at a time.
    pub(crate) tunnels: usize,
}

impl Proxy {
    /// Starts one; it has carried a first tunnel when this returns. `spawn` runs the start itself,
    /// on whichever core.
    ///
    /// # Errors
    /// It could not be started, ended, or carried no tunnel in time.
    pub(crate) fn start(
        peer: Peer,
        program: &Program,
        settings: ProxySettings<'_>,
        spawn: &dyn Fn(&[String]) -> Result<Process, String>,
    ) -> Result<Self, Error> {
        let cannot = |why: String| Error::Child(format!("cannot start {peer}: {why}"));
        let folder = Folder::new().map_err(|error| cannot(error.to_string()))?;
        let address = free_address().map_err(|error| cannot(error.to_string()))?;
        let words = words(peer, program, settings, address, &folder)
            .map_err(|error| cannot(error.to_string()))?;
        let process = spawn(&words).map_err(cannot)?;
        let mut proxy = Self { process, address, _folder: folder };
        let begun = Instant::now();
        loop {
            if let Some(how) = proxy.process.ended() {
                return Err(cannot(how));
            }
            match first_tunnel(address) {
                Ok(()) => return Ok(proxy),
                Err(why) if begun.elapsed() > START => {
                    return Err(cannot(format!("it carries no tunnel: {why}")));
                }
                Err(_) => thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    /// The last line that it wrote.
    pub(crate) fn last_output(&self) -> String {
        self.process.last_output()
    }

    /// All of its processes.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.process.pids()
    }
}

/// The command that starts a peer, with its configuration written to `folder`.
fn words(
    peer: Peer,
    program: &Program,
    settings: ProxySettings<'_>,
    listen: SocketAddr,
    folder: &Folder,
) -> std::io::Result<Vec<String>> {
    let path = program.path.display().to_string();
    let word = |text: &str| text.to_owned();
    Ok(match peer {
        Peer::Nginx | Peer::Nginx64k => {
            let file =
                folder.write("nginx.conf", &configuration(peer, settings, listen, folder))?;
            // Errors before the file is read would go to a system's log.
            vec![path, word("-e"), word("stderr"), word("-p"), folder.text(), word("-c"), file]
        }
        Peer::Haproxy | Peer::Haproxy64k => {
            let file =
                folder.write("haproxy.cfg", &configuration(peer, settings, listen, folder))?;
            // In the foreground, and one process.
            vec![path, word("-db"), word("-q"), word("-f"), file]
        }
        Peer::Throng | Peer::Direct | Peer::Running => {
            let listen = listen.to_string();
            let words = [
                path.as_str(),
                "balance",
                "--listen",
                &listen,
                "--backend",
                settings.backend,
                "--shards",
                "1",
            ];
            words.map(str::to_owned).to_vec()
        }
    })
}

/// A peer's file with the places of this run in it.
fn configuration(
    peer: Peer,
    settings: ProxySettings<'_>,
    listen: SocketAddr,
    folder: &Folder,
) -> String {
    let (text, buffers) = match peer {
        Peer::Nginx64k => (NGINX, "proxy_buffer_size 64k; proxy_buffers 4 64k;"),
        Peer::Haproxy => (HAPROXY, ""),
        Peer::Haproxy64k => (HAPROXY, "tune.bufsize 65536"),
        _ => (NGINX, ""),
    };
    let tunnels = settings.tunnels + 100;
    // Two for each tunnel, and a quarter more, which nginx keeps back in part.
    let sockets = tunnels * 5 / 2;
    text.replace("@LISTEN@", &listen.to_string())
        .replace("@BACKEND@", settings.backend)
        .replace("@FOLDER@", &folder.text())
        .replace("@TUNNELS@", &tunnels.to_string())
        .replace("@SOCKETS@", &sockets.to_string())
        .replace("@BUFFERS@", buffers)
}

pub(crate) fn free_address() -> std::io::Result<SocketAddr> {
    TcpListener::bind("127.0.0.1:0")?.local_addr()
}

/// Asks for an upgrade, and hears the backend's answer through the proxy: then its worker is at
/// work, too.
fn first_tunnel(address: SocketAddr) -> Result<(), String> {
    let timeout = Duration::from_millis(500);
    let mut stream =
        TcpStream::connect_timeout(&address, timeout).map_err(|error| error.to_string())?;
    let request = format!(
        "GET /echo HTTP/1.1\r\nHost: {address}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    let mut answer = [0; 12];
    stream
        .set_read_timeout(Some(timeout))
        .and_then(|()| stream.write_all(request.as_bytes()))
        .and_then(|()| stream.read_exact(&mut answer))
        .map_err(|error| error.to_string())?;
    match &answer {
        b"HTTP/1.1 101" => Ok(()),
        other => Err(format!("it answers {:?}", String::from_utf8_lossy(other))),
    }
}

/// A folder for one proxy's files; removed when dropped.
#[derive(Debug)]
struct Folder(PathBuf);

impl Folder {
    fn new() -> std::io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("throng-proxy-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        // Not `create_dir_all`: what is there already is not ours.
        std::fs::create_dir(&path)?;
        Ok(Self(path))
    }

    fn text(&self) -> String {
        self.0.display().to_string()
    }

    fn write(&self, name: &str, text: &str) -> std::io::Result<String> {
        let path = self.0.join(name);
        std::fs::write(&path, text)?;
        Ok(path.display().to_string())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // The folder is a temporary one; a failure is harmless and cannot be reported from here.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configurations_have_all_of_their_places_filled() {
        let folder = Folder::new().unwrap();
        let settings = ProxySettings { backend: "127.0.0.1:9001", tunnels: 4000 };
        let listen = "127.0.0.1:8080".parse().unwrap();
        for peer in [Peer::Nginx, Peer::Nginx64k, Peer::Haproxy, Peer::Haproxy64k] {
            let text = configuration(peer, settings, listen, &folder);
            assert!(!text.contains('@'), "{text}");
            for words in ["127.0.0.1:9001", "127.0.0.1:8080"] {
                assert!(text.contains(words), "{words} in {text}");
            }
            assert_eq!(
                text.contains("64k;") || text.contains("65536"),
                peer.name().ends_with("64k")
            );
        }
        let path = folder.0.clone();
        drop(folder);
        assert!(!path.exists());
    }

    #[test]
    fn versions() {
        for (line, number) in [
            ("nginx version: nginx/1.22.1", Some("1.22.1")),
            (
                "HAProxy version 2.6.12-1+deb12u4 2026/10/17 - https://haproxy.org/",
                Some("2.6.12-1+deb12u4"),
            ),
            ("throng 0.1.0", Some("0.1.0")),
            ("no number", None),
        ] {
            assert_eq!(version(line).as_deref(), number);
        }
    }

    #[test]
    fn a_missing_peer_is_reported_in_a_line() {
        let nowhere = Path::new("/nowhere/throng");
        assert!(find(Peer::Throng, nowhere).unwrap_err().contains("no `throng balance`"));
        assert!(find(Peer::Direct, nowhere).unwrap().is_none());
        assert_eq!(on_path("no-such-program-anywhere"), None);
        assert!(on_path("sh").is_some());
    }
}
