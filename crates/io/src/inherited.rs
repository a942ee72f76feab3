//! Listening sockets that the service manager opened before it started this process: socket
//! activation, as `sd_listen_fds(3)` describes it.

use std::io;
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};

/// The first descriptor that a service manager passes on.
const FIRST: i32 = 3;

/// More are a mistake in the environment.
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
    pub listener: TcpListener,
}

/// Environment variables of socket activation.
#[derive(Debug, Default)]
struct Variables {
    pid: Option<String>,
    count: Option<String>,
    names: Option<String>,
}

/// Returns the listening TCP sockets that the process was started with: `LISTEN_PID`, `LISTEN_FDS`
/// and `LISTEN_FDNAMES` announce them. The first call takes them; later ones fail.
///
/// # Errors
/// `NotFound` if there are none for this process, or they were taken; `InvalidInput` if one of them
/// is not a listening TCP socket.
pub fn inherited_listeners() -> io::Result<Vec<Inherited>> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let read = |name| std::env::var(name).ok();
    let variables = Variables {
        pid: read("LISTEN_PID"),
        count: read("LISTEN_FDS"),
        names: read("LISTEN_FDNAMES"),
    };
    let announced = variables.announced(std::process::id())?;
    if TAKEN.swap(true, Ordering::Relaxed) {
        return Err(not_found("the inherited sockets were taken before"));
    }
    announced.into_iter().map(|(descriptor, name)| take(descriptor, name)).collect()
}

impl Variables {
    /// Returns the descriptors and names that are announced to the process `own`.
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

#[cfg(unix)]
#[allow(unsafe_code)]
fn take(descriptor: i32, name: String) -> io::Result<Inherited> {
    use std::os::fd::{FromRawFd, OwnedFd};

    // SAFETY: F_GETFD reads the flags of the descriptor, if it is open, and changes nothing.
    if unsafe { libc::fcntl(descriptor, libc::F_GETFD) } == -1 {
        return Err(not_found(&format!("the descriptor {descriptor} is not open")));
    }
    // SAFETY: It is open, LISTEN_PID and LISTEN_FDS say that this process was started with it, for
    // this purpose, and `TAKEN` lets it be taken once.
    let owned = unsafe { OwnedFd::from_raw_fd(descriptor) };
    let socket = socket2::Socket::from(owned);
    socket.set_cloexec(true)?;
    let is_tcp = socket.local_addr()?.as_socket().is_some();
    if !(is_tcp && socket.is_listener().unwrap_or(false)) {
        let message = format!("the inherited descriptor {descriptor} is no listening TCP socket");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    socket.set_nonblocking(true)?;
    Ok(Inherited { descriptor, name, listener: socket.into() })
}

#[cfg(not(unix))]
fn take(_: i32, _: String) -> io::Result<Inherited> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
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
}
