//! The decoder of a connection.

use throng_proto::{http1, ws};

/// The decoder of one connection, depending on its stage.
#[derive(Debug)]
pub(crate) enum Inbound {
    /// Nothing is read: the slot is free, or the connection is being established.
    Nothing,
    /// Refused: its input is dropped, and it is not counted among the connections.
    Refused,
    Http(http1::Decoder),
    /// The PROXY header is not complete; these are its bytes so far.
    ProxyHeader(Vec<u8>),
    /// The PROXY header is complete, and TLS begins when the driver is free. This many bytes at the
    /// start of the held input belong to the header.
    DueTls(usize),
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Part of the budget in docs/design/memory.md: 128 bytes per connection, for all tables
    /// together.
    #[test]
    fn a_decoder_is_small() {
        assert!(size_of::<Inbound>() <= 40, "Inbound is {} bytes", size_of::<Inbound>());
    }
}
