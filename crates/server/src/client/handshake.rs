//! The server's answer to the upgrade request.

use throng_proto::Input;
use throng_proto::http1::{Limits, ResponseDecoder, ResponseEvent};
use throng_proto::ws::deflate::{Agreed, Policy};
use throng_proto::ws::handshake::{Key, check_response_with};

use super::error::{Error, Refused};

/// The beginning of a refusal's body that is kept.
const MAX_BODY: usize = 16 << 10;

/// Offers of the request, which the response is checked against.
pub(crate) struct Asked {
    pub(crate) key: Key,
    pub(crate) subprotocols: Vec<String>,
    pub(crate) deflate: Option<Policy>,
}

/// Terms of the session that the response has chosen.
pub(crate) struct Opened {
    pub(crate) subprotocol: Option<String>,
    pub(crate) deflate: Option<(Policy, Agreed)>,
}

/// An answer in progress.
pub(crate) struct Answer {
    decoder: ResponseDecoder,
    outcome: Option<Result<Opened, Box<Refused>>>,
}

impl Answer {
    pub(crate) fn new() -> Self {
        Self { decoder: ResponseDecoder::new(), outcome: None }
    }

    /// Takes bytes of the answer; what follows a 101 stays in `input`. `None`: more are needed.
    pub(crate) fn receive(
        &mut self,
        input: &mut Input<'_>,
        asked: &Asked,
    ) -> Result<Option<Opened>, Error> {
        // A body has no limit: it is not read to its end.
        let limits = Limits { max_body: u64::MAX, ..Limits::default() };
        loop {
            let event = match self.decoder.next_event(input, &limits) {
                Ok(event) => event,
                Err(error) => return Err(self.cut_off(Error::Http(error))),
            };
            match event {
                None => break,
                Some(ResponseEvent::Head(response)) if response.is_interim() => {}
                Some(ResponseEvent::Head(response)) if response.status() == 101 => {
                    let names: Vec<&str> = asked.subprotocols.iter().map(String::as_str).collect();
                    let policy = asked.deflate;
                    let opened =
                        check_response_with(101, &response, &asked.key, &names, policy.as_ref())
                            .map_err(Error::Handshake)?;
                    self.outcome = Some(Ok(Opened {
                        subprotocol: opened.subprotocol.map(str::to_owned),
                        deflate: policy.zip(opened.deflate),
                    }));
                }
                Some(ResponseEvent::Head(response)) => {
                    let text = |bytes| String::from_utf8(Vec::from(bytes)).ok();
                    let headers = response.headers().filter_map(|header| {
                        Some((text(header.name.as_bytes())?, text(header.value)?))
                    });
                    let (status, headers) = (response.status(), headers.collect());
                    self.outcome =
                        Some(Err(Box::new(Refused { status, headers, body: Vec::new() })));
                }
                Some(ResponseEvent::Body(bytes)) => {
                    let Some(Err(refused)) = &mut self.outcome else { continue };
                    let room = MAX_BODY - refused.body.len();
                    refused.body.extend_from_slice(&bytes[..bytes.len().min(room)]);
                    if refused.body.len() == MAX_BODY {
                        break;
                    }
                }
                Some(ResponseEvent::End) => return self.finish().map(Some),
            }
        }
        match &self.outcome {
            Some(Err(refused)) if refused.body.len() == MAX_BODY => self.finish().map(Some),
            _ => Ok(None),
        }
    }

    /// Returns the refusal whose body was cut off by `error`; otherwise the error.
    pub(crate) fn cut_off(&mut self, error: Error) -> Error {
        match self.outcome.take() {
            Some(Err(refused)) => Error::Refused(refused),
            _ => error,
        }
    }

    /// Returns the outcome after the last byte that came: also if the rest of a body did not.
    pub(crate) fn finish(&mut self) -> Result<Opened, Error> {
        match self.outcome.take() {
            Some(Ok(opened)) => Ok(opened),
            Some(Err(refused)) => Err(Error::Refused(refused)),
            None => Err(Error::Lost(std::io::Error::new(
                std::io::ErrorKind::UnexpectedEof,
                "the server ended the connection instead of answering the upgrade request",
            ))),
        }
    }
}
