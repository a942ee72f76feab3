//! WebSocket clients: the crate `throng-client`, for programs that have `throng`.

pub use throng_client::*;
