//! Every state of a message on a connection, and every transition, in one table.
//!
//! Both decoders use it. A request never reaches `UntilClose`, since its end must be known.

use super::{BodyLength, Error};

/// The kind of the next bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Http1State {
    /// A head, or the rest of one.
    Head,
    /// Content counted by Content-Length.
    Length,
    /// Content in chunks, then a trailer section.
    Chunked,
    /// Content that ends with the connection.
    UntilClose,
    /// None: the message is complete and its end is still to be reported.
    Complete,
    /// None for HTTP: another protocol follows (101), whose bytes are left in the input.
    Foreign,
    /// None: this was the last message. Further input is discarded.
    Closed,
    /// None: a rule was violated.
    Failed(Error),
}

/// An input of the state machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DecodeStep {
    /// A head was decoded; its content has this framing.
    Head(BodyLength),
    /// An interim (1xx) head was decoded: the final one follows.
    Interim,
    /// The last byte of the content was taken, or the connection ended where that is the end.
    ContentDone,
    /// The end was reported; the connection continues with the next message.
    EndKeepAlive,
    /// The end was reported; this was the last message.
    EndClose,
    /// The end was reported; the connection now speaks another protocol.
    EndSwitch,
    /// A rule was violated.
    Fail(Error),
}

impl Http1State {
    /// The transition table.
    pub(crate) const fn after(self, step: DecodeStep) -> Self {
        match (self, step) {
            (Self::Failed(first), _) => Self::Failed(first),
            (_, DecodeStep::Fail(error)) => Self::Failed(error),

            (Self::Head, DecodeStep::Interim) => Self::Head,
            (Self::Head, DecodeStep::Head(BodyLength::Known(0))) => Self::Complete,
            (Self::Head, DecodeStep::Head(BodyLength::Known(_))) => Self::Length,
            (Self::Head, DecodeStep::Head(BodyLength::Chunked)) => Self::Chunked,
            (Self::Head, DecodeStep::Head(BodyLength::UntilClose)) => Self::UntilClose,

            (Self::Length | Self::Chunked | Self::UntilClose, DecodeStep::ContentDone) => {
                Self::Complete
            }

            (Self::Complete, DecodeStep::EndKeepAlive) => Self::Head,
            (Self::Complete, DecodeStep::EndClose) => Self::Closed,
            (Self::Complete, DecodeStep::EndSwitch) => Self::Foreign,

            // No other pair occurs; keeping the state cannot lose the framing of a message.
            (state, _) => state,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_final() {
        let failed = Http1State::Head.after(DecodeStep::Fail(Error::BadHost));
        for step in [
            DecodeStep::Head(BodyLength::Chunked),
            DecodeStep::Interim,
            DecodeStep::ContentDone,
            DecodeStep::EndKeepAlive,
            DecodeStep::EndClose,
            DecodeStep::EndSwitch,
            DecodeStep::Fail(Error::BadTarget),
        ] {
            assert_eq!(failed.after(step), Http1State::Failed(Error::BadHost));
        }
    }

    #[test]
    fn only_a_complete_message_allows_the_next_head() {
        for state in [
            Http1State::Length,
            Http1State::Chunked,
            Http1State::UntilClose,
            Http1State::Foreign,
            Http1State::Closed,
        ] {
            assert_eq!(state.after(DecodeStep::EndKeepAlive), state);
        }
        assert_eq!(Http1State::Complete.after(DecodeStep::EndKeepAlive), Http1State::Head);
    }
}
