//! What a path gave for the `{name}`s of its route.

/// How many parameters one route may have: they are kept without an allocation.
pub const MAX_PARAMS: usize = 8;

/// The parameters of a matched route: ranges of the path, still percent-encoded.
#[derive(Clone, Copy, Debug, Default)]
pub struct Params<'r> {
    names: &'r [Box<str>],
    ranges: Ranges,
}

/// Where the values are in the path.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ranges {
    ranges: [(u32, u32); MAX_PARAMS],
    count: u8,
}

impl Ranges {
    /// Adds one; a route cannot have more than fit, so nothing is lost.
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
    /// No parameters: of a route without any, or a request that was not routed.
    pub const NONE: Params<'static> =
        Params { names: &[], ranges: Ranges { ranges: [(0, 0); MAX_PARAMS], count: 0 } };

    pub(crate) const fn new(names: &'r [Box<str>], ranges: Ranges) -> Self {
        Self { names, ranges }
    }

    /// How many there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.names.len()
    }

    /// There are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Which parameter `name` is.
    pub(crate) fn position(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|known| **known == *name)
    }

    /// The value of the parameter called `name`, still percent-encoded. `path` is the one that was
    /// routed.
    #[must_use]
    pub fn raw<'p>(&self, path: &'p str, name: &str) -> Option<&'p str> {
        self.at(path, self.position(name)?)
    }

    /// The value of the parameter at `index`, still percent-encoded.
    pub(crate) fn at<'p>(&self, path: &'p str, index: usize) -> Option<&'p str> {
        let (start, end) = *self.ranges.ranges.get(index)?;
        path.get(start as usize..end as usize)
    }
}
