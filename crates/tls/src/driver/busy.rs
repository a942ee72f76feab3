//! The state of a connection that is not idle.

use throng_io::{Batch, ConnId, Instant};

use crate::handshake::Resumption;
use crate::hello::HelloReader;
use crate::session::Messages;

/// The state of a connection whose input or output is not complete. An idle one has none, and
/// neither has a client whose next message of the handshake has not begun to come.
pub(super) struct Busy {
    pub(super) id: ConnId,
    /// When the TCP connection of a handshake that we began was established.
    pub(super) connected: Option<Instant>,
    /// Takes tickets until the first data comes, on a connection that we started.
    pub(super) resumption: Option<Resumption>,
    /// Messages after the handshake.
    pub(super) messages: Messages,
    /// Input that is not opened: the start of a record, or what came before a pause.
    pub(super) input: Vec<u8>,
    /// The progress of reading `input` before the handshake.
    pub(super) hello: HelloReader,
    /// The batch in flight, in plaintext.
    pub(super) batch: Option<Box<Batch>>,
    /// Bytes of `batch` that were sealed and given to the driver below.
    pub(super) sealed: usize,
    /// Whether the driver below has a send in flight.
    pub(super) in_flight: bool,
    /// Records of our own that wait for its end.
    pub(super) control: Vec<u8>,
    /// Whether our side of the stream is to end after that.
    pub(super) finish: bool,
    /// Whether the connection was closed, and is to be closed below after that.
    pub(super) close: bool,
    /// Whether the end of the peer's stream is to be reported when reading is resumed.
    pub(super) finished: bool,
}

impl Busy {
    pub(super) fn new(id: ConnId) -> Self {
        Self {
            id,
            connected: None,
            resumption: None,
            messages: Messages::default(),
            input: Vec::new(),
            hello: HelloReader::default(),
            batch: None,
            sealed: 0,
            in_flight: false,
            control: Vec::new(),
            finish: false,
            close: false,
            finished: false,
        }
    }

    /// Returns the memory of input that is not complete, or not handled yet.
    pub(super) fn output_memory(&self) -> usize {
        self.batch.as_ref().map_or(0, |batch| batch.memory()) + self.control.capacity()
    }

    pub(super) fn input_memory(&self) -> usize {
        self.input.capacity() + self.messages.memory()
    }

    /// Returns whether nothing waits for the connection's output, its tickets or its end.
    pub(super) fn is_at_rest(&self) -> bool {
        let has_output = self.batch.is_some() || self.in_flight || !self.control.is_empty();
        self.resumption.is_none() && !has_output && !self.finish && !self.finished
    }

    pub(super) fn is_idle(&self) -> bool {
        let Self {
            id: _,
            connected,
            resumption,
            messages,
            input,
            hello: _,
            batch,
            sealed: _,
            in_flight,
            control,
            finish,
            close,
            finished,
        } = self;
        if connected.is_some() || resumption.is_some() || !messages.is_empty() {
            return false;
        }
        let has_output = batch.is_some() || *in_flight || !control.is_empty();
        input.is_empty() && !has_output && !*finish && !*close && !*finished
    }
}
