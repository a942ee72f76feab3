//! HTTP/1 on a connection: the bodies of requests.

pub(crate) mod body;
