//! Figures for operators, in the text format that Prometheus reads.
//!
//! [`App::metrics`](crate::App::metrics) serves a server's metrics; an [`Observer`] has them for
//! another server.

use throng_http::Method;
pub use throng_http::openmetrics;

use crate::app::{Route, RouteAction};
pub use crate::observe::Observer;

/// A route that serves the server's metrics, followed by the metrics of the program that `own`
/// writes. It is called for each request on the connection's shard, so it must not block: read
/// counters that other code updates. The names of the program's metrics begin with `app_`, or the
/// prefix that [`set_prefix`](openmetrics::Writer::set_prefix) sets; `throng_` is the prefix of the
/// server's metrics.
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use throng::metrics;
/// use throng::metrics::openmetrics::Type;
/// # use throng::prelude::*;
///
/// let orders = Arc::new(AtomicU64::new(0));
/// let route = metrics::route(move |metrics| {
///     metrics.set_prefix("shop");
///     let mut taken = metrics.metric("orders", "Orders taken", Type::Counter);
///     taken.sample(&[], orders.load(Ordering::Relaxed));
/// });
/// let app = App::new().route("/metrics", route);
/// ```
pub fn route<F>(own: F) -> Route
where
    F: Fn(&mut openmetrics::Writer) + Send + Sync + 'static,
{
    Route::of(Some(Method::Get), RouteAction::Metrics(Box::new(own)))
}

/// A route that serves the server's metrics as JSON, summed over the shards.
pub fn stats() -> Route {
    Route::of(Some(Method::Get), RouteAction::Stats)
}

/// Resources of this process, as the operating system reports them.
pub mod process {
    pub use crate::process::{
        descriptor_limit, descriptors_in_use, resident_bytes, system_json, write_metrics,
    };
}
