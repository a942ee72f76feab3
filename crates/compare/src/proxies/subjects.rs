//! The measured proxies: one that is already running, or peers that are started for each cell.

use throng_load::sampler::{Processes, listening_pids, process_group};
use throng_load::{Error, Target};

use crate::parts::{Launch, OwnServer, ServerPart};
use crate::peers::{Peer, Program, Proxy, ProxySettings, Skipped};
use crate::pin::Pinned;
use crate::process::Process;

/// Descriptors of a proxy that are not for tunnels: listeners, logs, its poll, probes.
pub(super) const SPARE: usize = 300;

/// A running proxy or backend.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) target: Target,
    /// Empty: not known.
    pub(super) pids: Vec<u32>,
}

impl Running {
    pub(super) fn resource(&self) -> &str {
        self.target.resource("/echo")
    }

    pub(super) fn processes(&self) -> Option<Processes> {
        (!self.pids.is_empty()).then(|| Processes::new(self.pids.clone()))
    }
}

/// The proxies, found.
#[derive(Debug, Default)]
pub(super) enum Subjects {
    /// The programs are not yet searched for.
    #[default]
    Unknown,
    /// A proxy that is already running.
    Running(ProxyUnderTest),
    /// Proxies that the comparison starts.
    Peers {
        tunnels: usize,
        peers: Vec<(Peer, Option<Program>)>,
        skipped: Vec<Skipped>,
        pinned: Option<Box<Pinned>>,
    },
}

/// A proxy that is already running.
#[derive(Clone, Debug)]
pub(super) struct ProxyUnderTest {
    /// The URL that echoes; with the path `/echo` if the given URL has no path.
    pub(super) proxy: Target,
    /// The proxy's first process; its descendants also count. `None`: the process on this machine
    /// that listens on the port.
    pub(super) pid: Option<u32>,
    /// Its backend, reached directly.
    pub(super) direct: Option<Target>,
}

/// Processes started for one cell; dropping it ends them, the proxy before its backend.
pub(super) struct Started {
    pub(super) running: Running,
    proxy: Option<Proxy>,
    _backend: Option<OwnServer>,
}

impl Started {
    /// Adds the last output of the proxy to an error, if there is output.
    pub(super) fn explain(&self, error: Error) -> Error {
        let said = self.proxy.as_ref().map(Proxy::last_output).unwrap_or_default();
        match error {
            Error::Interrupted => error,
            _ if said.is_empty() => error,
            error => Error::Child(format!("{error}; the proxy said last: {said}")),
        }
    }
}

impl Subjects {
    pub(super) fn peers(&self) -> Vec<Peer> {
        match self {
            Self::Unknown => Vec::new(),
            Self::Running(subject) => {
                let direct = subject.direct.as_ref().map(|_| Peer::Direct);
                direct.into_iter().chain([Peer::Running]).collect()
            }
            Self::Peers { peers, .. } => peers.iter().map(|(peer, _)| *peer).collect(),
        }
    }

    /// Returns the proxies, each with the version that its program reports.
    pub(super) fn versions(&self) -> Vec<(Peer, Option<String>)> {
        match self {
            Self::Peers { peers, .. } => {
                let version = |program: &Option<Program>| program.as_ref()?.version.clone();
                peers.iter().map(|(peer, program)| (*peer, version(program))).collect()
            }
            _ => self.peers().into_iter().map(|peer| (peer, None)).collect(),
        }
    }

    pub(super) fn skipped(&self) -> Vec<Skipped> {
        match self {
            Self::Peers { skipped, .. } => skipped.clone(),
            _ => Vec::new(),
        }
    }

    /// Returns the proxy's core, and the core of everything else.
    pub(super) fn cores(&self) -> Option<(usize, usize)> {
        let Self::Peers { pinned, .. } = self else { return None };
        let cores = pinned.as_ref()?.cores;
        Some((cores.proxy, cores.others))
    }

    /// Starts a peer and its backend, or finds the running proxy.
    pub(super) fn start(&self, peer: Peer, launch: Launch<'_>) -> Result<Started, Error> {
        let (tunnels, peers, pinned) = match self {
            Self::Unknown => return Err(Error::Usage("no proxy was looked for".to_owned())),
            Self::Running(subject) => {
                return Ok(Started { running: subject.now(peer)?, proxy: None, _backend: None });
            }
            Self::Peers { tunnels, peers, pinned, .. } => (*tunnels, peers, pinned),
        };
        // The backend is an echo server with one shard.
        let backend = OwnServer::start(launch, ServerPart::default())?;
        let found = peers.iter().find(|(other, _)| *other == peer);
        let Some(program) = found.and_then(|(_, program)| program.as_ref()) else {
            let target = Target::parse(&format!("ws://{}", backend.address))?;
            let running = Running { target, pids: vec![backend.pid()] };
            return Ok(Started { running, proxy: None, _backend: Some(backend) });
        };
        let settings = ProxySettings { backend: &backend.address, tunnels };
        let spawn = |words: &[String]| match pinned {
            Some(pinned) => pinned.on_proxy_core(|| Process::start(words)),
            None => Process::start(words),
        };
        let proxy = Proxy::start(peer, program, settings, &spawn)?;
        let target = Target::parse(&format!("ws://{}", proxy.address))?;
        let running = Running { target, pids: proxy.pids() };
        Ok(Started { running, proxy: Some(proxy), _backend: Some(backend) })
    }
}

impl ProxyUnderTest {
    /// Returns the running proxy, or its backend, with its current processes.
    fn now(&self, peer: Peer) -> Result<Running, Error> {
        let target = match (peer, &self.direct) {
            (Peer::Direct, Some(direct)) => direct.clone(),
            _ => self.proxy.clone(),
        };
        let own = std::process::id();
        let pids = match (self.pid, peer) {
            (Some(pid), Peer::Running) => {
                let members = process_group(pid).into_iter().map(|member| member.pid);
                let pids: Vec<u32> = members.filter(|&member| member != own).collect();
                if pids.is_empty() {
                    return Err(Error::Usage(format!(
                        "--pid {pid}: there is no such process on this machine"
                    )));
                }
                pids
            }
            _ => listening_pids(target.resolve()?),
        };
        Ok(Running { target, pids })
    }
}
