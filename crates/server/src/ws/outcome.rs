//! Results of callbacks.

use throng_engine::{Delivery, Receipt, Sent};

/// The result of a callback, so that a one-line `|ws, (), message| ws.send(message)` needs no
/// `let _`: nothing, or the result of [`Socket::send`](crate::Socket::send),
/// [`Socket::publish`](crate::Socket::publish), [`Socket::subscribe`](crate::Socket::subscribe) or
/// [`Socket::publish_unordered`](crate::Socket::publish_unordered).
#[diagnostic::on_unimplemented(
    message = "a callback cannot return `{Self}`",
    label = "it returns `()`, or what a method of `Socket` returned: `Sent`, `Receipt`, `bool`",
    note = "an error is handled in the callback, with `match` or `let .. else` instead of `?`",
    note = "if the callback is `async`, use `Ws::on_message_async`, with the feature `tokio`"
)]
pub trait Outcome: sealed::Sealed {}

#[allow(unnameable_types, reason = "unnameable traits seal public ones")]
mod sealed {
    pub trait Sealed {}
}

macro_rules! outcomes {
    ($($type:ty),+) => {
        $(
            impl Outcome for $type {}
            impl sealed::Sealed for $type {}
        )+
    };
}

outcomes!((), bool, Sent, Receipt, Delivery);
