//! Errors of the operating system that a later attempt may not meet.

use std::io::{self, ErrorKind};

/// Returns whether another attempt may succeed although no setting and no permission is changed: a
/// program that failed to start because of such an error should be started again.
///
/// A file that is missing may be there soon, in a file system that is mounted late; an address may
/// be free, or this machine's, in a moment; a name may have an address when there is a network. But
/// a file that may not be read, or a folder on a read-only file system, stays so.
#[must_use]
pub fn may_pass(error: &io::Error) -> bool {
    !matches!(
        error.kind(),
        ErrorKind::PermissionDenied
            | ErrorKind::ReadOnlyFilesystem
            | ErrorKind::InvalidInput
            | ErrorKind::InvalidData
            | ErrorKind::InvalidFilename
            | ErrorKind::IsADirectory
            | ErrorKind::NotADirectory
            | ErrorKind::FileTooLarge
            | ErrorKind::Unsupported
    )
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn an_error_that_an_operator_has_to_mend_does_not_pass() {
        for (number, passes) in [
            (libc::ENOENT, true),
            (libc::EADDRINUSE, true),
            (libc::EADDRNOTAVAIL, true),
            (libc::EMFILE, true),
            (libc::ENFILE, true),
            (libc::ENOMEM, true),
            (libc::EAGAIN, true),
            (libc::ENOSPC, true),
            (libc::EDQUOT, true),
            (libc::EIO, true),
            (libc::ESTALE, true),
            (libc::ETIMEDOUT, true),
            (libc::ENETUNREACH, true),
            (libc::ECONNREFUSED, true),
            (libc::EACCES, false),
            (libc::EPERM, false),
            (libc::EROFS, false),
            (libc::EINVAL, false),
            (libc::EISDIR, false),
            (libc::ENOTDIR, false),
            (libc::EFBIG, false),
            (libc::ENAMETOOLONG, false),
            (libc::EOPNOTSUPP, false),
        ] {
            let error = io::Error::from_raw_os_error(number);
            assert_eq!(may_pass(&error), passes, "{error}");
        }
        // A name without an address: the system does not report a specific reason.
        assert!(may_pass(&io::Error::other("failed to lookup address information")));
    }
}
