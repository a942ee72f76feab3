//! Connecting with futures: addresses, proxies, and a time limit for the whole attempt.

use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};

use crate::error::{ClientError, DialStep};
use crate::proxy::{Proxy, ProxyAction};
use crate::stream::AsyncStream;

/// Delay before a connection to the host's next address starts in parallel (RFC 8305 section 8).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// The time by which connecting must be done.
#[derive(Clone, Copy)]
pub(crate) struct Deadline {
    begun: Instant,
    limit: Duration,
}

impl Deadline {
    pub(crate) fn after(limit: Duration) -> Self {
        Self { begun: Instant::now(), limit }
    }

    /// Waits for a part of connecting, until the deadline.
    pub(crate) async fn bound<T>(
        self,
        part: impl Future<Output = Result<T, ClientError>>,
    ) -> Result<T, ClientError> {
        let missed = ClientError::Timeout { during: DialStep::Connecting, limit: self.limit };
        match self.begun.checked_add(self.limit) {
            Some(end) => timeout_at(end, part).await.unwrap_or(Err(missed)),
            None => part.await,
        }
    }
}

pub(crate) async fn connect_tcp(host: &str, port: u16) -> Result<TcpStream, ClientError> {
    let unresolved = |source| ClientError::Resolve { host: host.to_owned(), source };
    let addresses: Vec<SocketAddr> =
        tokio::net::lookup_host((host, port)).await.map_err(unresolved)?.collect();
    let none = unresolved(io::Error::new(ErrorKind::NotFound, "it has no address"));
    let stream = connect_any(addresses).await.ok_or(none)??;
    stream.set_nodelay(true).map_err(ClientError::Lost)?;
    Ok(stream)
}

/// Connects to the first address that answers. Another attempt begins when all so far have failed
/// or made no progress for a while
/// ([RFC 8305 section 5](https://www.rfc-editor.org/rfc/rfc8305#section-5)).
async fn connect_any(addresses: Vec<SocketAddr>) -> Option<Result<TcpStream, ClientError>> {
    let mut waiting = addresses.into_iter();
    let mut attempts = Vec::new();
    let mut last = None;
    loop {
        match waiting.next() {
            Some(address) => attempts.push(Box::pin(connect_to(address))),
            None if attempts.is_empty() => return last.map(Err),
            None => {}
        }
        let any = poll_fn(|cx| poll_any(&mut attempts, cx));
        let ended = match waiting.len() {
            0 => Some(any.await),
            _ => timeout(ATTEMPT_DELAY, any).await.ok(),
        };
        match ended {
            Some(Ok(stream)) => return Some(Ok(stream)),
            Some(Err(error)) => last = Some(error),
            None => {}
        }
    }
}

async fn connect_to(address: SocketAddr) -> Result<TcpStream, ClientError> {
    TcpStream::connect(address)
        .await
        .map_err(|source| ClientError::Connect { address: address.to_string(), source })
}

/// Waits until one of the futures is ready, and removes it.
fn poll_any<F: Future + Unpin>(futures: &mut Vec<F>, cx: &mut Context<'_>) -> Poll<F::Output> {
    for at in 0..futures.len() {
        if let Poll::Ready(output) = Pin::new(&mut futures[at]).poll(cx) {
            futures.swap_remove(at);
            return Poll::Ready(output);
        }
    }
    Poll::Pending
}

pub(crate) async fn pass_proxy(
    tcp: &mut TcpStream,
    proxy: &Proxy,
    host: &str,
    port: u16,
) -> Result<(), ClientError> {
    let (mut negotiation, mut outgoing) = proxy.begin(host, port)?;
    let mut received = Vec::new();
    loop {
        write_all(tcp, &outgoing).await.map_err(ClientError::Lost)?;
        received.clear();
        outgoing = loop {
            // Reads one byte at a time: later bytes belong to the server.
            let mut byte = [0];
            if read(tcp, &mut byte).await.map_err(ClientError::Lost)? == 0 {
                return Err(ClientError::Proxy("it ended the connection".to_owned()));
            }
            received.push(byte[0]);
            match negotiation.receive(&received)? {
                ProxyAction::Wait => {}
                ProxyAction::Send(bytes) => break bytes,
                ProxyAction::Done => return Ok(()),
            }
        };
    }
}

pub(crate) async fn read(stream: &mut dyn AsyncStream, buffer: &mut [u8]) -> io::Result<usize> {
    let mut stream = stream;
    poll_fn(|cx| {
        let mut buffer = ReadBuf::new(buffer);
        ready!(Pin::new(&mut stream).poll_read(cx, &mut buffer))?;
        Poll::Ready(Ok(buffer.filled().len()))
    })
    .await
}

pub(crate) async fn write_all(stream: &mut dyn AsyncStream, mut bytes: &[u8]) -> io::Result<()> {
    let mut stream = stream;
    poll_fn(|cx| {
        while !bytes.is_empty() {
            match ready!(Pin::new(&mut stream).poll_write(cx, bytes))? {
                0 => return Poll::Ready(Err(ErrorKind::WriteZero.into())),
                n => bytes = &bytes[n..],
            }
        }
        Pin::new(&mut stream).poll_flush(cx)
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dial::tests::{serving, unresponsive};

    #[tokio::test]
    async fn an_address_that_does_not_answer_does_not_hold_up_the_next() {
        let (dead, alive) = (unresponsive(), serving());
        let addresses = vec![dead.address, alive.local_addr().unwrap()];
        let stream = timeout(Duration::from_secs(10), connect_any(addresses)).await;
        let stream = stream.expect("the second address was not tried").unwrap().unwrap();
        assert_eq!(stream.peer_addr().unwrap(), alive.local_addr().unwrap());
    }
}
