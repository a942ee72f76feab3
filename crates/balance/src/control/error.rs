//! Errors of operations on a balancer, with their remedies.

use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};
use throng_io::PeerAddress;

use crate::backend::MAX_WEIGHT;
use crate::settings::{Pick, Sticky};
use throng_config::ConfigErrors;

/// The reason why nothing was done. Its text is one line with the remedy.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The configuration has a mistake.
    Config(ConfigErrors),
    /// An address cannot be bound, or there is no descriptor or thread for a shard.
    Start(io::Error),
    /// A certificate, a key or another file of TLS cannot be used.
    Tls(String),
    /// There is no such backend.
    Unknown {
        /// The requested backend.
        address: PeerAddress,
        /// The known backends.
        known: Vec<PeerAddress>,
    },
    /// The pool is unknown.
    UnknownPool {
        /// The requested pool.
        pool: String,
        /// The known pools.
        known: Vec<Arc<str>>,
    },
    /// The site, route or split is unknown; the text has the reason and the remedy.
    UnknownSplit(String),
    /// The weights of a split are not valid; the text is the reason and the remedy.
    Split(String),
    /// A network cannot be blocked; the text is the reason and the remedy.
    Block(String),
    /// Several pools have a backend at the address, and the default pool does not.
    InSeveralPools {
        /// The address.
        address: PeerAddress,
        /// The names of the pools.
        pools: Vec<Arc<str>>,
    },
    /// The site is unknown.
    UnknownSite {
        /// The requested site.
        site: String,
        /// The names of some sites.
        known: Vec<String>,
    },
    /// There is such a backend already.
    Exists {
        /// Its address.
        address: PeerAddress,
        /// Its source: `file`, `api` or `registered`.
        source: &'static str,
    },
    /// A weight of 0, or above [`MAX_WEIGHT`].
    Weight {
        /// The weight.
        weight: u32,
    },
    /// Connections to the address cannot lead to a backend.
    Address {
        /// The address.
        address: PeerAddress,
        /// The reason and the remedy.
        remedy: String,
    },
    /// Connections with these server names cannot be passed through to a backend that is added.
    Passthrough {
        /// The setting with the mistake: `passthrough`, or `tls` of the backend in the file.
        setting: String,
        /// Its value.
        value: String,
        /// The reason and the remedy.
        remedy: String,
    },
    /// The list is full.
    TooMany {
        /// The largest number of backends.
        most: usize,
    },
    /// No backend would be up after a reload, and one is now.
    NoneUp,
    /// A rate of 0.
    Rate,
    /// A rebalance with a [pick](crate::Settings::pick) that ignores load: it would even out
    /// nothing.
    PickIgnoresLoad {
        /// The pick.
        pick: Pick,
    },
    /// A rebalance with a [binding](crate::Settings::sticky) that leads clients back to the same
    /// backends.
    StickyIgnoresLoad {
        /// The binding.
        sticky: Sticky,
    },
    /// The backend is not draining.
    NotDraining {
        /// Its address.
        address: PeerAddress,
        /// Its state.
        state: &'static str,
    },
    /// The backend is being removed; to keep it, add it again.
    BeingRemoved {
        /// Its address.
        address: PeerAddress,
    },
    /// The backend registers itself and would be back at once.
    RegistersItself {
        /// Its address.
        address: PeerAddress,
    },
    /// A heartbeat or the end of a registration that never existed or has ended.
    NotRegistered {
        /// The backend's address.
        address: PeerAddress,
    },
    /// The configuration has no `[register]`.
    RegistrationIsOff,
    /// The token is not the one of the configuration.
    Token,
    /// The time of a registration is too short or too long.
    TimeToLive {
        /// The requested time.
        time: Duration,
    },
    /// The balancer is shutting down.
    ShuttingDown,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(error) => error.fmt(f),
            Self::Start(error) => error.fmt(f),
            Self::Tls(why) => f.write_str(why),
            Self::Unknown { address, known } => fmt_unknown(f, address, known),
            Self::UnknownPool { pool, known } => {
                let shown: Vec<&str> = known.iter().take(20).map(|name| &**name).collect();
                write!(f, "pool {pool} is unknown: write one of {}", shown.join(", "))
            }
            Self::UnknownSplit(why) | Self::Split(why) | Self::Block(why) => f.write_str(why),
            Self::InSeveralPools { address, pools } => write!(
                f,
                "backend {address} is in the pools {}: name one of these, as in --pool NAME",
                pools.join(", ")
            ),
            Self::UnknownSite { site, known } if known.is_empty() => {
                write!(f, "site {site:?} is unknown: the configuration has no [[site]]")
            }
            Self::UnknownSite { site, known } => {
                write!(f, "site {site:?} is unknown: write one of {}", known.join(", "))
            }
            Self::Exists { address, source } => write!(
                f,
                "there is a backend {address} already (source: {source}): change its weight, or \
                 remove it first"
            ),
            Self::Weight { weight: 0 } => write!(
                f,
                "weight is 0: write 1 to {MAX_WEIGHT}; to send a backend nothing, drain or remove \
                 it"
            ),
            Self::Weight { weight } => write!(f, "weight is {weight}: write 1 to {MAX_WEIGHT}"),
            Self::Address { address, remedy } => write!(f, "address is {address}: {remedy}"),
            Self::Passthrough { setting, value, remedy } => {
                write!(f, "{setting} is {value}: {remedy}")
            }
            Self::TooMany { most } => {
                write!(f, "there are {most} backends, which are the most: remove one first")
            }
            Self::NoneUp => f.write_str(
                "no backend would be up any more: keep one of them in backends, or drain them one \
                 by one",
            ),
            Self::Rate => {
                f.write_str("rate is 0: write how many tunnels to close in a second, 1 or more")
            }
            Self::PickIgnoresLoad { pick } => write!(
                f,
                "pick is \"{}\", which does not look at load, so clients would not come back to \
                 where there is room: write \"power_of_two\" or \"least_connections\", reload, \
                 then rebalance",
                pick.word()
            ),
            Self::StickyIgnoresLoad { sticky } => write!(
                f,
                "sticky is {sticky}, so clients would come back to the backends that they were \
                 sent away from: write \"none\", reload, then rebalance"
            ),
            Self::NotDraining { address, state } => {
                write!(f, "{address} is not draining, but {state}: there is nothing to end")
            }
            Self::BeingRemoved { address } => write!(
                f,
                "{address} was removed, and goes with its last tunnel: to keep it, add it again"
            ),
            Self::RegistersItself { .. }
            | Self::NotRegistered { .. }
            | Self::RegistrationIsOff
            | Self::Token
            | Self::TimeToLive { .. } => self.fmt_registration(f),
            Self::ShuttingDown => f.write_str("the balancer is shutting down: ask the next one"),
        }
    }
}

impl Error {
    /// Returns the error of files of TLS: an [`Error::Start`] if another start may find them valid.
    pub(crate) fn of_files(table: &str, error: &throng_tls::ConfigError) -> Self {
        let what = format!("{table}: {error}");
        if error.may_pass { Self::Start(io::Error::other(what)) } else { Self::Tls(what) }
    }

    /// Writes a mistake about a backend that registers itself, or by such a backend.
    fn fmt_registration(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RegistersItself { address } => write!(
                f,
                "{address} registers itself, and would be back with its next try: stop it there, \
                 or drain it here"
            ),
            Self::NotRegistered { address } => {
                write!(f, "{address} is not registered, or its time ran out: register it again")
            }
            Self::RegistrationIsOff => f.write_str(
                "backends cannot register themselves here: add a [register] table with token_file \
                 to the configuration",
            ),
            Self::Token => f.write_str(
                "the token is missing or wrong: send that of [register] in the \
                 balancer's configuration",
            ),
            Self::TimeToLive { time } => {
                write!(f, "time_to_live is {time:?}: write 1 second to 1 hour")
            }
            _ => Ok(()),
        }
    }
}

/// Writes that backend `address` does not exist, and lists the existing ones.
fn fmt_unknown(
    f: &mut fmt::Formatter<'_>,
    address: &PeerAddress,
    known: &[PeerAddress],
) -> fmt::Result {
    write!(f, "there is no backend {address}: ")?;
    if known.is_empty() {
        return f.write_str("there is none at all; add it first");
    }
    let shown: Vec<_> = known.iter().take(8).map(PeerAddress::to_string).collect();
    let rest = if known.len() > shown.len() { ", ..." } else { "" };
    write!(f, "there are {}{rest}", shown.join(", "))
}

impl std::error::Error for Error {}

impl From<ConfigErrors> for Error {
    fn from(error: ConfigErrors) -> Self {
        Self::Config(error)
    }
}
