//! Path parameters of a matched route.

/// Maximum parameters of one route: they are stored without an allocation.
pub const MAX_PARAMS: usize = 8;

/// The parameters of a matched route: ranges of the path, still percent-encoded.
#[derive(Clone, Copy, Debug, Default)]
pub struct Params<'r> {
    names: &'r [Box<str>],
    ranges: Ranges,
}

/// The positions of a route's parameter values in a path, which find the values again in a copy of
/// the path.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ranges {
    ranges: [(u32, u32); MAX_PARAMS],
    count: u8,
}

impl Ranges {
    /// Adds a range; a route cannot have more parameters than fit, so none is lost.
    pub(crate) fn push(&mut self, start: usize, end: usize) {
        if let Some(slot) = self.ranges.get_mut(usize::from(self.count)) {
            *slot = (start as u32, end as u32);
            self.count += 1;
        }
    }

    pub(crate) fn pop(&mut self) {
        self.count = self.count.saturating_sub(1);
    }
}

impl<'r> Params<'r> {
    /// No parameters: for a route without any, or a request that was not routed.
    pub const NONE: Params<'static> =
        Params { names: &[], ranges: Ranges { ranges: [(0, 0); MAX_PARAMS], count: 0 } };

    /// The parameters of a route with these `names`.
    #[must_use]
    pub const fn new(names: &'r [Box<str>], ranges: Ranges) -> Self {
        Self { names, ranges }
    }

    /// Returns the positions of the values.
    #[must_use]
    pub const fn ranges(&self) -> Ranges {
        self.ranges
    }

    /// Returns the number of parameters.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.names.len()
    }

    /// Returns whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Returns the index of the parameter `name`.
    pub(crate) fn position(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|known| **known == *name)
    }

    /// Returns the value of the parameter called `name`, still percent-encoded. `path` must be the
    /// routed path.
    #[must_use]
    pub fn raw<'p>(&self, path: &'p str, name: &str) -> Option<&'p str> {
        self.at(path, self.position(name)?)
    }

    /// Returns the value of the parameter at `index`, still percent-encoded.
    pub(crate) fn at<'p>(&self, path: &'p str, index: usize) -> Option<&'p str> {
        let (start, end) = *self.ranges.ranges.get(index)?;
        path.get(start as usize..end as usize)
    }
}
