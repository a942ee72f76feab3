//! The WebSocket decoder and encoder from outside: by rule, by known bug, and as properties.

mod accidents;
mod peer;
mod properties;
mod rfc6455;
