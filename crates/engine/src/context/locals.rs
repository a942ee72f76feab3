//! State of a shard's user, of any type: no other thread reaches it, so it needs no lock.

use std::any::{Any, TypeId};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::Core;

/// One value of each type that was asked for. They are few, and looked up for messages: comparing
/// their numbers one by one is faster than hashing.
#[derive(Default)]
pub(crate) struct Locals(Vec<(TypeId, Box<dyn Any + Send>)>);

impl fmt::Debug for Locals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Locals({})", self.0.len())
    }
}

impl Locals {
    fn entry<T: Default + Send + 'static>(&mut self) -> &mut Box<dyn Any + Send> {
        let key = TypeId::of::<T>();
        let at = match self.0.iter().position(|(of, _)| *of == key) {
            Some(at) => at,
            None => {
                self.0.push((key, Box::new(T::default())));
                self.0.len() - 1
            }
        };
        &mut self.0[at].1
    }
}

impl Core {
    /// Returns this shard's value of the type, which is its default at first.
    ///
    /// # Panics
    /// Never: the value of a type is kept under its own number.
    #[expect(clippy::expect_used, reason = "the value of a type is kept under its own number")]
    pub fn local<T: Default + Send + 'static>(&mut self) -> &mut T {
        self.locals.entry::<T>().downcast_mut().expect("a value of its type")
    }

    /// Calls `run` with this shard's value of the type and the shard. If it panics, the value stays
    /// as it is at that moment.
    pub fn with_local<T, R>(&mut self, run: impl FnOnce(&mut T, &mut Self) -> R) -> R
    where
        T: Default + Send + 'static,
    {
        let mut value = std::mem::take(self.local::<T>());
        let outcome = catch_unwind(AssertUnwindSafe(|| run(&mut value, self)));
        *self.local() = value;
        outcome.unwrap_or_else(|payload| resume_unwind(payload))
    }
}
