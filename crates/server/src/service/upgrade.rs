//! Upgrades: where HTTP becomes WebSocket.

use throng_engine::Cx;
use throng_http::{Reject, Request, Status};
use throng_proto::http1;
use throng_proto::ws::handshake::{self, encode_response_with};

use super::{RETRY_AFTER, ShardService};
use crate::ws::WsRoute;
use crate::ws::sessions::{NoSessions, Sessions};

/// Characters of a foreign origin that its refusal repeats.
const MAX_ORIGIN: usize = 100;

impl ShardService {
    /// Accepts an upgrade (RFC 6455 section 4.2.2), if the request is right and the handler agrees.
    pub(super) fn upgrade(
        &mut self,
        cx: &mut Cx<'_>,
        route: u16,
        ws: &WsRoute,
        head: &http1::Request<'_>,
        request: &Request<'_>,
    ) -> Result<(), Reject> {
        let key = handshake::check_request(head.method(), head.is_http11(), head)?;
        if head.has_body() {
            // Its bytes would be taken for frames.
            return Err(Reject::bad_request("an upgrade request has no body"));
        }
        self.check_admitted(head)?;
        let names: Vec<&str> = ws.options.subprotocols.iter().map(|name| &**name).collect();
        let subprotocol = handshake::choose_subprotocol(head, &names);
        let policy = self.shared.route(route).compression;
        let accepted = match &policy {
            Some(policy) => {
                policy.accept(head).map_err(|error| Reject::bad_request(error.to_string()))?
            }
            None => None,
        };
        let data = self.sessions_for(route, ws).on_upgrade(request)?;
        let accepted = policy.zip(accepted).and_then(|(policy, accepted)| {
            cx.set_deflate(policy, accepted.agreed).then_some(accepted)
        });
        let answer = accepted.as_ref().map(|accepted| &accepted.answer);
        let mut encoded = Ok(());
        cx.write(|out| {
            encoded = encode_response_with(&key.accept(), subprotocol, answer, out);
        });
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

    /// Refuses connections that would last, while the server drains or from foreign origins.
    pub(super) fn check_admitted(&self, head: &http1::Request<'_>) -> Result<(), Reject> {
        if !self.admission.is_ready() {
            return Err(Reject::unavailable(RETRY_AFTER).with_reason("the server is shutting down"));
        }
        if !self.shared.origins.allow(head.origins(), head.host()) {
            let origin = head.origins().next().map(String::from_utf8_lossy).unwrap_or_default();
            let origin: String = origin.chars().take(MAX_ORIGIN).collect();
            return Err(Reject::forbidden().with_reason(format!(
                "the origin {origin:?} is not allowed; Server::origins, or allowed_origins in a \
                 configuration, sets which are"
            )));
        }
        Ok(())
    }

    /// The sessions of a route, which begin with the first.
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
