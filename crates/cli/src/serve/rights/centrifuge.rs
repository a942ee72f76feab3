//! The rights of clients of the Centrifuge protocol: the same rules and tokens as for all others.

use std::time::UNIX_EPOCH;

use throng::centrifuge::{
    Authority, ConnectRequest, Disconnect, ErrorCode, Grant, Identity, Refusal,
};
use throng::channel::Pattern;

use super::token::TokenError;
use super::{Claims, LiveRights, Right, Rights, Topic, Who};

/// A client: with the claims of its token, or without a token.
type Client = Identity<Option<Box<Claims>>>;

impl Authority for LiveRights {
    type Claims = Option<Box<Claims>>;

    fn connect(&self, request: &ConnectRequest) -> Result<Client, Refusal> {
        let rights = self.get();
        if request.token.is_empty() || !rights.has_keys() {
            return match rights.admits_anyone() {
                true => Ok(Client::default()),
                false => Err(Disconnect::InvalidToken.into()),
            };
        }
        match rights.verify(&request.token) {
            // It would say who the client is only for one channel.
            Ok(claims) if claims.channel.is_some() => Err(Disconnect::InvalidToken.into()),
            Ok(claims) => Ok(client(claims)),
            Err(error) if is_expired(&error) => Err(ErrorCode::TokenExpired.into()),
            Err(_) => Err(Disconnect::InvalidToken.into()),
        }
    }

    fn refresh(&self, _: &Client, token: &str) -> Result<Client, Refusal> {
        let rights = self.get();
        if !rights.has_keys() {
            return Err(ErrorCode::NotAvailable.into());
        }
        match rights.verify(token) {
            Ok(claims) if claims.channel.is_some() => Err(Disconnect::InvalidToken.into()),
            Ok(claims) => Ok(client(claims)),
            Err(error) if is_expired(&error) => Err(Disconnect::Expired.into()),
            Err(_) => Err(Disconnect::InvalidToken.into()),
        }
    }

    fn subscribe(
        &self,
        client: &Client,
        channel: &str,
        token: Option<&str>,
    ) -> Result<Grant, Refusal> {
        let rights = self.get();
        let own = match token.filter(|_| rights.has_keys()) {
            Some(token) => Some(rights.of_subscription(client, channel, token)?),
            None => None,
        };
        let topic = Topic::Channel(channel);
        let may_join = match &own {
            Some(_) => !rights.who(Right::Join, &topic).contains(&Who::NoOne),
            None => rights.allows(client.claims.as_deref(), Right::Join, &topic),
        };
        if !may_join {
            return Err(ErrorCode::PermissionDenied.into());
        }
        let may = |right| {
            rights.allows(client.claims.as_deref(), right, &topic)
                || own.as_ref().is_some_and(|own| rights.allows(Some(own), right, &topic))
        };
        Ok(Grant {
            publishes: may(Right::Publish),
            reads_history: may(Right::History),
            sees_presence: true,
            expires: own.as_ref().and_then(expires),
            info: own.and_then(|own| own.info).map(json).unwrap_or_default(),
        })
    }

    fn without_subscription(&self, client: &Client, channel: &str) -> Grant {
        let rights = self.get();
        let may = |right| rights.allows(client.claims.as_deref(), right, &Topic::Channel(channel));
        let may_join = may(Right::Join);
        let is_shown = |claims: &Claims| {
            let mut patterns = claims.presence.iter().filter_map(|text| Pattern::new(text).ok());
            patterns.any(|pattern| pattern.matches(channel))
        };
        Grant {
            publishes: may_join && may(Right::Publish),
            reads_history: may_join && may(Right::History),
            sees_presence: may_join || client.claims.as_deref().is_some_and(is_shown),
            ..Grant::default()
        }
    }
}

impl Rights {
    /// Returns whether clients without a token may join any channel.
    fn admits_anyone(&self) -> bool {
        let joins = self.rules.iter().map(|(_, granting)| granting[Right::Join as usize]);
        self.open || joins.into_iter().any(|who| who == Some(Who::Anyone))
    }

    /// Returns the claims of a token for one channel of a client.
    fn of_subscription(
        &self,
        client: &Client,
        channel: &str,
        token: &str,
    ) -> Result<Claims, ErrorCode> {
        match self.verify(token) {
            Ok(claims) => {
                let user = claims.user.as_deref().unwrap_or_default();
                let is_own = user == client.user && claims.channel.as_deref() == Some(channel);
                if is_own { Ok(claims) } else { Err(ErrorCode::PermissionDenied) }
            }
            Err(error) if is_expired(&error) => Err(ErrorCode::TokenExpired),
            Err(_) => Err(ErrorCode::PermissionDenied),
        }
    }
}

fn client(claims: Claims) -> Client {
    Client {
        user: claims.user.clone().unwrap_or_default(),
        info: claims.info.clone().map(json).unwrap_or_default(),
        expires: expires(&claims),
        channels: claims.channels.clone(),
        claims: Some(Box::new(claims)),
        ..Client::default()
    }
}

fn expires(claims: &Claims) -> Option<u64> {
    Some(claims.expires?.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs())
}

fn json(info: impl ToString) -> Vec<u8> {
    info.to_string().into_bytes()
}

#[cfg(feature = "tokens")]
fn is_expired(error: &TokenError) -> bool {
    *error == TokenError::Expired
}

#[cfg(not(feature = "tokens"))]
fn is_expired(error: &TokenError) -> bool {
    match *error {}
}
