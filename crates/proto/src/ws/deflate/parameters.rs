//! The parameters of permessage-deflate,
//! [RFC 7692 section 7.1](https://www.rfc-editor.org/rfc/rfc7692#section-7.1), in an offer or an
//! answer.

use std::fmt;

use crate::ws::handshake::extensions::Value;

/// The name of the extension.
pub(super) const NAME: &str = "permessage-deflate";

/// The parameters of one permessage-deflate element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Parameters {
    pub(super) server_no_context_takeover: bool,
    pub(super) client_no_context_takeover: bool,
    pub(super) server_max_window_bits: Option<u8>,
    pub(super) client_max_window_bits: ClientBits,
}

/// The parameter `client_max_window_bits`, whose value an offer may omit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) enum ClientBits {
    /// The parameter is absent.
    #[default]
    Absent,
    /// Present without a value: the server may choose any.
    Any,
    Bits(u8),
}

/// A parameter that is unknown, repeated, or has an invalid value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BadParameter;

impl Parameters {
    /// Adds one parameter.
    pub(super) fn add(&mut self, name: &str, value: Option<Value<'_>>) -> Result<(), BadParameter> {
        match (name, value) {
            ("server_no_context_takeover", None) if !self.server_no_context_takeover => {
                self.server_no_context_takeover = true;
            }
            ("client_no_context_takeover", None) if !self.client_no_context_takeover => {
                self.client_no_context_takeover = true;
            }
            ("server_max_window_bits", Some(value)) if self.server_max_window_bits.is_none() => {
                self.server_max_window_bits = Some(bits(value)?);
            }
            ("client_max_window_bits", value)
                if self.client_max_window_bits == ClientBits::Absent =>
            {
                self.client_max_window_bits = match value {
                    Some(value) => ClientBits::Bits(bits(value)?),
                    None => ClientBits::Any,
                };
            }
            _ => return Err(BadParameter),
        }
        Ok(())
    }
}

/// Parses 8 to 15, without leading zeros (RFC 7692 section 7.1.2).
fn bits(value: Value<'_>) -> Result<u8, BadParameter> {
    let mut bytes = value.bytes();
    let bits = match (bytes.next(), bytes.next(), bytes.next()) {
        (Some(digit @ b'8'..=b'9'), None, None) => digit - b'0',
        (Some(b'1'), Some(digit @ b'0'..=b'5'), None) => 10 + digit - b'0',
        _ => return Err(BadParameter),
    };
    Ok(bits)
}

/// Formats the value of `Sec-WebSocket-Extensions`.
impl fmt::Display for Parameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(NAME)?;
        if self.server_no_context_takeover {
            f.write_str("; server_no_context_takeover")?;
        }
        if self.client_no_context_takeover {
            f.write_str("; client_no_context_takeover")?;
        }
        if let Some(bits) = self.server_max_window_bits {
            write!(f, "; server_max_window_bits={bits}")?;
        }
        match self.client_max_window_bits {
            ClientBits::Absent => Ok(()),
            ClientBits::Any => f.write_str("; client_max_window_bits"),
            ClientBits::Bits(bits) => write!(f, "; client_max_window_bits={bits}"),
        }
    }
}
