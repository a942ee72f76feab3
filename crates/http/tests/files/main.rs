//! Static files as a client sees them: through the decoder, the router and the encoder, from a real
//! directory.

mod conditional;
mod hostile;
mod range;
mod serving;
mod site;
#[cfg(windows)]
mod windows;
