//! The side of the successor.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use throng_carry::Secret;
use throng_io::HeldListeners;
use throng_io::handover;

use super::control::{
    Control, GREETING, Hello, NoMessage, OLDEST_WIRE, WIRE, read_done, read_plan, read_refuse, tag,
};
use super::{Done, Next};
use crate::build_labels::VERSION;
use crate::failure::Failure;

/// The time that the predecessor has to answer what needs no work.
const ANSWER: Duration = Duration::from_secs(30);

/// The process that has started this one as its successor, if one has.
#[derive(Clone, Debug, Default)]
pub(crate) struct Predecessor {
    control: Arc<Mutex<Option<Control>>>,
    /// The addition of its program to the sockets, in JSON.
    #[cfg_attr(not(feature = "balance"), allow(dead_code, reason = "the balancer's backends"))]
    state: Vec<u8>,
    /// Its keys of session tickets.
    #[cfg_attr(not(feature = "tls"), allow(dead_code, reason = "there are no tickets"))]
    ticket_keys: Secret,
}

impl Predecessor {
    /// Runs a server with the listening sockets of the predecessor, if there is one, which gets the
    /// reason of a failure.
    pub(crate) fn run<T>(
        serve: impl FnOnce(&Self, HeldListeners) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let (predecessor, held) = Self::connect()?;
        serve(&predecessor, held).inspect_err(|failure| predecessor.refuse(failure))
    }

    /// Finds the predecessor, and takes its listening sockets.
    fn connect() -> Result<(Self, HeldListeners), Failure> {
        let failed = |why: String| Failure::runtime(format!("the process to be replaced: {why}"));
        let stream = handover::take_handover().map_err(|error| failed(error.to_string()))?;
        let Some(stream) = stream else {
            return Ok((Self::default(), HeldListeners::default()));
        };
        let mut control = Control::new(stream).map_err(failed)?;
        let hello = Hello { wire: (OLDEST_WIRE, WIRE), build: VERSION.to_owned() };
        control.send_hello(&hello).map_err(|why| failed(in_words(&why)))?;
        let until = Instant::now() + GREETING;
        let mut taken = Vec::new();
        let (state, ticket_keys) = loop {
            let message = control.receive(until).map_err(|why| failed(in_words(&why)))?;
            match message.tag() {
                tag::SOCKETS => {
                    let outcome = control.take_sockets(&message, &mut taken);
                    outcome.map_err(|why| failed(in_words(&why)))?;
                }
                tag::PLAN => {
                    break read_plan(&message).map_err(|error| failed(error.to_string()))?;
                }
                tag::REFUSE => return Err(failed(read_refuse(&message))),
                other => return Err(failed(format!("unexpected message {other}"))),
            }
        };
        let control = Arc::new(Mutex::new(Some(control)));
        Ok((Self { control, state, ticket_keys }, HeldListeners::of_predecessor(taken)))
    }

    /// Reports that this process can serve: it has read its configuration, and listens.
    /// Connections can move to its event loops if `loops` is their number. Returns the
    /// predecessor's order.
    pub(crate) fn ready(&self, loops: Option<usize>) -> Result<Next, Failure> {
        let mut lock = self.lock();
        let Some(control) = &mut *lock else { return Ok(Next::Serve(Vec::new())) };
        let gone = "the process to be replaced does not answer, so this one ends";
        control.send_ready(loops).map_err(|_| Failure::runtime(gone))?;
        let mut passages = Vec::new();
        let until = Instant::now() + ANSWER;
        loop {
            let message = control.receive(until).map_err(|_| Failure::runtime(gone))?;
            match message.tag() {
                tag::PASSAGE => {
                    let taken = control.take_passage(&message, &mut passages);
                    taken.map_err(|why| {
                        Failure::runtime(format!("the process to be replaced: {}", in_words(&why)))
                    })?;
                }
                tag::GO => return Ok(Next::Serve(passages)),
                tag::STOP => {
                    *lock = None;
                    return Ok(Next::Leave);
                }
                _ => return Err(Failure::runtime(gone)),
            }
        }
    }

    /// Reports that this process accepts connections, and waits until its predecessor has given it
    /// all that moves. Returns what that says at its end, if there is one.
    ///
    /// # Errors
    /// The predecessor goes on serving, so this process must end.
    pub(crate) fn serving(&self) -> Result<Done, Failure> {
        let Some(mut control) = self.lock().take() else { return Ok(Done::default()) };
        if control.send(tag::SERVING).is_err() {
            // It has ended, and this process serves alone.
            return Ok(Done::default());
        }
        let done = match control.receive(Instant::now() + ANSWER) {
            Ok(message) if message.tag() == tag::STOP => {
                let why = "the process to be replaced goes on, so this one ends";
                return Err(Failure::runtime(why));
            }
            Ok(message) => read_done(&message).unwrap_or_default(),
            Err(_) => return Ok(Done::default()),
        };
        let (counts, report) = done;
        Ok(Done { counts, report: serde_json::from_slice(&report).ok() })
    }

    /// Reports why this process does not serve.
    fn refuse(&self, failure: &Failure) {
        if let Some(control) = self.lock().take() {
            let _ = control.send_refuse(&failure.message);
        }
    }

    /// Returns the keys of session tickets that the predecessor has drawn.
    #[cfg(feature = "tls")]
    pub(crate) fn ticket_keys(&self) -> Secret {
        self.ticket_keys.clone()
    }

    /// Returns what the predecessor's program has added; `None` if it is of another form.
    #[cfg(feature = "balance")]
    pub(crate) fn state<T: serde::de::DeserializeOwned>(&self) -> Option<T> {
        serde_json::from_slice(&self.state).ok()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Control>> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn in_words(why: &NoMessage) -> String {
    match why {
        NoMessage::Ended => "it has ended".to_owned(),
        NoMessage::TimedOut => "it does not answer".to_owned(),
        NoMessage::Wrong(why) => why.clone(),
    }
}
