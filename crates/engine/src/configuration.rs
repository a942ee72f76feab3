//! Limits and rules that can change while shards run.

use std::sync::Arc;

use throng_proto::SettingError;

use crate::backpressure::{Classes, Rules};
use crate::limits::{Checked, Limits};
use crate::route_options::RouteOptions;

/// Limits, the options of routes, and rules for slow receivers, checked.
#[derive(Clone, Debug)]
pub struct Configuration {
    pub(crate) limits: Checked,
    pub(crate) rules: Arc<Rules>,
}

impl Configuration {
    /// Checks limits and rules, and gives each of `shards` its part of the shared limits.
    ///
    /// # Errors
    /// Limits or classes contradict themselves.
    pub(crate) fn new(
        limits: &Limits,
        classes: &Classes,
        routes: &[RouteOptions],
        shards: usize,
    ) -> Result<Self, SettingError> {
        let rules = Arc::new(classes.checked(limits)?);
        let mut limits = limits.checked()?;
        limits.max_backlog = limits.max_backlog.min(rules.least_cap_of_answers());
        limits.max_body_memory /= shards.max(1);
        limits.routes =
            routes.iter().map(|own| own.over(limits.route)).collect::<Result<_, _>>()?;
        Ok(Self { limits, rules })
    }
}
