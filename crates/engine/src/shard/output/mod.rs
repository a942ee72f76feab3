//! Output: the only place where the driver sends.

mod flush;
mod publishers;
