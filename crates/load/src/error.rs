//! Errors of a run, each with a remedy.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use crate::units;

/// The reason why there is no result. A failure *during* a measurement (a wrong answer, a lost
/// connection) does not appear here: the report counts it, and the verdict shows it.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The plan is invalid; the text shows a valid form.
    Usage(String),
    /// The host name was not found.
    Resolve {
        /// The name.
        host: String,
        /// Reason from the system's resolver.
        reason: String,
    },
    /// The descriptor limit is too low for the plan.
    Descriptors {
        /// Connections asked for.
        wanted: usize,
        /// The number of connections that fit within the limit.
        possible: usize,
        /// The hard limit, which cannot be passed without privilege.
        hard_limit: u64,
    },
    /// A TCP connection could not be made.
    Connect {
        /// The server.
        peer: SocketAddr,
        /// Error of the kernel.
        reason: io::Error,
        /// Connections that were ready when the error occurred.
        ready: usize,
    },
    /// The server did not accept the upgrade to WebSocket.
    Upgrade {
        /// The request target.
        resource: String,
        /// Description of the server's answer, for people.
        reason: String,
    },
    /// A connection was lost before all were ready.
    Lost {
        /// Connections that were ready when the error occurred.
        ready: usize,
        /// Connections asked for.
        wanted: usize,
        /// Description of the observation, for people.
        reason: String,
    },
    /// Not all connections were ready in time.
    SetupTimeout {
        /// Connections that were ready when the error occurred.
        ready: usize,
        /// Connections asked for.
        wanted: usize,
        /// The time given.
        after: Duration,
    },
    /// Connections did not answer the echo that was sent after the idle time.
    Unanswered {
        /// Connections that answered.
        answered: u64,
        /// Connections that were sent to.
        wanted: u64,
        /// The time that passed without an answer.
        after: Duration,
    },
    /// A process that the benchmark started failed, or did not finish in time; the text names the
    /// failure.
    Child(String),
    /// The caller stopped the run before there was anything to report.
    Interrupted,
    /// Another system operation failed.
    Io {
        /// Operation that failed, as in "cannot ...".
        operation: String,
        /// Error of the kernel.
        source: io::Error,
    },
}

impl Error {
    /// Returns the exit code of a process that fails with this error: 2 for a usage error, 1 for a
    /// failed run.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            _ => 1,
        }
    }

    #[doc(hidden)]
    pub fn io(operation: impl Into<String>, source: io::Error) -> Self {
        Self::Io { operation: operation.into(), source }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(text) | Self::Child(text) => f.write_str(text),
            Self::Resolve { host, reason } => write!(f, "cannot find the host {host:?}: {reason}"),
            Self::Descriptors { wanted, possible, hard_limit } => write!(
                f,
                "{} connections need more descriptors than this process may open: its hard limit \
                 of {} leaves room for {possible}. Use no more (--connections; of a fan-out fewer \
                 --channels or --subscribers), or raise the limit (ulimit -Hn, or LimitNOFILE= in \
                 a systemd unit)",
                units::grouped(*wanted as u64),
                units::grouped(*hard_limit),
                possible = units::grouped(*possible as u64),
            ),
            Self::Unanswered { answered, wanted, after } => write!(
                f,
                "{} of {} connections answered an echo after the idle time, and none for {} s",
                units::grouped(*answered),
                units::grouped(*wanted),
                after.as_secs(),
            ),
            Self::Connect { peer, reason, ready } => {
                write!(f, "cannot connect to {peer}: {reason}")?;
                if *ready > 0 {
                    write!(f, " (after {} connections)", units::grouped(*ready as u64))?;
                }
                match connect_remedy(reason) {
                    Some(remedy) => write!(f, ". {remedy}"),
                    None => Ok(()),
                }
            }
            Self::Upgrade { resource, reason } => {
                write!(f, "the server does not speak WebSocket at {resource:?}: {reason}")
            }
            Self::Lost { ready, wanted, reason } => write!(
                f,
                "{reason} (with {} of {} connections ready). Does the server limit connections, or \
                 has it run out of descriptors?",
                units::grouped(*ready as u64),
                units::grouped(*wanted as u64),
            ),
            Self::SetupTimeout { ready, wanted, after } => write!(
                f,
                "only {} of {} connections were ready after {}. Does the server limit connections? \
                 A slower ramp (--ramp) helps a short accept queue, --setup-timeout a slow server",
                units::grouped(*ready as u64),
                units::grouped(*wanted as u64),
                units::show_duration(*after),
            ),
            Self::Interrupted => f.write_str("interrupted before anything was measured"),
            Self::Io { operation, source } => write!(f, "cannot {operation}: {source}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Connect { reason: source, .. } | Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

fn connect_remedy(reason: &io::Error) -> Option<&'static str> {
    match reason.kind() {
        io::ErrorKind::ConnectionRefused => Some(
            "Is the server running, and on this port? `throng serve` starts one on 127.0.0.1:9001",
        ),
        io::ErrorKind::AddrNotAvailable => {
            Some("The source address has no free port left: use more of them with --sources")
        }
        io::ErrorKind::TimedOut => Some("Is the address right, and does a firewall drop packets?"),
        io::ErrorKind::ConnectionReset => {
            Some("The server accepted and reset it at once: is it full?")
        }
        io::ErrorKind::InvalidData => Some(
            "Name the authority of its certificate with --ca, its name with --sni, or use \
             --insecure",
        ),
        // EMFILE and ENFILE have no stable `ErrorKind`.
        _ if matches!(reason.raw_os_error(), Some(23 | 24)) => {
            Some("The descriptor limit is reached: raise it with `ulimit -n`")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connect(reason: io::Error) -> String {
        let peer = SocketAddr::from(([127, 0, 0, 1], 9001));
        Error::Connect { peer, reason, ready: 1200 }.to_string()
    }

    #[test]
    fn every_common_failure_names_its_remedy() {
        for (kind, hint) in [
            (io::ErrorKind::ConnectionRefused, "Is the server running"),
            (io::ErrorKind::AddrNotAvailable, "--sources"),
            (io::ErrorKind::TimedOut, "firewall"),
        ] {
            let text = connect(kind.into());
            assert!(text.contains(hint) && text.contains("1,200"), "{text}");
        }
        assert!(connect(io::Error::from_raw_os_error(24)).contains("ulimit -n"));
    }

    #[test]
    fn too_few_descriptors_say_how_many_connections_are_possible() {
        let error = Error::Descriptors { wanted: 50_000, possible: 19_900, hard_limit: 20_000 };
        let text = error.to_string();
        assert!(text.contains("19,900") && text.contains("20,000"), "{text}");
        assert_eq!(error.exit_code(), 1);
    }
}
