//! What the source articles state, as they state it: the figures beside ours.

/// Process memory with so many idle connections, in MB; CPU 0 %.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Idle {
    /// The I/O model, in the article's word.
    pub model: &'static str,
    /// Connections and MB.
    pub memory_mb: &'static [(usize, f64)],
    /// CPU meanwhile in percent, if stated.
    pub cpu_percent: Option<f64>,
}

/// The time to make so many connections.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Connect {
    /// The I/O model, in the article's word.
    pub model: &'static str,
    /// Connections.
    pub connections: usize,
    /// Seconds.
    pub took_s: f64,
    /// Each sent a message and had its echo within that time.
    pub echoed: bool,
}

/// Idle connections. Of one thread per connection the articles give no figure.
pub(crate) const IDLE: [Idle; 2] = [
    Idle {
        model: "epoll",
        memory_mb: &[(100, 1.4), (500, 4.8), (1_000, 8.9), (1_500, 13.3), (2_000, 17.4)],
        cpu_percent: Some(0.0),
    },
    Idle {
        model: "IOCP",
        memory_mb: &[(100, 3.9), (500, 7.7), (1_000, 12.4), (2_000, 21.9), (3_500, 35.9)],
        cpu_percent: None,
    },
];

/// Times to connect.
pub(crate) const CONNECT: [Connect; 3] = [
    Connect { model: "epoll", connections: 1_000, took_s: 9.49, echoed: false },
    Connect { model: "IOCP", connections: 3_000, took_s: 6.89, echoed: true },
    Connect { model: "epoll", connections: 10_000, took_s: 115.0, echoed: false },
];

/// What the articles have and what they do not, for readers of the tables.
pub(crate) const NOTE: &str = "\"article\": the source articles' own figures, on their machines (epoll on 2 CPUs; IOCP on \
    Windows), for scale only. Memory is their whole process; they give no figures for one thread per connection, nor \
    for a handler that blocks.";
