//! A blocking socket with time limits for operations that consist of many reads or writes.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// A socket below TLS. One read of TLS may need many reads of the socket: with the socket's own
/// timeouts a peer that sends a byte before each of them ends could prolong the read without limit.
#[derive(Debug)]
pub(crate) struct TimedSocket {
    tcp: TcpStream,
    read: Limit,
    write: Limit,
}

/// The time limit of an operation in one direction.
#[derive(Debug)]
struct Limit {
    most: Option<Duration>,
    /// The current timeout of the socket.
    armed: Option<Duration>,
    /// The start of the operation, set at its first use of the socket.
    began: Option<Instant>,
}

impl Limit {
    /// Returns the timeout to set on the socket, if it differs from the current one.
    fn next(&mut self) -> io::Result<Option<Option<Duration>>> {
        let timeout = match (self.most, self.began) {
            (Some(most), Some(began)) => {
                let left = most.checked_sub(began.elapsed()).filter(|left| !left.is_zero());
                Some(left.ok_or(ErrorKind::TimedOut)?)
            }
            (Some(most), None) => {
                self.began = Some(Instant::now());
                Some(most)
            }
            (None, _) => None,
        };
        let is_other = self.armed != timeout;
        self.armed = timeout;
        Ok(is_other.then_some(timeout))
    }
}

impl TimedSocket {
    /// Uses the socket's timeouts as limits.
    pub(crate) fn new(tcp: TcpStream) -> io::Result<Self> {
        let limit = |most| Limit { most, armed: most, began: None };
        let (read, write) = (limit(tcp.read_timeout()?), limit(tcp.write_timeout()?));
        Ok(Self { tcp, read, write })
    }

    /// Begins an operation: the limits count from its first use of the socket.
    pub(crate) fn begin(&mut self) {
        (self.read.began, self.write.began) = (None, None);
    }

    pub(crate) fn limit_reads(&mut self, most: Option<Duration>) -> io::Result<()> {
        self.tcp.set_read_timeout(most)?;
        (self.read.most, self.read.armed) = (most, most);
        Ok(())
    }

    pub(crate) fn limit_writes(&mut self, most: Option<Duration>) -> io::Result<()> {
        self.tcp.set_write_timeout(most)?;
        (self.write.most, self.write.armed) = (most, most);
        Ok(())
    }
}

impl Read for TimedSocket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Some(timeout) = self.read.next()? {
            self.tcp.set_read_timeout(timeout)?;
        }
        self.tcp.read(buffer)
    }
}

impl Write for TimedSocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(timeout) = self.write.next()? {
            self.tcp.set_write_timeout(timeout)?;
        }
        self.tcp.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.tcp.flush()
    }
}
