//! Opening files below a root, and nowhere else.

use std::fs::{File, Metadata};
use std::io;
use std::path::{Path, PathBuf};

/// A directory below which files are opened.
#[derive(Clone, Debug)]
pub(super) struct Root {
    /// Opened for each file: a root that is a symbolic link may be retargeted while the server
    /// runs.
    pub(super) path: PathBuf,
    /// Whether symbolic links are followed, as long as their targets are below the root.
    pub(super) follows_links: bool,
}

/// The reason why a file cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Failure {
    /// It does not exist, or is outside the root.
    Missing,
    /// This process may not read it.
    Forbidden,
    /// Out of descriptors or memory, or the file is locked by another process: a retry may succeed.
    Busy,
    /// A disk failure, or a bug.
    Broken,
}

/// The target of a path.
#[derive(Debug)]
pub(super) enum Opened {
    File(File, Metadata),
    Directory,
}

impl Root {
    /// Opens a file, or finds a directory. `path` comes from [`Subpath`](super::path::Subpath):
    /// names joined by `/`, no `..`, not empty. Anything else, such as a fifo or a device, is
    /// [`Failure::Missing`], and never blocks.
    pub(super) fn open(&self, path: &str) -> Result<Opened, Failure> {
        #[cfg(unix)]
        return unix::open(self, path).map_err(unix::failure).and_then(look);
        #[cfg(not(unix))]
        return portable::open(self, path).map_err(|error| portable::failure(&error));
    }
}

/// Checks the type of the open file, because its path may refer to another file by now.
#[cfg(unix)]
fn look(file: File) -> Result<Opened, Failure> {
    let metadata = file.metadata().map_err(|_| Failure::Broken)?;
    if metadata.is_file() {
        Ok(Opened::File(file, metadata))
    } else if metadata.is_dir() {
        Ok(Opened::Directory)
    } else {
        Err(Failure::Missing)
    }
}

/// Returns the part of the canonical form of `path` below the canonical form of `root`.
fn canonical_below(root: &Path, path: &str) -> io::Result<PathBuf> {
    let (root, path) = (root.canonicalize()?, root.join(path).canonicalize()?);
    path.strip_prefix(root).map(Path::to_path_buf).map_err(|_| io::ErrorKind::NotFound.into())
}

#[cfg(unix)]
mod unix {
    use super::{Failure, File, Path, Root, canonical_below};
    use rustix::fd::OwnedFd;
    use rustix::fs::{Mode, OFlags, open as open_path, openat};
    use rustix::io::{Errno, Result};

    /// Non-blocking: a fifo without a writer would block the shard forever.
    const FILE: OFlags =
        OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);
    #[cfg(target_os = "linux")]
    const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
    #[cfg(not(target_os = "linux"))]
    const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

    pub(super) fn open(root: &Root, path: &str) -> Result<File> {
        #[cfg(target_os = "linux")]
        match open_beneath(root, path) {
            // No such call (Linux before 5.6), or a seccomp filter that does not know it.
            Err(Errno::NOSYS | Errno::PERM) => {}
            // A link left the root or is absolute. Its target decides, as on other systems.
            Err(Errno::XDEV) if root.follows_links => {}
            result => return result,
        }
        open_by_steps(root, path)
    }

    /// Opens with one call, in which the kernel ensures that no step leaves the root.
    #[cfg(target_os = "linux")]
    pub(super) fn open_beneath(root: &Root, path: &str) -> Result<File> {
        use rustix::fs::{ResolveFlags, openat2};
        let links = if root.follows_links {
            ResolveFlags::NO_MAGICLINKS
        } else {
            ResolveFlags::NO_SYMLINKS
        };
        let directory = open_path(&root.path, DIRECTORY, Mode::empty())?;
        let open = || openat2(&directory, path, FILE, Mode::empty(), ResolveFlags::BENEATH | links);
        // EAGAIN: a rename occurred while a link with `..` was followed; openat2(2) requires a
        // retry.
        let retried = |result| match result {
            Err(Errno::AGAIN | Errno::INTR) => open(),
            result => result,
        };
        Ok(File::from(retried(retried(open()))?))
    }

    /// Opens name by name without following links. Links are resolved before; a link that appears
    /// in between is an error and cannot lead outside.
    pub(super) fn open_by_steps(root: &Root, path: &str) -> Result<File> {
        let resolved;
        let mut path = Path::new(path);
        if root.follows_links {
            let below = canonical_below(&root.path, path.to_str().unwrap_or_default());
            resolved = below.map_err(|error| match Errno::from_io_error(&error) {
                Some(errno) => errno,
                None => Errno::NOENT,
            })?;
            path = &resolved;
        }
        let mut directory: OwnedFd = open_path(&root.path, DIRECTORY, Mode::empty())?;
        let mut names = path.iter().peekable();
        while let Some(name) = names.next() {
            if names.peek().is_none() {
                return Ok(openat(&directory, name, FILE | OFlags::NOFOLLOW, Mode::empty())?.into());
            }
            let flags = DIRECTORY | OFlags::NOFOLLOW;
            directory = openat(&directory, name, flags, Mode::empty())?;
        }
        // A link to the root itself.
        Ok(openat(&directory, ".", FILE, Mode::empty())?.into())
    }

    pub(super) fn failure(errno: Errno) -> Failure {
        match errno {
            // XDEV: out of the root. LOOP: a link where none is followed. NXIO, NODEV: a socket, or
            // a device without a driver.
            Errno::NOENT
            | Errno::NOTDIR
            | Errno::NAMETOOLONG
            | Errno::LOOP
            | Errno::XDEV
            | Errno::NXIO
            | Errno::NODEV
            | Errno::ILSEQ
            | Errno::STALE => Failure::Missing,
            Errno::ACCESS | Errno::PERM => Failure::Forbidden,
            // AGAIN: a lease on the file, or a rename in progress.
            Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::AGAIN | Errno::BUSY => {
                Failure::Busy
            }
            _ => Failure::Broken,
        }
    }
}

/// Opens on systems that cannot open a path relative to a directory. Between the check of the path
/// and its opening, a user who may write below the root could insert a link: such systems need a
/// root that only trusted users write to.
#[cfg(any(not(unix), test))]
mod portable {
    use super::{Failure, File, Opened, Root, canonical_below, io};

    pub(super) fn open(root: &Root, path: &str) -> io::Result<Opened> {
        if !root.follows_links {
            let mut step = root.path.clone();
            for name in path.split('/') {
                step.push(name);
                if step.symlink_metadata()?.is_symlink() {
                    return Err(io::ErrorKind::NotFound.into());
                }
            }
        }
        let path = root.path.canonicalize()?.join(canonical_below(&root.path, path)?);
        // Before it is opened: opening a fifo would block, and opening a directory is an error on
        // Windows.
        let metadata = path.metadata()?;
        if metadata.is_dir() {
            return Ok(Opened::Directory);
        }
        if !metadata.is_file() {
            return Err(io::ErrorKind::NotFound.into());
        }
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        Ok(Opened::File(file, metadata))
    }

    #[cfg_attr(unix, expect(dead_code, reason = "unix errors are mapped by errno"))]
    pub(super) fn failure(error: &io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::NotFound
            | io::ErrorKind::NotADirectory
            | io::ErrorKind::InvalidFilename
            | io::ErrorKind::InvalidInput => Failure::Missing,
            io::ErrorKind::PermissionDenied => Failure::Forbidden,
            io::ErrorKind::OutOfMemory | io::ErrorKind::WouldBlock => Failure::Busy,
            _ => Failure::Broken,
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::fs;
    use std::io::Read as _;
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicBool, Ordering};

    use throng_testkit::TempFolder;

    /// A root with links of every kind, and a secret beside it.
    struct Site(TempFolder);

    impl Site {
        fn new() -> Self {
            let base = TempFolder::new("open");
            let root = base.join("root");
            fs::create_dir_all(root.join("sub/deep")).unwrap();
            fs::create_dir_all(base.join("outside")).unwrap();
            fs::write(base.join("outside/secret"), "secret").unwrap();
            fs::write(root.join("a"), "a").unwrap();
            fs::write(root.join("sub/b"), "b").unwrap();
            for (target, link) in [
                ("../outside/secret", "out"),
                ("../outside", "outdir"),
                ("sub/../../outside/secret", "roundabout"),
                ("a", "in"),
                ("sub", "indir"),
                ("../root/a", "out-and-in"),
                (".", "self"),
                ("loop", "loop"),
                ("nothing", "dangling"),
                ("/proc/self/root/etc/passwd", "magic"),
                ("/", "slash"),
            ] {
                symlink(target, root.join(link)).unwrap();
            }
            symlink("../a", root.join("sub/up")).unwrap();
            symlink("../../outside/secret", root.join("sub/out")).unwrap();
            symlink(root.join("a"), root.join("absolute")).unwrap();
            Self(base)
        }

        fn root(&self, follows_links: bool) -> Root {
            Root { path: self.0.join("root"), follows_links }
        }
    }

    fn content(opened: Result<Opened, Failure>) -> Result<String, Failure> {
        match opened? {
            Opened::File(mut file, metadata) => {
                let mut text = String::new();
                file.read_to_string(&mut text).unwrap();
                assert_eq!(metadata.len(), text.len() as u64);
                Ok(text)
            }
            Opened::Directory => Ok("directory".into()),
        }
    }

    /// Opens a path in every way, and checks that all agree.
    fn open(root: &Root, path: &str) -> Result<String, Failure> {
        let first = content(root.open(path));
        let by_steps = unix::open_by_steps(root, path).map_err(unix::failure).and_then(look);
        assert_eq!(content(by_steps), first, "by steps: {path}");
        let portable = content(portable::open(root, path).map_err(|_| Failure::Missing));
        assert_eq!(portable, first.clone().map_err(|_| Failure::Missing), "portable: {path}");
        first
    }

    #[test]
    fn links_are_followed_only_within_the_root() {
        let site = Site::new();
        let root = site.root(true);
        for (path, expected) in [
            ("a", "a"),
            ("sub/b", "b"),
            ("sub", "directory"),
            ("in", "a"),
            ("indir/b", "b"),
            ("indir/up", "a"),
            ("sub/up", "a"),
            ("self", "directory"),
            ("self/self/a", "a"),
            ("absolute", "a"),
            ("out-and-in", "a"),
        ] {
            assert_eq!(open(&root, path).as_deref(), Ok(expected), "{path}");
        }
        for path in [
            "out",
            "outdir",
            "outdir/secret",
            "roundabout",
            "sub/out",
            "indir/out",
            "self/out",
            "loop",
            "loop/a",
            "dangling",
            "magic",
            "slash",
            "slash/etc/passwd",
            "a/b",
            "none",
            "none/a",
        ] {
            assert_eq!(open(&root, path), Err(Failure::Missing), "{path}");
        }
    }

    #[test]
    fn links_are_not_followed_if_disabled() {
        let site = Site::new();
        let root = site.root(false);
        for (path, expected) in [("a", "a"), ("sub/b", "b"), ("sub/deep", "directory")] {
            assert_eq!(open(&root, path).as_deref(), Ok(expected), "{path}");
        }
        for path in ["in", "indir/b", "indir", "self/a", "absolute", "out", "sub/up", "dangling"] {
            assert_eq!(open(&root, path), Err(Failure::Missing), "{path}");
        }
    }

    #[test]
    fn a_directory_replaced_by_a_link_leads_nowhere() {
        let site = Site::new();
        // Opening by steps resolves the path first. Here `sub` becomes a link between the two
        // steps.
        let root = site.root(false);
        fs::rename(site.0.join("root/sub"), site.0.join("root/old")).unwrap();
        symlink("../outside", site.0.join("root/sub")).unwrap();
        let opened = unix::open_by_steps(&root, "sub/secret").map_err(unix::failure);
        assert_eq!(opened.map(drop), Err(Failure::Missing));
    }

    /// A race that `openat2` makes impossible must be impossible without it too.
    #[test]
    fn no_race_in_stepwise_opening_leaves_the_root() {
        let site = Site::new();
        let root = site.root(true);
        let path = |name: &str| site.0.join("root").join(name);
        fs::create_dir(path("dir")).unwrap();
        fs::write(path("dir/secret"), "public").unwrap();
        let is_over = AtomicBool::new(false);
        let found = std::thread::scope(|scope| {
            scope.spawn(|| {
                let swaps =
                    [("dir", "spare"), ("outdir", "dir"), ("dir", "outdir"), ("spare", "dir")];
                while !is_over.load(Ordering::Relaxed) {
                    swaps.iter().for_each(|(from, to)| fs::rename(path(from), path(to)).unwrap());
                }
            });
            // Repeats until both outcomes of the race have occurred, under any scheduling of the
            // threads.
            let (public, missing) = (Ok("public".to_owned()), Err(Failure::Missing));
            let mut found = HashSet::new();
            for round in 0..1_000_000 {
                let opened = unix::open_by_steps(&root, "dir/secret").map_err(unix::failure);
                found.insert(content(opened.and_then(look)));
                if round > 4000 && found.contains(&public) && found.contains(&missing) {
                    break;
                }
            }
            is_over.store(true, Ordering::Relaxed);
            found
        });
        assert!(!found.contains(&Ok("secret".into())));
        assert_eq!(found.len(), 2, "there was no race, or a failure: {found:?}");
    }

    #[test]
    fn a_root_may_be_a_link_and_be_retargeted() {
        let site = Site::new();
        let root = Root { path: site.0.join("current"), follows_links: true };
        symlink("root", site.0.join("current")).unwrap();
        assert_eq!(open(&root, "a").as_deref(), Ok("a"));
        fs::remove_file(site.0.join("current")).unwrap();
        symlink("outside", site.0.join("current")).unwrap();
        assert_eq!(open(&root, "secret").as_deref(), Ok("secret"));
    }

    #[test]
    fn failures_have_their_kind() {
        use rustix::io::Errno;
        for (errno, expected) in [
            (Errno::MFILE, Failure::Busy),
            (Errno::NFILE, Failure::Busy),
            (Errno::AGAIN, Failure::Busy),
            (Errno::ACCESS, Failure::Forbidden),
            (Errno::NAMETOOLONG, Failure::Missing),
            (Errno::IO, Failure::Broken),
        ] {
            assert_eq!(unix::failure(errno), expected);
        }
    }
}
