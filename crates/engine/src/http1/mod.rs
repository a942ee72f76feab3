//! HTTP/1 on a connection: requests, their bodies, and the upgrade to a session.

pub(crate) mod body;
pub(crate) mod serve;
