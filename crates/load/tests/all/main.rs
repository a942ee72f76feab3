//! The load generator over real sockets.

mod find_max;
mod golden;
mod http;
mod http_server;
mod identity;
mod payload;
mod runs;
mod script;
mod server;
