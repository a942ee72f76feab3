//! Decisions on upgrades: at once, on a worker, or by a future.

#[cfg(feature = "tokio")]
use std::pin::Pin;
use std::sync::Arc;

#[cfg(feature = "tokio")]
use throng_http::Status;
use throng_http::{HeaderError, Reject, Request};

use crate::accept::{Accept, AcceptHeaders, AnyAccept};
#[cfg(feature = "tokio")]
use crate::exchanges::OwnedRequest;

type UpgradeFn<D> = dyn Fn(&Request<'_>) -> Result<D, Reject> + Send + Sync;

#[cfg(feature = "tokio")]
pub(crate) type UpgradeFuture<T> = Pin<Box<dyn Future<Output = Result<T, Reject>> + Send>>;

#[cfg(feature = "tokio")]
type AsyncUpgradeFn<D> = dyn Fn(OwnedRequest) -> UpgradeFuture<D> + Send + Sync;

/// Adds headers to the 101 response of a connection with this data.
type AcceptFn<D> = dyn Fn(&mut D, &mut AcceptHeaders) -> Result<(), HeaderError> + Send + Sync;

type UpgradeOnce = dyn FnOnce(&Request<'_>) -> Result<AnyAccept, Reject> + Send;

#[cfg(feature = "tokio")]
type AsyncUpgradeOnce = dyn FnOnce(OwnedRequest) -> UpgradeFuture<AnyAccept> + Send;

/// The way in which a handler decides on upgrades.
pub(crate) enum Decide<D> {
    Now(Box<UpgradeFn<D>>),
    Blocking(Arc<UpgradeFn<D>>),
    #[cfg(feature = "tokio")]
    Async(tokio::runtime::Handle, Arc<AsyncUpgradeFn<D>>),
}

/// A decision that takes time: a worker makes it, or a future on a runtime.
pub(crate) enum UpgradeLater {
    Blocking(Box<UpgradeOnce>),
    #[cfg(feature = "tokio")]
    Async(tokio::runtime::Handle, Box<AsyncUpgradeOnce>),
}

/// The callbacks for upgrades: one decides, the other adds headers to the response of an accepted
/// upgrade.
pub(crate) struct OnUpgrade<D> {
    pub(crate) decide: Decide<D>,
    pub(crate) on_accept: Option<Arc<AcceptFn<D>>>,
}

fn accept<D>(mut data: D, on_accept: Option<&AcceptFn<D>>) -> Result<Accept<D>, Reject> {
    let mut headers = AcceptHeaders::default();
    if let Some(on_accept) = on_accept {
        on_accept(&mut data, &mut headers)?;
    }
    Ok(Accept { data, headers })
}

impl<D: Send + 'static> OnUpgrade<D> {
    /// Decides now.
    pub(crate) fn decide(&self, request: &Request<'_>) -> Result<Accept<D>, Reject> {
        let data = match &self.decide {
            Decide::Now(decide) => decide(request),
            Decide::Blocking(decide) => decide(request),
            #[cfg(feature = "tokio")]
            Decide::Async(..) => Err(Reject::status(Status::INTERNAL_SERVER_ERROR)),
        }?;
        accept(data, self.on_accept.as_deref())
    }

    /// Returns the decision if it takes time.
    pub(crate) fn later(&self) -> Option<UpgradeLater> {
        let on_accept = self.on_accept.clone();
        match &self.decide {
            Decide::Now(_) => None,
            Decide::Blocking(decide) => {
                let decide = Arc::clone(decide);
                let decide = move |request: &Request<'_>| {
                    accept(decide(request)?, on_accept.as_deref()).map(Accept::erase)
                };
                Some(UpgradeLater::Blocking(Box::new(decide)))
            }
            #[cfg(feature = "tokio")]
            Decide::Async(runtime, decide) => {
                let decide = Arc::clone(decide);
                let decide = move |request: OwnedRequest| -> UpgradeFuture<AnyAccept> {
                    let decision = decide(request);
                    Box::pin(async move {
                        accept(decision.await?, on_accept.as_deref()).map(Accept::erase)
                    })
                };
                Some(UpgradeLater::Async(runtime.clone(), Box::new(decide)))
            }
        }
    }

    pub(crate) fn blocks(&self) -> bool {
        matches!(self.decide, Decide::Blocking(_))
    }
}
