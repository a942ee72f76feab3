//! Values that are attached to a request.

use std::any::Any;
use std::fmt;

/// Values that middleware attaches to a request for its handler, at most one of each type.
#[derive(Default)]
pub struct Extensions(Vec<Box<dyn Any + Send>>);

impl Extensions {
    /// Attaches a value; one of the same type is replaced.
    pub fn insert<T: Send + 'static>(&mut self, value: T) {
        self.0.retain(|known| !known.is::<T>());
        self.0.push(Box::new(value));
    }

    /// The value of a type.
    #[must_use]
    pub fn get<T: 'static>(&self) -> Option<&T> {
        self.0.iter().find_map(|value| value.downcast_ref())
    }
}

impl fmt::Debug for Extensions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Extensions({})", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_value_of_each_type() {
        let mut extensions = Extensions::default();
        assert_eq!(extensions.get::<u32>(), None);
        extensions.insert(1u32);
        extensions.insert("a");
        extensions.insert(2u32);
        assert_eq!((extensions.get::<u32>(), extensions.get::<&str>()), (Some(&2), Some(&"a")));
        assert_eq!(format!("{extensions:?}"), "Extensions(2)");
    }
}
