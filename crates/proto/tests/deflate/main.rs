//! permessage-deflate from outside: the codec against plain streams, and the decoder's part of it.
#![allow(missing_docs)]

mod accidents;
mod codec;
mod frames;
mod memory;
mod peer;
mod puff;
mod rfc7692;
