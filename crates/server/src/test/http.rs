//! Requests and responses of tests.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

use throng_proto::Input;
use throng_proto::http1::{Limits, Response, ResponseDecoder, ResponseEvent};

use super::TIMEOUT;

/// A whole response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TestResponse {
    /// The status code.
    pub status: u16,
    /// Names and values of the headers that are UTF-8, in the order received.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

impl TestResponse {
    /// Returns the value of the first header called `name`, case-insensitively.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(other, _)| other.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    /// Returns the body as text.
    ///
    /// # Panics
    /// It is not UTF-8.
    #[must_use]
    pub fn text(&self) -> &str {
        match str::from_utf8(&self.body) {
            Ok(text) => text,
            Err(error) => panic!("the body is not UTF-8: {error}"),
        }
    }

    fn set_head(&mut self, response: &Response<'_>) {
        self.status = response.status();
        let headers = response.headers().filter_map(|header| {
            Some((header.name.to_owned(), str::from_utf8(header.value).ok()?.to_owned()))
        });
        self.headers = headers.collect();
    }
}

/// Encodes a request that closes its connection.
pub(super) fn request(
    host: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Vec<u8> {
    let mut request = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n");
    for (name, value) in headers {
        request.push_str(&format!("{name}: {value}\r\n"));
    }
    if !body.is_empty() {
        request.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    request.push_str("\r\n");
    let mut request = request.into_bytes();
    request.extend_from_slice(body);
    request
}

/// A response that is being received.
pub(super) struct Receiving {
    decoder: ResponseDecoder,
    response: TestResponse,
}

impl Receiving {
    pub(super) fn new(method: &str) -> Self {
        let mut decoder = ResponseDecoder::new();
        if method == "HEAD" {
            decoder.expect_answer_to_head();
        }
        Self { decoder, response: TestResponse::default() }
    }

    /// Takes bytes; an empty slice is the end of the stream. `None`: the response is incomplete.
    pub(super) fn receive(&mut self, bytes: &mut [u8]) -> io::Result<Option<TestResponse>> {
        let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
        let limits = Limits { max_body: u64::MAX, ..Limits::default() };
        if bytes.is_empty() {
            return match self.decoder.handle_end_of_stream().map_err(invalid)? {
                Some(_) => Ok(Some(std::mem::take(&mut self.response))),
                None => Err(io::ErrorKind::UnexpectedEof.into()),
            };
        }
        let mut input = Input::new(bytes);
        while let Some(event) = self.decoder.next_event(&mut input, &limits).map_err(invalid)? {
            match event {
                ResponseEvent::Head(response) => self.response.set_head(&response),
                ResponseEvent::Body(bytes) => self.response.body.extend_from_slice(bytes),
                ResponseEvent::End => return Ok(Some(std::mem::take(&mut self.response))),
            }
        }
        Ok(None)
    }
}

/// Sends a request of this method, and receives the response.
pub(super) fn exchange(
    address: SocketAddr,
    method: &str,
    request: &[u8],
) -> io::Result<TestResponse> {
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    stream.write_all(request)?;
    let mut receiving = Receiving::new(method);
    let mut buffer = vec![0; 64 << 10];
    loop {
        let n = stream.read(&mut buffer)?;
        if let Some(response) = receiving.receive(&mut buffer[..n])? {
            return Ok(response);
        }
    }
}
