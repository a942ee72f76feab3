//! Values that are attached to a request.

use std::any::Any;
use std::fmt;

/// Values that middleware attaches to a request for its handler, at most one of each type.
#[derive(Default)]
pub struct Extensions(Vec<Value>);

struct Value {
    value: Box<dyn Any + Send + Sync>,
    /// Copies the value to the extensions of a request of the `http` crate.
    #[cfg(feature = "http")]
    copy: fn(&dyn Any, &mut http::Extensions),
}

impl Extensions {
    /// Attaches a value; one of the same type is replaced.
    pub fn insert<T: Clone + Send + Sync + 'static>(&mut self, value: T) {
        self.0.retain(|known| !known.value.is::<T>());
        self.0.push(Value {
            value: Box::new(value),
            #[cfg(feature = "http")]
            copy: |value, to| drop(value.downcast_ref::<T>().map(|value| to.insert(value.clone()))),
        });
    }

    /// The value of a type.
    #[must_use]
    pub fn get<T: 'static>(&self) -> Option<&T> {
        self.0.iter().find_map(|known| known.value.downcast_ref())
    }

    /// Copies all values to the extensions of a request of the `http` crate.
    #[cfg(feature = "http")]
    pub(crate) fn copy_to(&self, to: &mut http::Extensions) {
        self.0.iter().for_each(|known| (known.copy)(&*known.value, to));
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
