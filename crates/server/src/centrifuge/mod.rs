//! The Centrifuge client protocol: routes for the clients that exist for it.
//!
//! [`Centrifuge`] makes a route of an [`Authority`], which decides about clients and their rights.
//! Its sessions are members of the server's channels beside the sessions of other routes: what one
//! publishes, all members get, each in its own protocol.
//!
//! ```
//! use throng::centrifuge::{
//!     Authority, Centrifuge, ConnectRequest, Disconnect, ErrorCode, Grant, Identity, Refusal,
//! };
//! use throng::prelude::*;
//!
//! /// Everyone may talk in channels that begin with `chat.`; a token is the user's name.
//! struct Chat;
//!
//! impl Authority for Chat {
//!     type Claims = ();
//!
//!     fn connect(&self, request: &ConnectRequest) -> Result<Identity, Refusal> {
//!         match request.token.as_str() {
//!             "" => Err(Disconnect::InvalidToken.into()),
//!             user => Ok(Identity { user: user.to_owned(), ..Identity::default() }),
//!         }
//!     }
//!
//!     fn refresh(&self, client: &Identity, _token: &str) -> Result<Identity, Refusal> {
//!         Ok(client.clone())
//!     }
//!
//!     fn subscribe(
//!         &self,
//!         _: &Identity,
//!         channel: &str,
//!         _: Option<&str>,
//!     ) -> Result<Grant, Refusal> {
//!         if !channel.starts_with("chat.") {
//!             return Err(ErrorCode::PermissionDenied.into());
//!         }
//!         Ok(Grant { publishes: true, reads_history: true, ..Grant::default() })
//!     }
//!
//!     fn without_subscription(&self, _: &Identity, _channel: &str) -> Grant {
//!         Grant::default()
//!     }
//! }
//!
//! let app = App::new().ws("/connection/websocket", Centrifuge::new(Chat).route());
//! # Server::new(app).check().unwrap();
//! ```

mod dialect;
mod later;
mod link;

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use throng_centrifuge::{ClientSession, Encoding};
use throng_engine::{CloseCode, Message};
use throng_http::{Reject, Request};

pub use throng_centrifuge::command::ConnectRequest;
pub use throng_centrifuge::info::RESERVED_PREFIX;
pub use throng_centrifuge::{
    Authority, Disconnect, ErrorCode, Grant, Identity, Limits, Refusal, UnsubscribeCode,
};

use self::dialect::Spoken;
use self::link::{Link, place_of};
use crate::ws::closures::Ws;
use crate::ws::{SessionEvent, Socket, Timer};

/// A route of the Centrifuge client protocol, version 2: for the clients of JavaScript, Python, Go
/// and other languages that exist for it.
///
/// It takes JSON in text frames, and Protobuf in binary frames where the client offers the
/// subprotocol `centrifuge-protobuf` or asks by `?format=protobuf` or `?cf_protocol=protobuf`.
/// Recovery, presence, joins and leaves follow the rules of [`Channels`](crate::channel::Channels).
#[derive(Debug)]
#[must_use]
pub struct Centrifuge<A> {
    authority: A,
    limits: Limits,
}

impl<A> Centrifuge<A>
where
    A: Authority + Send + Sync + 'static,
    A::Claims: Send + 'static,
{
    /// Creates a route whose clients may do what `authority` says.
    pub fn new(authority: A) -> Self {
        Self { authority, limits: Limits::default() }
    }

    /// Sets the limits of sessions.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Returns the handler for [`App::ws`](crate::App::ws).
    #[must_use]
    pub fn route(self) -> Ws<Client<A::Claims>> {
        self.route_with_token(|_| None)
    }

    /// Returns a handler whose clients may have their token in the upgrade request, where `token`
    /// finds it, instead of in their connect.
    #[must_use]
    pub fn route_with_token<F>(self, token: F) -> Ws<Client<A::Claims>>
    where
        F: Fn(&Request<'_>) -> Option<String> + Send + Sync + 'static,
    {
        let max_frame = self.limits.max_frame;
        let (authority, limits) = (Arc::new(self.authority), Arc::new(self.limits));
        let node = Arc::new(OnceLock::new());
        let dialects = [Encoding::Json, Encoding::Protobuf]
            .map(|encoding| Arc::new(Spoken::new(encoding, Arc::clone(&node))));
        let of_messages = Arc::clone(&authority);
        Ws::from_request(move |request| accept(request, token(request)))
            .subprotocols(SUBPROTOCOLS)
            .max_message_size(max_frame)
            .on_message(move |ws, client, message| client.handle_frame(ws, message, &*of_messages))
            .on_event(move |ws, client: &mut Client<A::Claims>, event| match event {
                SessionEvent::Open => client.open(ws, (&limits, &dialects)),
                SessionEvent::Recovered { channel, recovery } => {
                    client.with(ws, |session, link| {
                        session.handle_place(
                            channel,
                            place_of(recovery, link.limits()),
                            link,
                            now(),
                        )
                    })
                }
                SessionEvent::Missed { channel } => client.with(ws, |session, link| {
                    session.unsubscribe(channel, UnsubscribeCode::Insufficient, link);
                    Ok(())
                }),
                SessionEvent::Unsubscribed { channel } => client.with(ws, |session, link| {
                    session.unsubscribe(channel, UnsubscribeCode::Server, link);
                    Ok(())
                }),
                SessionEvent::Shutdown => disconnect(ws, Disconnect::Shutdown),
                _ => {}
            })
            .on_unpublished(|ws, _, _| disconnect(ws, Disconnect::InsufficientState))
    }
}

/// The subprotocols; the client's first offer among them is chosen.
const SUBPROTOCOLS: [&str; 2] = ["centrifuge-json", PROTOBUF];

const PROTOBUF: &str = "centrifuge-protobuf";

/// The state of one client of a [`Centrifuge`] route.
#[derive(Debug)]
pub struct Client<C> {
    encoding: Encoding,
    /// The token of the upgrade request, until the connect.
    token: Option<Box<str>>,
    session: Option<Box<ClientSession<C>>>,
    /// The timer that is set, and when it is due.
    timer: Option<(u64, Timer)>,
    limits: Option<Arc<Limits>>,
}

fn accept<C>(request: &Request<'_>, token: Option<String>) -> Result<Client<C>, Reject> {
    let asked = request.query("cf_protocol").or_else(|| request.query("format"));
    let encoding = match asked {
        Some("protobuf") => Encoding::Protobuf,
        _ => Encoding::Json,
    };
    let token = token.map(String::into_boxed_str);
    Ok(Client { encoding, token, session: None, timer: None, limits: None })
}

impl<C: Send + 'static> Client<C> {
    fn open(
        &mut self,
        ws: &mut Socket<'_, Self>,
        (limits, dialects): (&Arc<Limits>, &[Arc<Spoken>; 2]),
    ) {
        if ws.subprotocol() == Some(PROTOBUF) {
            self.encoding = Encoding::Protobuf;
        }
        let dialect = &dialects[self.encoding as usize];
        let client = dialect.client_of(ws);
        ws.cx_mut().set_dialect(Arc::clone(dialect) as _);
        self.session = Some(Box::new(ClientSession::new(client, Arc::clone(limits), now())));
        self.limits = Some(Arc::clone(limits));
        self.set_timer(ws);
    }

    fn handle_frame<A>(&mut self, ws: &mut Socket<'_, Self>, message: Message<'_>, authority: &A)
    where
        A: Authority<Claims = C>,
    {
        let (encoding, now) = (self.encoding, now());
        let token = &mut self.token;
        let Some((session, limits)) = self.session.as_deref_mut().zip(self.limits.as_deref())
        else {
            return;
        };
        let mut link = Link::new(ws, encoding, limits);
        for command in encoding.commands(message.as_bytes()) {
            let Ok(mut command) = command else { return link.end(Disconnect::BadRequest) };
            if let Some(connect) = &mut command.connect
                && connect.token.is_empty()
                && let Some(token) = token.take()
            {
                connect.token = token.into();
            }
            if let Err(reason) = session.handle_command(&command, authority, &mut link, now) {
                return link.end(reason);
            }
            if link.is_full() && !link.flush() {
                return;
            }
        }
        link.flush();
        self.set_timer(ws);
    }

    /// Does something with the session, and closes the connection if it fails.
    fn with(
        &mut self,
        ws: &mut Socket<'_, Self>,
        act: impl FnOnce(&mut ClientSession<C>, &mut Link<'_, '_, Self>) -> Result<(), Disconnect>,
    ) {
        let Some((session, limits)) = self.session.as_deref_mut().zip(self.limits.as_deref())
        else {
            return;
        };
        let mut link = Link::new(ws, self.encoding, limits);
        match act(session, &mut link) {
            Ok(()) => {
                link.flush();
            }
            Err(reason) => return link.end(reason),
        }
        self.set_timer(ws);
    }

    /// Sets the timer for the session's next deadline, unless an earlier one is set.
    fn set_timer(&mut self, ws: &mut Socket<'_, Self>) {
        let Some(next) = self.session.as_ref().and_then(|session| session.next_deadline()) else {
            return;
        };
        if let Some((at, timer)) = self.timer {
            if at <= next {
                return;
            }
            ws.cancel_timer(timer);
        }
        let left = Duration::from_millis(next.saturating_sub(now().millis));
        let timer = ws.after(left, |ws, client| {
            client.timer = None;
            client.with(ws, |session, link| session.handle_time(link, now()));
        });
        self.timer = Some((next, timer));
    }
}

/// A member of a channel with presence, as clients of this protocol see it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Described {
    /// The user; empty without one.
    pub user: String,
    /// Information from the token of its connection, as JSON; empty without any. Members of other
    /// protocols have their information here.
    pub conn_info: String,
    /// Information from the token of its subscription, as JSON; empty without any.
    pub chan_info: String,
}

/// Returns the description of a member of a channel with presence by the
/// [information](crate::channel::Present::info) that presence has.
#[must_use]
pub fn describe(info: &str) -> Described {
    let info = throng_centrifuge::info::decode(String::new(), info);
    let text = |bytes| String::from_utf8(bytes).unwrap_or_default();
    Described { user: info.user, conn_info: text(info.conn_info), chan_info: text(info.chan_info) }
}

/// Closes a session for a reason of the protocol.
fn disconnect<D>(ws: &mut Socket<'_, D>, reason: Disconnect) {
    ws.close(CloseCode::new(reason.code()), reason.text());
}

/// Returns the time.
fn now() -> throng_centrifuge::Now {
    static START: OnceLock<Instant> = OnceLock::new();
    let millis = START.get_or_init(Instant::now).elapsed().as_millis() as u64;
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    throng_centrifuge::Now { millis, unix }
}
