//! The state of one client's session.

mod channels;
mod connect;
mod subscribe;
#[cfg(test)]
mod tests;
mod time;

use std::sync::Arc;

use self::connect::Connecting;
use self::subscribe::Subscription;
use self::time::Deadlines;
use crate::authority::{Authority, Identity, Refusal};
use crate::codes::{Disconnect, ErrorCode};
use crate::command::ClientCommand;
use crate::host::Host;
use crate::limits::Limits;
use crate::reply::Reply;

pub use self::time::Now;

/// The session of one client: takes its commands, and says by a [`Host`] what follows from them.
///
/// An error is the end: the caller closes the connection with its code. `C` is what the
/// [`Authority`] knows of the client.
#[derive(Debug)]
pub struct ClientSession<C = ()> {
    stage: SessionStage,
    /// The client's identifier.
    client: Box<str>,
    identity: Option<Box<Identity<C>>>,
    subscriptions: Vec<Subscription>,
    /// A connect whose reply waits for server-side subscriptions.
    connecting: Option<Box<Connecting>>,
    deadlines: Deadlines,
    limits: Arc<Limits>,
}

/// The progress of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SessionStage {
    /// No connect has come.
    New,
    /// The client is connected.
    Connected,
    /// The connect has failed; nothing more may come.
    Refused,
}

/// The result of a command: a failure is a reply or the end.
type Handled = Result<(), Refusal>;

impl<C> ClientSession<C> {
    /// Creates the session of a connection that has just been opened. `client` identifies it among
    /// all clients of all servers.
    #[must_use]
    pub fn new(client: impl Into<Box<str>>, limits: Arc<Limits>, now: Now) -> Self {
        Self {
            stage: SessionStage::New,
            client: client.into(),
            identity: None,
            subscriptions: Vec::new(),
            connecting: None,
            deadlines: Deadlines::new(&limits, now),
            limits,
        }
    }

    /// Returns the client's identifier.
    #[must_use]
    pub fn client(&self) -> &str {
        &self.client
    }

    /// Returns what the authority has said of the client; `None` before its connect.
    #[must_use]
    pub fn identity(&self) -> Option<&Identity<C>> {
        self.identity.as_deref()
    }

    /// Returns whether the client is subscribed to a channel, or is being subscribed.
    #[must_use]
    pub fn is_subscribed(&self, channel: &str) -> bool {
        self.subscription(channel).is_some()
    }

    /// Handles a command of the client.
    ///
    /// # Errors
    /// The connection must be closed for this reason.
    pub fn handle_command<A: Authority<Claims = C>>(
        &mut self,
        command: &ClientCommand,
        authority: &A,
        host: &mut impl Host,
        now: Now,
    ) -> Result<(), Disconnect> {
        if let Some(request) = &command.connect {
            return self.handle_connect((command.id, request), authority, host, now);
        }
        if self.stage != SessionStage::Connected {
            return Err(Disconnect::BadRequest);
        }
        if let Some(request) = &command.send {
            return authority.take(self.known()?, &request.data);
        }
        if command.id == 0 {
            return self.handle_pong();
        }
        match self.dispatch(command, authority, host, now) {
            Ok(()) => Ok(()),
            Err(Refusal::Error(error)) => {
                host.reply(&Reply::failed(command.id, error));
                Ok(())
            }
            Err(Refusal::Disconnect(reason)) => Err(reason),
        }
    }

    fn dispatch<A: Authority<Claims = C>>(
        &mut self,
        command: &ClientCommand,
        authority: &A,
        host: &mut impl Host,
        now: Now,
    ) -> Handled {
        let id = command.id;
        if let Some(request) = &command.subscribe {
            self.handle_subscribe((id, request), authority, host, now)
        } else if let Some(request) = &command.unsubscribe {
            self.handle_unsubscribe(id, &request.channel, host)
        } else if let Some(request) = &command.publish {
            self.handle_publish((id, request), authority, host)
        } else if let Some(request) = &command.presence {
            self.handle_presence((id, &request.channel), authority, host)
        } else if let Some(request) = &command.presence_stats {
            self.handle_presence_stats((id, &request.channel), authority, host)
        } else if let Some(request) = &command.history {
            self.handle_history((id, request), authority, host)
        } else if let Some(request) = &command.rpc {
            let data = authority.call(self.known()?, &request.method, &request.data)?;
            let rpc = Some(crate::reply::DataResult { data });
            host.reply(&Reply { id, rpc, ..Reply::default() });
            Ok(())
        } else if let Some(request) = &command.refresh {
            self.handle_refresh((id, &request.token), authority, host, now)
        } else if let Some(request) = &command.sub_refresh {
            self.handle_sub_refresh((id, request), authority, host, now)
        } else if command.ping.is_some() {
            Err(ErrorCode::NotAvailable.into())
        } else {
            Err(Disconnect::BadRequest.into())
        }
    }

    /// Returns the client, which is known from its connect on.
    fn known(&self) -> Result<&Identity<C>, Disconnect> {
        self.identity.as_deref().ok_or(Disconnect::ServerError)
    }
}

/// Checks that a command names a channel.
fn named(channel: &str) -> Result<(), Disconnect> {
    if channel.is_empty() { Err(Disconnect::BadRequest) } else { Ok(()) }
}
