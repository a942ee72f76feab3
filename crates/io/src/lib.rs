//! The driver contract and its drivers.
//!
//! * Duty: move bytes between sockets and the engine; lend received bytes, take bytes to send; read
//!   the files of settings ([`mod@file`]).
//! * Not its duty: protocols, limits, policy. It does not know frames or requests.
//! * Depends on: the operating system (through rustix, mio, socket2), `throng-carry`.
//! * Start reading at: [`driver`], the contract; then [`readiness`], the loop that all drivers
//!   share.
#![deny(unsafe_code)]

pub mod affinity;
pub mod batch;
pub mod capacity;
mod cgroup;
mod clock;
mod connect;
#[cfg(windows)]
pub mod console;
pub mod counters;
#[cfg(target_os = "linux")]
pub mod descriptors;
pub mod driver;
#[cfg(target_os = "linux")]
pub mod epoll;
#[cfg(windows)]
mod exclusive;
pub mod file;
#[cfg_attr(not(target_os = "linux"), path = "handover/none.rs")]
pub mod handover;
pub mod held;
pub mod id;
#[cfg_attr(not(unix), path = "inherited/none.rs")]
pub mod inherited;
#[cfg(windows)]
pub mod iocp;
mod kernel_text;
pub mod limits;
pub mod listen;
pub mod listener;
pub mod memory;
pub mod options;
mod passing;
mod peer;
pub mod placement;
#[cfg(windows)]
pub mod port_owners;
pub mod portable;
#[cfg(windows)]
pub mod processes;
pub mod readiness;
pub mod signals;
pub mod table_plan;
pub mod tables;
pub mod threads;
pub mod time;
pub mod tls_info;

pub use batch::{Batch, Memory, Segment};
pub use clock::Clock;
pub use connect::connect_timeout;
pub use driver::{
    ClientTls, Closed, Driver, Event, EventOf, ListenerId, SendOutcome, ServerTls, SocketRecord,
    Traffic, Wake, Waker,
};
pub use held::{Held, HeldListeners, Origin, Purpose};
pub use id::{ConnId, Slots};
pub use inherited::{Inherited, InheritedAddress, inherited_addresses, inherited_listeners};
pub use listen::{ListenOptions, listen, listen_many};
pub use listener::Listener;
#[cfg(unix)]
pub use listener::UnixSocket;
pub use options::Options;
pub use passing::may_pass;
pub use peer::{NotAnAddress, PeerAddress, UnixPath};
pub use readiness::ReadinessDriver;
pub use threads::Threads;
pub use time::Instant;
pub use tls_info::{PassedThrough, SessionFailure, TlsFailure, TlsInfo, alert_name};

/// The driver for Linux: level-triggered epoll.
#[cfg(target_os = "linux")]
pub type Epoll = ReadinessDriver<epoll::EpollPoller>;

/// The driver for Windows: a completion port.
#[cfg(windows)]
pub type Iocp = ReadinessDriver<iocp::IocpPoller>;

/// The driver for every other system, and a second implementation to compare with on Linux.
pub type Portable = ReadinessDriver<portable::MioPoller>;
