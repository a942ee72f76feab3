//! A server without the feature `redis`: channels end at the process.

use std::sync::Arc;

use throng_engine::{Relay, Remote};

use crate::error::Result;
use crate::events::Events;
use crate::readiness::Readiness;

#[derive(Clone, Debug, Default)]
pub(crate) struct Setting(());

pub(crate) struct Unconnected;

impl Setting {
    pub(crate) fn check(&self) -> Result<()> {
        Ok(())
    }

    pub(crate) fn prepare(self, _: bool) -> Result<Unconnected> {
        Ok(Unconnected)
    }
}

impl Unconnected {
    pub(crate) fn relay(&self) -> Option<Arc<dyn Relay>> {
        None
    }

    pub(crate) fn start(self, _: &Remote, _: &Events) -> Result<Node> {
        Ok(Node)
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Node;

impl Node {
    pub(crate) fn readiness(&self) -> Readiness {
        Readiness::Ready
    }

    #[cfg(feature = "metrics")]
    pub(crate) fn write(&self, _: &mut throng_http::openmetrics::Writer) {}

    #[cfg(feature = "metrics")]
    pub(crate) fn write_idle(_: &mut throng_http::openmetrics::Writer) {}

    #[cfg(feature = "metrics")]
    pub(crate) fn to_json(&self) -> Option<serde_json::Value> {
        None
    }
}

#[derive(Debug)]
pub(crate) struct Guard(pub(crate) Node);
