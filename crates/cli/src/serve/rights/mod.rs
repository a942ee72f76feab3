//! The rights of clients in channels: rules, and the tokens that rules ask for.

mod centrifuge;
mod read;
#[cfg(feature = "tokens")]
mod sets;
#[cfg(all(test, feature = "tokens"))]
mod tests;
mod token;

use std::sync::{Arc, PoisonError, RwLock};
use std::time::SystemTime;

use throng::channel::Pattern;
use throng::prelude::*;
use throng::server::EndReason;

pub(crate) use read::{WHO, api_keys, rights, rule};
pub(crate) use token::{ApiKeys, Claims, Verifier};

use self::token::TokenError;
use crate::failure::Failure;
use crate::log::{Log, events};

/// Something that a client does in a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Right {
    Join,
    Publish,
    History,
}

impl Right {
    pub(crate) const ALL: [Self; 3] = [Self::Join, Self::Publish, Self::History];

    /// Returns the field of a rule that grants it.
    pub(crate) const fn field(self) -> &'static str {
        match self {
            Self::Join => "may_join",
            Self::Publish => "may_publish",
            Self::History => "may_read_history",
        }
    }
}

/// The clients that have a right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Anyone,
    /// Clients with a valid token.
    Token,
    /// Clients whose token names the channel.
    Claim,
    /// Clients whose user the channel names.
    User,
    NoOne,
}

/// The rights that a rule grants; `None`: as in channels without a rule.
pub(crate) type Granting = [Option<Who>; Right::ALL.len()];

/// The rights of all clients in all channels.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rights {
    /// For channels without a rule: anyone, or only whom a token names.
    pub(crate) open: bool,
    /// In order: the first that matches applies.
    rules: Vec<(Pattern, Granting)>,
    verifier: Verifier,
    /// The keys that issuers publish.
    #[cfg(feature = "tokens")]
    sets: Option<Arc<sets::Sets>>,
}

/// The rights of a client in the channel that it asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Granted {
    pub(crate) publishes: bool,
    pub(crate) reads_history: bool,
    /// When the token expires.
    pub(crate) until: Option<SystemTime>,
    /// Information about the client from its token.
    pub(crate) info: Option<String>,
}

/// Why a client may not join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// It has no token, and needs one.
    NoToken,
    /// Its token is not valid.
    Token(TokenError),
    /// Its token, if any, does not allow it.
    Channel,
}

impl Refused {
    /// Returns the reason for which its session is closed.
    pub(crate) fn end(self) -> EndReason {
        match self {
            Self::NoToken | Self::Token(_) => EndReason::Token,
            Self::Channel => EndReason::Right,
        }
    }

    /// Returns the text for the client.
    pub(crate) fn text(self) -> String {
        match self {
            Self::NoToken => "this channel needs a token".to_owned(),
            Self::Token(error) => error.to_string(),
            Self::Channel => "this client may not join this channel".to_owned(),
        }
    }

    /// Returns the refusal of a request.
    pub(crate) fn reject(self) -> Reject {
        match self {
            Self::NoToken | Self::Token(_) => Reject::unauthorized().with_reason(self.text()),
            Self::Channel => Reject::forbidden().with_reason(self.text()),
        }
    }
}

/// A channel, or all channels that match a pattern.
enum Topic<'n> {
    Channel(&'n str),
    Pattern(Pattern),
}

impl Rights {
    /// Returns what the client of `request` may do in `channel`, or in all channels that match it
    /// if it `is_pattern`.
    ///
    /// # Errors
    /// It may not join.
    pub(crate) fn admit(
        &self,
        request: &Request<'_>,
        channel: &str,
        is_pattern: bool,
    ) -> Result<Granted, Refused> {
        let claims = match token_of(request).filter(|_| self.has_keys()) {
            Some(token) => Some(self.verify(token).map_err(Refused::Token)?),
            None => None,
        };
        let topic = match Pattern::new(channel) {
            Ok(pattern) if is_pattern => Topic::Pattern(pattern),
            _ => Topic::Channel(channel),
        };
        let may = |right| self.allows(claims.as_ref(), right, &topic);
        if !may(Right::Join) {
            return Err(if claims.is_some() {
                Refused::Channel
            } else {
                self.without_token(&topic)
            });
        }
        Ok(Granted {
            publishes: may(Right::Publish),
            reads_history: may(Right::History),
            until: claims.as_ref().and_then(|claims| claims.expires),
            info: claims.and_then(|claims| claims.info).map(|info| info.to_string()),
        })
    }

    /// Returns whether any key verifies tokens.
    fn has_keys(&self) -> bool {
        #[cfg(feature = "tokens")]
        if self.sets.is_some() {
            return true;
        }
        self.verifier.has_keys()
    }

    fn verify(&self, token: &str) -> Result<Claims, TokenError> {
        let verified = self.verifier.verify(token);
        #[cfg(feature = "tokens")]
        if let (Err(TokenError::UnknownKey | TokenError::Signature), Some(sets)) =
            (&verified, &self.sets)
        {
            return sets.verify(token);
        }
        verified
    }

    /// Returns why a client without a token may not join.
    fn without_token(&self, topic: &Topic<'_>) -> Refused {
        match self.who(Right::Join, topic).contains(&Who::NoOne) {
            true => Refused::Channel,
            false => Refused::NoToken,
        }
    }

    fn allows(&self, claims: Option<&Claims>, right: Right, topic: &Topic<'_>) -> bool {
        self.who(right, topic).iter().all(|who| match (who, claims) {
            (Who::Anyone, _) => true,
            (Who::NoOne, _) | (_, None) => false,
            (Who::Token, Some(_)) => true,
            (Who::Claim, Some(claims)) => names(claims, right, topic),
            (Who::User, Some(claims)) => is_of_user(claims, topic),
        })
    }

    /// Returns who has a right: for a pattern, in each kind of channel that it can match.
    fn who(&self, right: Right, topic: &Topic<'_>) -> Vec<Who> {
        let usual = if self.open { Who::Anyone } else { Who::Claim };
        let of = |granting: &Granting| granting[right as usize].unwrap_or(usual);
        match topic {
            Topic::Channel(name) => {
                let rule = self.rules.iter().find(|(pattern, _)| pattern.matches(name));
                vec![rule.map_or(usual, |(_, granting)| of(granting))]
            }
            Topic::Pattern(all) => {
                let mut who = Vec::new();
                for (pattern, granting) in self.rules.iter().filter(|(it, _)| it.meets(all)) {
                    who.push(of(granting));
                    if pattern.covers(all) {
                        return who;
                    }
                }
                who.push(usual);
                who
            }
        }
    }
}

/// Returns whether the claims name the channel, or all that the pattern matches.
fn names(claims: &Claims, right: Right, topic: &Topic<'_>) -> bool {
    let patterns = match right {
        Right::Join => &claims.join,
        Right::Publish => &claims.publish,
        Right::History => &claims.history,
    };
    let mut patterns = patterns.iter().filter_map(|text| Pattern::new(text).ok());
    match topic {
        Topic::Channel(name) => {
            let is_listed = right == Right::Join && claims.channels.iter().any(|it| it == name);
            is_listed || patterns.any(|pattern| pattern.matches(name))
        }
        Topic::Pattern(all) => patterns.any(|pattern| pattern.covers(all)),
    }
}

/// Returns whether the channel names the user: behind its last `#`, where several have commas
/// between them, or else as its last token.
fn is_of_user(claims: &Claims, topic: &Topic<'_>) -> bool {
    let user = claims.user.as_ref().filter(|user| !user.is_empty());
    let (Some(user), Topic::Channel(name)) = (user, topic) else { return false };
    match (name.rsplit_once('#'), name.rsplit_once('.')) {
        (Some((_, users)), _) => users.split(',').any(|it| it == user),
        (None, Some((_, token))) => token == user,
        (None, None) => false,
    }
}

/// A page offers its token as a subprotocol, `bearer.TOKEN`, since it cannot set headers.
const OFFER: &str = "bearer.";

/// The subprotocol that is chosen beside such an offer: a browser ends a session without one.
pub(crate) const CHOSEN: &str = "throng";

/// Returns the token of a request, if it has one.
pub(crate) fn token(request: &Request<'_>) -> Option<String> {
    token_of(request).map(str::to_owned)
}

/// Returns the token of a request: from `Authorization`, the offered subprotocols or `?token=`.
fn token_of<'r>(request: &'r Request<'_>) -> Option<&'r str> {
    let offered = || {
        let lists = request.header_values("Sec-WebSocket-Protocol");
        lists.flat_map(|list| list.split(',')).find_map(|name| name.trim().strip_prefix(OFFER))
    };
    let token = request.bearer().or_else(offered).or_else(|| request.query("token"));
    token.filter(|token| !token.is_empty())
}

/// Logs who may use channels.
pub(crate) fn announce(rights: &Rights, log: &Log) {
    let message = match (rights.open, rights.has_keys()) {
        (true, _) => {
            "channels are open to every client; before strangers reach this server, set \
             token_keys, or who may_join and may_publish in rules of channels, and open = false"
        }
        (false, true) => "channels are for clients with tokens, and as their rules say",
        (false, false) => {
            "channels are only for whom a rule of theirs names, since others reach this server; \
             set token_keys, or --open for every client"
        }
    };
    log.event(&events::CHANNELS, message, []);
}

/// The rights of a running server. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct LiveRights(Arc<RwLock<Arc<Rights>>>);

impl LiveRights {
    pub(crate) fn new(rights: Rights) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(rights))))
    }

    /// Starts to fetch sets of keys, if there are any.
    pub(crate) fn start(&self, log: &Log) -> Result<(), Failure> {
        #[cfg(feature = "tokens")]
        if let Some(sets) = &self.get().sets {
            sets.start(log)?;
        }
        let _ = log;
        Ok(())
    }

    pub(crate) fn get(&self) -> Arc<Rights> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Uses other rights. Sets of keys with the same sources keep their keys.
    pub(crate) fn replace(&self, with: &Self) {
        let rights = with.get();
        #[cfg(feature = "tokens")]
        let rights = match (&rights.sets, &self.get().sets) {
            (Some(new), Some(old)) if new.is_like(old) => {
                Arc::new(Rights { sets: Some(Arc::clone(old)), ..(*rights).clone() })
            }
            _ => rights,
        };
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = rights;
    }
}
