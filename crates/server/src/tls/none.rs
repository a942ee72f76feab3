//! Drivers of a server without the feature `tls`.

use throng_engine::{Cx, ProxyProtocol};
#[cfg(feature = "metrics")]
use throng_http::openmetrics::Writer;
use throng_http::{Network, Request, Response};
use throng_io::ListenerId;
use throng_proto::http1;

use crate::error::Result;
use crate::events::Events;

/// No setting.
#[derive(Clone, Debug, Default)]
pub(crate) struct Setting(());

impl Setting {
    #[allow(clippy::unnecessary_wraps, reason = "with TLS it can fail")]
    pub(crate) fn check(&self) -> Result<()> {
        Ok(())
    }

    #[allow(clippy::unnecessary_wraps, reason = "with TLS it can fail")]
    pub(crate) fn load(&self, _: usize) -> Result<Security> {
        Ok(Security(()))
    }
}

/// No TLS.
#[derive(Clone, Debug, Default)]
pub(crate) struct Security(());

impl Security {
    pub(crate) fn after_proxy_header(self) -> Self {
        self
    }

    pub(crate) fn reporting_to(self, _: Events) -> Self {
        self
    }

    pub(crate) fn proxy_protocol(&self) -> ProxyProtocol {
        ProxyProtocol::default()
    }

    pub(crate) fn is_on(&self) -> bool {
        false
    }

    pub(crate) fn answer_challenge(&self, _: &http1::Request<'_>) -> Option<Response> {
        None
    }

    pub(crate) fn refusal(
        &self,
        _: &Cx<'_>,
        _: &http1::Request<'_>,
        _: &[Network],
    ) -> Option<Response> {
        None
    }

    pub(crate) fn hsts(&self, _: &Cx<'_>) -> Option<&str> {
        None
    }

    #[cfg(feature = "metrics")]
    pub(crate) fn write(&self, _: &mut Writer) {}

    #[cfg(feature = "metrics")]
    pub(crate) fn write_idle(_: &mut Writer) {}
}

pub(crate) fn attach(_: &mut Request<'_>, _: &Cx<'_>) {}

pub(crate) type Secured<D> = D;

pub(crate) fn wrap<D>(driver: D) -> Secured<D> {
    driver
}

pub(crate) fn listen<D>(
    driver: &mut Secured<D>,
    _: &Security,
    add: impl FnOnce(&mut D) -> std::io::Result<ListenerId>,
) -> std::io::Result<()> {
    add(driver).map(drop)
}
