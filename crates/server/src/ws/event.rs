//! Events of a session besides its messages.

use throng_engine::{Close, EndReason, Recovery};

/// An event of a session besides its messages: see
/// [`Handler::on_event`](crate::Handler::on_event) and [`Ws::on_event`](crate::Ws::on_event).
#[derive(Debug)]
#[non_exhaustive]
pub enum SessionEvent<'e> {
    /// The session is open: exactly once, before all other events and messages.
    Open,
    /// The outcome of a [`Socket::subscribe_since`](crate::Socket::subscribe_since) whose
    /// [`Recovery`] was pending, since a cluster's broker had to be asked. Later messages of the
    /// channel continue at its position. If the broker does not answer within ten seconds, the
    /// session is closed with 1013 (try again later) instead.
    Recovered {
        /// The channel's name.
        channel: &'e str,
        /// The outcome.
        recovery: Recovery,
    },
    /// Messages of a channel that has no history may be lost: the broker of the cluster did not
    /// deliver for a moment, and delivers again. A program that must not miss any loads them from
    /// elsewhere, closes the session so that its client does, or gives the channel a history. An
    /// event stream gets the event `lost`, with the channel's name.
    Missed {
        /// The channel's name.
        channel: &'e str,
    },
    /// A [`Hub::unsubscribe`](crate::Hub::unsubscribe), of this server or of another one in its
    /// [cluster](crate::cluster::ClusterHub::unsubscribe), has removed the session from a channel.
    Unsubscribed {
        /// The channel's name.
        channel: &'e str,
    },
    /// The data of a [`Hub::refresh`](crate::Hub::refresh), of this server or of another one in its
    /// [cluster](crate::cluster::ClusterHub::refresh): the session's permissions have changed; look
    /// them up again. The program decides what the data mean.
    Refresh(&'e [u8]),
    /// The backlog has fallen to a quarter of `max_backlog`, after a send returned
    /// [`Sent::Queued`](crate::Sent::Queued) or [`Sent::Dropped`](crate::Sent::Dropped): sending
    /// can continue.
    Drained,
    /// The server [drains](crate::server::Running::shutdown) and has reached this session: the time
    /// for a last message. It is closed afterwards, or when work begun with its messages is done:
    /// jobs of the pool of workers, and futures. Until then, input from its peer is dropped. The
    /// session's own [`Socket::close`](crate::Socket::close) also closes it.
    Shutdown,
    /// The session has ended, for any reason: exactly once, after all other events. Sends return
    /// [`Sent::Closed`](crate::Sent::Closed).
    Closed(Close<'e>),
}

/// Makes the kinds of events. A new event needs its word in the list below.
macro_rules! kinds {
    ($($kind:ident)*) => {
        /// The kind of a [`SessionEvent`]: its place in the table of callbacks.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum EventKind {
            $($kind,)*
        }

        impl EventKind {
            pub(crate) const COUNT: usize = [$(Self::$kind),*].len();
        }

        impl SessionEvent<'_> {
            pub(crate) fn kind(&self) -> EventKind {
                match self {
                    $(Self::$kind { .. } => EventKind::$kind,)*
                }
            }
        }
    };
}

kinds! { Open Recovered Missed Unsubscribed Refresh Drained Shutdown Closed }

/// A session's publications that a cluster has accepted, and which are lost, or may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unpublished {
    /// Messages that no member receives.
    pub refused: u64,
    /// Messages that members may or may not receive: the broker has not answered.
    pub unknown: u64,
}

impl Unpublished {
    /// Returns the text for the client of a session that is closed for it. It must not ask for a
    /// repetition that may double a message.
    pub(crate) const fn text(self) -> &'static str {
        match self.unknown {
            0 => EndReason::Publication.text(),
            _ => "the cluster has not confirmed a message: it may have been delivered, or be lost",
        }
    }
}
