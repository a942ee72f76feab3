//! A minimal client that sends a greeting, to a WebSocket or to a file server. Independent of
//! Throng's own client, so that one misunderstanding cannot be on both sides.

use std::io::{Error, Read, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(5);

/// A URL with a numeric address.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::layers) struct Url {
    /// Whether the scheme is `ws://` rather than `http://`.
    is_ws: bool,
    pub(in crate::layers) address: SocketAddr,
    path: String,
}

impl Url {
    /// Returns the URL of a WebSocket.
    pub(in crate::layers) fn of_websocket(address: SocketAddr, path: &str) -> Url {
        Url { is_ws: true, address, path: path.to_owned() }
    }

    /// Returns the URL in the documentation at the top of an example.
    pub(in crate::layers) fn in_first_lines(source: &str) -> std::result::Result<Url, String> {
        let lines = source.lines().take_while(|line| line.starts_with("//!"));
        let found = lines.filter_map(|line| {
            let ws = line.split_once("ws://").map(|(_, rest)| (true, rest));
            ws.or_else(|| line.split_once("http://").map(|(_, rest)| (false, rest)))
        });
        let (is_ws, rest) =
            { found }.next().ok_or("its first lines name no ws:// or http:// URL to try")?;
        let end = rest.find(|c: char| c.is_whitespace() || "`>)".contains(c));
        let url = &rest[..end.unwrap_or(rest.len())];
        let (address, path) = url.split_once('/').unwrap_or((url, ""));
        let address = address
            .parse()
            .map_err(|_| format!("invalid address `{address}`; expected a numeric one"))?;
        Ok(Url { is_ws, address, path: format!("/{path}") })
    }
}

/// Connects to the URL's address, without sending anything.
pub(in crate::layers) fn connect(url: &Url) -> Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&url.address, LIMIT)?;
    stream.set_read_timeout(Some(LIMIT))?;
    Ok(stream)
}

/// Sends a short text, and returns the response.
pub(in crate::layers) fn exchange(stream: TcpStream, url: &Url, text: &str) -> Result<String> {
    if url.is_ws { talk(stream, url, text) } else { put_and_get(stream, url, text) }
}

/// Uploads the text if the server accepts it, and downloads the file.
fn put_and_get(
    mut stream: TcpStream,
    Url { address, path, .. }: &Url,
    text: &str,
) -> Result<String> {
    write!(
        stream,
        "PUT {path} HTTP/1.1\r\nHost: {address}\r\nContent-Length: {}\r\n\r\n{text}\
         GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n",
        text.len(),
    )?;
    let head = read_head(&mut stream)?;
    // 405: a path that answers GET only.
    if !head.starts_with("HTTP/1.1 201 ") && !head.starts_with("HTTP/1.1 405 ") {
        return Err(Error::other(format!("it did not take the file: {head}")));
    }
    let mut rest = String::new();
    stream.read_to_string(&mut rest)?;
    Ok(rest.rsplit("\r\n").next().unwrap_or_default().to_owned())
}

/// Maximum texts that an example may send before its answer, such as a list of members.
const BEFORE: usize = 3;

/// Upgrades, sends a short text and returns the first text received that contains it, or the last.
fn talk(mut stream: TcpStream, url: &Url, text: &str) -> Result<String> {
    write!(
        stream,
        "GET {} HTTP/1.1\r\nHost: {}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        url.path, url.address
    )?;
    let head = read_head(&mut stream)?;
    if !head.starts_with("HTTP/1.1 101 ") {
        return Err(Error::other(format!(
            "no upgrade: {}",
            head.lines().next().unwrap_or_default()
        )));
    }
    // RFC 6455 section 5.2, with a mask of zeros: the payload stays as it is.
    let mut frame = vec![0x81, 0x80 | text.len() as u8, 0, 0, 0, 0];
    frame.extend_from_slice(text.as_bytes());
    stream.write_all(&frame)?;
    for _ in 0..BEFORE {
        let answer = read_text(&mut stream)?;
        if answer.contains(text) {
            return Ok(answer);
        }
    }
    read_text(&mut stream)
}

/// Reads a short text message.
fn read_text(stream: &mut TcpStream) -> Result<String> {
    let mut header = [0; 2];
    stream.read_exact(&mut header)?;
    if header[0] != 0x81 || header[1] > 125 {
        return Err(Error::other(format!(
            "a frame that begins with {header:02x?}, not a short text"
        )));
    }
    let mut payload = vec![0; usize::from(header[1])];
    stream.read_exact(&mut payload)?;
    String::from_utf8(payload).map_err(Error::other)
}

/// Reads byte by byte: a frame that follows the head stays in the socket.
fn read_head(stream: &mut TcpStream) -> Result<String> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && head.len() < 8192 {
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_url_is_found_in_the_first_lines_only() {
        let url =
            Url::in_first_lines("//! Chat: `ws://127.0.0.1:9001/chat/lobby?name=ada`.\n").unwrap();
        let address = "127.0.0.1:9001".parse().unwrap();
        assert_eq!(url, Url { is_ws: true, address, path: "/chat/lobby?name=ada".into() });
        let url =
            Url::in_first_lines("//! Echo.\n//! Try `websocat ws://127.0.0.1:9001`.\n").unwrap();
        assert_eq!(url, Url { is_ws: true, address, path: "/".into() });
        let url = Url::in_first_lines("//! curl -T a http://127.0.0.1:9001/files/a\n").unwrap();
        assert_eq!(url, Url { is_ws: false, address, path: "/files/a".into() });
        assert!(Url::in_first_lines("//! Echo.\n\n// ws://127.0.0.1:9001/\n").is_err());
    }
}
