//! Decisions on upgrades: at once, on a worker, or by a future.

#[cfg(feature = "tokio")]
use std::pin::Pin;
use std::sync::Arc;

#[cfg(feature = "tokio")]
use throng_http::Status;
use throng_http::{Reject, Request};

use crate::accept::{Accept, AnyAccept};
#[cfg(feature = "tokio")]
use crate::http::OwnedRequest;

type UpgradeFn<D> = dyn Fn(&Request<'_>) -> Result<Accept<D>, Reject> + Send + Sync;

#[cfg(feature = "tokio")]
pub(crate) type UpgradeFuture<T> = Pin<Box<dyn Future<Output = Result<T, Reject>> + Send>>;

#[cfg(feature = "tokio")]
type AsyncUpgradeFn<D> = dyn Fn(OwnedRequest) -> UpgradeFuture<Accept<D>> + Send + Sync;

type UpgradeOnce = dyn FnOnce(&Request<'_>) -> Result<AnyAccept, Reject> + Send;

#[cfg(feature = "tokio")]
type AsyncUpgradeOnce = dyn FnOnce(OwnedRequest) -> UpgradeFuture<AnyAccept> + Send;

/// The way in which a handler decides on upgrades.
pub(crate) enum OnUpgrade<D> {
    Now(Box<UpgradeFn<D>>),
    Blocking(Arc<UpgradeFn<D>>),
    #[cfg(feature = "tokio")]
    Async(tokio::runtime::Handle, Arc<AsyncUpgradeFn<D>>),
}

/// A decision that takes time: it is made by a worker, or on a runtime.
pub(crate) enum UpgradeLater {
    Blocking(Box<UpgradeOnce>),
    #[cfg(feature = "tokio")]
    Async(tokio::runtime::Handle, Box<AsyncUpgradeOnce>),
}

impl<D: Send + 'static> OnUpgrade<D> {
    /// Decides now.
    pub(crate) fn decide(&self, request: &Request<'_>) -> Result<Accept<D>, Reject> {
        match self {
            Self::Now(decide) => decide(request),
            Self::Blocking(decide) => decide(request),
            #[cfg(feature = "tokio")]
            Self::Async(..) => Err(Reject::status(Status::INTERNAL_SERVER_ERROR)),
        }
    }

    /// Returns the decision if it takes time.
    pub(crate) fn later(&self) -> Option<UpgradeLater> {
        match self {
            Self::Now(_) => None,
            Self::Blocking(decide) => {
                let decide = Arc::clone(decide);
                let decide = move |request: &Request<'_>| decide(request).map(Accept::erase);
                Some(UpgradeLater::Blocking(Box::new(decide)))
            }
            #[cfg(feature = "tokio")]
            Self::Async(runtime, decide) => {
                let decide = Arc::clone(decide);
                let decide = move |request: OwnedRequest| -> UpgradeFuture<AnyAccept> {
                    let decision = decide(request);
                    Box::pin(async move { decision.await.map(Accept::erase) })
                };
                Some(UpgradeLater::Async(runtime.clone(), Box::new(decide)))
            }
        }
    }

    pub(crate) fn blocks(&self) -> bool {
        matches!(self, Self::Blocking(_))
    }
}
