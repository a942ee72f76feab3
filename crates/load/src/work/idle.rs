//! Connections that do nothing.

use throng_engine::{Cx, Message};
use throng_io::Instant;

use crate::client::{ClientPool, Work};
use crate::plan::Plan;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Idle {
    resource: String,
}

impl Idle {
    pub(crate) fn new(plan: &Plan) -> Self {
        Self { resource: plan.resource().to_owned() }
    }
}

impl Work for Idle {
    type Outcome = ();

    fn resource(&self, _: usize) -> &str {
        &self.resource
    }

    /// A server may greet.
    fn on_message(
        &mut self,
        _: &mut ClientPool,
        _: &mut Cx<'_>,
        _: usize,
        _: Message<'_>,
        _: Instant,
    ) {
    }

    fn finish(&mut self, _: &mut ClientPool, _: Instant) {}
}
