//! The connect, its server-side subscriptions, and new tokens of the connection.

use std::collections::HashMap;

use super::subscribe::{Begun, Subscription};
use super::time::{Now, seconds};
use super::{ClientSession, Handled, SessionStage};
use crate::authority::{Authority, Identity, Refusal};
use crate::codes::{Disconnect, ErrorCode};
use crate::command::{ConnectRequest, SubscribeRequest};
use crate::host::{Host, Joined};
use crate::reply::{ConnectResult, RefreshResult, Reply, SubscribeResult};

/// A connect whose reply waits until the places of its subscriptions are known.
#[derive(Debug)]
pub(super) struct Connecting {
    id: u32,
    result: Box<ConnectResult>,
    waiting: usize,
}

impl<C> ClientSession<C> {
    pub(super) fn handle_connect<A: Authority<Claims = C>>(
        &mut self,
        (id, request): (u32, &ConnectRequest),
        authority: &A,
        host: &mut impl Host,
        now: Now,
    ) -> Result<(), Disconnect> {
        if id == 0 || self.stage != SessionStage::New {
            return Err(Disconnect::BadRequest);
        }
        match authority.connect(request) {
            Ok(identity) => self.connect(id, &request.subs, identity, authority, host, now),
            Err(Refusal::Error(error)) => {
                self.stage = SessionStage::Refused;
                host.reply(&Reply::failed(id, error));
                Ok(())
            }
            Err(Refusal::Disconnect(reason)) => Err(reason),
        }
    }

    fn connect<A: Authority<Claims = C>>(
        &mut self,
        id: u32,
        subs: &HashMap<String, SubscribeRequest>,
        mut identity: Identity<C>,
        authority: &A,
        host: &mut impl Host,
        now: Now,
    ) -> Result<(), Disconnect> {
        let channels = std::mem::take(&mut identity.channels);
        if channels.len() > self.limits.max_channels {
            return Err(Disconnect::ChannelLimit);
        }
        let result = ConnectResult {
            client: self.client.to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            expires: identity.expires.is_some(),
            ttl: identity.expires.map_or(0, |until| now.ttl(until)),
            data: std::mem::take(&mut identity.data),
            ping: seconds(self.limits.ping_interval),
            pong: !self.limits.pong_timeout.is_zero(),
            ..ConnectResult::default()
        };
        let about = (&*self.client, identity.expires);
        self.deadlines.connected(&self.limits, about, now);
        self.identity = Some(Box::new(identity));
        self.stage = SessionStage::Connected;
        self.connecting = Some(Box::new(Connecting { id, result: Box::new(result), waiting: 1 }));
        for channel in channels {
            self.subscribe_by_server(&channel, subs.get(&channel), authority, host, now)?;
        }
        self.subscribed_by_server(None, host);
        Ok(())
    }

    /// Begins a server-side subscription of a connect. A channel that the client may not join is
    /// left out: its rules may have changed since the token was made.
    fn subscribe_by_server<A: Authority<Claims = C>>(
        &mut self,
        channel: &str,
        before: Option<&SubscribeRequest>,
        authority: &A,
        host: &mut impl Host,
        now: Now,
    ) -> Result<(), Disconnect> {
        if self.is_subscribed(channel) || !self.is_name(channel) {
            return Ok(());
        }
        let Ok(grant) = authority.subscribe(self.known()?, channel, None) else { return Ok(()) };
        let request = before.cloned().unwrap_or_default();
        let begun = Begun { request: &request, id: 0, is_by_server: true };
        match self.begin(channel, &begun, grant, host, now) {
            (Joined::At(place), subscription) => {
                let result = subscription.result(&self.limits, &begun.wanted(), place, now);
                self.keep(subscription);
                let result = result.map_err(|_| Disconnect::InsufficientState)?;
                self.connected_to(channel, result);
                Ok(())
            }
            (Joined::Later, subscription) => {
                self.keep(subscription);
                if let Some(connecting) = &mut self.connecting {
                    connecting.waiting += 1;
                }
                Ok(())
            }
            (Joined::Failed(_), _) => Err(Disconnect::ServerError),
        }
    }

    fn connected_to(&mut self, channel: &str, result: SubscribeResult) {
        if let Some(connecting) = &mut self.connecting {
            connecting.result.subs.insert(channel.to_owned(), result);
        }
    }

    /// Replies to the connect when all its subscriptions have their places.
    pub(super) fn subscribed_by_server(
        &mut self,
        subscribed: Option<(&str, SubscribeResult)>,
        host: &mut impl Host,
    ) {
        if let Some((channel, result)) = subscribed {
            self.connected_to(channel, result);
        }
        let Some(connecting) = &mut self.connecting else { return };
        connecting.waiting -= 1;
        if connecting.waiting == 0
            && let Some(connecting) = self.connecting.take()
        {
            let Connecting { id, result, .. } = *connecting;
            host.reply(&Reply { id, connect: Some(result), ..Reply::default() });
        }
    }

    pub(super) fn handle_refresh<A: Authority<Claims = C>>(
        &mut self,
        (id, token): (u32, &str),
        authority: &A,
        host: &mut impl Host,
        now: Now,
    ) -> Handled {
        let known = self.known()?;
        if token.is_empty() {
            return Err(Disconnect::BadRequest.into());
        }
        let mut identity = authority.refresh(known, token)?;
        if identity.user != known.user {
            return Err(Disconnect::InvalidToken.into());
        }
        identity.channels = Vec::new();
        let expires = identity.expires;
        if expires.is_some_and(|until| until < now.unix) {
            return Err(ErrorCode::Expired.into());
        }
        self.deadlines.refreshed(&self.limits, expires, now);
        self.identity = Some(Box::new(identity));
        let refresh = RefreshResult {
            client: self.client.to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            expires: expires.is_some(),
            ttl: expires.map_or(0, |until| now.ttl(until)),
        };
        host.reply(&Reply { id, refresh: Some(refresh), ..Reply::default() });
        Ok(())
    }

    /// Returns whether a channel can have this name.
    pub(super) fn is_name(&self, channel: &str) -> bool {
        (1..=self.limits.max_channel_name).contains(&channel.len())
    }

    pub(super) fn subscription(&self, channel: &str) -> Option<&Subscription> {
        self.subscriptions.iter().find(|one| one.is_of(channel))
    }
}
