//! Listening sockets of both kinds: TCP, and Unix sockets with their files.

use std::net::TcpListener;

#[cfg(unix)]
pub use self::unix::UnixSocket;
#[cfg(target_os = "linux")]
pub(crate) use self::unix::tune_unix;

/// A listening socket: of TCP, or a Unix socket.
#[derive(Debug)]
#[non_exhaustive]
pub enum Listener {
    /// A TCP socket.
    Tcp(TcpListener),
    /// A Unix socket, whose peers have no address.
    #[cfg(unix)]
    Unix(UnixSocket),
}

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Self {
        Self::Tcp(listener)
    }
}

#[cfg(unix)]
mod unix {
    use std::fs::{self, File, Permissions, TryLockError};
    use std::io::{self, ErrorKind};
    use std::net::TcpStream;
    use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
    use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
    use std::os::unix::net::UnixListener;
    use std::path::{Path, PathBuf};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;
    use std::time::{Duration, Instant};

    use socket2::{Domain, SockAddr, SockRef, Socket, Type};

    use super::Listener;
    use crate::listen::ListenOptions;
    use crate::options::Options;

    /// A listening Unix socket.
    ///
    /// Dropping a socket made by [`bind`](Self::bind) removes its file, unless another process has
    /// put its own file there. A socket that listened before, such as a [`UnixListener`] or a
    /// socket of systemd, leaves the file to the process that made it.
    #[derive(Debug)]
    pub struct UnixSocket {
        /// It is removed when this is dropped, before the socket is closed: a file on which no one
        /// answers may be replaced, and the new one may have its number.
        #[allow(dead_code, reason = "for its drop")]
        file: Option<Arc<SocketFile>>,
        listener: UnixListener,
    }

    impl UnixSocket {
        /// Listens at `path`, whose file gets the permissions `mode`, for example `0o660`: to
        /// connect, a process needs to write to it. No one can connect before they are set.
        ///
        /// The file of a server that has ended without removing it is replaced.
        ///
        /// # Errors
        /// `AddrInUse` if a process answers at the path, `AlreadyExists` if the path is not a
        /// socket, or the system's error: no such folder, no permission, a path of more than about
        /// 100 bytes.
        pub fn bind(path: impl AsRef<Path>, mode: u32) -> io::Result<Self> {
            // The process may change its folder before the file is removed.
            let path = std::path::absolute(path)?;
            let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
            let address = SockAddr::unix(&path)?;
            // Until the socket listens: another server would take its file for a stale one.
            let _lock = lock_folder(&path);
            if let Err(error) = socket.bind(&address) {
                if error.kind() != ErrorKind::AddrInUse {
                    return Err(error);
                }
                remove_stale(&path, &address)?;
                socket.bind(&address)?;
            }
            let file = Arc::new(SocketFile::at(path)?);
            fs::set_permissions(&file.path, Permissions::from_mode(mode & 0o777))?;
            socket.listen(ListenOptions::default().backlog)?;
            socket.set_nonblocking(true)?;
            Ok(Self { listener: OwnedFd::from(socket).into(), file: Some(file) })
        }

        /// Takes over a socket that another process has [bound](Self::bind) and
        /// [left](Self::leave_file) its file to this one, which removes it at the end.
        ///
        /// # Errors
        /// The system's error, such as `NotFound` if the file is gone.
        pub fn take_over(listener: UnixListener) -> io::Result<Self> {
            let path = listener.local_addr()?.as_pathname().map(Path::to_owned);
            let path = path.ok_or(ErrorKind::AddrNotAvailable)?;
            Ok(Self { file: Some(Arc::new(SocketFile::at(path)?)), listener })
        }

        /// Returns another descriptor of the socket. The file is removed with the last one.
        ///
        /// # Errors
        /// The system's error.
        pub fn try_clone(&self) -> io::Result<Self> {
            Ok(Self { file: self.file.clone(), listener: self.listener.try_clone()? })
        }

        /// Returns whether the file is removed at the end.
        #[must_use]
        pub fn has_file(&self) -> bool {
            self.file.is_some()
        }

        /// Leaves the file to another process, also for all clones: it is not removed at the end.
        pub fn leave_file(&self) {
            if let Some(file) = &self.file {
                file.is_left.store(true, Ordering::Relaxed);
            }
        }

        /// Returns the path of its address; `None` if its address is not a path.
        #[must_use]
        pub fn path(&self) -> Option<PathBuf> {
            let address = self.listener.local_addr().ok()?;
            address.as_pathname().map(Path::to_owned)
        }

        /// Accepts a connection. Drivers only read, write and end a connection, for which std's TCP
        /// type also works with Unix sockets, so that a driver has one type.
        pub(crate) fn accept(&self, options: &Options) -> io::Result<TcpStream> {
            let (socket, _) = self.listener.accept()?;
            socket.set_nonblocking(true)?;
            tune_unix(SockRef::from(&socket), options);
            Ok(OwnedFd::from(socket).into())
        }
    }

    impl AsRawFd for UnixSocket {
        fn as_raw_fd(&self) -> RawFd {
            self.listener.as_raw_fd()
        }
    }

    impl From<UnixListener> for UnixSocket {
        fn from(listener: UnixListener) -> Self {
            Self { listener, file: None }
        }
    }

    impl From<UnixListener> for Listener {
        fn from(listener: UnixListener) -> Self {
            Self::Unix(listener.into())
        }
    }

    impl From<UnixSocket> for Listener {
        fn from(socket: UnixSocket) -> Self {
            Self::Unix(socket)
        }
    }

    impl Listener {
        /// Returns another descriptor of the socket.
        ///
        /// # Errors
        /// The system's error.
        pub fn try_clone(&self) -> io::Result<Self> {
            match self {
                Self::Tcp(listener) => listener.try_clone().map(Self::Tcp),
                Self::Unix(socket) => socket.try_clone().map(Self::Unix),
            }
        }

        /// Makes accepting not block.
        ///
        /// # Errors
        /// The system's error.
        pub fn set_nonblocking(&self) -> io::Result<()> {
            SockRef::from(self).set_nonblocking(true)
        }

        /// Sets the options that accepted connections inherit; Unix sockets inherit none.
        pub(crate) fn apply(&self, options: &Options) -> io::Result<()> {
            match self {
                Self::Tcp(listener) => {
                    let socket = SockRef::from(listener);
                    socket.set_tcp_nodelay(true)?;
                    crate::connect::apply_options(socket, options)
                }
                Self::Unix(_) => Ok(()),
            }
        }
    }

    /// Sets the sizes of an accepted Unix socket's buffers. The connection is served even if one of
    /// them cannot be set.
    pub(crate) fn tune_unix(socket: SockRef<'_>, options: &Options) {
        let _ = crate::connect::apply_buffers(&socket, options);
    }

    impl AsFd for Listener {
        fn as_fd(&self) -> BorrowedFd<'_> {
            match self {
                Self::Tcp(listener) => listener.as_fd(),
                Self::Unix(socket) => socket.listener.as_fd(),
            }
        }
    }

    impl AsRawFd for Listener {
        fn as_raw_fd(&self) -> RawFd {
            self.as_fd().as_raw_fd()
        }
    }

    /// The file of a socket, which is removed at the end.
    #[derive(Debug)]
    struct SocketFile {
        path: PathBuf,
        /// Device and number, since the path may belong to another socket at the end.
        identity: (u64, u64),
        /// Another process removes it.
        is_left: AtomicBool,
    }

    impl SocketFile {
        fn at(path: PathBuf) -> io::Result<Self> {
            let identity = identity(&path)?;
            Ok(Self { path, identity, is_left: AtomicBool::new(false) })
        }
    }

    impl Drop for SocketFile {
        fn drop(&mut self) {
            let is_left = self.is_left.load(Ordering::Relaxed);
            if !is_left && identity(&self.path).is_ok_and(|now| now == self.identity) {
                let _ = fs::remove_file(&self.path);
            }
        }
    }

    fn identity(path: &Path) -> io::Result<(u64, u64)> {
        let file = fs::symlink_metadata(path)?;
        Ok((file.dev(), file.ino()))
    }

    /// Time that a server waits for others that start in the same folder: each takes well under a
    /// millisecond.
    const LOCK_TIME: Duration = Duration::from_secs(1);

    /// Locks the folder of a file against other servers that start, until the lock is dropped. The
    /// lock is advisory: it is missing if the folder cannot be locked, or a stranger has locked it.
    fn lock_folder(path: &Path) -> Option<File> {
        let folder = File::open(path.parent()?).ok()?;
        let until = Instant::now() + LOCK_TIME;
        loop {
            match folder.try_lock() {
                Ok(()) => return Some(folder),
                Err(TryLockError::WouldBlock) if Instant::now() < until => {
                    thread::sleep(Duration::from_millis(1));
                }
                Err(_) => return None,
            }
        }
    }

    /// Removes the file of a socket that no process listens on.
    fn remove_stale(path: &Path, address: &SockAddr) -> io::Result<()> {
        if !fs::symlink_metadata(path)?.file_type().is_socket() {
            let message = "there is a file that is not a socket; remove it, or take another path";
            return Err(io::Error::new(ErrorKind::AlreadyExists, message));
        }
        let probe = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        // A process whose queue is full answers as well, and is not waited for.
        probe.set_nonblocking(true)?;
        match probe.connect(address) {
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => fs::remove_file(path),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => Err(error),
            _ => {
                let message = "another process listens there; stop it, or take another path";
                Err(io::Error::new(ErrorKind::AddrInUse, message))
            }
        }
    }

    #[cfg(test)]
    mod tests {
        use std::os::unix::net::UnixStream;

        use throng_testkit::TempFolder;

        use super::*;

        #[test]
        fn its_file_has_the_mode_and_is_removed_at_the_end() {
            let folder = TempFolder::new("mode");
            let path = folder.join("socket");
            let socket = UnixSocket::bind(&path, 0o620).unwrap();
            assert_eq!(socket.path().as_deref(), Some(path.as_path()));
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o620);
            let client = UnixStream::connect(&path).unwrap();
            let accepted = socket.accept(&Options::default()).unwrap();
            drop((socket, accepted, client));
            assert!(!path.exists());
        }

        #[test]
        fn a_stale_file_is_replaced_and_that_of_another_process_is_not() {
            let folder = TempFolder::new("stale");
            let path = folder.join("socket");
            drop(UnixListener::bind(&path).unwrap());
            assert!(path.exists(), "std leaves it");
            let socket = UnixSocket::bind(&path, 0o600).unwrap();
            let error = UnixSocket::bind(&path, 0o600).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AddrInUse);
            assert!(UnixStream::connect(&path).is_ok(), "the first one still listens");
            // What another process has put there in the meantime stays.
            fs::remove_file(&path).unwrap();
            let other = UnixListener::bind(&path).unwrap();
            drop(socket);
            assert!(UnixStream::connect(&path).is_ok());
            drop(other);
            fs::remove_file(&path).unwrap();
        }

        #[test]
        fn of_servers_that_start_at_once_one_takes_a_stale_file() {
            let folder = TempFolder::new("race");
            let path = folder.join("socket");
            for _ in 0..20 {
                drop(UnixListener::bind(&path).unwrap());
                let bind = || UnixSocket::bind(&path, 0o600);
                let bound: Vec<_> = thread::scope(|scope| {
                    let threads: Vec<_> = (0..8).map(|_| scope.spawn(bind)).collect();
                    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
                });
                assert_eq!(bound.iter().filter(|bound| bound.is_ok()).count(), 1);
                assert!(UnixStream::connect(&path).is_ok(), "it can be reached");
                for error in bound.iter().filter_map(|bound| bound.as_ref().err()) {
                    assert_eq!(error.kind(), ErrorKind::AddrInUse, "{error}");
                }
            }
            assert!(!path.exists());
        }

        #[test]
        fn a_file_that_was_left_to_a_successor_is_removed_by_that_one() {
            let folder = TempFolder::new("left");
            let path = folder.join("socket");
            let first = UnixSocket::bind(&path, 0o600).unwrap();
            let held = first.try_clone().unwrap();
            let second = UnixSocket::take_over(held.listener.try_clone().unwrap()).unwrap();
            held.leave_file();
            drop((first, held));
            let _client = UnixStream::connect(&path).unwrap();
            assert!(second.accept(&Options::default()).is_ok());
            drop(second);
            assert!(!path.exists());
        }

        #[test]
        fn a_file_that_is_no_socket_is_left_alone() {
            let folder = TempFolder::new("file");
            let path = folder.join("socket");
            fs::write(&path, "text").unwrap();
            let error = UnixSocket::bind(&path, 0o600).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AlreadyExists);
            assert_eq!(fs::read_to_string(&path).unwrap(), "text");
        }
    }
}

#[cfg(not(unix))]
impl Listener {
    /// Makes accepting not block.
    ///
    /// # Errors
    /// The system's error.
    pub fn set_nonblocking(&self) -> std::io::Result<()> {
        let Self::Tcp(listener) = self;
        listener.set_nonblocking(true)
    }

    /// Returns another descriptor of the socket.
    ///
    /// # Errors
    /// The system's error.
    pub fn try_clone(&self) -> std::io::Result<Self> {
        let Self::Tcp(listener) = self;
        listener.try_clone().map(Self::Tcp)
    }
}
