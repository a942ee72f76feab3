//! Connections with a time limit on everything.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Time after which a test gives up, longer than anything takes on a busy machine.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// Connects to `address`; every operation on the connection ends after [`TIMEOUT`].
///
/// # Panics
/// The connection cannot be made.
#[must_use]
pub fn dial(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(&address, TIMEOUT).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.set_write_timeout(Some(TIMEOUT)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// Returns the head of a response, or the part that arrived before the end of the stream. Reads no
/// byte after the head.
///
/// # Panics
/// The stream failed in another way, or the head is not UTF-8.
pub fn read_head(stream: &mut impl Read) -> String {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            Ok(_) => break,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
            // A read with a timeout ends with it when the process was stopped for a moment.
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => {
                panic!("no whole head came: {error}; so far {:?}", String::from_utf8_lossy(&head))
            }
        }
    }
    String::from_utf8(head).unwrap()
}

/// A stream that can damage received bytes. A peer with TLS answers damage with an alert.
#[derive(Debug)]
pub struct Damaging<S> {
    /// The stream below.
    pub inner: S,
    /// Whether the last byte of each read is changed.
    pub damages: bool,
}

impl<S> Damaging<S> {
    /// Wraps a stream; at first it does no damage.
    pub fn new(inner: S) -> Self {
        Self { inner, damages: false }
    }
}

impl<S: Read> Read for Damaging<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buffer)?;
        if self.damages
            && let Some(last) = buffer[..n].last_mut()
        {
            *last ^= 1;
        }
        Ok(n)
    }
}

impl<S: Write> Write for Damaging<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.inner.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
