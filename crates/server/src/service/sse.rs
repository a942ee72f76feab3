//! Server-sent events: a response that becomes a stream of what is published to a channel.

use throng_engine::{Answer, Cx, check_pattern};
use throng_http::{HeaderError, Reject, ReplyTo, Request, Response, Status};
use throng_proto::{http1, sse};

use super::ShardService;
use crate::app::ChannelFn;
use crate::topic::{EventStream, Topic};

impl ShardService {
    /// Begins a stream of events.
    pub(super) fn stream_events(
        &mut self,
        cx: &mut Cx<'_>,
        route: u16,
        channel: &ChannelFn,
        head: &http1::Request<'_>,
        request: &Request<'_>,
    ) -> Result<Answer, Reject> {
        self.check_admitted(head)?;
        let EventStream { topic, retry, first } = channel(request)?;
        if let Topic::Pattern(pattern) = &topic {
            check_pattern(pattern).map_err(|error| Reject::bad_request(error.to_string()))?;
        }
        self.refresh_date(cx.core_ref().now());
        let to = ReplyTo::request(head, self.date.current());
        let response = events_head(head)
            .map_err(|_| Reject::bad_request("this origin cannot be repeated in an answer"))?;
        if to.is_head {
            cx.write(|out| response.encode_endless_head(&to, out));
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
        match topic {
            Topic::Channel(channel) => {
                cx.subscribe(&channel);
            }
            Topic::Pattern(pattern) => {
                // It was checked above.
                let _ = cx.subscribe_pattern(&pattern);
            }
        }
        Ok(Answer::Events)
    }
}

/// The response's head. Neither browsers nor proxies are to keep it, or to wait for its end.
fn events_head(head: &http1::Request<'_>) -> Result<Response, HeaderError> {
    let response = Response::new(Status::OK)
        .with_bytes("text/event-stream", Vec::new())
        .header("Cache-Control", "no-store")?
        .header("X-Accel-Buffering", "no")?;
    // It was let in; a page of another host may then read the stream, too (WHATWG Fetch section
    // 3.2).
    match head.origins().next().map(str::from_utf8) {
        Some(Ok(origin)) => response
            .header("Access-Control-Allow-Origin", origin.to_owned())?
            .header("Vary", "Origin"),
        _ => Ok(response),
    }
}
