//! The Linux backend: level-triggered epoll, and sockets through plain system calls.

use std::io::{self, IoSlice};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::net::{
    RecvFlags, SendAncillaryBuffer, SendFlags, SocketFlags, acceptfrom_with, recv, send, sendmsg,
};
use socket2::SockRef;

use crate::driver::Traffic;
use crate::listener::Listener;
use crate::options::Options;
use crate::readiness::poller::{ERROR, HANG_UP, Interest, Poller, READ, Ready, Signal, WRITE};
use crate::tables::Tables;

/// The poller of [`Epoll`](crate::Epoll).
pub struct EpollPoller {
    epoll: OwnedFd,
    /// libc's type, because rustix's contains a union with a pointer and is not `Send`.
    events: Vec<libc::epoll_event>,
    /// Whether the kernel has epoll_pwait2 (Linux 5.11), whose timeout is in nanoseconds.
    has_pwait2: bool,
}

/// The eventfd that ends a wait. It is registered edge-triggered and never read: its counter would
/// overflow only after 2^64 wakes.
#[derive(Debug)]
pub struct EventFd(OwnedFd);

impl Signal for EventFd {
    fn signal(&self) {
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

const _: () = {
    assert!(READ as u32 == epoll::EventFlags::IN.bits());
    assert!(WRITE as u32 == epoll::EventFlags::OUT.bits());
    assert!(ERROR as u32 == epoll::EventFlags::ERR.bits());
    assert!(HANG_UP as u32 == epoll::EventFlags::HUP.bits());
};

impl Poller for EpollPoller {
    type Socket = OwnedFd;
    type Listener = Listener;
    type Signal = EventFd;

    const LEVEL: bool = true;
    const DEFERS_REGISTRATION: bool = true;

    fn new(max_events: usize, wake_token: u64) -> io::Result<(Self, EventFd)> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let data = epoll::EventData::new_u64(wake_token);
        epoll::add(&epoll, &wake, data, epoll::EventFlags::IN | epoll::EventFlags::ET)?;
        let events = Vec::with_capacity(max_events);
        let mut poller = Self { epoll, events, has_pwait2: true };
        poller.has_pwait2 = poller.wait_nanos(Duration::ZERO).is_ok();
        Ok((poller, EventFd(wake)))
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<usize> {
        let waited = match timeout {
            Some(timeout) if self.has_pwait2 && timeout > Duration::ZERO => {
                self.wait_nanos(timeout)
            }
            Some(timeout) => {
                // Rounded up: a wait that ends before its deadline would be repeated at once.
                let millis = timeout.as_nanos().div_ceil(1_000_000);
                self.wait_millis(libc::c_int::try_from(millis).unwrap_or(libc::c_int::MAX))
            }
            None => self.wait_millis(-1),
        };
        match waited {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
            waited => waited,
        }
    }

    #[inline]
    fn ready(&self, index: usize) -> Option<Ready> {
        let &libc::epoll_event { events, u64: token } = self.events.get(index)?;
        Some(Ready { token, bits: events as u8 & (READ | WRITE | ERROR | HANG_UP) })
    }

    fn register(&self, socket: &mut OwnedFd, token: u64, interest: Interest) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token);
        Ok(epoll::add(&self.epoll, &*socket, data, flags(interest))?)
    }

    fn modify(&self, socket: &OwnedFd, token: u64, interest: Interest) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token);
        Ok(epoll::modify(&self.epoll, socket, data, flags(interest))?)
    }

    /// Does nothing: closing the only descriptor of a socket removes it from the epoll set.
    fn deregister(&self, _: &mut OwnedFd) {}

    fn release(&self, socket: &mut OwnedFd) {
        // It fails for a socket that was not registered yet.
        let _ = epoll::delete(&self.epoll, &*socket);
    }

    fn listener(listener: Listener, options: &Options) -> io::Result<Listener> {
        // Accepted sockets inherit these: no setsockopt per connection.
        listener.apply(options)?;
        Ok(listener)
    }

    fn register_listener(&self, listener: &mut Listener, token: u64) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token);
        Ok(epoll::add(&self.epoll, &*listener, data, epoll::EventFlags::IN)?)
    }

    fn deregister_listener(&self, listener: &mut Listener) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, &*listener)?)
    }

    fn accept(listener: &Listener, options: &Options) -> io::Result<(OwnedFd, Option<SocketAddr>)> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (socket, peer) = acceptfrom_with(listener, flags)?;
        let peer = peer.and_then(|peer| peer.try_into().ok());
        match (listener, peer) {
            // It was not a TCP socket after all.
            (Listener::Tcp(_), None) => Err(io::ErrorKind::ConnectionAborted.into()),
            (Listener::Tcp(_), peer) => Ok((socket, peer)),
            (Listener::Unix(_), _) => {
                crate::listener::tune_unix(SockRef::from(&socket), options);
                Ok((socket, None))
            }
        }
    }

    fn from_connecting(socket: socket2::Socket) -> OwnedFd {
        socket.into()
    }

    fn connected(_: &OwnedFd, bits: u8) -> Option<bool> {
        match bits {
            _ if bits & (ERROR | HANG_UP) != 0 => Some(false),
            _ if bits & WRITE != 0 => Some(true),
            _ => None,
        }
    }

    #[inline(always)]
    fn recv(socket: &OwnedFd, buffer: &mut [u8]) -> io::Result<usize> {
        recv(socket, buffer, RecvFlags::empty()).map(|(_, n)| n).map_err(into_io_error)
    }

    #[inline]
    fn send(socket: &OwnedFd, bytes: &[u8]) -> io::Result<usize> {
        send(socket, bytes, SendFlags::NOSIGNAL).map_err(into_io_error)
    }

    fn send_gathered(socket: &OwnedFd, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut control = SendAncillaryBuffer::default();
        Ok(sendmsg(socket, slices, &mut control, SendFlags::NOSIGNAL)?)
    }

    fn finish(socket: &OwnedFd) {
        // Fails only if the connection is gone, which the poll reports.
        let _ = SockRef::from(socket).shutdown(Shutdown::Write);
    }

    fn reset_on_drop(socket: &OwnedFd) {
        let _ = SockRef::from(socket).set_linger(Some(Duration::ZERO));
    }

    fn peer(socket: &OwnedFd) -> Option<SocketAddr> {
        SockRef::from(socket).peer_addr().ok()?.as_socket()
    }

    fn traffic(socket: &OwnedFd) -> Option<Traffic> {
        crate::connect::traffic(socket.as_raw_fd())
    }

    fn has_peer_finished(socket: &OwnedFd) -> bool {
        crate::connect::has_peer_finished(socket)
    }

    fn take_error(socket: &OwnedFd) -> bool {
        !matches!(rustix::net::sockopt::socket_error(socket), Ok(Ok(())))
    }
}

impl crate::Epoll {
    /// Adds this driver's descriptors to `tables`, for the shard `index`: the poll for this shard
    /// alone, the wake-up descriptor for all.
    pub fn enlist(&self, index: usize, tables: &mut Tables) {
        tables.give(index, &self.poller().epoll);
        tables.share(&self.signal().0);
    }
}

impl EpollPoller {
    /// Waits for `millis` milliseconds, or without limit if it is -1.
    #[allow(unsafe_code)]
    fn wait_millis(&mut self, millis: libc::c_int) -> io::Result<usize> {
        let capacity = self.events.capacity() as libc::c_int;
        // SAFETY: the kernel writes at most `capacity` events into the memory of `events`, which is
        // for that many in its own layout and outlives the call.
        let count = unsafe {
            libc::epoll_wait(self.epoll.as_raw_fd(), self.events.as_mut_ptr(), capacity, millis)
        };
        // SAFETY: the call has just returned it.
        unsafe { self.keep(count.into()) }
    }

    /// Waits with `epoll_pwait2`, in nanoseconds. The schedule of a load generator needs deadlines
    /// below a millisecond.
    #[allow(unsafe_code)]
    fn wait_nanos(&mut self, timeout: Duration) -> io::Result<usize> {
        let timeout = libc::timespec {
            tv_sec: timeout.as_secs().try_into().unwrap_or(i32::MAX.into()),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        // SAFETY: the kernel writes at most `capacity` events into the memory of `events`, which is
        // for that many in its own layout, and reads the timeout; both outlive the call. There is
        // no signal mask.
        let count = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                self.epoll.as_raw_fd(),
                self.events.as_mut_ptr(),
                self.events.capacity() as libc::c_int,
                &raw const timeout,
                std::ptr::null::<libc::sigset_t>(),
                0usize,
            )
        };
        // SAFETY: the call has just returned it.
        unsafe { self.keep(count) }
    }

    /// Keeps as many events as the kernel has just written, none if the wait failed.
    ///
    /// # Safety
    /// A wait with the memory of `events` has returned `count`, and no other call to the system
    /// came after it.
    #[allow(unsafe_code)]
    unsafe fn keep(&mut self, count: libc::c_long) -> io::Result<usize> {
        self.events.clear();
        let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
        // SAFETY: the kernel has written this many, which are at most the capacity.
        unsafe { self.events.set_len(count) };
        Ok(count)
    }
}

/// Converts the error out of line, so that frequent results of a system call, such as `EAGAIN`, do
/// not build an error inline that is then dropped.
#[cold]
#[inline(never)]
fn into_io_error(error: rustix::io::Errno) -> io::Error {
    error.into()
}

fn flags(interest: Interest) -> epoll::EventFlags {
    let mut flags = epoll::EventFlags::empty();
    flags.set(epoll::EventFlags::IN, interest.read);
    flags.set(epoll::EventFlags::OUT, interest.write);
    flags.set(epoll::EventFlags::ET, interest.muted);
    flags
}
