//! The state of a connection that is not idle.

use throng_io::{Batch, ConnId, Instant};

use crate::handshake::Resumption;
use crate::hello::HelloReader;
use crate::session::Messages;

/// The state of a connection whose input or output is not complete. An idle connection has no such
/// state, nor does a client whose next handshake message has not begun to arrive.
pub(super) struct Busy {
    pub(super) id: ConnId,
    /// The time at which TCP connected, for a handshake that we began.
    pub(super) connected: Option<Instant>,
    /// On a connection that we started: takes tickets until the first data.
    pub(super) resumption: Option<Resumption>,
    /// Messages after the handshake.
    pub(super) messages: Messages,
    /// Unopened input: the start of a record, or input from before a pause.
    pub(super) input: Vec<u8>,
    /// The progress of reading `input` before the handshake.
    pub(super) hello: HelloReader,
    /// The plaintext of the batch in flight.
    pub(super) batch: Option<Box<Batch>>,
    /// Bytes of `batch` that were sealed and passed to the driver below.
    pub(super) sealed: usize,
    /// Whether the driver below has a send in flight.
    pub(super) in_flight: bool,
    /// Records of the driver itself (not the engine's) that wait for the end of that send.
    pub(super) control: Vec<u8>,
    /// Whether our side of the stream must end after that.
    pub(super) finish: bool,
    /// Whether the connection was closed, and must then be closed in the driver below.
    pub(super) close: bool,
    /// Whether the end of the peer's stream must be reported when reading is resumed.
    pub(super) finished: bool,
}

throng_carry::carried! {
    Busy {
        required { 1 messages, 3 input, 5 sealed, 7 in_flight, 9 control }
        optional { }
        if_any { 11 batch }
        rebuilt {
            // Set when it enters a table.
            id = ConnId::new(0, 0, 0),
            // With any of these it does not move; see `may_move`.
            connected = None,
            resumption = None,
            finish = false,
            close = false,
            finished = false,
            // Of the time before the handshake.
            hello = HelloReader::default(),
        }
        check |it| it.sealed <= it.batch.as_ref().map_or(0, |batch| batch.len())
    }
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

    /// Returns the memory of input that is incomplete or not handled yet.
    pub(super) fn output_memory(&self) -> usize {
        self.batch.as_ref().map_or(0, |batch| batch.memory()) + self.control.capacity()
    }

    pub(super) fn input_memory(&self) -> usize {
        self.input.capacity() + self.messages.memory()
    }

    /// Returns whether no output is pending, and the connection [may move](Self::may_move).
    pub(super) fn is_at_rest(&self) -> bool {
        let has_output = self.batch.is_some() || self.in_flight || !self.control.is_empty();
        !has_output && self.may_move()
    }

    /// Returns whether no ticket and no end of the connection is pending: all else moves.
    pub(super) fn may_move(&self) -> bool {
        let Self {
            id: _,
            connected,
            resumption,
            messages: _,
            input: _,
            // Only before the handshake.
            hello: _,
            batch: _,
            sealed: _,
            in_flight: _,
            control: _,
            finish,
            close,
            finished,
        } = self;
        connected.is_none() && resumption.is_none() && !*finish && !*close && !*finished
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
