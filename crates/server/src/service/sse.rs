//! Server-sent events: a response that becomes a stream of a channel's publications.

use std::any::Any;

use throng_engine::{Answer, Cx, Frame, Joined, Position, Recovery, Since, check_pattern};
use throng_http::{HeaderError, Reject, ReplyTo, Request, Response, Status};
use throng_proto::{http1, sse};

use super::ShardService;
use crate::app::ChannelFn;
use crate::middleware::Pending;
use crate::readiness::RETRY_AFTER;
use crate::topic::{EventStream, Topic};
use crate::ws::Timer;

impl ShardService {
    /// Begins a stream of events.
    pub(super) fn stream_events(
        &mut self,
        cx: &mut Cx<'_>,
        route: u16,
        channel: &ChannelFn,
        (head, request): (&http1::Request<'_>, &Request<'_>),
    ) -> Result<Answer, Reject> {
        self.check_admitted(head)?;
        let EventStream { mut topic, retry, first, info, last, recovers, lifetime } =
            channel(request)?;
        if let Topic::Pattern(pattern) = &mut topic {
            let checked = check_pattern(pattern);
            if !checked.map_err(|error| Reject::bad_request(error.to_string()))? {
                topic = Topic::Channel(std::mem::take(pattern));
            }
        }
        if let Topic::Channel(channel) = &topic
            && !cx.core_ref().remote().was_linked(channel)
        {
            return Err(Reject::unavailable(RETRY_AFTER));
        }
        self.refresh_date(cx.core_ref().now());
        let hsts = self.shared.security.hsts(cx);
        let to = ReplyTo { hsts, ..ReplyTo::request(head, self.date.current()) };
        let response = events_head(head, &mut self.calling.1)
            .map_err(|_| Reject::bad_request("this origin cannot be repeated in an answer"))?;
        if response.status() != Status::OK {
            return Ok(self.reply_of(cx, route, head, true, response));
        }
        if to.is_head {
            cx.write(|out| response.encode_endless_head(&to, out));
            self.note_status(cx, Status::OK.code());
            return Ok(Answer::Done { keep_alive: false });
        }
        cx.write(|out| {
            response.encode_endless_head(&to, out);
            out.extend_from_slice(sse::COMMENT);
            if let Some(after) = retry {
                sse::encode_retry(after, out);
            }
            first.iter().for_each(|message| message.encode_event(out));
        });
        cx.start_events();
        cx.set_route(route, 0);
        if let Some(lifetime) = lifetime {
            let at = cx.core_ref().read_clock().after(lifetime);
            self.timers.set(cx.id(), at, Timer::new(), Box::new(StreamEnd));
        }
        match topic {
            Topic::Channel(channel) => {
                let since = match last_id(request) {
                    // It has missed events that it does not get.
                    Some(_) if !recovers => Since::Position(UNKNOWN),
                    Some(id) => Since::Position(id.parse().unwrap_or(UNKNOWN)),
                    None if recovers && last > 0 => Since::Last(last),
                    None => Since::Now,
                };
                let recovery = cx.subscribe_as(&channel, since, &info);
                begin(cx, &recovery, matches!(since, Since::Position(_)));
            }
            Topic::Pattern(pattern) => {
                // It was checked above.
                let _ = cx.subscribe_pattern(&pattern);
            }
        }
        Ok(Answer::Events)
    }
}

/// Begins a stream whose position was pending.
pub(super) fn joined(cx: &mut Cx<'_>, joined: &Joined) {
    begin(cx, &joined.recovery, joined.is_return);
}

/// Returns the id of the last event that the client got: from the header, or for clients that
/// cannot send one, from the query.
fn last_id<'r>(request: &'r Request<'_>) -> Option<&'r str> {
    let id = request.last_event_id().or_else(|| request.query("last_event_id"));
    id.filter(|id| !id.is_empty())
}

/// The position of a client that has missed an unknown number of events.
const UNKNOWN: Position = Position { epoch: 0, offset: 0, tag: None };

/// The end of a stream whose token has expired, as a timer.
struct StreamEnd;

/// Returns whether a timer ends its stream.
pub(super) fn is_end(timer: &(dyn Any + Send)) -> bool {
    timer.is::<StreamEnd>()
}

/// Begins a stream whose position is known. With a history it begins with its position, as an id
/// without an event. If the client cannot continue, or the missed events do not fit into the
/// connection's queue, it begins with an event `lost`.
fn begin(cx: &mut Cx<'_>, recovery: &Recovery, had_id: bool) {
    let Some(position) = recovery.position.map(|position| position.to_string()) else { return };
    let is_lost = !recovery.recovered && (had_id || recovery.too_large);
    cx.write(|out| {
        if is_lost {
            let lost = Frame::text(&position).event_name("lost").event_id(&position);
            lost.encode_event(out);
        }
        recovery.missed.iter().for_each(|missed| missed.frame().encode_event(out));
        if !is_lost && recovery.missed.is_empty() {
            out.extend_from_slice(format!("id: {position}\n\n").as_bytes());
        }
    });
}

/// Returns the response's head, as middleware changes it.
fn events_head(head: &http1::Request<'_>, pending: &mut Pending) -> Result<Response, HeaderError> {
    const READABLE_BY: &str = "Access-Control-Allow-Origin";
    let origin = head.origins().next().and_then(|origin| str::from_utf8(origin).ok());
    if let Some(origin) = origin {
        // After the layers have run, it is too late for an error.
        http1::HeaderValue::new(origin)?;
    }
    let response = pending.apply(Response::events_head());
    let is_decided = response.headers().any(|(name, _)| name.eq_ignore_ascii_case(READABLE_BY));
    match origin {
        // The origin was accepted, so a page of another host may also read the stream (WHATWG Fetch
        // section 3.2).
        Some(origin) if !is_decided => {
            response.header(READABLE_BY, origin.to_owned())?.header("Vary", "Origin")
        }
        _ => Ok(response),
    }
}
