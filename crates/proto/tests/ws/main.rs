//! The WebSocket decoder and encoder from outside: rule by rule, accident by accident, and properties.

mod accidents;
mod peer;
mod properties;
mod rfc6455;
