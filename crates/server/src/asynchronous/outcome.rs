//! Results of futures.

use super::shared::{CloseReason, SessionClosed};

/// The output of a handler's future: nothing, or `Result<(), SessionClosed>`, so that `?` can be
/// used on sends, and on errors that convert to a [`CloseReason`].
#[diagnostic::on_unimplemented(
    message = "the future of a handler cannot end with `{Self}`",
    label = "it ends with `()` or `Result<(), SessionClosed>`",
    note = "an error that converts to `CloseReason` becomes a `SessionClosed` with `?`"
)]
pub trait AsyncOutcome: sealed::Sealed {}

impl AsyncOutcome for () {}
impl AsyncOutcome for Result<(), SessionClosed> {}

#[allow(unnameable_types, reason = "unnameable traits seal public ones")]
pub(super) mod sealed {
    use super::{CloseReason, SessionClosed};

    pub trait Sealed {
        /// Returns how to close the session.
        fn into_close(self) -> Option<CloseReason>;
    }

    impl Sealed for () {
        fn into_close(self) -> Option<CloseReason> {
            None
        }
    }

    impl Sealed for Result<(), SessionClosed> {
        fn into_close(self) -> Option<CloseReason> {
            self.err()?.into_close()
        }
    }
}
