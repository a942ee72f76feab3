//! Subscriptions.

use super::time::Now;
use super::{ClientSession, Handled, named};
use crate::authority::{Authority, Grant};
use crate::codes::{Disconnect, ErrorCode, UnsubscribeCode};
use crate::command::{StreamPosition, SubRefreshRequest, SubscribeRequest};
use crate::host::{FoundPlace, Host, Joined};
use crate::info;
use crate::limits::Limits;
use crate::reply::{Empty, Expiry, Push, Reply, SubscribeResult, Unsubscribe};

/// Flag of a request: the reply is the error 112 if the client cannot continue.
const REJECT_UNRECOVERED: i64 = 1 << 1;

/// A subscription of the client.
#[derive(Debug)]
pub(super) struct Subscription {
    channel: Box<str>,
    /// Whether the server has made it.
    is_by_server: bool,
    grant: Grant,
    /// Milliseconds at which it ends without another token.
    pub(super) ends: Option<u64>,
    /// The command whose reply waits for the place.
    waits: Option<Box<Wanted>>,
}

/// The wishes of a request that its reply needs.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    id: u32,
    since: Option<StreamPosition>,
    rejects: bool,
}

/// A subscription that begins.
pub(super) struct Begun<'r> {
    pub(super) request: &'r SubscribeRequest,
    pub(super) id: u32,
    pub(super) is_by_server: bool,
}

impl Begun<'_> {
    /// Returns what the request wants.
    pub(super) fn wanted(&self) -> Wanted {
        let SubscribeRequest { recover, epoch, offset, flag, .. } = self.request;
        let since = StreamPosition { offset: *offset, epoch: epoch.clone() };
        let since = recover.then_some(since);
        Wanted { id: self.id, since, rejects: flag & REJECT_UNRECOVERED != 0 }
    }
}

impl Subscription {
    pub(super) fn is_of(&self, channel: &str) -> bool {
        *self.channel == *channel
    }

    pub(super) fn grant(&self) -> &Grant {
        &self.grant
    }

    /// Returns the reply to the request of a subscription that begins at a place.
    pub(super) fn result(
        &self,
        limits: &Limits,
        wanted: &Wanted,
        mut place: FoundPlace,
        now: Now,
    ) -> Result<SubscribeResult, ErrorCode> {
        if place.publications.len() > limits.max_publications {
            place.recovered = false;
        }
        let has_history = place.position.is_some();
        let was_recovering = wanted.since.is_some();
        let recovered = was_recovering && place.recovered;
        if was_recovering && has_history && !recovered && wanted.rejects {
            return Err(ErrorCode::UnrecoverablePosition);
        }
        let StreamPosition { epoch, mut offset } = place.position.unwrap_or_default();
        if let Some(since) = wanted.since.as_ref().filter(|_| recovered) {
            // The publications lead from there to the newest one.
            offset = since.offset;
        }
        Ok(SubscribeResult {
            expires: self.grant.expires.is_some(),
            ttl: self.grant.expires.map_or(0, |until| now.ttl(until)),
            recoverable: has_history && self.grant.reads_history,
            epoch,
            publications: if recovered { place.publications } else { Vec::new() },
            recovered,
            offset,
            positioned: has_history,
            was_recovering,
            ..SubscribeResult::default()
        })
    }
}

impl<C> ClientSession<C> {
    pub(super) fn handle_subscribe<A: Authority<Claims = C>>(
        &mut self,
        (id, request): (u32, &SubscribeRequest),
        authority: &A,
        host: &mut impl Host,
        now: Now,
    ) -> Handled {
        let channel = request.channel.as_str();
        self.check_subscribe(request)?;
        let token = Some(request.token.as_str()).filter(|token| !token.is_empty());
        let grant = authority.subscribe(self.known()?, channel, token)?;
        if grant.expires.is_some_and(|until| until < now.unix) {
            return Err(ErrorCode::Expired.into());
        }
        let begun = Begun { request, id, is_by_server: false };
        match self.begin(channel, &begun, grant, host, now) {
            (Joined::At(place), subscription) => {
                self.keep(subscription);
                self.finish(channel, &begun.wanted(), place, host, now)?;
            }
            (Joined::Later, subscription) => self.keep(subscription),
            (Joined::Failed(error), _) => return Err(error.into()),
        }
        Ok(())
    }

    fn check_subscribe(&self, request: &SubscribeRequest) -> Handled {
        let channel = request.channel.as_str();
        named(channel)?;
        if !matches!(request.delta.as_str(), "" | "fossil") {
            return Err(Disconnect::BadRequest.into());
        }
        if request.r#type != 0 {
            return Err(ErrorCode::NotAvailable.into());
        }
        if !self.is_name(channel) || request.tf.is_some() {
            return Err(ErrorCode::BadRequest.into());
        }
        if self.is_subscribed(channel) {
            return Err(ErrorCode::AlreadySubscribed.into());
        }
        if self.subscriptions.len() >= self.limits.max_channels {
            return Err(ErrorCode::LimitExceeded.into());
        }
        Ok(())
    }

    /// Keeps a subscription. Most clients have one or two, which take the memory of one or two.
    pub(super) fn keep(&mut self, subscription: Subscription) {
        if self.subscriptions.len() < 4 {
            self.subscriptions.reserve_exact(1);
        }
        self.subscriptions.push(subscription);
    }

    /// Joins a channel; returns the outcome and the subscription.
    pub(super) fn begin(
        &self,
        channel: &str,
        begun: &Begun<'_>,
        grant: Grant,
        host: &mut impl Host,
        now: Now,
    ) -> (Joined, Subscription) {
        let mut wanted = begun.wanted();
        let (user, info) =
            self.identity().map_or(("", &[][..]), |known| (&known.user, &known.info));
        let about = info::encode(user, info, &grant.info);
        // Who may not read the history learns that publications are missing, not which.
        let since = wanted.since.as_ref().filter(|_| grant.reads_history);
        let joined = host.join(channel, &about, since);
        if !grant.reads_history
            && let Some(since) = &mut wanted.since
        {
            *since = StreamPosition::default();
        }
        let ends = grant.expires.map(|until| now.end(until, self.limits.refresh_timeout));
        let waits = (joined == Joined::Later).then(|| Box::new(wanted));
        let is_by_server = begun.is_by_server;
        let channel = channel.into();
        (joined, Subscription { channel, is_by_server, grant, ends, waits })
    }

    /// Replies to a subscription whose place is known.
    fn finish(
        &mut self,
        channel: &str,
        wanted: &Wanted,
        place: FoundPlace,
        host: &mut impl Host,
        now: Now,
    ) -> Result<(), ErrorCode> {
        let Some(subscription) = self.subscription(channel) else { return Ok(()) };
        let is_by_server = subscription.is_by_server;
        match subscription.result(&self.limits, wanted, place, now) {
            Ok(result) if is_by_server => self.subscribed_by_server(Some((channel, result)), host),
            Ok(result) => {
                let subscribe = Some(Box::new(result));
                host.reply(&Reply { id: wanted.id, subscribe, ..Reply::default() });
            }
            Err(error) => {
                self.end(channel, host);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Takes the place of a join that was pending.
    ///
    /// # Errors
    /// The connection must be closed for this reason.
    pub fn handle_place(
        &mut self,
        channel: &str,
        place: FoundPlace,
        host: &mut impl Host,
        now: Now,
    ) -> Result<(), Disconnect> {
        let found = self.subscriptions.iter_mut().find(|one| one.is_of(channel));
        let Some(wanted) = found.and_then(|one| one.waits.take()) else { return Ok(()) };
        if let Err(error) = self.finish(channel, &wanted, place, host, now) {
            if wanted.id == 0 {
                return Err(Disconnect::InsufficientState);
            }
            host.reply(&Reply::failed(wanted.id, error));
        }
        Ok(())
    }

    pub(super) fn handle_unsubscribe(
        &mut self,
        id: u32,
        channel: &str,
        host: &mut impl Host,
    ) -> Handled {
        named(channel)?;
        self.end(channel, host);
        host.reply(&Reply { id, unsubscribe: Some(Empty {}), ..Reply::default() });
        Ok(())
    }

    /// Ends a subscription, if there is one.
    fn end(&mut self, channel: &str, host: &mut impl Host) -> bool {
        let at = self.subscriptions.iter().position(|one| one.is_of(channel));
        let Some(ended) = at.map(|at| self.subscriptions.swap_remove(at)) else { return false };
        host.leave(channel);
        if let Some(wanted) = ended.waits {
            match wanted.id {
                0 => self.subscribed_by_server(None, host),
                id => host.reply(&Reply::failed(id, ErrorCode::Internal)),
            }
        }
        true
    }

    /// Ends a subscription for a reason of the server's, which the client gets.
    pub fn unsubscribe(&mut self, channel: &str, code: UnsubscribeCode, host: &mut impl Host) {
        if self.end(channel, host) {
            let reason = code.text().to_owned();
            let unsubscribe = Some(Unsubscribe { code: code.code(), reason });
            let channel = channel.to_owned();
            host.reply(&Reply::pushed(Push { channel, unsubscribe, ..Push::default() }));
        }
    }

    /// Ends the subscriptions that have expired.
    pub(super) fn expire_subscriptions(
        &mut self,
        host: &mut impl Host,
        now: Now,
    ) -> Result<(), Disconnect> {
        let is_due = |one: &&Subscription| one.ends.is_some_and(|at| at <= now.millis);
        while let Some(due) = self.subscriptions.iter().find(is_due) {
            if due.is_by_server {
                return Err(Disconnect::SubscriptionExpired);
            }
            let channel = due.channel.clone();
            self.unsubscribe(&channel, UnsubscribeCode::Expired, host);
        }
        Ok(())
    }

    pub(super) fn handle_sub_refresh<A: Authority<Claims = C>>(
        &mut self,
        (id, request): (u32, &SubRefreshRequest),
        authority: &A,
        host: &mut impl Host,
        now: Now,
    ) -> Handled {
        let SubRefreshRequest { channel, token, r#type } = request;
        named(channel)?;
        if !self.is_subscribed(channel) {
            return Err(ErrorCode::PermissionDenied.into());
        }
        if *r#type != 0 {
            return Err(ErrorCode::NotAvailable.into());
        }
        if token.is_empty() {
            return Err(ErrorCode::BadRequest.into());
        }
        let grant = authority.subscribe(self.known()?, channel, Some(token))?;
        let expires = grant.expires;
        if expires.is_some_and(|until| until < now.unix) {
            return Err(ErrorCode::Expired.into());
        }
        let ends = expires.map(|until| now.end(until, self.limits.refresh_timeout));
        if let Some(found) = self.subscriptions.iter_mut().find(|one| one.is_of(channel)) {
            (found.grant, found.ends) = (grant, ends);
        }
        let ttl = expires.map_or(0, |until| now.ttl(until));
        let sub_refresh = Some(Expiry { expires: expires.is_some(), ttl });
        host.reply(&Reply { id, sub_refresh, ..Reply::default() });
        Ok(())
    }
}
