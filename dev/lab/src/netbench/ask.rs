//! One request and its answer, read to its end: slow and complete, where the load is fast and
//! counts.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use throng_proto::Input;
use throng_proto::http1::{Limits, ResponseDecoder, ResponseEvent};

use throng_load::units::show_duration;

/// No answer of the benchmark comes near this.
const LIMITS: Limits = Limits { max_header_bytes: 64 << 10, max_headers: 256, max_body: 1 << 20 };

/// Answer of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) content_type: Option<String>,
    pub(super) body: Vec<u8>,
}

/// Sends `request` on a connection of its own.
///
/// # Errors
/// What went wrong instead of a complete answer within `timeout`, in words.
pub(super) fn ask(
    address: SocketAddr,
    request: &[u8],
    timeout: Duration,
) -> Result<Answer, String> {
    let until = Instant::now() + timeout;
    let late = || format!("no complete answer within {}", show_duration(timeout));
    let mut stream = TcpStream::connect_timeout(&address, timeout)
        .map_err(|error| format!("cannot connect to {address}: {error}"))?;
    let _ = stream.set_nodelay(true);
    stream
        .set_write_timeout(Some(timeout))
        .and_then(|()| stream.write_all(request))
        .map_err(|error| format!("cannot send a request: {error}"))?;
    let (mut reading, mut piece) = (Reading::default(), vec![0; 64 << 10]);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || stream.set_read_timeout(Some(left)).is_err() {
            return Err(late());
        }
        match stream.read(&mut piece) {
            Ok(0) => return reading.end_of_stream(),
            Ok(n) => {
                if reading.read(&mut piece[..n])? {
                    return Ok(reading.answer);
                }
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Err(late());
            }
            Err(error) => return Err(format!("the connection was lost: {error}")),
        }
    }
}

#[derive(Default)]
struct Reading {
    decoder: ResponseDecoder,
    answer: Answer,
}

impl Reading {
    /// True when the answer is complete.
    fn read(&mut self, bytes: &mut [u8]) -> Result<bool, String> {
        let mut input = Input::new(bytes);
        loop {
            let event = self.decoder.next_event(&mut input, &LIMITS);
            match event.map_err(|error| format!("the answer is no HTTP: {error}"))? {
                None => return Ok(false),
                Some(ResponseEvent::Head(head)) if head.is_interim() => {}
                Some(ResponseEvent::Head(head)) => {
                    self.answer.status = head.status();
                    self.answer.content_type = head.header("content-type").map(str::to_owned);
                }
                Some(ResponseEvent::Body(body)) => self.answer.body.extend_from_slice(body),
                // That of an interim answer is not the one asked for.
                Some(ResponseEvent::End) if self.answer.status == 0 => {}
                Some(ResponseEvent::End) => return Ok(true),
            }
        }
    }

    fn end_of_stream(mut self) -> Result<Answer, String> {
        match self.decoder.handle_end_of_stream() {
            Ok(Some(_)) => Ok(self.answer),
            Ok(None) => Err("the connection was closed without an answer".to_owned()),
            Err(_) => Err("the connection was closed in the middle of an answer".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Returns the parsed answer of a server that sends `bytes` and closes.
    fn answered(bytes: &'static str) -> Result<Answer, String> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = [0; 5];
                stream.read_exact(&mut request).unwrap();
                stream.write_all(bytes.as_bytes()).unwrap();
            });
            ask(address, b"hello", Duration::from_secs(10))
        })
    }

    #[test]
    fn answers_are_read_to_their_end() {
        let text = |text: &str| Some(text.to_owned());
        let answer =
            answered("HTTP/1.1 200 OK\r\nContent-Type: a/b\r\nContent-Length: 2\r\n\r\nOK");
        let expected = Answer { status: 200, content_type: text("a/b"), body: b"OK".to_vec() };
        assert_eq!(answer, Ok(expected));
        let chunked = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 x\r\n\
                       Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\n\r\n";
        let answer = answered(chunked).unwrap();
        assert_eq!((answer.status, &answer.body[..]), (201, &b"abc"[..]));
        let answer = answered("HTTP/1.0 200 OK\r\n\r\nuntil close").unwrap();
        assert_eq!(answer.body, b"until close");
    }

    #[test]
    fn an_invalid_answer_is_reported() {
        for (bytes, words) in [
            ("", "without an answer"),
            ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nO", "middle of an answer"),
            ("garbage\r\n\r\n", "no HTTP"),
        ] {
            let error = answered(bytes).unwrap_err();
            assert!(error.contains(words), "{bytes:?}: {error}");
        }
    }
}
