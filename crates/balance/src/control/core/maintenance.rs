//! Maintenance of sites, as operators switch it.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::ControlCore;
use crate::control::error::Error;
use crate::site::Sites;

impl ControlCore {
    /// Switches the maintenance of a site; `None`: as the file has it. Returns whether it is on.
    pub(crate) fn set_maintenance(&mut self, site: &str, on: Option<bool>) -> Result<bool, Error> {
        self.must_live()?;
        let of_file = self.of_file(site)?;
        let mut switched = (*self.maintenance).clone();
        match on {
            Some(on) => switched.insert(site.into(), on),
            None => switched.remove(site),
        };
        if *self.maintenance != switched {
            self.maintenance = Arc::new(switched);
            self.is_changed = true;
        }
        Ok(on.unwrap_or(of_file))
    }

    /// Returns whether a site is under maintenance.
    pub(crate) fn is_in_maintenance(&self, site: &str) -> Result<bool, Error> {
        let of_file = self.of_file(site)?;
        Ok(self.maintenance.get(site).copied().unwrap_or(of_file))
    }

    /// Returns whether the file has a site under maintenance.
    fn of_file(&self, site: &str) -> Result<bool, Error> {
        let all = by_name(self.sites.1.as_deref());
        let unknown = || Error::UnknownSite {
            site: site.to_owned(),
            known: all.keys().take(20).map(|name| (**name).into()).collect(),
        };
        all.get(site).copied().ok_or_else(unknown)
    }

    /// Drops what operators have switched for sites that the file has changed in this respect, or
    /// no longer has; `before`: the sites before a reload.
    pub(super) fn keep_maintenance(&mut self, before: Option<&Sites>) {
        let (before, after) = (by_name(before), by_name(self.sites.1.as_deref()));
        let is_kept =
            |name: &Arc<str>| after.get(name).is_some_and(|it| before.get(name) == Some(it));
        let kept = self.maintenance.iter().filter(|(name, _)| is_kept(name));
        self.maintenance = Arc::new(kept.map(|(name, on)| (Arc::clone(name), *on)).collect());
    }

    /// Returns what operators have switched, for a successor.
    pub(super) fn carried_maintenance(&self) -> BTreeMap<String, bool> {
        self.maintenance.iter().map(|(name, on)| (name.to_string(), *on)).collect()
    }
}

fn by_name(sites: Option<&Sites>) -> BTreeMap<Arc<str>, bool> {
    let sites = sites.into_iter().flat_map(Sites::names);
    sites.map(|(name, is_on)| (Arc::clone(name), is_on)).collect()
}
