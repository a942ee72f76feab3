//! Files of settings: configurations, certificates, keys, lists, secrets; and the file of the log.
//!
//! Every such file is read here, so that none can stop a process. A named pipe or a device is
//! refused before it is opened. Opening does not block, so a file that is replaced in between does
//! not block either. A size limit bounds the read. A pipe is refused although it could be read:
//! servers read their files again when they change, and a pipe gives its content once.

use std::fmt;
use std::fs::{File, FileType, Metadata};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::passing::may_pass;

/// The largest file of settings, in bytes. Lists of authorities and of revoked certificates are
/// the largest that are in use, at some hundred kilobytes.
pub const MAX_LEN: u64 = 4 << 20;

/// The reason why a file cannot be read, with the remedy. The text does not name the file.
#[derive(Debug)]
pub struct FileError {
    /// The obstacle.
    pub fault: Fault,
    /// The folder that cannot be entered, if that is the reason.
    folder: Option<PathBuf>,
}

/// The obstacle to reading a file.
#[derive(Debug)]
#[non_exhaustive]
pub enum Fault {
    /// There is no file at the path.
    Missing,
    /// The process may not read it, or enter a folder above it: there may be a file or not.
    Forbidden,
    /// The file is a folder, a pipe or a device. Contains this word with its article.
    NotRegular(&'static str),
    /// It has more bytes than this.
    TooLarge(u64),
    /// It is not UTF-8 text.
    NotText,
    /// The system's error.
    Other(io::Error),
}

impl FileError {
    fn new(fault: Fault) -> Self {
        Self { fault, folder: None }
    }

    fn of(path: &Path, error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Self::new(Fault::Missing),
            io::ErrorKind::PermissionDenied => {
                Self { fault: Fault::Forbidden, folder: closed_folder(path) }
            }
            _ => Self::new(Fault::Other(error)),
        }
    }

    /// Returns whether another attempt may succeed although no setting and no permission is
    /// changed, as [`may_pass`] does: a file that is missing may be there soon.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        match &self.fault {
            Fault::Missing => true,
            Fault::Other(error) => may_pass(error),
            _ => false,
        }
    }

    /// Returns whether there is no file at the path. A file that is out of reach is not missing.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        matches!(self.fault, Fault::Missing)
    }
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.fault, &self.folder) {
            (Fault::Missing, _) => f.write_str("cannot be read: no such file; check the path"),
            (Fault::Forbidden, Some(folder)) => write!(
                f,
                "cannot be read: permission denied; let the user of this process enter the folder \
                 {}",
                folder.display()
            ),
            (Fault::Forbidden, None) => f.write_str(
                "cannot be read: permission denied; let the user of this process read it",
            ),
            (Fault::NotRegular(what @ "a folder"), _) => {
                write!(f, "cannot be read: it is {what}; name a file in it")
            }
            (Fault::NotRegular(what), _) => write!(
                f,
                "cannot be read: it is {what}, and not a regular file, which can be read again \
                 when it changes; write the content to a file, and name that"
            ),
            (Fault::TooLarge(most), _) => {
                write!(f, "cannot be read: it is larger than {}; check the path", size(*most))
            }
            (Fault::NotText, _) => {
                f.write_str("cannot be read: it is not UTF-8 text; save it as UTF-8")
            }
            (Fault::Other(error), _) => write!(f, "cannot be read: {error}"),
        }
    }
}

impl std::error::Error for FileError {}

/// Returns a size as it is written in settings.
fn size(bytes: u64) -> String {
    match bytes {
        _ if bytes.is_multiple_of(1 << 30) => format!("{} GiB", bytes >> 30),
        _ if bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        _ if bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        _ => format!("{bytes} bytes"),
    }
}

/// Returns the first folder above `path` that cannot be entered.
fn closed_folder(path: &Path) -> Option<PathBuf> {
    let mut above: Vec<&Path> = path.ancestors().skip(1).collect();
    above.reverse();
    // A folder can be entered if the system reports the entry below it.
    let below = above.iter().skip(1).chain([&path]);
    let closed = above.iter().zip(below).find(|(_, below)| {
        let seen = std::fs::symlink_metadata(below);
        seen.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
    });
    closed.map(|(folder, _)| folder.to_path_buf())
}

/// Reads a whole file of at most [`MAX_LEN`] bytes.
///
/// # Errors
/// It is missing or out of reach, is not a regular file, or is too large.
pub fn read(path: &Path) -> Result<Vec<u8>, FileError> {
    read_with_metadata(path).map(|(content, _)| content)
}

/// [Reads](read) a file, and returns its content with the system's metadata of that same file.
///
/// # Errors
/// As for [`read`].
pub fn read_with_metadata(path: &Path) -> Result<(Vec<u8>, Metadata), FileError> {
    let (file, metadata) = open(path)?;
    let content = read_to_end(path, file, metadata.len(), MAX_LEN)?;
    Ok((content, metadata))
}

/// [Reads](read) a file of UTF-8 text, without the byte-order mark that some editors write first.
///
/// # Errors
/// As for [`read`], or it is not UTF-8.
pub fn read_text(path: &Path) -> Result<String, FileError> {
    text(read(path)?)
}

/// Reads a file of at most `most` bytes as [`read_text`] does, or a pipe or device to its end,
/// which waits for the writer. For programs that read their files once and have no clients, so that
/// `--tokens <(command)` works.
///
/// # Errors
/// As for [`read_text`]. A pipe is not refused.
pub fn read_text_once(path: &Path, most: u64) -> Result<String, FileError> {
    text(read_once(path, most)?)
}

/// Reads bytes as [`read_text_once`] reads text.
///
/// # Errors
/// As for [`read_text_once`], except for text.
pub fn read_once(path: &Path, most: u64) -> Result<Vec<u8>, FileError> {
    let failed = |error| FileError::of(path, error);
    let metadata = std::fs::metadata(path).map_err(failed)?;
    if metadata.is_dir() {
        return Err(FileError::new(Fault::NotRegular("a folder")));
    }
    read_to_end(path, File::open(path).map_err(failed)?, metadata.len(), most)
}

fn text(content: Vec<u8>) -> Result<String, FileError> {
    let text = String::from_utf8(content).map_err(|_| FileError::new(Fault::NotText))?;
    Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))
}

/// Returns whether there is a file at the path, of any kind.
///
/// # Errors
/// This cannot be determined: a folder above it cannot be entered.
pub fn exists(path: &Path) -> Result<bool, FileError> {
    match std::fs::metadata(path).map_err(|error| FileError::of(path, error)) {
        Ok(_) => Ok(true),
        Err(error) if error.is_missing() => Ok(false),
        Err(error) => Err(error),
    }
}

/// Opens a file to append to, and creates it if it is missing. A pipe must have a reader: opening
/// never waits for one. Later writes wait for the reader of a pipe. Of devices, a terminal and
/// `/dev/null` are accepted.
///
/// # Errors
/// It cannot be opened or created, is a pipe that no program reads, another device, or a file of
/// the kernel.
pub fn append(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.append(true).create(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
        let file = options.open(path).map_err(|error| match error.raw_os_error() {
            Some(libc::ENXIO) => io::Error::new(
                io::ErrorKind::NotConnected,
                "it is a pipe or a socket that no program reads; start the reader first, or name a \
                 regular file",
            ),
            _ => error,
        })?;
        check_takes_lines(&file)?;
        let flags = rustix::fs::fcntl_getfl(&file)?;
        rustix::fs::fcntl_setfl(&file, flags - rustix::fs::OFlags::NONBLOCK)?;
        Ok(file)
    }
    #[cfg(not(unix))]
    options.open(path)
}

/// Checks that lines may be written to a file. A device would take them for something else, or
/// drop them, and files of the kernel such as `/proc/self/mem` cannot be appended to.
#[cfg(unix)]
fn check_takes_lines(file: &File) -> io::Result<()> {
    use std::io::IsTerminal;
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    let wrong = |what: &str| {
        let remedy = "name a regular file, a terminal, /dev/null, /dev/stdout or /dev/stderr";
        Err(io::Error::new(io::ErrorKind::InvalidInput, format!("it is {what}; {remedy}")))
    };
    let metadata = file.metadata()?;
    let kind = metadata.file_type();
    if kind.is_block_device() || kind.is_char_device() {
        let is_null =
            || std::fs::metadata("/dev/null").is_ok_and(|null| null.rdev() == metadata.rdev());
        let is_accepted = kind.is_char_device() && (is_null() || file.is_terminal());
        return if is_accepted { Ok(()) } else { wrong("a device") };
    }
    #[cfg(target_os = "linux")]
    {
        // The second number stands for /sys, which has no name in rustix.
        let system = rustix::fs::fstatfs(file)?.f_type;
        if system == rustix::fs::PROC_SUPER_MAGIC || system == 0x6265_6572 {
            return wrong("a file of the kernel");
        }
    }
    Ok(())
}

/// Opens a regular file to be read.
fn open(path: &Path) -> Result<(File, Metadata), FileError> {
    let failed = |error| FileError::of(path, error);
    // Before it is opened: opening alone would wake the writer of a pipe, or start a device.
    regular(&std::fs::metadata(path).map_err(failed)?)?;
    let mut options = File::options();
    options.read(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(
        &mut options,
        libc::O_NONBLOCK | libc::O_NOCTTY,
    );
    let file = options.open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    regular(&metadata)?;
    Ok((file, metadata))
}

fn regular(metadata: &Metadata) -> Result<(), FileError> {
    match metadata.is_file() {
        true => Ok(()),
        false => Err(FileError::new(Fault::NotRegular(kind(metadata.file_type())))),
    }
}

fn kind(kind: FileType) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        if kind.is_fifo() {
            return "a pipe";
        } else if kind.is_socket() {
            return "a socket";
        }
    }
    if kind.is_dir() { "a folder" } else { "a device" }
}

fn read_to_end(path: &Path, file: File, len: u64, most: u64) -> Result<Vec<u8>, FileError> {
    if len > most {
        return Err(FileError::new(Fault::TooLarge(most)));
    }
    // All at once: a vector that grows leaves its earlier memory as it is, which may have a key.
    let mut content = Vec::with_capacity(usize::try_from(len).unwrap_or_default() + 1);
    let read = file.take(most + 1).read_to_end(&mut content);
    read.map_err(|error| FileError::of(path, error))?;
    match content.len() as u64 > most {
        true => Err(FileError::new(Fault::TooLarge(most))),
        false => Ok(content),
    }
}

#[cfg(all(test, unix))]
mod tests {
    use throng_testkit::TempFolder;

    use super::*;

    fn fifo(path: &Path) {
        let made = std::process::Command::new("mkfifo").arg(path).status().unwrap();
        assert!(made.success());
    }

    #[test]
    fn each_fault_has_its_words() {
        let folder = TempFolder::new("file-faults");
        let (pipe, large) = (folder.join("pipe"), folder.join("large"));
        fifo(&pipe);
        File::create(&large).unwrap().set_len(MAX_LEN + 1).unwrap();
        let socket = folder.join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for (path, words) in [
            (&folder.join("none"), "no such file; check the path"),
            (&large.join("below"), "no such file; check the path"),
            // Without anyone at its other end, it would block.
            (&pipe, "it is a pipe, and not a regular file"),
            (&PathBuf::from("/dev/zero"), "it is a device, and not a regular file"),
            (&socket, "it is a socket, and not a regular file"),
            (&folder.to_path_buf(), "it is a folder; name a file in it"),
            (&large, "larger than 4 MiB"),
        ] {
            let error = read(path).unwrap_err().to_string();
            assert!(error.contains(words), "{}: {error}", path.display());
        }
        std::fs::write(&large, b"\xef\xbb\xbftext\n").unwrap();
        assert_eq!(read_text(&large).unwrap(), "text\n", "without a byte-order mark");
        std::fs::write(&large, b"\xff").unwrap();
        assert!(read_text(&large).unwrap_err().to_string().contains("not UTF-8"));
    }

    #[test]
    fn a_pipe_is_read_where_a_file_is_read_once() {
        let folder = TempFolder::new("file-pipe");
        let pipe = folder.join("pipe");
        fifo(&pipe);
        let writer = {
            let pipe = pipe.clone();
            std::thread::spawn(move || std::fs::write(pipe, "two\nlines\n").unwrap())
        };
        assert_eq!(read_text_once(&pipe, MAX_LEN).unwrap(), "two\nlines\n");
        writer.join().unwrap();
        let error = read_once(Path::new("/dev/zero"), 1024).unwrap_err();
        assert!(matches!(error.fault, Fault::TooLarge(1024)), "{error}");
    }

    #[test]
    fn a_file_to_append_to_is_created_and_a_pipe_needs_a_reader() {
        let folder = TempFolder::new("file-append");
        let (file, pipe) = (folder.join("file"), folder.join("pipe"));
        for line in ["one\n", "two\n"] {
            io::Write::write_all(&mut append(&file).unwrap(), line.as_bytes()).unwrap();
        }
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "one\ntwo\n");
        fifo(&pipe);
        // Without O_NONBLOCK, this waits for a reader.
        let error = append(&pipe).unwrap_err().to_string();
        assert!(error.contains("a pipe or a socket that no program reads"), "{error}");
        let _reader = File::options().read(true).write(true).open(&pipe).unwrap();
        let appending = append(&pipe).unwrap();
        let flags = rustix::fs::fcntl_getfl(&appending).unwrap();
        assert!(!flags.contains(rustix::fs::OFlags::NONBLOCK), "writes wait for the reader");
    }

    #[test]
    fn of_devices_only_a_terminal_and_null_are_appended_to() {
        append(Path::new("/dev/null")).unwrap();
        let error = append(Path::new("/dev/zero")).unwrap_err();
        assert!(error.to_string().contains("it is a device") && !may_pass(&error), "{error}");
        #[cfg(target_os = "linux")]
        {
            let error = append(Path::new("/proc/self/mem")).unwrap_err().to_string();
            assert!(error.contains("a file of the kernel"), "{error}");
        }
    }

    #[test]
    fn a_file_out_of_reach_is_not_missing() {
        use std::os::unix::fs::PermissionsExt;
        let folder = TempFolder::new("file-reach");
        let closed = folder.join("closed");
        std::fs::create_dir(&closed).unwrap();
        let file = closed.join("key");
        std::fs::write(&file, "key").unwrap();
        let mode = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        mode(&file, 0);
        if read(&file).is_ok() {
            return eprintln!("skipped: this user may read every file");
        }
        assert!(read(&file).unwrap_err().to_string().contains("process read it"));
        assert!(exists(&file).unwrap());
        mode(&closed, 0);
        for path in [&file, &closed.join("none")] {
            let error = read(path).unwrap_err();
            assert!(!error.is_missing());
            let entered = format!("enter the folder {}", closed.display());
            assert!(error.to_string().contains(&entered), "{error}");
            assert!(exists(path).is_err());
        }
        mode(&closed, 0o700);
        assert!(!exists(&closed.join("none")).unwrap());
    }
}
