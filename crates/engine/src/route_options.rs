//! Options of routes: limits that a route may have instead of the server's.

use std::time::Duration;

use throng_proto::{SettingError, ws};

use crate::conn::route_limits::RouteLimits;
use crate::limits::{Limit, Limits, or_0, secs};

/// Options of a route's sessions. Options that are not set follow [`Limits`](crate::Limits).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouteOptions {
    /// Limits on messages.
    pub ws_limits: Option<ws::Limits>,
    /// Whether messages are passed to [`Receive::on_chunk`](crate::Receive::on_chunk) in chunks as
    /// they come, instead of whole. A message that came in one chunk may still be passed to
    /// [`Receive::on_message`](crate::Receive::on_message).
    pub streams: bool,
    /// Silence after which a ping is sent; `Some(None)` for no pings.
    pub heartbeat_interval: Option<Option<Duration>>,
    /// Time from an unanswered ping to the end of the connection.
    pub heartbeat_timeout: Option<Duration>,
    /// Lifetime of a session; `Some(None)` for no limit.
    pub max_lifetime: Option<Option<Duration>>,
    /// Maximum messages that a connection may send per second. [`Limit::Auto`]: the server's limit.
    pub max_messages_per_second: Limit,
    /// Maximum bytes that a connection may send per second. [`Limit::Auto`]: the server's limit.
    pub max_bytes_per_second: Limit,
}

impl RouteOptions {
    /// Checks these options.
    ///
    /// # Errors
    /// The caller's mistake, naming the setting, the value and the remedy.
    pub fn check(&self) -> Result<(), SettingError> {
        self.over(Limits::default().checked()?.route).map(drop)
    }

    /// Returns the server's limits, with the route's own limits in their place where they are set.
    ///
    /// # Errors
    /// A limit of the route would admit nothing, or a time is out of range.
    pub(crate) fn over(&self, server: RouteLimits) -> Result<RouteLimits, SettingError> {
        let mut limits = server;
        limits.ws = self.ws_limits.unwrap_or(server.ws);
        limits.streams = self.streams;
        if let Some(interval) = self.heartbeat_interval {
            limits.heartbeat_interval = or_0(interval, "heartbeat_interval")?;
        }
        if let Some(timeout) = self.heartbeat_timeout {
            limits.heartbeat_timeout = secs("heartbeat_timeout", timeout)?;
        }
        if let Some(lifetime) = self.max_lifetime {
            limits.lifetime = or_0(lifetime, "max_lifetime")?;
        }
        let (messages, bytes) = (&mut limits.rates.max_messages, &mut limits.rates.max_bytes);
        set_rate(messages, self.max_messages_per_second, "max_messages_per_second")?;
        set_rate(bytes, self.max_bytes_per_second, "max_bytes_per_second")?;
        Ok(limits)
    }
}

fn set_rate(rate: &mut u64, own: Limit, name: &'static str) -> Result<(), SettingError> {
    match own {
        Limit::Auto => {}
        Limit::Unlimited => *rate = u64::MAX,
        Limit::AtMost(0) => {
            let message = format!("{name} is 0, which would refuse everything; give at least 1");
            return Err(SettingError::new(name, message));
        }
        Limit::AtMost(number) => *rate = number as u64,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conn::route_limits::RateLimits;

    #[test]
    fn a_route_has_its_own_limits_and_for_the_rest_those_of_the_server() {
        let limits = Limits::default().max_messages_per_second(5).checked().unwrap();
        let own = RouteOptions {
            heartbeat_interval: Some(None),
            max_lifetime: Some(Some(Duration::from_secs(9))),
            max_bytes_per_second: Limit::AtMost(7),
            ..RouteOptions::default()
        };
        let route = own.over(limits.route).unwrap();
        let expected = RouteLimits {
            heartbeat_interval: 0,
            lifetime: 9,
            rates: RateLimits { max_messages: 5, max_bytes: 7 },
            ..limits.route
        };
        assert_eq!(route, expected);
        let free = RouteOptions { max_messages_per_second: Limit::Unlimited, ..own };
        assert_eq!(free.over(limits.route).unwrap().rates.max_messages, u64::MAX);
        assert_eq!(RouteOptions::default().over(limits.route).unwrap(), limits.route);
    }

    #[test]
    fn a_limit_that_lets_nothing_in_is_an_error_with_the_name_of_the_setting() {
        let limits = Limits::default().checked().unwrap();
        let usual = RouteOptions::default;
        let zero = Duration::ZERO;
        for (own, name) in [
            (
                RouteOptions { heartbeat_interval: Some(Some(zero)), ..usual() },
                "heartbeat_interval",
            ),
            (RouteOptions { heartbeat_timeout: Some(zero), ..usual() }, "heartbeat_timeout"),
            (RouteOptions { max_lifetime: Some(Some(zero)), ..usual() }, "max_lifetime"),
            (
                RouteOptions { max_messages_per_second: Limit::AtMost(0), ..usual() },
                "max_messages_per_second",
            ),
            (
                RouteOptions { max_bytes_per_second: Limit::AtMost(0), ..usual() },
                "max_bytes_per_second",
            ),
        ] {
            let error = own.over(limits.route).unwrap_err();
            assert_eq!(error.setting(), name);
            assert!(error.to_string().starts_with(&format!("{name} is 0")), "{error}");
        }
    }
}
