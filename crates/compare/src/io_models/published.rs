//! Figures that were published for other servers of these I/O models.

use super::model::IoModel;

/// A server with published figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Server {
    /// Its I/O model, and where it ran.
    pub(crate) name: &'static str,
    /// Which of ours it is compared with.
    pub(crate) ours: IoModel,
}

const EPOLL: Server = Server { name: "published: epoll", ours: IoModel::Epoll };
const THREADS: Server = Server { name: "published: threads (Linux)", ours: IoModel::Threads };
const IOCP: Server = Server { name: "published: IOCP (Windows)", ours: IoModel::Epoll };
const WINDOWS_THREADS: Server =
    Server { name: "published: threads (Windows)", ours: IoModel::Threads };

/// All of them.
pub(crate) const SERVERS: [Server; 4] = [THREADS, EPOLL, WINDOWS_THREADS, IOCP];

/// Published figures of idle connections.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Idle {
    /// CPU in per cent, and memory of the whole process in MB.
    Measured(f64, f64),
    /// The server did not hold so many, and why.
    Failed(&'static str),
}

/// Longest descriptor of `select`.
const SELECT: Idle = Idle::Failed("failed: select() ends at 1,024 descriptors");

/// Idle connections.
pub(crate) const IDLE: [(Server, &[(usize, Idle)]); 4] = [
    (
        THREADS,
        &[
            (100, Idle::Measured(1.0, 1.4)),
            (500, Idle::Measured(4.0, 5.6)),
            (1_000, Idle::Measured(10.0, 10.5)),
            (1_500, SELECT),
            (2_000, SELECT),
        ],
    ),
    (
        EPOLL,
        &[
            (100, Idle::Measured(0.0, 1.4)),
            (500, Idle::Measured(0.0, 4.8)),
            (1_000, Idle::Measured(0.0, 8.9)),
            (1_500, Idle::Measured(0.0, 13.3)),
            (2_000, Idle::Measured(0.0, 17.4)),
        ],
    ),
    (
        WINDOWS_THREADS,
        &[
            (100, Idle::Measured(0.0, 4.1)),
            (500, Idle::Measured(0.0, 17.1)),
            (1_000, Idle::Measured(0.0, 32.2)),
            (1_500, Idle::Measured(7.3, 46.8)),
            (2_000, Idle::Measured(15.4, 61.6)),
            (2_500, Idle::Measured(51.9, 76.5)),
            (3_000, Idle::Measured(68.8, 91.7)),
            (3_500, Idle::Measured(72.3, 106.0)),
        ],
    ),
    (
        IOCP,
        &[
            (100, Idle::Measured(0.0, 3.9)),
            (500, Idle::Measured(0.0, 7.7)),
            (1_000, Idle::Measured(0.0, 12.4)),
            (1_500, Idle::Measured(0.0, 17.1)),
            (2_000, Idle::Measured(0.0, 21.9)),
            (2_500, Idle::Measured(0.0, 26.5)),
            (3_000, Idle::Measured(0.0, 31.2)),
            (3_500, Idle::Measured(0.0, 35.9)),
        ],
    ),
];

/// The time to make so many connections.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Connect {
    /// The server.
    pub(crate) server: Server,
    /// Connections.
    pub(crate) connections: usize,
    /// Seconds; `None`: it failed.
    pub(crate) took_s: Option<f64>,
    /// Each sent a message and had its echo within that time.
    pub(crate) echoed: bool,
}

/// Times to connect.
pub(crate) const CONNECT: [Connect; 6] = [
    Connect { server: EPOLL, connections: 1_000, took_s: Some(9.49), echoed: false },
    Connect { server: THREADS, connections: 1_000, took_s: Some(16.5), echoed: false },
    Connect { server: IOCP, connections: 3_000, took_s: Some(6.89), echoed: true },
    Connect { server: WINDOWS_THREADS, connections: 3_000, took_s: Some(15.32), echoed: true },
    Connect { server: EPOLL, connections: 10_000, took_s: Some(115.0), echoed: false },
    Connect { server: THREADS, connections: 10_000, took_s: None, echoed: false },
];

/// Note for readers of the tables about these rows.
pub(crate) const NOTE: &str = "\"published\": figures of other servers on other machines \
     (Linux: 2 CPUs; Windows Server 2022: 16 cores), for scale only. Memory is the whole process. \
     published/ours: of memory or time, to our server of the same model in this run (IOCP: to \
     epoll). None were published of a handler that blocks.";
