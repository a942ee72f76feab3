//! Connections of a build without TLS.

use std::convert::Infallible;
use std::io;
use std::net::TcpStream;
use std::sync::Arc;

use throng_io::Options;

use super::{Below, TlsPlan};

/// The generator's driver.
pub(crate) type Sockets = Below;

/// The TLS of connections, which cannot exist here.
#[derive(Debug)]
pub struct TlsClient(Infallible);

impl TlsClient {
    /// Does a handshake on a blocking socket.
    pub(crate) fn handshake_on(&self, _socket: TcpStream) -> io::Result<()> {
        match self.0 {}
    }
}

/// Creates a driver.
pub(crate) fn sockets(options: Options, _tls: Option<&Arc<TlsClient>>) -> io::Result<Sockets> {
    Below::new(options)
}

/// Returns the driver itself: there is no TLS over it.
#[cfg(target_os = "linux")]
pub(crate) fn below(driver: &mut Sockets) -> &mut Below {
    driver
}

/// Returns the error of a build without TLS.
pub(crate) fn load(_plan: &TlsPlan, host: &str) -> Result<Arc<TlsClient>, String> {
    Err(format!(
        "no TLS to {host}: this program was built without it; build it with its default features"
    ))
}
