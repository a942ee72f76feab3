//! The connections that a client can use.

use std::io::{self, Read, Write};
use std::net::TcpStream;
#[cfg(unix)]
use std::os::unix::net::UnixStream;
use std::time::Duration;

#[cfg(feature = "tokio")]
use tokio::io::{AsyncRead, AsyncWrite};

/// A blocking connection that a [`Client`](crate::Client) can use: TCP, TLS, or a type of the
/// program.
///
/// A read or write that takes longer than its timeout must fail with
/// [`WouldBlock`](io::ErrorKind::WouldBlock) or [`TimedOut`](io::ErrorKind::TimedOut).
pub trait ClientStream: Read + Write + Send {
    /// Sets the time limit of each read; `None` for no limit.
    ///
    /// # Errors
    /// Errors of the socket.
    fn set_read_timeout(&mut self, timeout: Option<Duration>) -> io::Result<()>;

    /// Sets the time limit of each write; `None` for no limit.
    ///
    /// # Errors
    /// Errors of the socket.
    fn set_write_timeout(&mut self, timeout: Option<Duration>) -> io::Result<()>;
}

impl ClientStream for TcpStream {
    fn set_read_timeout(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        TcpStream::set_read_timeout(self, timeout)
    }

    fn set_write_timeout(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        TcpStream::set_write_timeout(self, timeout)
    }
}

#[cfg(unix)]
impl ClientStream for UnixStream {
    fn set_read_timeout(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        UnixStream::set_read_timeout(self, timeout)
    }

    fn set_write_timeout(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        UnixStream::set_write_timeout(self, timeout)
    }
}

#[cfg(feature = "tls")]
impl ClientStream for throng_tls::TlsStream {
    fn set_read_timeout(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        throng_tls::TlsStream::set_read_timeout(self, timeout)
    }

    fn set_write_timeout(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        throng_tls::TlsStream::set_write_timeout(self, timeout)
    }
}

/// A connection that an [`AsyncClient`](crate::AsyncClient) can use: anything that tokio can read
/// and write.
#[cfg(feature = "tokio")]
pub trait AsyncStream: AsyncRead + AsyncWrite + Send + Unpin {}

#[cfg(feature = "tokio")]
impl<S: AsyncRead + AsyncWrite + Send + Unpin + ?Sized> AsyncStream for S {}
