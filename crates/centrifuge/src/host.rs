//! The needs of a session: its connection and channels.

use crate::codes::ErrorCode;
use crate::command::{HistoryRequest, StreamPosition};
use crate::reply::{ClientInfo, HistoryResult, Publication, Reply};

/// The connection of a session, and the channels of the server.
pub trait Host {
    /// Sends a reply or push to the client, behind all earlier ones.
    fn reply(&mut self, reply: &Reply);

    /// Sends a ping.
    fn ping(&mut self);

    /// Makes the client a member of a channel, with information about it for others. With a
    /// position, the publications after it are looked up.
    fn join(&mut self, channel: &str, info: &str, since: Option<&StreamPosition>) -> Joined;

    /// Ends a membership.
    fn leave(&mut self, channel: &str);

    /// Publishes a payload. A publication that the client gets itself comes behind all earlier
    /// replies. `id` is the command that [`Attempt::Later`] leaves unanswered.
    fn publish(&mut self, id: u32, channel: &str, data: &[u8], by: &ClientInfo) -> Attempt<()>;

    /// Looks up the clients in a channel, and replies to the command `id` at once or later.
    fn presence(&mut self, id: u32, channel: &str, counting: Counting) -> Attempt<Reply>;

    /// Reads the history of a channel.
    fn history(&mut self, id: u32, request: &HistoryRequest) -> Attempt<HistoryResult>;
}

/// Whether clients are listed or counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counting {
    /// Listed.
    Clients,
    /// Counted.
    Numbers,
}

/// The outcome of something that may take time.
#[derive(Clone, Debug, PartialEq)]
pub enum Attempt<T> {
    /// It is done.
    Done(T),
    /// It has failed.
    Failed(ErrorCode),
    /// The host replies to the command itself when it is done.
    Later,
}

/// The outcome of a join.
#[derive(Clone, Debug, PartialEq)]
pub enum Joined {
    /// The client is a member from this place on.
    At(FoundPlace),
    /// The place is not known yet:
    /// [`ClientSession::handle_place`](crate::ClientSession::handle_place) gets it.
    Later,
    /// The client is not a member.
    Failed(ErrorCode),
}

/// The place at which a client joins a channel.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FoundPlace {
    /// The newest publication; `None`: the channel has no history.
    pub position: Option<StreamPosition>,
    /// Whether `publications` are all since the given position.
    pub recovered: bool,
    /// The publications since that position.
    pub publications: Vec<Publication>,
}
