//! The connection between two processes: messages, and descriptors that go with them.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use std::{ffi::OsString, net::TcpListener};

use throng_carry::{CarryError, Encoder, Inbox, Message, Secret};
use throng_io::handover::{self, MAX_AT_ONCE, Passage};
use throng_io::{Held, Listener, Origin, Purpose, Slots, UnixSocket};

/// The form of messages that this release writes, and the oldest that it reads.
pub(super) const WIRE: u64 = 1;
pub(super) const OLDEST_WIRE: u64 = 1;

/// The time until the successor says its HELLO, and until the predecessor has answered that.
pub(super) const GREETING: Duration = Duration::from_secs(10);

/// The longest message: thousands of backends with their names.
const MAX_MESSAGE: usize = 16 << 20;

/// The most listening sockets of a process: addresses times event loops.
const MAX_SOCKETS: usize = 1 << 16;

pub(super) mod tag {
    pub(in super::super) const HELLO: u16 = 1;
    pub(in super::super) const SOCKETS: u16 = 2;
    pub(in super::super) const PLAN: u16 = 3;
    pub(in super::super) const READY: u16 = 4;
    pub(in super::super) const GO: u16 = 5;
    pub(in super::super) const STOP: u16 = 6;
    pub(in super::super) const SERVING: u16 = 7;
    pub(in super::super) const DONE: u16 = 8;
    pub(in super::super) const REFUSE: u16 = 9;
    pub(in super::super) const PASSAGE: u16 = 10;
}

/// Fields of HELLO.
mod hello {
    pub(super) const OLDEST_WIRE: u16 = 1;
    pub(super) const WIRE: u16 = 3;
    pub(super) const BUILD: u16 = 5;
}

/// Fields of SOCKETS.
mod sockets {
    /// Messages with one number have sockets of one origin.
    pub(super) const GROUP: u16 = 1;
    pub(super) const FOR_OPERATORS: u16 = 3;
    pub(super) const ADDRESS: u16 = 5;
    pub(super) const PATH: u16 = 7;
    pub(super) const INHERITED: u16 = 9;
    pub(super) const NAME: u16 = 11;
    pub(super) const COUNT: u16 = 13;
    /// This process removes the file of the Unix socket.
    pub(super) const OWNS_FILE: u16 = 15;
}

/// Fields of PLAN: additions of the program, which a successor may not know.
mod plan {
    pub(super) const STATE: u16 = 2;
    /// Keys of session tickets.
    pub(super) const TICKET_KEYS: u16 = 4;
}

/// Fields of DONE, which a successor may not know.
mod done {
    /// The counters of the predecessor's program.
    pub(super) const COUNTS: u16 = 2;
    /// The report of the upgrade.
    pub(super) const REPORT: u16 = 4;
}

/// The field of REFUSE.
const REASON: u16 = 1;

/// The field of READY: the number of event loops, if connections can move to them. A predecessor
/// that does not know it sends no PASSAGE.
const LOOPS: u16 = 2;

/// Fields of PASSAGE, which has the link as its descriptor.
mod passage {
    /// The number of the event loop: they come in order.
    pub(super) const LOOP: u16 = 1;
    /// The generation of each slot, in four bytes, little-endian.
    pub(super) const GENERATIONS: u16 = 3;
    /// The free slots, in four bytes each.
    pub(super) const FREE: u16 = 5;
}

/// A connection to the other process.
#[derive(Debug)]
pub(super) struct Control {
    stream: UnixStream,
    inbox: Inbox,
    descriptors: VecDeque<OwnedFd>,
}

/// Why no message came, or went.
#[derive(Debug)]
pub(super) enum NoMessage {
    /// The other process has ended, or closed the connection.
    Ended,
    /// There was none in time.
    TimedOut,
    /// These bytes make no message, for this reason.
    Wrong(String),
}

impl From<CarryError> for NoMessage {
    fn from(error: CarryError) -> Self {
        Self::Wrong(error.to_string())
    }
}

/// A successor as it describes itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Hello {
    /// The forms of messages that it reads.
    pub(super) wire: (u64, u64),
    pub(super) build: String,
}

impl Control {
    /// Wraps a connection to a process that may take over or pass on.
    ///
    /// # Errors
    /// The other process is of another user.
    pub(super) fn new(stream: UnixStream) -> Result<Self, String> {
        handover::check_peer(&stream).map_err(|error| error.to_string())?;
        Ok(Self { stream, inbox: Inbox::new(MAX_MESSAGE), descriptors: VecDeque::new() })
    }

    /// Sends a message that has only a tag.
    pub(super) fn send(&self, tag: u16) -> Result<(), NoMessage> {
        self.send_with(Encoder::new(tag), &[])
    }

    fn send_with(&self, message: Encoder, with: &[BorrowedFd<'_>]) -> Result<(), NoMessage> {
        // A process that does not read must not hold this one up.
        let _ = self.stream.set_write_timeout(Some(GREETING));
        handover::send(&self.stream, &message.finish(), with).map_err(|error| match error.kind() {
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => NoMessage::Ended,
            ErrorKind::WouldBlock => NoMessage::TimedOut,
            _ => NoMessage::Wrong(error.to_string()),
        })
    }

    /// Receives the next message, at most until `until`.
    pub(super) fn receive(&mut self, until: Instant) -> Result<Message, NoMessage> {
        loop {
            if let Some(message) = self.inbox.next_message()? {
                return Ok(message);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(NoMessage::TimedOut);
            }
            let _ = self.stream.set_read_timeout(Some(left.max(Duration::from_millis(1))));
            let mut buffer = Secret::zeros(4096);
            match handover::receive(&self.stream, &mut buffer) {
                Ok((0, _)) => return Err(NoMessage::Ended),
                Ok((count, passed)) => {
                    self.inbox.push(&buffer[..count]);
                    self.descriptors.extend(passed);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                    return Err(NoMessage::Ended);
                }
                Err(error) => return Err(NoMessage::Wrong(error.to_string())),
            }
            if self.descriptors.len() > MAX_SOCKETS {
                return Err(NoMessage::Wrong("too many descriptors".to_owned()));
            }
        }
    }

    pub(super) fn send_hello(&self, hello: &Hello) -> Result<(), NoMessage> {
        let message = Encoder::new(tag::HELLO)
            .number(hello::OLDEST_WIRE, hello.wire.0)
            .number(hello::WIRE, hello.wire.1)
            .text(hello::BUILD, &hello.build);
        self.send_with(message, &[])
    }

    /// Sends the end of the listening sockets, and what the program adds to them.
    pub(super) fn send_plan(&self, state: &[u8], ticket_keys: &[u8]) -> Result<(), NoMessage> {
        let message = Encoder::new(tag::PLAN);
        let message = message.bytes(plan::STATE, state).bytes(plan::TICKET_KEYS, ticket_keys);
        self.send_with(message, &[])
    }

    pub(super) fn send_ready(&self, loops: Option<usize>) -> Result<(), NoMessage> {
        let message = Encoder::new(tag::READY);
        let message = match loops {
            Some(loops) => message.number(LOOPS, loops as u64),
            None => message,
        };
        self.send_with(message, &[])
    }

    /// Sends the predecessor's part of each event loop.
    pub(super) fn send_passages(&self, all: &[Passage]) -> Result<(), NoMessage> {
        let bytes = |numbers: &[u32]| -> Vec<u8> {
            numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
        };
        for (number, Passage { slots: Slots { generations, free }, link }) in all.iter().enumerate()
        {
            let message = Encoder::new(tag::PASSAGE)
                .number(passage::LOOP, number as u64)
                .bytes(passage::GENERATIONS, &bytes(generations))
                .bytes(passage::FREE, &bytes(free));
            self.send_with(message, &[link.as_fd()])?;
        }
        Ok(())
    }

    /// Adds the predecessor's part of the next event loop to `all`.
    pub(super) fn take_passage(
        &mut self,
        message: &Message,
        all: &mut Vec<Passage>,
    ) -> Result<(), NoMessage> {
        let mut number = None;
        let mut slots = Slots::default();
        message.read(|tag, content| {
            match tag {
                passage::LOOP => number = Some(content.number()?),
                passage::GENERATIONS => slots.generations = numbers(content.0)?,
                passage::FREE => slots.free = numbers(content.0)?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        let link = self.descriptors.pop_front().map(UnixStream::from);
        match link {
            Some(link) if number == Some(all.len() as u64) => all.push(Passage { slots, link }),
            _ => return Err(NoMessage::Wrong("a link that does not follow".to_owned())),
        }
        Ok(())
    }

    /// Sends the end of the upgrade, with its report and what this process has counted.
    pub(super) fn send_done(&self, counts: &[u8], report: &[u8]) -> Result<(), NoMessage> {
        let message = Encoder::new(tag::DONE);
        let message = message.bytes(done::COUNTS, counts).bytes(done::REPORT, report);
        self.send_with(message, &[])
    }

    pub(super) fn send_refuse(&self, why: &str) -> Result<(), NoMessage> {
        // The reason is for a line; a longer one has a whole file in it.
        let why: String = why.chars().take(2000).collect();
        self.send_with(Encoder::new(tag::REFUSE).text(REASON, &why), &[])
    }

    /// Sends all listening sockets.
    pub(super) fn send_sockets(&self, all: &[Held]) -> Result<(), NoMessage> {
        for (group, held) in all.iter().enumerate() {
            for part in held.sockets.chunks(MAX_AT_ONCE) {
                let message = Encoder::new(tag::SOCKETS)
                    .number(sockets::GROUP, group as u64)
                    .number(sockets::COUNT, part.len() as u64)
                    .number(sockets::FOR_OPERATORS, u64::from(held.purpose == Purpose::Operators));
                let message = match &held.origin {
                    Origin::Address(address) => {
                        message.text(sockets::ADDRESS, &address.to_string())
                    }
                    Origin::Path(path) => message.bytes(sockets::PATH, path.as_os_str().as_bytes()),
                    Origin::Inherited { descriptor, name } => message
                        .number(sockets::INHERITED, descriptor.unsigned_abs().into())
                        .text(sockets::NAME, name),
                };
                let owns_file = part
                    .iter()
                    .any(|socket| matches!(socket, Listener::Unix(socket) if socket.has_file()));
                let message = message.number(sockets::OWNS_FILE, u64::from(owns_file));
                let descriptors: Vec<_> = part.iter().map(AsFd::as_fd).collect();
                self.send_with(message, &descriptors)?;
            }
        }
        Ok(())
    }

    /// Adds the sockets of a message to `all`.
    pub(super) fn take_sockets(
        &mut self,
        message: &Message,
        all: &mut Vec<Held>,
    ) -> Result<(), NoMessage> {
        let (mut group, mut count, mut owns_file) = (0, 0, false);
        let (mut purpose, mut origin, mut name) = (Purpose::Clients, None, String::new());
        message.read(|tag, content| {
            match tag {
                sockets::GROUP => group = content.number()?,
                sockets::COUNT => count = content.number()?,
                sockets::FOR_OPERATORS if content.number()? == 1 => purpose = Purpose::Operators,
                sockets::FOR_OPERATORS => {}
                sockets::ADDRESS => {
                    let address = content.text()?.parse().map_err(|_| CarryError::Malformed)?;
                    origin = Some(Origin::Address(address));
                }
                sockets::PATH => {
                    let path = OsString::from_vec(content.0.to_vec());
                    origin = Some(Origin::Path(PathBuf::from(path)));
                }
                sockets::INHERITED => {
                    let descriptor = content.number()?.try_into();
                    let descriptor = descriptor.map_err(|_| CarryError::Malformed)?;
                    origin = Some(Origin::Inherited { descriptor, name: String::new() });
                }
                sockets::NAME => content.text()?.clone_into(&mut name),
                sockets::OWNS_FILE => owns_file = content.number()? == 1,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        if let Some(Origin::Inherited { name: own, .. }) = &mut origin {
            *own = name;
        }
        let origin = origin.ok_or_else(|| NoMessage::Wrong("sockets of no origin".to_owned()))?;
        let mut taken = Vec::new();
        for _ in 0..count {
            let Some(descriptor) = self.descriptors.pop_front() else {
                return Err(NoMessage::Wrong("descriptors are missing".to_owned()));
            };
            let listener = listener_of(descriptor, owns_file);
            taken.push(listener.map_err(|error| NoMessage::Wrong(error.to_string()))?);
        }
        let is_next = usize::try_from(group).is_ok_and(|group| group == all.len());
        match all.last_mut() {
            Some(last) if !is_next => last.sockets.extend(taken),
            _ => all.push(Held { purpose, origin, sockets: taken }),
        }
        Ok(())
    }
}

/// Returns a passed descriptor as the listening socket that it is.
fn listener_of(descriptor: OwnedFd, owns_file: bool) -> std::io::Result<Listener> {
    let tcp = TcpListener::from(descriptor);
    if tcp.local_addr().is_ok() {
        return Ok(tcp.into());
    }
    let unix = UnixListener::from(OwnedFd::from(tcp));
    // Fails if it is not a socket.
    unix.local_addr()?;
    match owns_file {
        true => UnixSocket::take_over(unix).map(Listener::from),
        false => Ok(Listener::from(unix)),
    }
}

/// Reads numbers of four bytes.
fn numbers(bytes: &[u8]) -> Result<Vec<u32>, CarryError> {
    let (numbers, rest) = bytes.as_chunks();
    match rest {
        [] => Ok(numbers.iter().map(|number| u32::from_le_bytes(*number)).collect()),
        _ => Err(CarryError::Malformed),
    }
}

/// Reads how many event loops a successor has to which connections can move.
pub(super) fn read_ready(message: &Message) -> Result<Option<usize>, CarryError> {
    let mut loops = None;
    message.read(|tag, content| {
        if tag == LOOPS {
            loops = usize::try_from(content.number()?).ok();
        }
        Ok(tag == LOOPS)
    })?;
    Ok(loops)
}

/// Reads a HELLO.
pub(super) fn read_hello(message: &Message) -> Result<Hello, CarryError> {
    let mut read = Hello::default();
    message.read(|tag, content| {
        match tag {
            hello::OLDEST_WIRE => read.wire.0 = content.number()?,
            hello::WIRE => read.wire.1 = content.number()?,
            hello::BUILD => content.text()?.clone_into(&mut read.build),
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(read)
}

/// Reads what the program has added to a PLAN: its state, and its keys of session tickets.
pub(super) fn read_plan(message: &Message) -> Result<(Vec<u8>, Secret), CarryError> {
    let (mut state, mut ticket_keys) = (Vec::new(), Secret::default());
    message.read(|tag, content| {
        match tag {
            plan::STATE => state = content.0.to_vec(),
            plan::TICKET_KEYS => ticket_keys = Secret::from(content.0),
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok((state, ticket_keys))
}

/// Reads the counts and the report of a DONE.
pub(super) fn read_done(message: &Message) -> Result<(Vec<u8>, Vec<u8>), CarryError> {
    let (mut counts, mut report) = (Vec::new(), Vec::new());
    message.read(|tag, content| {
        match tag {
            done::COUNTS => counts = content.0.to_vec(),
            done::REPORT => report = content.0.to_vec(),
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok((counts, report))
}

/// Reads the reason of a refusal.
pub(super) fn read_refuse(message: &Message) -> String {
    let mut reason = String::new();
    let _ = message.read(|tag, content| {
        if tag == REASON {
            content.text()?.clone_into(&mut reason);
        }
        Ok(tag == REASON)
    });
    reason
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::SocketAddr;

    use throng_io::HeldListeners;

    use super::*;

    fn pair() -> (Control, Control) {
        let (one, other) = UnixStream::pair().unwrap();
        (Control::new(one).unwrap(), Control::new(other).unwrap())
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn sockets_arrive_with_all_that_finds_them_again() {
        let held = HeldListeners::default();
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let options = throng_io::ListenOptions::default();
        // More than go into one message.
        held.listen_many(Purpose::Clients, any, options, MAX_AT_ONCE + 3).unwrap();
        held.listen_many(Purpose::Operators, any, options, 1).unwrap();
        let folder = throng_testkit::TempFolder::new("up");
        let path = folder.join("socket");
        held.bind_unix(&path, 0o600).unwrap();
        let (own, mut other) = pair();
        own.send_sockets(&held.for_successor().unwrap()).unwrap();
        own.send(tag::PLAN).unwrap();
        let mut taken = Vec::new();
        loop {
            let message = other.receive(soon()).unwrap();
            match message.tag() {
                tag::PLAN => break,
                _ => other.take_sockets(&message, &mut taken).unwrap(),
            }
        }
        let of_one = |held: &Held| (held.purpose, held.origin.clone(), held.sockets.len());
        let all: Vec<_> = taken.iter().map(of_one).collect();
        let expected = [
            (Purpose::Clients, Origin::Address(any), MAX_AT_ONCE + 3),
            (Purpose::Operators, Origin::Address(any), 1),
            (Purpose::Clients, Origin::Path(path.clone()), 1),
        ];
        assert_eq!(all, expected);
        held.leave_to_successor();
        assert!(path.exists());
        drop(taken);
        assert!(!path.exists(), "the successor's");
    }

    #[test]
    fn passages_arrive_in_their_order_with_slots_and_link() {
        let (own, mut other) = pair();
        own.send_ready(None).unwrap();
        own.send_ready(Some(2)).unwrap();
        let mut loops = || read_ready(&other.receive(soon()).unwrap()).unwrap();
        assert_eq!([loops(), loops()], [None, Some(2)]);
        let slots = Slots { generations: vec![7, 1 << 25], free: vec![1] };
        let (links, ends): (Vec<_>, Vec<_>) = (0..2).map(|_| UnixStream::pair().unwrap()).unzip();
        let passage = |link| Passage { slots: slots.clone(), link };
        own.send_passages(&links.into_iter().map(passage).collect::<Vec<_>>()).unwrap();
        let mut taken = Vec::new();
        for _ in 0..2 {
            let message = other.receive(soon()).unwrap();
            other.take_passage(&message, &mut taken).unwrap();
        }
        for (Passage { slots: of_one, mut link }, mut end) in taken.into_iter().zip(ends) {
            assert_eq!(of_one, slots);
            end.write_all(b"x").unwrap();
            assert_eq!(std::io::Read::read(&mut link, &mut [0; 2]).unwrap(), 1);
        }
        // Without a link, and of an event loop that does not follow.
        let message = Encoder::new(tag::PASSAGE).number(passage::LOOP, 0);
        own.send_with(message, &[]).unwrap();
        let message = other.receive(soon()).unwrap();
        assert!(other.take_passage(&message, &mut Vec::new()).is_err());
        let message = Encoder::new(tag::PASSAGE).number(passage::LOOP, 1);
        own.send_with(message, &[own.stream.as_fd()]).unwrap();
        let message = other.receive(soon()).unwrap();
        assert!(other.take_passage(&message, &mut Vec::new()).is_err());
    }

    #[test]
    fn bytes_that_are_no_message_are_an_error_and_silence_ends_in_time() {
        let (own, mut other) = pair();
        assert!(matches!(other.receive(Instant::now()), Err(NoMessage::TimedOut)));
        own.send_refuse("no\nroom").unwrap();
        let message = other.receive(soon()).unwrap();
        assert_eq!((message.tag(), read_refuse(&message)), (tag::REFUSE, "no\nroom".to_owned()));
        // Its length is 0x20544547.
        (&own.stream).write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        assert!(matches!(other.receive(soon()), Err(NoMessage::Wrong(_))));
        let (own, mut other) = pair();
        let message = Encoder::new(tag::SOCKETS).number(sockets::COUNT, 2);
        own.send_with(message.number(sockets::INHERITED, 3), &[]).unwrap();
        let message = other.receive(soon()).unwrap();
        let missing = other.take_sockets(&message, &mut Vec::new());
        assert!(matches!(missing, Err(NoMessage::Wrong(_))));
        drop(own);
        assert!(matches!(other.receive(soon()), Err(NoMessage::Ended)));
    }
}
