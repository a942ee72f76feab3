//! Listening sockets that the service manager opened before it started this process: socket
//! activation, as `sd_listen_fds(3)` describes it.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::{Mutex, PoisonError};

use socket2::{SockAddr, SockRef, Socket, Type};

use crate::listener::Listener;

/// The first descriptor that a service manager passes on.
const FIRST: i32 = 3;

/// A larger number is a mistake in the environment.
const MOST: i32 = 1024;

/// A listening socket that the process was started with.
#[derive(Debug)]
#[non_exhaustive]
pub struct Inherited {
    /// The number of its descriptor when the process started.
    pub descriptor: i32,
    /// Its name (`FileDescriptorName=` of systemd); empty if it has none.
    pub name: String,
    /// The socket, which does not block and is not passed on to child processes.
    pub listener: Listener,
}

/// The descriptor and the address of a listening socket that the process was started with; a Unix
/// socket has no address.
pub type InheritedAddress = (i32, Option<SocketAddr>);

/// The inherited sockets, once they were checked, and whether they were taken.
struct Sockets {
    checked: Option<Vec<Checked>>,
    are_taken: bool,
}

/// An inherited descriptor that is a listening socket.
#[derive(Clone, Debug)]
struct Checked {
    descriptor: i32,
    name: String,
    address: Option<SocketAddr>,
}

static SOCKETS: Mutex<Sockets> = Mutex::new(Sockets { checked: None, are_taken: false });

/// Environment variables of socket activation.
#[derive(Debug, Default)]
struct Variables {
    pid: Option<String>,
    count: Option<String>,
    names: Option<String>,
}

/// Returns the listening sockets that the process was started with: `LISTEN_PID`, `LISTEN_FDS`
/// and `LISTEN_FDNAMES` announce them. The first call takes them; later ones fail.
///
/// All descriptors are checked before one is taken, and child processes no longer get any of them.
///
/// # Errors
/// `NotFound` if there are none for this process, or they were taken; `InvalidInput` if one of them
/// is not a listening socket of TCP or a Unix socket.
pub fn inherited_listeners() -> io::Result<Vec<Inherited>> {
    let mut sockets = SOCKETS.lock().unwrap_or_else(PoisonError::into_inner);
    let checked = sockets.check()?;
    if sockets.are_taken {
        return Err(not_found("the inherited sockets were taken before"));
    }
    sockets.are_taken = true;
    checked.into_iter().map(own).collect()
}

/// Returns the descriptors and addresses of the sockets that [`inherited_listeners`] returns or has
/// returned, and takes none of them.
///
/// # Errors
/// As for [`inherited_listeners`], except for sockets that were taken.
pub fn inherited_addresses() -> io::Result<Vec<InheritedAddress>> {
    let mut sockets = SOCKETS.lock().unwrap_or_else(PoisonError::into_inner);
    let checked = sockets.check()?;
    Ok(checked.into_iter().map(|socket| (socket.descriptor, socket.address)).collect())
}

impl Sockets {
    /// Returns the inherited sockets. They are checked once: afterwards their numbers may belong to
    /// other files.
    fn check(&mut self) -> io::Result<Vec<Checked>> {
        if let Some(checked) = &self.checked {
            return Ok(checked.clone());
        }
        let checked = check(Variables::read().announced(std::process::id())?)?;
        self.checked = Some(checked.clone());
        Ok(checked)
    }
}

impl Variables {
    fn read() -> Self {
        let read = |name| std::env::var(name).ok();
        Self { pid: read("LISTEN_PID"), count: read("LISTEN_FDS"), names: read("LISTEN_FDNAMES") }
    }

    /// Returns the descriptors and names announced to the process `own`.
    fn announced(&self, own: u32) -> io::Result<Vec<(i32, String)>> {
        let (Some(pid), Some(count)) = (&self.pid, &self.count) else {
            return Err(not_found("LISTEN_PID and LISTEN_FDS are not set"));
        };
        if pid.parse() != Ok(own) {
            return Err(not_found("LISTEN_PID names another process"));
        }
        let count = count.parse().ok().filter(|count| (1..=MOST).contains(count));
        let Some(count) = count else {
            return Err(not_found("LISTEN_FDS is not a number of sockets"));
        };
        let names = self.names.as_deref().unwrap_or_default();
        let names = names.split(':').map(str::to_owned).chain(std::iter::repeat(String::new()));
        Ok((FIRST..FIRST + count).zip(names).collect())
    }
}

fn not_found(why: &str) -> io::Error {
    let remedy = "start the program by a systemd .socket unit or `systemd-socket-activate`";
    io::Error::new(io::ErrorKind::NotFound, format!("no sockets were passed on: {why}; {remedy}"))
}

/// Checks that all descriptors are listening sockets, and keeps them from child processes.
fn check(announced: Vec<(i32, String)>) -> io::Result<Vec<Checked>> {
    let sockets = announced
        .into_iter()
        .map(|(descriptor, name)| Ok((borrow(descriptor)?, descriptor, name)))
        .collect::<io::Result<Vec<_>>>()?;
    // Before any is refused: the process may go on without them, and start others.
    for (socket, ..) in &sockets {
        rustix::io::fcntl_setfd(socket, rustix::io::FdFlags::CLOEXEC)?;
    }
    let check_one = |(socket, descriptor, name): (BorrowedFd<'_>, i32, String)| match address_of(
        &SockRef::from(&socket),
    ) {
        Ok(address) => Ok(Checked { descriptor, name, address }),
        Err(why) => {
            let known_as = if name.is_empty() { String::new() } else { format!(" ({name})") };
            let message = format!("the inherited descriptor {descriptor}{known_as} {why}");
            Err(io::Error::new(io::ErrorKind::InvalidInput, message))
        }
    };
    sockets.into_iter().map(check_one).collect()
}

/// Returns the address of a listening socket, `None` for a Unix socket; for any other descriptor,
/// its kind and the remedy.
fn address_of(socket: &Socket) -> Result<Option<SocketAddr>, &'static str> {
    let Ok(kind) = socket.r#type() else {
        return Err("is not a socket: pass on sockets alone, by ListenStream= of the .socket unit");
    };
    let address = socket.local_addr().ok();
    let is_unix = address.as_ref().is_some_and(SockAddr::is_unix);
    let tcp = address.and_then(|address| address.as_socket());
    if kind != Type::STREAM || tcp.is_none() && !is_unix {
        return Err(
            "is not a stream socket: write ListenStream=HOST:PORT, or a path, in the .socket \
                    unit",
        );
    }
    match listens(socket) {
        true => Ok(tcp),
        false => Err("does not listen: set Accept=no in the .socket unit"),
    }
}

#[cfg(any(target_os = "linux", target_os = "freebsd"))]
fn listens(socket: &Socket) -> bool {
    socket.is_listener().unwrap_or(false)
}

/// The other systems do not tell: the first accept fails.
#[cfg(not(any(target_os = "linux", target_os = "freebsd")))]
fn listens(_: &Socket) -> bool {
    true
}

#[allow(unsafe_code)]
fn borrow(descriptor: i32) -> io::Result<BorrowedFd<'static>> {
    // SAFETY: F_GETFD reads the flags of the descriptor, if it is open, and changes nothing.
    if unsafe { libc::fcntl(descriptor, libc::F_GETFD) } == -1 {
        let why = format!("LISTEN_FDS announces the descriptor {descriptor}, which is not open");
        return Err(not_found(&why));
    }
    // SAFETY: It is open, and announced to this process, so that nothing else closes it before
    // `own` has taken it, and it is not borrowed after that: see `Sockets::check`.
    Ok(unsafe { BorrowedFd::borrow_raw(descriptor) })
}

#[allow(unsafe_code)]
fn own(Checked { descriptor, name, address }: Checked) -> io::Result<Inherited> {
    // SAFETY: `check` found a listening socket, LISTEN_PID and LISTEN_FDS say that this process was
    // started with it, for this purpose, and `Sockets::are_taken` lets it be taken once.
    let owned = unsafe { OwnedFd::from_raw_fd(descriptor) };
    let listener = match address {
        Some(_) => Listener::from(TcpListener::from(owned)),
        None => Listener::from(UnixListener::from(owned)),
    };
    listener.set_nonblocking()?;
    Ok(Inherited { descriptor, name, listener })
}

#[cfg(test)]
mod tests {
    use std::net::{TcpStream, UdpSocket};
    use std::os::fd::{AsRawFd, IntoRawFd};
    use std::os::unix::net::UnixStream;

    use super::*;

    fn variables(pid: &str, count: &str, names: Option<&str>) -> Variables {
        Variables {
            pid: Some(pid.to_owned()),
            count: Some(count.to_owned()),
            names: names.map(str::to_owned),
        }
    }

    #[test]
    fn sockets_are_announced_to_one_process_with_their_names() {
        let named = variables("7", "2", Some("web:admin")).announced(7).unwrap();
        assert_eq!(named, [(3, "web".to_owned()), (4, "admin".to_owned())]);
        let unnamed = variables("7", "2", None).announced(7).unwrap();
        assert_eq!(unnamed, [(3, String::new()), (4, String::new())]);
    }

    #[test]
    fn no_sockets_are_taken_that_were_not_announced_to_this_process() {
        let not_for_us = [
            Variables::default(),
            variables("8", "1", None),
            variables("7", "0", None),
            variables("7", "-1", None),
            variables("7", "many", None),
            variables("7", "1000000", None),
        ];
        for variables in not_for_us {
            let error = variables.announced(7).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::NotFound, "{variables:?}");
        }
    }

    /// Announces the descriptors of these sockets, which child processes would get.
    fn announce(sockets: &[&dyn AsRawFd]) -> Vec<(i32, String)> {
        let announce = |socket: &&dyn AsRawFd| {
            let descriptor = socket.as_raw_fd();
            let borrowed = borrow(descriptor).unwrap();
            rustix::io::fcntl_setfd(borrowed, rustix::io::FdFlags::empty()).unwrap();
            (descriptor, "web".to_owned())
        };
        sockets.iter().map(announce).collect()
    }

    #[test]
    fn one_that_does_not_fit_is_named_and_all_are_left_open_but_not_to_child_processes() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let connected = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
        let (pair, _other) = UnixStream::pair().unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        for (wrong, remedy) in [
            (&connected as &dyn AsRawFd, "does not listen: set Accept=no"),
            (&datagrams, "is not a stream socket: write ListenStream="),
            (&pair, "does not listen: set Accept=no"),
            (&file, "is not a socket: pass on sockets alone"),
        ] {
            let announced = announce(&[wrong, &listener]);
            let error = check(announced.clone()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            let named = format!("the inherited descriptor {} (web) {remedy}", announced[0].0);
            assert!(error.to_string().starts_with(&named), "{error}");
            for (descriptor, _) in announced {
                let flags = rustix::io::fcntl_getfd(borrow(descriptor).unwrap()).unwrap();
                assert!(flags.contains(rustix::io::FdFlags::CLOEXEC), "{descriptor} of {remedy}");
            }
        }
        listener.set_nonblocking(true).unwrap();
        assert!(listener.accept().is_ok(), "it is as it was");
    }

    #[test]
    fn listening_sockets_are_checked_by_themselves_and_then_owned() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let checked = check(announce(&[&listener])).unwrap();
        assert_eq!((checked[0].address, checked[0].name.as_str()), (Some(address), "web"));
        let _ = listener.into_raw_fd();
        let inherited = own(checked[0].clone()).unwrap();
        let Listener::Tcp(listener) = inherited.listener else { panic!("it is a TCP socket") };
        assert_eq!(listener.local_addr().unwrap(), address);
        let refused = listener.accept().unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_unix_socket_that_listens_is_owned_and_its_file_stays() {
        let folder = throng_testkit::TempFolder::new("inherited");
        let path = folder.join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let checked = check(announce(&[&listener])).unwrap();
        assert_eq!(checked[0].address, None);
        let _ = listener.into_raw_fd();
        let Listener::Unix(socket) = own(checked[0].clone()).unwrap().listener else {
            panic!("it is a Unix socket");
        };
        assert_eq!(socket.path().as_deref(), Some(path.as_path()));
        let _client = UnixStream::connect(&path).unwrap();
        assert!(socket.accept(&crate::Options::default()).is_ok());
        drop(socket);
        std::fs::remove_file(&path).expect("the service manager's file");
    }
}
