//! Commands about channels besides subscriptions.

use super::{ClientSession, Handled, named};
use crate::authority::{Authority, Grant};
use crate::codes::ErrorCode;
use crate::command::{HistoryRequest, PublishRequest};
use crate::host::{Attempt, Counting, Host};
use crate::reply::{ClientInfo, Empty, Reply};

impl<C> ClientSession<C> {
    /// Returns what the client may do in a channel.
    fn grant_in<A: Authority<Claims = C>>(
        &self,
        channel: &str,
        authority: &A,
    ) -> Result<Grant, crate::Disconnect> {
        match self.subscription(channel) {
            Some(subscription) => Ok(subscription.grant().clone()),
            None => Ok(authority.without_subscription(self.known()?, channel)),
        }
    }

    /// Checks the name of a channel and a right in it.
    fn check<A: Authority<Claims = C>>(
        &self,
        channel: &str,
        authority: &A,
        right: impl Fn(&Grant) -> bool,
    ) -> Result<Grant, crate::Refusal> {
        named(channel)?;
        if !self.is_name(channel) {
            return Err(ErrorCode::BadRequest.into());
        }
        let grant = self.grant_in(channel, authority)?;
        if right(&grant) { Ok(grant) } else { Err(ErrorCode::PermissionDenied.into()) }
    }

    pub(super) fn handle_publish<A: Authority<Claims = C>>(
        &mut self,
        (id, request): (u32, &PublishRequest),
        authority: &A,
        host: &mut impl Host,
    ) -> Handled {
        let PublishRequest { channel, data, r#type } = request;
        named(channel)?;
        if *r#type != 0 {
            return Err(ErrorCode::NotAvailable.into());
        }
        if data.is_empty() {
            return Err(ErrorCode::BadRequest.into());
        }
        let grant = self.check(channel, authority, |grant| grant.publishes)?;
        let known = self.known()?;
        let by = ClientInfo {
            user: known.user.clone(),
            client: self.client.to_string(),
            conn_info: known.info.clone(),
            chan_info: grant.info,
        };
        let publish = Some(Empty {});
        match host.publish(id, channel, data, &by) {
            Attempt::Done(()) => host.reply(&Reply { id, publish, ..Reply::default() }),
            Attempt::Failed(error) => return Err(error.into()),
            Attempt::Later => {}
        }
        Ok(())
    }

    pub(super) fn handle_presence<A: Authority<Claims = C>>(
        &mut self,
        of: (u32, &str),
        authority: &A,
        host: &mut impl Host,
    ) -> Handled {
        self.look_up(of, Counting::Clients, authority, host)
    }

    pub(super) fn handle_presence_stats<A: Authority<Claims = C>>(
        &mut self,
        of: (u32, &str),
        authority: &A,
        host: &mut impl Host,
    ) -> Handled {
        self.look_up(of, Counting::Numbers, authority, host)
    }

    fn look_up<A: Authority<Claims = C>>(
        &self,
        (id, channel): (u32, &str),
        counting: Counting,
        authority: &A,
        host: &mut impl Host,
    ) -> Handled {
        self.check(channel, authority, |grant| grant.sees_presence)?;
        match host.presence(id, channel, counting) {
            Attempt::Done(reply) => host.reply(&Reply { id, ..reply }),
            Attempt::Failed(error) => return Err(error.into()),
            Attempt::Later => {}
        }
        Ok(())
    }

    pub(super) fn handle_history<A: Authority<Claims = C>>(
        &mut self,
        (id, request): (u32, &HistoryRequest),
        authority: &A,
        host: &mut impl Host,
    ) -> Handled {
        self.check(&request.channel, authority, |grant| grant.reads_history)?;
        let most = self.limits.max_publications;
        let limit = usize::try_from(request.limit).map_or(most, |limit| limit.min(most));
        let limit = i32::try_from(limit).unwrap_or(i32::MAX);
        let request = HistoryRequest { limit, ..request.clone() };
        match host.history(id, &request) {
            Attempt::Done(result) => {
                host.reply(&Reply { id, history: Some(result), ..Reply::default() });
            }
            Attempt::Failed(error) => return Err(error.into()),
            Attempt::Later => {}
        }
        Ok(())
    }
}
