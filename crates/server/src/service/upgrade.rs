//! Upgrades: where HTTP becomes WebSocket.

use std::any::Any;
use std::sync::Arc;

use throng_engine::workers::OverflowPolicy;
use throng_engine::{Answer, Cx, UserEvent};
use throng_http::{Reject, Status};
use throng_proto::http1;
use throng_proto::ws::handshake::{self, encode_response_fields};

use super::routed::{Routed, responder_of};
use super::{RouteShared, SWITCHING_PROTOCOLS, ShardService};
use crate::accept::{AcceptHeaders, AnyAccept};
use crate::app::RouteAction;
#[cfg(feature = "tokio")]
use crate::exchanges::OwnedRequest;
use crate::exchanges::exchange::{Exchange, PendingUpgrade};
use crate::exchanges::{ExchangeEvent, MovedUpgrade};
use crate::readiness::RETRY_AFTER;
use crate::shard::shard_of;
use crate::tls::Security;
use crate::workers::BlockingJob;
use crate::ws::WsRoute;
use crate::ws::decision::UpgradeLater;
use crate::ws::sessions::{Accepted, NoSessions, Sessions};

/// Maximum characters of a foreign origin that its refusal repeats.
const MAX_ORIGIN: usize = 100;

/// State of an upgrade that the handler has not refused.
pub(super) enum Upgraded {
    Now,
    /// The handler decides on it later.
    Later(Box<PendingUpgrade>, UpgradeLater),
    /// The session belongs on this other shard.
    Elsewhere(Box<PendingUpgrade>, usize, AnyAccept),
}

impl ShardService {
    /// Accepts an upgrade (RFC 6455 section 4.2.2), if the request is valid and the handler agrees.
    pub(super) fn upgrade(
        &mut self,
        cx: &mut Cx<'_>,
        shared: &RouteShared,
        ws: &WsRoute,
        routed: &Routed<'_, '_>,
    ) -> Result<Upgraded, Reject> {
        let Routed { route, head, request, .. } = routed;
        let negotiated = self.negotiate(shared, *route, ws, head)?;
        let sessions = self.sessions_for(*route, ws);
        if let Some(later) = sessions.upgrade_later() {
            return Ok(Upgraded::Later(Box::new(negotiated), later));
        }
        let (data, headers) = match sessions.on_upgrade(request)? {
            Accepted::Here(data, headers) => (data, headers),
            Accepted::Placed(key, accept) => match shard_of(key, cx.core_ref().remote()) {
                here if here == cx.core_ref().shard() => sessions.insert(accept)?,
                other => return Ok(Upgraded::Elsewhere(Box::new(negotiated), other, accept)),
            },
        };
        complete(cx, negotiated, data, &headers, &shared.security)?;
        Ok(Upgraded::Now)
    }

    /// Moves an accepted upgrade to the shard of its session.
    pub(super) fn move_upgrade(
        &mut self,
        cx: &mut Cx<'_>,
        negotiated: PendingUpgrade,
        (shard, accept): (usize, AnyAccept),
        routed: Routed<'_, '_>,
    ) -> Answer {
        let Routed { head, request, .. } = routed;
        let mut exchange = Exchange::new(head, cx.entered_route(), self.end_call());
        let client = request.client();
        exchange.upgrade = Some(Box::new(PendingUpgrade { client, ..negotiated }));
        self.leave_to(cx, shard, exchange, accept);
        Answer::Upgrading
    }

    fn leave_to(
        &mut self,
        cx: &mut Cx<'_>,
        shard: usize,
        mut exchange: Exchange,
        accept: AnyAccept,
    ) {
        let id = cx.id();
        if let Some(upgrade) = &mut exchange.upgrade {
            upgrade.has_moved = true;
        }
        let entry = self.entries.remove(&id);
        let moved = ExchangeEvent::Moved(Box::new(MovedUpgrade { exchange, accept, entry }));
        cx.core().move_upgrade(id, shard, UserEvent(Box::new(moved)));
    }

    /// Completes an upgrade that another shard has moved to this one, or that could not be moved.
    pub(super) fn upgrade_moved(&mut self, cx: &mut Cx<'_>, moved: MovedUpgrade) {
        let MovedUpgrade { exchange, accept, entry } = moved;
        let shared = Arc::clone(&self.shared);
        if let Some(upgrade) = &exchange.upgrade
            && let RouteAction::Ws(ws) = &shared.route(upgrade.route).route.action
        {
            self.sessions_for(upgrade.route, ws);
        }
        if let Some(entry) = entry {
            self.entries.insert(cx.id(), entry);
        }
        self.exchanges.insert(cx.id(), exchange);
        self.upgrade_decided(cx, Ok(accept));
    }

    /// Returns the shard of an accepted session, if it is not this one.
    fn elsewhere(&self, cx: &Cx<'_>, route: u16, accept: &AnyAccept) -> Option<usize> {
        let key = self.sessions.get(usize::from(route))?.key_of(accept)?;
        let core = cx.core_ref();
        Some(shard_of(key, core.remote())).filter(|shard| *shard != core.shard())
    }

    /// Checks an upgrade, and negotiates the client's offers.
    fn negotiate(
        &self,
        shared: &RouteShared,
        route: u16,
        ws: &WsRoute,
        head: &http1::Request<'_>,
    ) -> Result<PendingUpgrade, Reject> {
        let key = handshake::check_request(head.method(), head.is_http11(), head)?;
        if head.has_body() {
            // The peer would take the body's bytes for frames.
            return Err(Reject::bad_request("an upgrade request has no body"));
        }
        self.check_admitted(head)?;
        let names: Vec<&str> = ws.options.subprotocols.iter().map(|name| &**name).collect();
        let subprotocol = handshake::choose_subprotocol(head, &names).map(Box::from);
        let policy = shared.route(route).compression;
        let accepted = match &policy {
            Some(policy) => {
                policy.accept(head).map_err(|error| Reject::bad_request(error.to_string()))?
            }
            None => None,
        };
        let deflate = policy.zip(accepted);
        let accept = key.accept();
        Ok(PendingUpgrade {
            route,
            client: None,
            accept,
            subprotocol,
            deflate,
            has_moved: false,
            cancel: None,
        })
    }

    /// Lets a worker or a future decide on an upgrade.
    pub(super) fn decide_later(
        &mut self,
        cx: &mut Cx<'_>,
        shared: &Arc<RouteShared>,
        negotiated: PendingUpgrade,
        later: UpgradeLater,
        routed: Routed<'_, '_>,
    ) -> Answer {
        let Routed { route, head, request, .. } = routed;
        let (id, client) = (cx.id(), request.client());
        // It needs no guard, since no handler asks whether the client has left: an upgrade whose
        // client leaves is cancelled with its exchange.
        let (responder, _) = responder_of(cx, shared.route(route));
        let cancel: Option<Box<dyn Any + Send>> = match later {
            UpgradeLater::Blocking(decide) => {
                let job = BlockingJob::new(head, request, responder);
                let its = Arc::clone(shared);
                let work = move || {
                    job.decide(&its.route(route).names, &its.trusted_proxies, decide);
                };
                if let Some(pool) = shared.pool.get() {
                    let path = &shared.route(route).context.path;
                    // A dropped job answers that the server is busy.
                    if pool.submit(id, path, OverflowPolicy::Wait, Box::new(work)).is_err() {
                        self.report_busy(cx, route, client);
                    }
                }
                None
            }
            #[cfg(feature = "tokio")]
            UpgradeLater::Async(runtime, decide) => {
                let request = OwnedRequest::new(
                    &shared.route(route).names,
                    &shared.trusted_proxies,
                    head,
                    request,
                );
                let task = runtime.spawn(async move {
                    // Created here, so that a panic of the closure counts as the task's.
                    let decision = decide(request).await;
                    responder.decide(decision);
                });
                Some(Box::new(AbortOnDrop(task.abort_handle())))
            }
        };
        let mut exchange = Exchange::new(head, cx.entered_route(), self.end_call());
        exchange.upgrade = Some(Box::new(PendingUpgrade { client, cancel, ..negotiated }));
        self.exchanges.insert(id, exchange);
        Answer::Upgrading
    }

    /// Completes or refuses an upgrade that was decided on by a worker or a future.
    pub(super) fn upgrade_decided(&mut self, cx: &mut Cx<'_>, decision: Result<AnyAccept, Reject>) {
        // The upgrade may have ended before the decision.
        let exchange = self.exchanges.get_mut(&cx.id());
        let Some(mut upgrade) = exchange.and_then(|exchange| exchange.upgrade.take()) else {
            return;
        };
        let (route, client) = (upgrade.route, upgrade.client);
        cx.enter_route(route.into());
        upgrade.cancel = None;
        let mut decision = match self.admission.admits_sessions() {
            true => decision,
            false => Err(shutting_down()),
        };
        let id = cx.id();
        let elsewhere = decision.as_ref().ok().and_then(|accept| self.elsewhere(cx, route, accept));
        match (elsewhere, decision) {
            (Some(shard), Ok(accept)) if !upgrade.has_moved => {
                if let Some(mut exchange) = self.exchanges.remove(&id) {
                    exchange.upgrade = Some(upgrade);
                    self.leave_to(cx, shard, exchange, accept);
                }
                return;
            }
            (Some(_), Ok(_)) => {
                let busy = Reject::unavailable(RETRY_AFTER);
                decision = Err(busy.with_reason("the event loop of this session has no room"));
            }
            (_, same) => decision = same,
        }
        if decision.is_ok() && !cx.core().accept_upgrade(id) {
            // Its client has left.
            self.exchanges.remove(&id);
            return cx.core().finish_answer(id, false);
        }
        match decision.and_then(|accept| self.open_decided(cx, *upgrade, accept)) {
            Ok(()) => {
                self.exchanges.remove(&id);
                self.note_status(cx, SWITCHING_PROTOCOLS);
            }
            Err(reject) => {
                let response = self.refusal(cx, route, client, reject);
                self.reply_later(cx, response);
            }
        }
    }

    fn open_decided(
        &mut self,
        cx: &mut Cx<'_>,
        upgrade: PendingUpgrade,
        accept: AnyAccept,
    ) -> Result<(), Reject> {
        let sessions = self.sessions.get_mut(usize::from(upgrade.route)).ok_or_else(broken)?;
        let (data, headers) = sessions.insert(accept)?;
        complete(cx, upgrade, data, &headers, &self.shared.security)
    }

    /// Refuses long-lived connections while the server drains, and from foreign origins.
    pub(super) fn check_admitted(&self, head: &http1::Request<'_>) -> Result<(), Reject> {
        if !self.admission.admits_sessions() {
            return Err(shutting_down());
        }
        if !self.shared.origins.allow(head) {
            let origin = head.origins().next().map(String::from_utf8_lossy).unwrap_or_default();
            let origin: String = origin.chars().take(MAX_ORIGIN).collect();
            return Err(Reject::forbidden().with_reason(format!(
                "the origin {origin:?} is not allowed; Server::origins, or allowed_origins in a \
                 configuration, sets which are"
            )));
        }
        Ok(())
    }

    /// Returns the sessions of a route, creating them for its first session.
    fn sessions_for(&mut self, route: u16, ws: &WsRoute) -> &mut dyn Sessions {
        let index = usize::from(route);
        while self.sessions.len() <= index {
            self.sessions.push(Box::new(NoSessions));
        }
        let sessions = &mut self.sessions[index];
        if sessions.is_none() {
            *sessions = ws.endpoint.clone().sessions(&self.shared.route(route).context);
        }
        &mut **sessions
    }
}

fn broken() -> Reject {
    Reject::status(Status::INTERNAL_SERVER_ERROR)
}

fn shutting_down() -> Reject {
    Reject::unavailable(RETRY_AFTER).with_reason("the server is shutting down")
}

/// Writes the 101 response, and adds the connection to the sessions of its route.
fn complete(
    cx: &mut Cx<'_>,
    upgrade: PendingUpgrade,
    data: u32,
    headers: &AcceptHeaders,
    security: &Security,
) -> Result<(), Reject> {
    let PendingUpgrade { route, accept, subprotocol, deflate, .. } = upgrade;
    let accepted = deflate
        .and_then(|(policy, accepted)| cx.set_deflate(policy, accepted.agreed).then_some(accepted));
    let answer = accepted.as_ref().map(|accepted| &accepted.answer);
    let subprotocol = subprotocol.as_deref();
    let mut encoded = Ok(());
    if !cx.is_answered() {
        let fields = headers.fields(security.hsts(cx));
        cx.write(|out| {
            encoded = encode_response_fields(&accept, subprotocol, answer, &fields, out);
        });
    }
    if encoded.is_err() {
        cx.clear_deflate();
        // `App::ws` refuses such names.
        return Err(Reject::status(Status::INTERNAL_SERVER_ERROR));
    }
    cx.set_route(route, data);
    if let Some(name) = subprotocol {
        cx.set_subprotocol(name);
    }
    Ok(())
}

/// Aborts a task when it is dropped.
#[cfg(feature = "tokio")]
struct AbortOnDrop(tokio::task::AbortHandle);

#[cfg(feature = "tokio")]
impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
