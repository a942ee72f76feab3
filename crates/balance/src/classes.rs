//! Classes of tunnels: the timeouts and rates of open tunnels by the names of their routes, so that
//! a reload reaches them.

use std::collections::HashMap;
use std::sync::Arc;

use crate::meter::TunnelRates;
use crate::settings::Timeouts;
use crate::site::TunnelTimes;

/// All classes that a process has given out. A class has a number as long as the process runs: a
/// route that a reload removes keeps its last timeouts, for the tunnels that it has opened.
#[derive(Clone, Debug, Default)]
pub struct TunnelClasses(Arc<Classes>);

#[derive(Clone, Debug, Default)]
struct Classes {
    by_name: HashMap<Arc<str>, u16>,
    /// By the number less one: 0 is the class of tunnels without timeouts of their own.
    all: Vec<(Arc<str>, TunnelTimes)>,
}

impl TunnelClasses {
    /// Returns the classes with these ones, which are known or new. Beyond 65,535 names in the life
    /// of a process, new routes have the timeouts of the whole file.
    pub(crate) fn with(&self, wanted: &[(Arc<str>, TunnelTimes)]) -> Self {
        let is_same = |(name, times): &(Arc<str>, TunnelTimes)| {
            self.0.by_name.get(name).is_some_and(|class| self.times(*class) == *times)
        };
        if wanted.iter().all(is_same) {
            return self.clone();
        }
        let mut classes = (*self.0).clone();
        for (name, times) in wanted {
            match classes.by_name.get(name) {
                Some(class) => classes.all[usize::from(*class) - 1].1 = *times,
                None => {
                    let Ok(class) = u16::try_from(classes.all.len() + 1) else { continue };
                    classes.all.push((Arc::clone(name), *times));
                    classes.by_name.insert(Arc::clone(name), class);
                }
            }
        }
        Self(Arc::new(classes))
    }

    /// Returns the class with a name, or without one here, 0.
    pub(crate) fn named(&self, name: Option<&str>) -> u16 {
        name.and_then(|name| self.0.by_name.get(name)).copied().unwrap_or_default()
    }

    /// Returns the name of a class; `None` of 0.
    pub(crate) fn name(&self, class: u16) -> Option<&str> {
        let (name, _) = self.0.all.get(usize::from(class).checked_sub(1)?)?;
        Some(name)
    }

    /// Returns the timeouts of a class, with the others of the whole file.
    pub(crate) fn timeouts(&self, class: u16, of_all: &Timeouts) -> Timeouts {
        let own = self.times(class);
        Timeouts {
            tunnel: own.tunnel.unwrap_or(of_all.tunnel),
            half_closed: own.half_closed.unwrap_or(of_all.half_closed),
            ..*of_all
        }
    }

    /// Returns the rates of a class.
    pub(crate) fn rates(&self, class: u16) -> TunnelRates {
        self.times(class).rates
    }

    /// Returns whether both have the same timeouts.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    fn times(&self, class: u16) -> TunnelTimes {
        let at = usize::from(class).checked_sub(1);
        at.and_then(|at| self.0.all.get(at)).map(|(_, times)| *times).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn times(seconds: u64) -> TunnelTimes {
        TunnelTimes { tunnel: Some(Duration::from_secs(seconds)), ..TunnelTimes::default() }
    }

    fn of(names: &[(&str, u64)]) -> Vec<(Arc<str>, TunnelTimes)> {
        names.iter().map(|(name, seconds)| (Arc::from(*name), times(*seconds))).collect()
    }

    #[test]
    fn a_class_keeps_its_number_and_its_last_timeouts() {
        let first = TunnelClasses::default().with(&of(&[("a", 1), ("b", 2)]));
        let (a, b) = (first.named(Some("a")), first.named(Some("b")));
        assert_eq!((a, b, first.named(Some("c")), first.named(None)), (1, 2, 0, 0));
        let second = first.with(&of(&[("c", 3), ("b", 4)]));
        assert_eq!((second.named(Some("a")), second.named(Some("b"))), (a, b));
        assert_eq!([a, b, 3].map(|class| second.name(class)), [Some("a"), Some("b"), Some("c")]);
        assert_eq!(
            [0, a, b, 3, 9].map(|class| second.times(class)),
            [TunnelTimes::default(), times(1), times(4), times(3), TunnelTimes::default()]
        );
        assert!(second.is_same(&second.with(&of(&[("b", 4)]))));
        assert!(!second.is_same(&second.with(&of(&[("b", 5)]))));
        let of_all = Timeouts::default();
        assert_eq!(second.timeouts(0, &of_all), of_all);
        let own = second.timeouts(b, &of_all);
        assert_eq!((own.tunnel, own.half_closed), (Duration::from_secs(4), of_all.half_closed));
    }

    #[test]
    fn names_beyond_all_numbers_have_the_class_of_others() {
        let names: Vec<_> =
            (0..=u16::MAX).map(|at| (Arc::from(at.to_string()), times(1))).collect();
        let classes = TunnelClasses::default().with(&names);
        assert_eq!(classes.named(Some("65534")), u16::MAX);
        assert_eq!(classes.named(Some("65535")), 0);
    }
}
