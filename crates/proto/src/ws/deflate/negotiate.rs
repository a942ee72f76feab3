//! Negotiation of compression,
//! [RFC 7692 section 7.1](https://www.rfc-editor.org/rfc/rfc7692#section-7.1), for both roles.

use std::{error, fmt};

use super::parameters::{BadParameter, ClientBits, NAME, Parameters};
use super::settings::Policy;
use crate::ws::handshake::Headers;
use crate::ws::handshake::extensions::{self, Malformed, Part};

const HEADER: &str = "Sec-WebSocket-Extensions";

/// The negotiated parameters of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// Maximum distance in our compressed output, as a power of 2: 9 to 15.
    pub our_window_bits: u8,
    /// Maximum distance in the peer's compressed output, as a power of 2: 8 to 15.
    pub peer_window_bits: u8,
    /// Size of the context of our messages, as a power of 2: they may refer to that many bytes of
    /// earlier compressed messages, 9 to 15. `None`: no context. For the
    /// [`History`](super::History) of sent messages.
    pub our_history_bits: Option<u8>,
    /// Size of the context of the peer's messages, as a power of 2: they may refer to that many
    /// bytes of its earlier compressed messages, 9 to 15. `None`: no context. For the
    /// [`History`](super::History) of received messages.
    pub peer_history_bits: Option<u8>,
}

/// A server's acceptance of an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The parameters that apply from the first message on.
    pub agreed: Agreed,
    /// The parameters of the response, for
    /// [`encode_response_with`](crate::ws::handshake::encode_response_with).
    pub answer: Parameters,
}

/// A client's `Sec-WebSocket-Extensions` violates the grammar of
/// [RFC 6455 section 9.1](https://www.rfc-editor.org/rfc/rfc6455#section-9.1), which requires
/// failing the handshake: status 400.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MalformedOffer;

impl fmt::Display for MalformedOffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sec-WebSocket-Extensions is not a list of extensions")
    }
}

impl error::Error for MalformedOffer {}

/// The reason why a server's answer is unacceptable; the client must fail the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BadAnswer {
    /// It violates the grammar of
    /// [RFC 6455 section 9.1](https://www.rfc-editor.org/rfc/rfc6455#section-9.1).
    Malformed,
    /// An extension that was not offered, or permessage-deflate twice.
    Extension,
    /// A parameter that is unknown, repeated, has an invalid value, or was not offered although it
    /// had to be.
    Parameter,
    /// It omits or exceeds what our offer required of the server.
    Ignored,
    /// It requires us to compress with a window of 8 bits, which our compressor does not support.
    Window,
}

impl fmt::Display for BadAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Malformed => {
                "the response's Sec-WebSocket-Extensions is not a list of extensions"
            }
            Self::Extension => "the server uses an extension that was not asked for",
            Self::Parameter => "the server answered permessage-deflate with a bad parameter",
            Self::Ignored => {
                "the server does not do what our offer of permessage-deflate asked for"
            }
            Self::Window => "the server asks for a compression window of 8 bits; we need 9 or more",
        })
    }
}

impl error::Error for BadAnswer {}

impl Policy {
    /// Chooses among a client's offers, for a server: the first acceptable one, in the client's
    /// order of preference. `None` if there is none; the handshake then continues without
    /// compression.
    ///
    /// Other extensions are ignored. So is an offer with a parameter that is unknown, repeated or
    /// has an invalid value
    /// ([RFC 7692 section 7.1](https://www.rfc-editor.org/rfc/rfc7692#section-7.1)), or that
    /// requires us to compress with a window of 8 bits.
    ///
    /// # Errors
    /// The client's header is malformed.
    pub fn accept(
        &self,
        headers: &(impl Headers + ?Sized),
    ) -> Result<Option<Accepted>, MalformedOffer> {
        let mut accepted = None;
        each_deflate(
            headers,
            |_| {},
            |offer| {
                if let (None, Ok(offer)) = (&accepted, offer) {
                    accepted = self.accept_offer(&offer);
                }
            },
        )
        .map_err(|Malformed| MalformedOffer)?;
        Ok(accepted)
    }

    fn accept_offer(&self, offer: &Parameters) -> Option<Accepted> {
        let history = self.history_bits();
        let our_bits = match offer.server_max_window_bits {
            Some(8) => return None,
            Some(bits) => bits.min(self.server_bits),
            None => self.server_bits,
        };
        // The client's own parameters are hints that it follows regardless of the answer (RFC 7692
        // section 7.1.1.2, RFC 7692 section 7.1.2.2).
        let mut peer_no_context = offer.client_no_context_takeover || self.client_no_context;
        let kept = history.filter(|_| !peer_no_context).unwrap_or(15);
        let wanted = self.client_bits.min(kept);
        let (peer_bits, answer) = match offer.client_max_window_bits {
            ClientBits::Absent => {
                // The client may use all 15 bits, which we must not forbid then, and do not want to
                // store.
                peer_no_context |= kept < 15;
                (15, ClientBits::Absent)
            }
            ClientBits::Any if wanted == 15 => (15, ClientBits::Absent),
            ClientBits::Any => (wanted, ClientBits::Bits(wanted)),
            ClientBits::Bits(bits) => (bits.min(wanted), ClientBits::Bits(bits.min(wanted))),
        };
        let our_no_context = offer.server_no_context_takeover || self.server_no_context;
        let says_our_bits = offer.server_max_window_bits.is_some() || our_bits < 15;
        Some(Accepted {
            agreed: agreed(history, (our_bits, our_no_context), (peer_bits, peer_no_context)),
            answer: Parameters {
                server_no_context_takeover: our_no_context,
                client_no_context_takeover: peer_no_context,
                server_max_window_bits: says_our_bits.then_some(our_bits),
                client_max_window_bits: answer,
            },
        })
    }

    /// Returns the parameters that a client offers, for
    /// [`encode_request_with`](crate::ws::handshake::encode_request_with).
    #[must_use]
    pub fn offer(&self) -> Parameters {
        // Without a context nothing of the peer's window is kept.
        let kept = self.history_bits().filter(|_| !self.server_no_context).unwrap_or(15);
        let server_bits = self.server_bits.min(kept);
        Parameters {
            server_no_context_takeover: self.server_no_context,
            client_no_context_takeover: self.client_no_context,
            server_max_window_bits: (server_bits < 15).then_some(server_bits),
            client_max_window_bits: match self.client_bits {
                15 => ClientBits::Any,
                bits => ClientBits::Bits(bits),
            },
        }
    }

    /// Checks a server's answer to [`Policy::offer`], for a client; `None` if the server declined.
    ///
    /// # Errors
    /// The connection must be failed:
    /// [RFC 7692 section 7.1](https://www.rfc-editor.org/rfc/rfc7692#section-7.1).
    pub fn check_answer(
        &self,
        headers: &(impl Headers + ?Sized),
    ) -> Result<Option<Agreed>, BadAnswer> {
        let (mut foreign, mut answers, mut answer) = (false, 0, Err(BadParameter));
        each_deflate(
            headers,
            |_| foreign = true,
            |parameters| {
                answers += 1;
                answer = parameters;
            },
        )
        .map_err(|Malformed| BadAnswer::Malformed)?;
        if foreign || answers > 1 {
            return Err(BadAnswer::Extension);
        }
        if answers == 0 {
            return Ok(None);
        }
        let answer = answer.map_err(|BadParameter| BadAnswer::Parameter)?;
        let offer = self.offer();
        let our_bits = match answer.client_max_window_bits {
            ClientBits::Absent => self.client_bits,
            // Only an offer may omit the value (RFC 7692 section 7.1.2.2).
            ClientBits::Any => return Err(BadAnswer::Parameter),
            ClientBits::Bits(8) => return Err(BadAnswer::Window),
            ClientBits::Bits(bits) if bits > self.client_bits => return Err(BadAnswer::Ignored),
            ClientBits::Bits(bits) => bits,
        };
        let peer_bits = answer.server_max_window_bits.unwrap_or(15);
        if offer.server_max_window_bits.is_some_and(|asked| peer_bits > asked)
            || (offer.server_no_context_takeover && !answer.server_no_context_takeover)
        {
            return Err(BadAnswer::Ignored);
        }
        let our_no_context = answer.client_no_context_takeover || self.client_no_context;
        let peer_no_context = answer.server_no_context_takeover;
        let history = self.history_bits();
        Ok(Some(agreed(history, (our_bits, our_no_context), (peer_bits, peer_no_context))))
    }
}

fn agreed(history: Option<u8>, ours: (u8, bool), peers: (u8, bool)) -> Agreed {
    let ((our_bits, our_no_context), (peer_bits, peer_no_context)) = (ours, peers);
    Agreed {
        our_window_bits: our_bits,
        peer_window_bits: peer_bits,
        our_history_bits: history.filter(|_| !our_no_context).map(|bits| bits.min(our_bits)),
        // A compressor asked for 8 bits may use 9: zlib has no window of 256 bytes for raw
        // deflate.
        peer_history_bits: history.filter(|_| !peer_no_context).map(|_| peer_bits.max(9)),
    }
}

/// Passes every other extension's name to `other`, and the parameters of every permessage-deflate
/// to `visit`.
fn each_deflate(
    headers: &(impl Headers + ?Sized),
    mut other: impl FnMut(&str),
    mut visit: impl FnMut(Result<Parameters, BadParameter>),
) -> Result<(), Malformed> {
    for value in headers.values(HEADER) {
        let mut current: Option<Result<Parameters, BadParameter>> = None;
        extensions::parse(value, |part| match part {
            Part::Extension(name) => {
                if let Some(done) = current.take() {
                    visit(done);
                }
                if name == NAME {
                    current = Some(Ok(Parameters::default()));
                } else {
                    other(name);
                }
            }
            Part::Parameter(name, value) => {
                if let Some(Ok(parameters)) = &mut current
                    && let Err(bad) = parameters.add(name, value)
                {
                    current = Some(Err(bad));
                }
            }
        })?;
        if let Some(done) = current {
            visit(done);
        }
    }
    Ok(())
}
