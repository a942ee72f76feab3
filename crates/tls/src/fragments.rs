//! The number of records that a handshake may come in.

/// Records that the messages of a handshake may come in, beside those that carry 512 bytes each.
/// RFC 8446 section 5.1 lets a message be cut anywhere, and each record costs as much as hundreds
/// of bytes in a longer one. Clients that cut their ClientHello on purpose, to get past a filter,
/// make a few records; an ordinary ClientHello may come in any pieces, and a long one in 2,048.
const FREE_RECORDS: usize = 2048;
const BYTES_OF_A_RECORD: usize = 512;

/// Returns whether a handshake whose messages had `bytes` bytes may have come in so many records.
pub(crate) fn may_have(records: usize, bytes: usize) -> bool {
    records <= FREE_RECORDS + bytes / BYTES_OF_A_RECORD
}
