//! All figures of the five articles, each with its article. No other module contains published
//! figures.

use serde::Serialize;

use crate::blank_work::Mode;
use crate::io_model::IoModel;
use crate::parts::Variant;

/// A published article.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Article {
    /// Its publisher.
    pub publisher: &'static str,
    /// Its title.
    pub title: &'static str,
    /// The date of the article, as far as it is known.
    pub date: &'static str,
    /// The machine on which the article measured.
    pub machine: &'static str,
}

/// Echoes with 10,000 to 250,000 clients, ways to broadcast, and ceilings of I/O models.
pub(crate) const SCALING: Article = Article {
    publisher: "eSeGeCe",
    title: "sgcWebSockets performance tuning: From \"It Works\" to \"It Scales\"",
    date: "undated, 2025 or later",
    machine: "16 cores, 128 GB (Ryzen 9 7950X3D)",
};

/// Idle connections and time to connect, threads and epoll.
pub(crate) const LINUX: Article = Article {
    publisher: "eSeGeCe",
    title: "Indy Servers - EPOLL Linux (3 / 3)",
    date: "2022",
    machine: "2 processors, 8 GB, a virtual machine",
};

/// Idle connections and time to connect, threads and IOCP.
pub(crate) const WINDOWS: Article = Article {
    publisher: "eSeGeCe",
    title: "Indy Servers - IOCP Windows (2 / 3)",
    date: "2022",
    machine: "16 cores, 32 GB, Windows Server 2022",
};

/// HTTP servers in the suite NetBenchmarks, and with the author's own client.
pub(crate) const HTTP: Article = Article {
    publisher: "Components4Developers",
    title: "HTTP middleware benchmarks",
    date: "2 November 2021",
    machine: "16 cores, 32 GB (AMD 1950X), Windows 10, some 15 % busy with other things",
};

/// nginx before WebSocket servers.
pub(crate) const NGINX: Article = Article {
    publisher: "NGINX",
    title: "NGINX WebSocket Performance",
    date: "24 June 2014",
    machine: "6 cores (Xeon E5645), 6 workers of nginx 1.7.0; generator and backend elsewhere",
};

/// Echoes of 100 B, ten per second from each client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Echo {
    pub(crate) clients: usize,
    pub(crate) messages_per_s: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    /// Share of the machine, 0 to 1.
    pub(crate) cpu: f64,
    pub(crate) rss_bytes: f64,
}

/// Messages per second of each client.
pub(crate) const ECHO_RATE: f64 = 10.0;

pub(crate) const ECHO: [Echo; 4] = [
    echo(10_000, 0.8, 3.2, 14.0, 0.9),
    echo(50_000, 1.1, 5.4, 38.0, 3.8),
    echo(100_000, 1.7, 9.8, 71.0, 7.2),
    echo(250_000, 3.4, 22.0, 96.0, 17.8),
];

const fn echo(clients: usize, p50_ms: f64, p99_ms: f64, cpu_percent: f64, rss_gb: f64) -> Echo {
    Echo {
        clients,
        messages_per_s: clients as f64 * ECHO_RATE,
        p50_us: p50_ms * 1e3,
        p99_us: p99_ms * 1e3,
        cpu: cpu_percent / 100.0,
        rss_bytes: rss_gb * 1e9,
    }
}

/// Subscribers of a broadcast.
pub(crate) const SUBSCRIBERS: usize = 50_000;

/// Seconds of a broadcast to all subscribers.
pub(crate) const BROADCAST: [(Variant, f64); 2] =
    [(Variant::Naive, 12.0), (Variant::Encoded, 0.38)];

/// A server's I/O model, the similar model of Throng, the recommended number of connections, and
/// the ceiling.
pub(crate) const CEILINGS: [(&str, IoModel, &str, f64); 4] = [
    ("a thread for each", IoModel::Threads, "below 5,000", 10_000.0),
    ("epoll (Linux)", IoModel::Epoll, "10,000 to 100,000", 1_000_000.0),
    ("IOCP (Windows)", IoModel::Iocp, "10,000 to 100,000", 250_000.0),
    ("kqueue (macOS)", IoModel::Portable, "10,000 to 50,000", 100_000.0),
];

/// Tunnels of nginx, mostly idle, with messages of 10 to 4096 bytes every 0.1 to 10 s.
pub(crate) const TUNNELS: [usize; 5] = [1_000, 5_000, 10_000, 20_000, 50_000];

/// With the most tunnels, nginx used less than this many bytes and this many cores.
pub(crate) const TUNNEL_BOUNDS: (f64, f64) = (1e9, 1.0);

/// Bursts at nginx: the payloads, and the maximum growth of its memory from the smallest to the
/// largest payload (0 to 1).
pub(crate) const BURST_SIZES: [usize; 6] = [1, 16, 64, 256, 1024, 4096];
pub(crate) const BURST_GROWTH: f64 = 0.15;

/// Servers of the suite NetBenchmarks.
pub(crate) const NETBENCH_SERVERS: [&str; 8] =
    ["kbmMW", "Indy", "IndyPool", "RTC", "Synopse", "Sparkle", "Node.js", "Go"];

/// Requests per second of these servers, by connections and mode.
pub(crate) const NETBENCH: [(usize, Mode, [f64; 8]); 6] = [
    (1, Mode::Blank, [354.0, 319.0, 334.0, 346.0, 347.0, 336.0, 365.0, 365.0]),
    (1, Mode::Work, [353.0, 313.0, 350.0, 337.0, 377.0, 359.0, 364.0, 353.0]),
    (100, Mode::Blank, [1926.0, 1072.0, 410.0, 1613.0, 1852.0, 617.0, 1838.0, 1890.0]),
    (100, Mode::Work, [1908.0, 612.0, 175.0, 1054.0, 1763.0, 326.0, 1779.0, 1776.0]),
    (10_000, Mode::Blank, [1000.0, 944.0, 908.0, 970.0, 1054.0, 1073.0, 970.0, 984.0]),
    (10_000, Mode::Work, [912.0, 848.0, 890.0, 830.0, 1014.0, 1012.0, 907.0, 1000.0]),
];

/// Calls of the stress test.
pub(crate) const CALLS: u64 = 100_000;

/// Servers of the stress test whose columns have no gap; the other columns are ambiguous. kbmMW had
/// 6 I/O threads.
pub(crate) const STRESS_SERVERS: [&str; 3] = ["kbmMW", "Node.js", "Go"];

/// Calls per second of these servers, in blank mode, by connections.
pub(crate) const STRESS: [(usize, [f64; 3]); 6] = [
    (1, [4031.0, 4280.0, 4709.0]),
    (10, [5932.0, 4715.0, 5146.0]),
    (50, [6744.0, 5025.0, 5392.0]),
    (100, [7180.0, 4916.0, 5417.0]),
    (200, [6693.0, 5197.0, 5671.0]),
    (1_000, [6709.0, 6607.0, 6293.0]),
];

/// The sizes of the suite's programs, from the smallest to the largest; and the size of the
/// download of Node.js.
pub(crate) const PROGRAM_BYTES: (f64, f64) = (2e6, 12e6);
pub(crate) const NODE_BYTES: f64 = 27e6;
/// Seconds that the article waited after the start of a server.
pub(crate) const STARTED_S: f64 = 6.0;

/// A server with published figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Server {
    /// The server's I/O model and machine.
    pub(crate) name: &'static str,
    /// The model of Throng that is compared with it.
    pub(crate) ours: IoModel,
    /// The article that has its figures.
    pub(crate) article: Article,
}

const EPOLL: Server = Server { name: "published: epoll", ours: IoModel::Epoll, article: LINUX };
const THREADS: Server =
    Server { name: "published: threads (Linux)", ours: IoModel::Threads, article: LINUX };
/// The model with event loops that is compared with IOCP.
const EVENT_LOOPS: IoModel = if cfg!(windows) { IoModel::Iocp } else { IoModel::Epoll };
const IOCP: Server =
    Server { name: "published: IOCP (Windows)", ours: EVENT_LOOPS, article: WINDOWS };
const WINDOWS_THREADS: Server =
    Server { name: "published: threads (Windows)", ours: IoModel::Threads, article: WINDOWS };

/// All of them.
pub(crate) const SERVERS: [Server; 4] = [THREADS, EPOLL, WINDOWS_THREADS, IOCP];

/// Published figures of idle connections.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Idle {
    /// CPU use in per cent, and memory of the whole process in MB.
    Measured(f64, f64),
    /// The server could not hold this many connections, for this reason.
    Failed(&'static str),
}

/// The failure of `select`, whose descriptors end at 1,024.
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

/// The time to make this many connections.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Connect {
    /// The server.
    pub(crate) server: Server,
    /// Connections.
    pub(crate) connections: usize,
    /// The time in seconds; `None` if the attempt failed.
    pub(crate) took_s: Option<f64>,
    /// Whether the time includes a message and its echo on each connection.
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

/// A note about these rows for readers of the tables.
pub(crate) const NOTE: &str = "\"published\": figures of other servers on other machines \
     (Linux: 2 CPUs; Windows Server 2022: 16 cores), for scale only. Memory is the whole process. \
     published/ours: of memory or time, to our server of the same model in this run (IOCP: on \
     Linux to epoll). None were published of a handler that blocks.";
