//! Identifiers of connections.

use std::fmt;

use throng_io::ConnId;

/// The identifier of a connection: 64 bits, `Copy`, `Send`.
///
/// A handle kept after its connection has ended refers to no connection: identifiers are never
/// reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle(ConnId);

impl Handle {
    pub(crate) fn of(id: ConnId) -> Self {
        Self(id)
    }

    pub(crate) fn id(self) -> ConnId {
        self.0
    }

    /// Returns the handle as 64 bits, to store.
    #[must_use]
    pub fn to_bits(self) -> u64 {
        self.0.to_bits()
    }

    /// Creates a handle from the bits that [`Handle::to_bits`] returned.
    #[must_use]
    pub fn from_bits(bits: u64) -> Self {
        Self(ConnId::from_bits(bits))
    }
}

/// Formats the handle for logs: 16 hexadecimal digits, the same as [`Handle::to_bits`].
impl fmt::Display for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.to_bits())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_shown_as_its_bits() {
        assert_eq!(Handle::from_bits(0xabc).to_string(), "0000000000000abc");
        assert_eq!(Handle::from_bits(0xabc).to_bits(), 0xabc);
    }
}
