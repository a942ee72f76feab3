//! The decoder of a connection, and input that it has not decoded yet.

use throng_proto::{http1, ws};

/// The decoder of one connection, depending on its stage.
#[derive(Debug)]
pub(crate) enum Inbound {
    /// Nothing is read: the slot is free, or the connection is being established.
    Nothing,
    /// Refused: its input is dropped, and it is not counted among the connections.
    Refused,
    Http(http1::Decoder),
    /// The answer is a stream of events: input is dropped.
    Events,
    /// Client: the answer to the upgrade request. Boxed, so that servers do not pay for its size.
    Response(Box<http1::ResponseDecoder>),
    Ws(ws::Decoder),
}

impl Inbound {
    pub(crate) fn http() -> Self {
        Self::Http(http1::Decoder::new())
    }

    pub(crate) fn response() -> Self {
        Self::Response(Box::new(http1::ResponseDecoder::new()))
    }
}

/// Input of a connection that was not decoded yet.
#[derive(Debug, Default)]
pub(crate) struct Held {
    bytes: Vec<u8>,
    /// Bytes at the beginning that are decoded.
    taken: usize,
}

impl Held {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        Self { bytes: bytes.to_vec(), taken: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.taken
    }

    /// Returns the memory that it takes.
    pub(crate) fn memory(&self) -> usize {
        self.bytes.capacity()
    }

    pub(crate) fn rest_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.taken..]
    }

    /// Keeps the last `rest` bytes. Moved only when they are half of the memory at most, so that
    /// input that is decoded little by little is not copied each time.
    pub(crate) fn shortened(mut self, rest: usize) -> Self {
        self.taken = self.bytes.len() - rest;
        match rest <= self.bytes.len() / 2 {
            true => Self::new(&self.bytes[self.taken..]),
            false => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The budget of ARCHITECTURE.md: 128 bytes a connection, all tables of the process together.
    #[test]
    fn a_decoder_is_small() {
        assert!(size_of::<Inbound>() <= 40, "Inbound is {} bytes", size_of::<Inbound>());
    }
}
