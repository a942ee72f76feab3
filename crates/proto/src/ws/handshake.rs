//! The opening handshake.
