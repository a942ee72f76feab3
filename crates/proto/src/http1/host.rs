//! Hosts with an optional port, in targets and in the Host field.

use super::block;

/// Returns whether `value` is a host with an optional port: `uri-host [ ":" port ]`, RFC 9110
/// section 7.2. An empty value is valid, for a target without a host.
pub(crate) fn is_host(value: &[u8]) -> bool {
    is_host_at(value, value)
}

/// Returns whether `value`, at the beginning of `bytes`, is a host with an optional port. The bytes
/// after a short value fill a block.
#[inline]
pub(crate) fn is_host_at(bytes: &[u8], value: &[u8]) -> bool {
    let port = if let [b'[', rest @ ..] = value {
        let Some(end) = rest.iter().position(|byte| *byte == b']') else { return false };
        let address = &rest[..end];
        // IPv6, and IPvFuture, which is not used in practice; a URI must not contain a zone.
        let is_address = |byte: &u8| byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.');
        if address.len() < 2 || !address.iter().all(is_address) {
            return false;
        }
        &rest[end + 1..]
    } else {
        let mut end = block::common_token_length(bytes).min(value.len());
        while end < value.len() && is_reg_name_byte(value[end]) {
            end += 1;
        }
        &value[end..]
    };
    match port {
        [] => true,
        [b':', digits @ ..] => digits.len() <= 5 && digits.iter().all(u8::is_ascii_digit),
        _ => false,
    }
}

/// Returns whether a byte may appear in a registered name (RFC 3986 section 3.2.2): unreserved,
/// sub-delims, and the `%` of an encoding.
#[inline]
const fn is_reg_name_byte(byte: u8) -> bool {
    REG_NAME[byte as usize]
}

static REG_NAME: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        let b = byte as u8;
        table[byte] = b.is_ascii_alphanumeric()
            || matches!(
                b,
                b'-' | b'.'
                    | b'_'
                    | b'~'
                    | b'!'
                    | b'$'
                    | b'&'
                    | b'\''
                    | b'('
                    | b')'
                    | b'*'
                    | b'+'
                    | b','
                    | b';'
                    | b'='
                    | b'%'
            );
        byte += 1;
    }
    table
};
