//! The record of a connection to a backend that speaks HTTP.

use std::sync::Arc;
use std::time::Duration;

use throng_engine::Progress;
use throng_io::{Closed, ConnId};
use throng_proto::http1;
use throng_proto::ws::Boundary;

use super::{Exchange, Fact, HttpSide, Owner};
use crate::backend::Backend;
use crate::pool::Pool;
use crate::report::Failure;
use crate::settings::{Target, Timeouts};

/// A connection to a backend that speaks HTTP.
#[derive(Debug)]
pub(in crate::shard) struct Upstream {
    pub(in crate::shard) http: HttpSide,
    pub(in crate::shard) decoder: http1::ResponseDecoder,
    /// It is not used again: it named its client in a PROXY header, or the end of its request or
    /// answer is not certain.
    pub(in crate::shard) is_last: bool,
    /// The progress of the answer's body.
    pub(in crate::shard) progress: Progress,
    backend: Arc<Backend>,
    /// The client whose request it carries; `None`: it is idle.
    client: Option<ConnId>,
    is_connected: bool,
    /// It carries a WebSocket handshake.
    is_handshake: bool,
    /// The timeout of its answer, if its route has one.
    own_timeout: Option<Duration>,
    /// It carries a connection that is passed through.
    is_passthrough: bool,
    past: Option<Past>,
    /// The backend's generation when it was begun.
    generation: u32,
    /// The idle connections that each shard keeps to its backend.
    keep_alive: usize,
    /// It carried a body of this client, and serves no other.
    owner: Option<Owner>,
    /// The frame boundaries, once it has answered 101.
    boundary: Boundary,
}

/// The earlier use of a connection, before its current request.
#[derive(Clone, Copy, Debug)]
pub(in crate::shard) struct Past {
    generation: u32,
    owner: Option<Owner>,
}

impl Upstream {
    /// Creates the record of a connection that carries this request of `client`, after its `past`.
    pub(in crate::shard) fn new(
        client: ConnId,
        exchange: &Exchange,
        (pool, target): (&Pool, &Target),
        past: Option<Past>,
    ) -> Self {
        let mut decoder = http1::ResponseDecoder::new();
        let facts = exchange.facts();
        if facts.is(Fact::Head) {
            decoder.expect_answer_to_head();
        }
        let backend = Arc::clone(&target.backend);
        let carried = facts.is(Fact::Body).then(|| facts.owner(client));
        Self {
            http: HttpSide::default(),
            decoder,
            is_last: target.send_proxy || facts.is(Fact::OddBody),
            progress: Progress::default(),
            client: Some(client),
            is_connected: past.is_some(),
            is_handshake: facts.key().is_some(),
            own_timeout: match facts.key() {
                Some(_) => exchange.times().upgrade,
                None => exchange.times().response,
            },
            is_passthrough: facts.is(Fact::PassedThrough),
            generation: past.map_or_else(|| backend.generation(), |past| past.generation),
            owner: past.and_then(|past| past.owner).or(carried),
            past,
            backend,
            keep_alive: pool.settings.keep_alive,
            boundary: Boundary::new(),
        }
    }

    /// Returns its past, for the record of its next request.
    pub(in crate::shard) fn past(&self) -> Past {
        Past { generation: self.generation, owner: self.owner }
    }

    pub(in crate::shard) fn backend(&self) -> &Arc<Backend> {
        &self.backend
    }

    /// Returns the client whose request it carries; `None`: it is idle.
    pub(in crate::shard) fn client(&self) -> Option<ConnId> {
        self.client
    }

    /// Records the end of the upstream's request. Returns the client whose body it carried, and
    /// which it may serve exclusively.
    pub(in crate::shard) fn release(&mut self) -> Option<Owner> {
        self.client = None;
        self.owner
    }

    /// Returns the number of idle connections that each shard keeps to its backend.
    pub(in crate::shard) fn keep_alive(&self) -> usize {
        self.keep_alive
    }

    /// Returns the client that it carried a body of.
    pub(in crate::shard) fn owner(&self) -> Option<Owner> {
        self.owner
    }

    pub(in crate::shard) fn is_connected(&self) -> bool {
        self.is_connected
    }

    /// Records that it is connected.
    pub(in crate::shard) fn connected(&mut self) {
        self.is_connected = true;
        self.backend.note_connection();
    }

    /// Returns whether it carries a connection that is passed through.
    pub(in crate::shard) fn is_passthrough(&self) -> bool {
        self.is_passthrough
    }

    /// Returns whether it carried a request before: its end now says nothing about the backend.
    pub(in crate::shard) fn is_reused(&self) -> bool {
        self.past.is_some()
    }

    /// Returns whether its backend has not disowned its connections since it was begun.
    pub(in crate::shard) fn is_current(&self) -> bool {
        self.generation == self.backend.generation()
    }

    /// Returns whether it may carry another request.
    pub(in crate::shard) fn may_carry_more(&self) -> bool {
        self.decoder.is_between_responses()
            && self.http.is_clear()
            && !self.http.has_finished()
            && !self.is_last
            && self.is_current()
    }

    /// Returns the frame boundaries.
    pub(in crate::shard) fn boundary(&self) -> Boundary {
        self.boundary
    }

    /// Follows the frames that came with its 101.
    pub(in crate::shard) fn begin_frames(&mut self, bytes: &[u8]) {
        self.boundary.advance(bytes);
    }

    /// Returns the failure that its end means, if it carries a request.
    pub(in crate::shard) fn failure_of_end(&self, why: Closed) -> Failure {
        match why {
            // When the handshake is complete, the two do not trust each other only if the backend
            // refuses our certificate, on its first use; any other failure breaks the connection
            // off, as a reset does.
            Closed::Insecure(why)
                if !self.is_connected || !self.is_reused() && why.refuses_certificate() =>
            {
                Failure::Insecure(why)
            }
            _ if self.is_connected => Failure::of_closed(why),
            _ => Failure::Refused,
        }
    }

    /// Returns the timeout of its answer.
    pub(in crate::shard) fn answer_timeout(&self, timeouts: &Timeouts) -> Duration {
        let of_all = if self.is_handshake { timeouts.upgrade } else { timeouts.response };
        self.own_timeout.unwrap_or(of_all)
    }
}
