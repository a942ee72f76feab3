//! A small separate server with one thread per connection, so that the generator is not tested
//! against its own code. It can also misbehave.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Result, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

/// Behaviour of the server towards its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behaviour {
    /// Answers with [`RIGHT`].
    Right,
    /// Answers in chunks, with an extension and a trailer.
    Chunked,
    /// Sends 103 before every answer.
    Interim,
    /// Answers in pieces of a few bytes.
    Dribble,
    /// Answers without a length, and closes.
    UntilClose,
    /// Sends a head with a length but no body, as for HEAD.
    HeadOnly,
    /// Answers once this many requests have arrived.
    Collect {
        /// So many.
        requests: usize,
    },
    /// Keeps connections open though asked to close them.
    Clinging,
    /// Sends `Connection: close` with every fifth answer.
    LastOfFive,
    /// Closes after every fifth answer without announcing it.
    LeavesAfterFive,
    /// Answers every third request with 503.
    Busy,
    /// Answers with bytes that are not HTTP.
    Garbage,
    /// Answers every request twice.
    Twice,
    /// Closes in the middle of the first answer's body.
    CutsShort,
    /// Closes instead of answering.
    HangsUp,
    /// Resets instead of answering.
    Resets,
    /// Never answers.
    Mute,
    /// Accepts this many connections, and no more.
    Leaves {
        /// So many.
        connections: usize,
    },
    /// Closes every connection at once.
    Shuts,
}

/// A small answer.
pub(crate) const RIGHT: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nServer: test\r\n\r\nOK";
const BUSY: &str = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nlate";
const CLOSE: &str = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nOK";
const CHUNKED: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
                       3;a=b\r\nabc\r\n2\r\nde\r\n0\r\nChecked: x\r\n\r\n";

/// Observations of the server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) connections: u64,
    pub(crate) requests: u64,
    pub(crate) body_bytes: u64,
    pub(crate) asked_to_close: u64,
    /// Maximum requests that arrived before any of them was answered.
    pub(crate) most_at_once: usize,
    pub(crate) peers: BTreeSet<IpAddr>,
    /// Requests that differ from the tests' requests.
    pub(crate) faults: u64,
    pub(crate) first_fault: Option<String>,
}

/// A running server; it ends with the process.
pub(crate) struct Server {
    pub(crate) port: u16,
    seen: Arc<Mutex<Seen>>,
}

impl Server {
    /// Returns the observations so far.
    pub(crate) fn seen(&self) -> Seen {
        lock(&self.seen).clone()
    }
}

/// Starts a server on a free port.
pub(crate) fn start(behaviour: Behaviour) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let seen = Arc::new(Mutex::new(Seen::default()));
    let shared = Arc::clone(&seen);
    thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let (Ok(stream), shared) = (stream, Arc::clone(&shared)) else { continue };
            lock(&shared).connections += 1;
            let serve = move || {
                // The server ignores any end of the connection.
                let _ = Connection::new(stream, behaviour, shared).and_then(Connection::serve);
            };
            thread::Builder::new().stack_size(128 << 10).spawn(serve).unwrap();
            if matches!(behaviour, Behaviour::Leaves { connections } if number + 1 >= connections) {
                return;
            }
        }
    });
    Server { port, seen }
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Connection {
    input: BufReader<TcpStream>,
    output: TcpStream,
    behaviour: Behaviour,
    seen: Arc<Mutex<Seen>>,
    answered: usize,
}

impl Connection {
    fn new(stream: TcpStream, behaviour: Behaviour, seen: Arc<Mutex<Seen>>) -> Result<Self> {
        stream.set_nodelay(true)?;
        lock(&seen).peers.insert(stream.peer_addr()?.ip());
        let input = BufReader::new(stream.try_clone()?);
        Ok(Self { input, output: stream, behaviour, seen, answered: 0 })
    }

    fn serve(mut self) -> Result<()> {
        match self.behaviour {
            Behaviour::Shuts => return Ok(()),
            Behaviour::Resets => {
                // Closing with unread input is a reset.
                return self.output.peek(&mut [0]).map(drop);
            }
            _ => {}
        }
        let mut waiting = 0;
        while let Some(closes) = self.request()? {
            waiting += 1;
            if matches!(self.behaviour, Behaviour::Collect { requests } if waiting < requests) {
                continue;
            }
            {
                let seen = &mut lock(&self.seen);
                seen.most_at_once = seen.most_at_once.max(waiting);
            }
            for _ in 0..std::mem::take(&mut waiting) {
                if !self.answer(closes)? {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Reads a request; returns whether it asks to close the connection, or `None` at the end of
    /// the stream.
    fn request(&mut self) -> Result<Option<bool>> {
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            if self.input.read_line(&mut line)? == 0 {
                return Ok(None);
            }
            match line.trim_end_matches("\r\n") {
                "" => break,
                line => head.push(line.to_owned()),
            }
        }
        let value = |name: &str| {
            let found = head.iter().filter_map(|line| line.split_once(": "));
            found.into_iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_owned())
        };
        let body = match (value("Content-Length"), value("Transfer-Encoding")) {
            (Some(length), _) => self.exactly(length.parse().unwrap())?,
            (None, Some(_)) => self.chunks()?,
            (None, None) => Vec::new(),
        };
        let closes = value("Connection").as_deref() == Some("close");
        let seen = &mut lock(&self.seen);
        seen.requests += 1;
        seen.body_bytes += body.len() as u64;
        seen.asked_to_close += u64::from(closes);
        let is_right = head[0].ends_with(" /x?y=1 HTTP/1.1")
            && value("Host").is_some_and(|host| host.starts_with("127.0.0.1:"))
            && body.iter().enumerate().all(|(at, &byte)| byte == (at % 251) as u8);
        if !is_right {
            seen.faults += 1;
            seen.first_fault.get_or_insert(head.join(" | "));
        }
        Ok(Some(closes))
    }

    fn exactly(&mut self, length: usize) -> Result<Vec<u8>> {
        let mut body = vec![0; length];
        self.input.read_exact(&mut body)?;
        Ok(body)
    }

    fn chunks(&mut self) -> Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let mut line = String::new();
            self.input.read_line(&mut line)?;
            let size = usize::from_str_radix(line.trim_end(), 16).unwrap();
            body.extend(self.exactly(size)?);
            assert_eq!(self.exactly(2)?, b"\r\n");
            if size == 0 {
                return Ok(body);
            }
        }
    }

    /// Answers one request; returns false after the last one.
    fn answer(&mut self, closes: bool) -> Result<bool> {
        self.answered += 1;
        let is_fifth = self.answered.is_multiple_of(5);
        let text = match self.behaviour {
            Behaviour::Chunked => CHUNKED.to_owned(),
            Behaviour::Interim => format!("HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n{RIGHT}"),
            Behaviour::UntilClose => "HTTP/1.1 200 OK\r\n\r\nuntil the end".to_owned(),
            Behaviour::HeadOnly => "HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n".to_owned(),
            Behaviour::LastOfFive if is_fifth => CLOSE.to_owned(),
            Behaviour::Busy if self.answered.is_multiple_of(3) => BUSY.to_owned(),
            Behaviour::Garbage => "what is not HTTP\r\n\r\n".to_owned(),
            Behaviour::Twice => RIGHT.repeat(2),
            Behaviour::CutsShort => RIGHT[..RIGHT.len() - 1].to_owned(),
            Behaviour::HangsUp => return Ok(false),
            Behaviour::Mute => return Ok(true),
            Behaviour::Clinging => RIGHT.to_owned(),
            _ if closes => CLOSE.to_owned(),
            _ => RIGHT.to_owned(),
        };
        let piece = if self.behaviour == Behaviour::Dribble { 7 } else { text.len() };
        for piece in text.as_bytes().chunks(piece) {
            self.output.write_all(piece)?;
        }
        Ok(match self.behaviour {
            Behaviour::UntilClose | Behaviour::CutsShort => false,
            Behaviour::LastOfFive | Behaviour::LeavesAfterFive if is_fifth => false,
            Behaviour::Clinging => true,
            _ => !closes,
        })
    }
}
