//! Rules of presence: the channels that have it, and the messages that members get of joins and
//! leaves.

use std::fmt;
use std::sync::Arc;

use throng_proto::SettingError;

use crate::backpressure::pattern::Pattern;
use crate::outbox::about::{About, PresenceChange, PresenceNote};
use crate::outbox::frame::Frame;

/// A client that joined or left a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PresenceEvent<'a> {
    /// Whether it came or went.
    pub change: PresenceChange,
    /// The channel.
    pub channel: &'a str,
    /// The server that the client is connected to, in a channel that several servers of a cluster
    /// share; `None`: this server, and no other server has the channel.
    pub node: Option<u64>,
    /// The connection, as the bits of its handle there.
    pub client: u64,
    /// The information that it was given when it joined; empty without any.
    pub info: &'a str,
}

impl PresenceEvent<'_> {
    /// Returns the event as JSON: `{"join":"CLIENT","info":"INFO"}`, or with `leave`, where CLIENT
    /// is in 16 hexadecimal digits, or 32 with the node. As a server-sent event its name is `join`
    /// or `leave`.
    #[must_use]
    pub fn to_frame(&self) -> Frame {
        let Self { change, node, client, info, .. } = self;
        let (name, info) = (change.name(), Quoted(info));
        let frame = match node {
            None => Frame::format(format_args!("{{\"{name}\":\"{client:016x}\",\"info\":{info}}}")),
            Some(node) => Frame::format(format_args!(
                "{{\"{name}\":\"{node:016x}{client:016x}\",\"info\":{info}}}"
            )),
        };
        frame.event_name(name)
    }
}

/// Joins and leaves of a channel are announced no longer, or again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PresenceSwitch<'a> {
    /// The channel.
    pub channel: &'a str,
    /// Its members on this server.
    pub members: usize,
    /// Whether members get joins and leaves from now on.
    pub is_announced: bool,
}

impl PresenceSwitch<'_> {
    /// Returns the switch as JSON: `{"members":1001,"announced":false}`. As a server-sent event its
    /// name is `members`.
    #[must_use]
    pub fn to_frame(&self) -> Frame {
        let Self { members, is_announced, .. } = self;
        let frame =
            Frame::format(format_args!("{{\"members\":{members},\"announced\":{is_announced}}}"));
        frame.event_name("members")
    }
}

/// A text as a string of JSON (RFC 8259 section 7).
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"")?;
        for c in self.0.chars() {
            match c {
                '"' | '\\' => write!(f, "\\{c}")?,
                '\0'..=' ' if c != ' ' => write!(f, "\\u{:04x}", u32::from(c))?,
                c => write!(f, "{c}")?,
            }
        }
        f.write_str("\"")
    }
}

/// Makes the message that members get of an event, or none.
type ToFrame = Arc<dyn Fn(&PresenceEvent<'_>) -> Option<Frame> + Send + Sync>;

/// Makes the message that members get of a switch, or none.
type SwitchToFrame = Arc<dyn Fn(&PresenceSwitch<'_>) -> Option<Frame> + Send + Sync>;

/// Default of the maximum members on a server that get joins and leaves.
const MAX_ANNOUNCED: usize = 1_000;

/// Presence of each channel that matches a pattern: the clients that are members are known, with
/// the information that each was given when it joined.
#[derive(Clone)]
#[must_use]
pub struct Presence {
    join_leave: Option<ToFrame>,
    switch: SwitchToFrame,
    max_announced: usize,
}

impl Default for Presence {
    fn default() -> Self {
        let switch: SwitchToFrame = Arc::new(|switch| Some(switch.to_frame()));
        Self { join_leave: None, switch, max_announced: MAX_ANNOUNCED }
    }
}

impl Presence {
    /// Creates a rule by which members can be listed, and do not get joins and leaves.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sends each join and leave to the other members, as [`PresenceEvent::to_frame`], in channels
    /// of up to [`max_announced`](Self::max_announced) members. Default: false.
    pub fn join_leave(mut self, on: bool) -> Self {
        self.join_leave = on.then(|| -> ToFrame { Arc::new(|event| Some(event.to_frame())) });
        self
    }

    /// Sends the message that `frame` makes of each join and leave to the other members; `None`:
    /// they get none.
    pub fn join_leave_with(
        mut self,
        frame: impl Fn(&PresenceEvent<'_>) -> Option<Frame> + Send + Sync + 'static,
    ) -> Self {
        self.join_leave = Some(Arc::new(frame));
        self
    }

    /// Sets the maximum members of a channel on this server that get joins and leaves: when `n`
    /// clients come and go together, each gets `n` messages, which are `n²`. Above it they get
    /// none, but a [`PresenceSwitch`], as does each client that joins then. They get another one
    /// when three quarters of it are left: a client that then lists the members again, and follows
    /// joins and leaves, knows all. Default: 1,000.
    pub fn max_announced(mut self, members: usize) -> Self {
        self.max_announced = members;
        self
    }

    /// Sends the message that `frame` makes of each [`PresenceSwitch`]; `None`: members get none.
    /// Default: [`PresenceSwitch::to_frame`].
    pub fn switch_with(
        mut self,
        frame: impl Fn(&PresenceSwitch<'_>) -> Option<Frame> + Send + Sync + 'static,
    ) -> Self {
        self.switch = Arc::new(frame);
        self
    }

    /// Returns whether members get joins and leaves after a change in a channel of this many
    /// members. `is_announced`: whether they got the previous join or leave.
    pub(super) fn is_announced(&self, members: usize, is_announced: bool) -> bool {
        let less = self.max_announced - self.max_announced.div_ceil(4);
        let most = if is_announced { self.max_announced } else { less };
        members <= most
    }

    pub(super) fn switch_frame(&self, switch: &PresenceSwitch<'_>) -> Option<Frame> {
        (self.switch)(switch).map(|frame| frame.with_about(About::Switch))
    }

    /// Returns whether members get joins and leaves.
    pub(crate) fn announces(&self) -> bool {
        self.join_leave.is_some()
    }

    pub(super) fn frame(&self, event: &PresenceEvent<'_>) -> Option<Frame> {
        let frame = self.join_leave.as_ref()?(event)?;
        let PresenceEvent { change, node, client, info, .. } = *event;
        let note = PresenceNote { change, node, client, info: info.into() };
        Some(frame.with_about(About::Presence(Box::new(note))))
    }
}

impl fmt::Debug for Presence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Presence")
            .field("join_leave", &self.join_leave.is_some())
            .field("max_announced", &self.max_announced)
            .finish_non_exhaustive()
    }
}

/// The rules of a server; the first whose pattern matches a channel applies.
#[derive(Clone, Debug, Default)]
pub struct PresenceRules(Vec<(Pattern, Option<Presence>)>);

impl PresenceRules {
    /// Keeps presence of channels whose names match `pattern`, written as for
    /// [`Classes::add_channels`](crate::Classes::add_channels). With `None` those channels have no
    /// presence, even if a later pattern matches.
    ///
    /// # Errors
    /// The pattern is malformed, or an earlier one matches all its channels.
    pub fn add(&mut self, pattern: &str, rule: Option<Presence>) -> Result<(), SettingError> {
        let earlier = self.0.iter().map(|(pattern, _)| pattern);
        self.0.push((Pattern::after(earlier, pattern)?, rule));
        Ok(())
    }

    /// Returns whether no channel has presence.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(|(_, rule)| rule.is_none())
    }

    /// Returns the rules as text, in their order.
    pub(crate) fn words(&self) -> Vec<String> {
        let words = |(pattern, rule): (&Pattern, &Option<Presence>)| match rule {
            None => format!("{} presence=none", pattern.as_str()),
            Some(Presence { join_leave: None, .. }) => {
                format!("{} presence=true", pattern.as_str())
            }
            Some(Presence { max_announced, .. }) => format!(
                "{} presence=true join_leave=true max_announced={max_announced}",
                pattern.as_str()
            ),
        };
        Pattern::effective(&self.0, Option::is_none).map(words).collect()
    }

    /// Returns the rule for a channel.
    pub(crate) fn of(&self, channel: &str) -> Option<&Presence> {
        self.0.iter().find(|(pattern, _)| pattern.matches(channel))?.1.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_json_whatever_the_information_is() {
        let event = PresenceEvent {
            change: PresenceChange::Join,
            channel: "chat",
            node: None,
            client: 0xab,
            info: "a \"b\"\\\n\u{1}ü",
        };
        let frame = event.to_frame();
        let expected =
            "{\"join\":\"00000000000000ab\",\"info\":\"a \\\"b\\\"\\\\\\u000a\\u0001ü\"}";
        assert_eq!(String::from_utf8_lossy(frame.payload()), expected);
        let mut out = Vec::new();
        PresenceEvent { change: PresenceChange::Leave, ..event }.to_frame().encode_event(&mut out);
        assert!(out.starts_with(b"event: leave\ndata: {\"leave\":"));
        let shared = PresenceEvent { node: Some(0xcd), info: "", ..event }.to_frame();
        let expected = "{\"join\":\"00000000000000cd00000000000000ab\",\"info\":\"\"}";
        assert_eq!(String::from_utf8_lossy(shared.payload()), expected);
    }

    #[test]
    fn a_channel_is_announced_again_when_three_quarters_of_its_most_members_are_left() {
        let rule = Presence::new().max_announced(8);
        for (members, is_announced, expected) in
            [(8, true, true), (9, true, false), (7, false, false), (6, false, true)]
        {
            assert_eq!(rule.is_announced(members, is_announced), expected, "{members}");
        }
        assert!(Presence::new().max_announced(0).is_announced(0, false), "it is forgotten");
        let switch = PresenceSwitch { channel: "chat", members: 9, is_announced: false };
        let expected = "{\"members\":9,\"announced\":false}";
        assert_eq!(String::from_utf8_lossy(switch.to_frame().payload()), expected);
    }

    #[test]
    fn the_first_matching_pattern_rules_also_when_it_says_that_there_is_no_presence() {
        let mut rules = PresenceRules::default();
        rules.add("chat.a", None).unwrap();
        assert!(rules.is_empty() && rules.add("a..b", None).is_err());
        rules.add("chat.*", Some(Presence::new())).unwrap();
        let known = ["chat.a", "chat.b", "other"].map(|channel| rules.of(channel).is_some());
        assert_eq!((known, rules.is_empty()), ([false, true, false], false));
    }
}
