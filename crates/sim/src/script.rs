//! Scripts of peers: their actions, line by line.

/// One line of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Do {
    /// Writes these bytes unchanged.
    Write(Vec<u8>),
    /// Sends one message in this many fragments, possibly with pings between them.
    Message {
        /// Text; otherwise binary.
        text: bool,
        /// The content of the message.
        payload: Vec<u8>,
        /// 1 or more.
        fragments: usize,
        /// Whether to send a ping between the fragments.
        pinging: bool,
    },
    /// A ping.
    Ping(Vec<u8>),
    /// Pauses for a time in nanoseconds.
    Pause(u64),
    /// Waits until the upgrade is answered.
    UntilOpen,
    /// Waits until so many messages were received.
    UntilReceived(usize),
    /// Waits until so many HTTP answers came.
    UntilAnswered(usize),
    /// Changes the reading speed from now on.
    Read(Pace),
    /// A Close frame; then waits for the server's.
    Close(u16),
    /// Ends its stream and keeps reading.
    Finish,
    /// Resets the connection.
    Reset,
    /// Disappears: it no longer reads, writes or resets.
    Vanish,
}

impl Do {
    /// Returns a short description for the log.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Write(bytes) => format!("writes {} bytes", bytes.len()),
            Self::Message { payload, fragments, .. } => {
                let start = String::from_utf8_lossy(&payload[..payload.len().min(20)]).into_owned();
                format!("says {} bytes in {fragments} fragments: {start:?}", payload.len())
            }
            other => format!("{other:?}"),
        }
    }
}

/// Reading speed of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Everything, at once.
    Prompt,
    /// This many bytes, then a pause of this many nanoseconds.
    Slow(usize, u64),
    /// Not at all.
    Never,
}
