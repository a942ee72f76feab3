//! A limit on the number of records of a handshake.

/// Maximum records of a handshake's messages, not counting records that carry 512 bytes each. RFC
/// 8446 section 5.1 allows a message to be cut anywhere, and each record costs as much as hundreds
/// of bytes in a longer one. Clients that cut their ClientHello on purpose, to evade a filter, make
/// only a few records. An ordinary ClientHello may come in pieces of any size, and a long one in
/// 2,048.
const FREE_RECORDS: usize = 2048;
const BYTES_OF_A_RECORD: usize = 512;

/// Returns whether a handshake with messages of `bytes` bytes may come in this many records.
pub(crate) fn may_have(records: usize, bytes: usize) -> bool {
    records <= FREE_RECORDS + bytes / BYTES_OF_A_RECORD
}
