//! Values of the user.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Drops a value of a user, whose drop may panic. Such a panic does not belong to a callback, and
/// ends no connection. Returns true if the value panicked.
pub(crate) fn drop_guarded<T>(what: T) -> bool {
    let dropped = catch_unwind(AssertUnwindSafe(|| drop(what)));
    // The panic hook already reported it. Leak the payload: its `Drop` could panic.
    dropped.map_err(std::mem::forget).is_err()
}
