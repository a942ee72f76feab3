//! Static files as a client sees them: through the decoder, the router and the encoder, from a real
//! directory.
#![cfg(unix)]

mod conditional;
mod hostile;
mod range;
mod serving;
mod site;
