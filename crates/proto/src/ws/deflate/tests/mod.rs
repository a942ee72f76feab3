//! Tests by rule of the RFC, and by known bugs of other implementations.

mod accidents;
mod negotiation;
