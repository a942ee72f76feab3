//! The upgrade of a connection: the request and the server's answer.

use std::fmt;

use throng_proto::Input;
use throng_proto::http1::{self, ResponseDecoder, ResponseEvent};
use throng_proto::ws::Limits;
use throng_proto::ws::deflate::{Agreed, Policy};
use throng_proto::ws::handshake::{Key, check_response_with};

use crate::error::{ClientError, UpgradeRefused};
use crate::random::Entropy;
use crate::session::ClientMachine;

/// Maximum bytes of a refusal's body that are kept.
const MAX_BODY: usize = 16 << 10;

/// An upgrade in progress, from [`ClientBuilder::open`](crate::ClientBuilder::open).
///
/// The program sends [`Opening::request`], passes the answer to [`Opening::receive`], and ends with
/// [`Opening::finish`].
pub struct Opening {
    request: Vec<u8>,
    offers: Offers,
    limits: Limits,
    entropy: Entropy,
    decoder: ResponseDecoder,
    outcome: Option<Result<Terms, Box<UpgradeRefused>>>,
    /// Bytes received after the answer.
    rest: Vec<u8>,
}

/// The offers in the request, to check the response against.
pub(crate) struct Offers {
    pub(crate) key: Key,
    pub(crate) subprotocols: Vec<String>,
    pub(crate) deflate: Option<Policy>,
}

/// The terms of the session that the response has chosen.
struct Terms {
    subprotocol: Option<String>,
    deflate: Option<(Policy, Agreed)>,
}

/// A connection after its upgrade.
#[derive(Debug)]
#[non_exhaustive]
pub struct Opened {
    /// The session.
    pub machine: ClientMachine,
    /// The subprotocol that the server chose from the client's offers.
    pub subprotocol: Option<String>,
}

impl Opening {
    pub(crate) fn new(request: Vec<u8>, offers: Offers, limits: Limits, entropy: Entropy) -> Self {
        let decoder = ResponseDecoder::new();
        Self { request, offers, limits, entropy, decoder, outcome: None, rest: Vec::new() }
    }

    /// Returns the upgrade request, complete and ready to send.
    #[must_use]
    pub fn request(&self) -> &[u8] {
        &self.request
    }

    /// Takes bytes of the answer. Returns whether it is complete; then call [`Opening::finish`].
    ///
    /// # Errors
    /// [`ClientError::Http`] or [`ClientError::Handshake`] for an invalid answer.
    pub fn receive(&mut self, received: &mut [u8]) -> Result<bool, ClientError> {
        let mut input = Input::new(received);
        let is_complete = self.decode(&mut input)?;
        if is_complete {
            self.rest.extend_from_slice(input.as_slice());
        }
        Ok(is_complete)
    }

    /// Decodes the answer; later bytes stay in `input`.
    fn decode(&mut self, input: &mut Input<'_>) -> Result<bool, ClientError> {
        // The body of an answer is not read to its end, so its length has no limit.
        let limits = http1::Limits { max_body: u64::MAX, ..http1::Limits::default() };
        loop {
            let event = match self.decoder.next_event(input, &limits) {
                Ok(event) => event,
                Err(error) => return Err(self.cut_off(ClientError::Http(error))),
            };
            match event {
                None => return Ok(false),
                Some(ResponseEvent::Head(response)) if response.is_interim() => {}
                Some(ResponseEvent::Head(response)) if response.status() == 101 => {
                    let Offers { key, subprotocols, deflate } = &self.offers;
                    let names: Vec<&str> = subprotocols.iter().map(String::as_str).collect();
                    let chosen = check_response_with(101, &response, key, &names, deflate.as_ref())
                        .map_err(ClientError::Handshake)?;
                    self.outcome = Some(Ok(Terms {
                        subprotocol: chosen.subprotocol.map(str::to_owned),
                        deflate: deflate.zip(chosen.deflate),
                    }));
                }
                Some(ResponseEvent::Head(response)) => {
                    let text = |bytes| String::from_utf8(Vec::from(bytes)).ok();
                    let headers = response.headers().filter_map(|header| {
                        Some((text(header.name.as_bytes())?, text(header.value)?))
                    });
                    let (status, headers) = (response.status(), headers.collect());
                    let refused = UpgradeRefused { status, headers, body: Vec::new() };
                    self.outcome = Some(Err(Box::new(refused)));
                }
                Some(ResponseEvent::Body(bytes)) => {
                    let Some(Err(refused)) = &mut self.outcome else { continue };
                    let room = MAX_BODY - refused.body.len();
                    refused.body.extend_from_slice(&bytes[..bytes.len().min(room)]);
                    if refused.body.len() == MAX_BODY {
                        return Ok(true);
                    }
                }
                Some(ResponseEvent::End) => return Ok(true),
            }
        }
    }

    /// Returns the refusal if `error` interrupted its body; otherwise the error.
    pub(crate) fn cut_off(&mut self, error: ClientError) -> ClientError {
        match self.outcome.take() {
            Some(Err(refused)) => ClientError::Refused(refused),
            _ => error,
        }
    }

    /// Returns the session, which receives whole messages. Call this after the last byte of the
    /// answer, or after the end of the server's stream.
    ///
    /// # Errors
    /// [`ClientError::Refused`], even if a part of its body is missing; [`ClientError::Lost`] if
    /// there was no answer.
    pub fn finish(self) -> Result<Opened, ClientError> {
        self.finish_with(false)
    }

    /// Ends as [`Opening::finish`] does; with `by_chunks` the session receives messages in chunks.
    pub(crate) fn finish_with(self, by_chunks: bool) -> Result<Opened, ClientError> {
        match self.outcome {
            Some(Ok(Terms { subprotocol, deflate })) => {
                let mut machine = ClientMachine::new(self.limits, by_chunks, deflate, self.entropy);
                machine.receive_first(&self.rest);
                Ok(Opened { machine, subprotocol })
            }
            Some(Err(refused)) => Err(ClientError::Refused(refused)),
            None => Err(ClientError::Lost(std::io::Error::new(
                std::io::ErrorKind::UnexpectedEof,
                "the server ended the connection instead of answering the upgrade request",
            ))),
        }
    }
}

impl fmt::Debug for Opening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opening").finish_non_exhaustive()
    }
}
