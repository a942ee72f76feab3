//! The number of records that a handshake may come in.

/// Records that the messages of a handshake may come in, beside those that carry 512 bytes each.
/// RFC 8446 section 5.1 lets a message be cut anywhere, and each record costs as much as hundreds
/// of bytes in a longer one. Clients that cut their ClientHello on purpose, to get past a filter,
/// make two or three; OpenSSL and BoringSSL take 32 empty records in a row.
const FREE_RECORDS: usize = 32;
const BYTES_OF_A_RECORD: usize = 512;

/// Returns whether a handshake whose messages had `bytes` bytes may have come in so many records.
pub(crate) fn may_have(records: usize, bytes: usize) -> bool {
    records <= FREE_RECORDS + bytes / BYTES_OF_A_RECORD
}
