//! Fields of records: which of them move, and in which form.
//!
//! A struct that moves in part names *all* of its fields in [`carried!`](crate::carried),
//! and a word of flags all of its bits in [`flags!`](crate::flags). A field or a bit that is added
//! without a decision does not compile.

use std::net::SocketAddr;

use crate::secret::Secret;
use crate::wire::{CarryError, Content, Encoder};

/// The tag of each nested record.
#[doc(hidden)]
pub const RECORD: u16 = 1;

/// A value that moves as the content of a field.
pub trait Carried: Sized {
    /// Adds it as the field `tag`.
    fn put(&self, tag: u16, out: Encoder) -> Encoder;

    /// Reads it.
    ///
    /// # Errors
    /// The content is malformed, or is not a state that this release has. The peer is a process of
    /// the same user, but its release may have any fault: no content may cause a panic.
    fn take(content: Content<'_>) -> Result<Self, CarryError>;
}

/// The time that has passed since an event, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Age(pub u64);

impl Age {
    /// Returns the age of `then`; 0 if it lies after `now`.
    #[must_use]
    pub fn of(then: u64, now: u64) -> Self {
        Self(now.saturating_sub(then))
    }

    /// Returns the time of the event, `transit` after its age was taken.
    #[must_use]
    pub fn then(self, now: u64, transit: u64) -> u64 {
        now.saturating_sub(self.0).saturating_sub(transit)
    }
}

macro_rules! numbers {
    ($($number:ty),*) => { $(
        impl Carried for $number {
            fn put(&self, tag: u16, out: Encoder) -> Encoder {
                out.number(tag, u64::from(*self))
            }

            fn take(content: Content<'_>) -> Result<Self, CarryError> {
                Self::try_from(content.number()?).map_err(|_| CarryError::Malformed)
            }
        }
    )* };
}

numbers!(u8, u16, u32, u64);

impl Carried for usize {
    fn put(&self, tag: u16, out: Encoder) -> Encoder {
        out.number(tag, *self as u64)
    }

    fn take(content: Content<'_>) -> Result<Self, CarryError> {
        Self::try_from(content.number()?).map_err(|_| CarryError::Malformed)
    }
}

impl Carried for bool {
    fn put(&self, tag: u16, out: Encoder) -> Encoder {
        out.number(tag, u64::from(*self))
    }

    fn take(content: Content<'_>) -> Result<Self, CarryError> {
        match content.number()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(CarryError::Malformed),
        }
    }
}

impl Carried for Age {
    fn put(&self, tag: u16, out: Encoder) -> Encoder {
        self.0.put(tag, out)
    }

    fn take(content: Content<'_>) -> Result<Self, CarryError> {
        content.number().map(Self)
    }
}

impl Carried for Vec<u8> {
    fn put(&self, tag: u16, out: Encoder) -> Encoder {
        out.bytes(tag, self)
    }

    fn take(content: Content<'_>) -> Result<Self, CarryError> {
        Ok(content.0.to_vec())
    }
}

impl<const N: usize> Carried for [u8; N] {
    fn put(&self, tag: u16, out: Encoder) -> Encoder {
        out.bytes(tag, self)
    }

    fn take(content: Content<'_>) -> Result<Self, CarryError> {
        content.0.try_into().map_err(|_| CarryError::Malformed)
    }
}

impl Carried for String {
    fn put(&self, tag: u16, out: Encoder) -> Encoder {
        out.text(tag, self)
    }

    fn take(content: Content<'_>) -> Result<Self, CarryError> {
        content.text().map(str::to_owned)
    }
}

impl Carried for SocketAddr {
    fn put(&self, tag: u16, out: Encoder) -> Encoder {
        out.text(tag, &self.to_string())
    }

    fn take(content: Content<'_>) -> Result<Self, CarryError> {
        content.text()?.parse().map_err(|_| CarryError::Malformed)
    }
}

/// `None` is the absence of the field, so the field must be optional.
impl<T: Carried> Carried for Option<T> {
    fn put(&self, tag: u16, out: Encoder) -> Encoder {
        match self {
            Some(value) => value.put(tag, out),
            None => out,
        }
    }

    fn take(content: Content<'_>) -> Result<Self, CarryError> {
        T::take(content).map(Some)
    }
}

impl<T: Carried> Carried for Box<T> {
    fn put(&self, tag: u16, out: Encoder) -> Encoder {
        T::put(self, tag, out)
    }

    fn take(content: Content<'_>) -> Result<Self, CarryError> {
        T::take(content).map(Self::new)
    }
}

/// Lets a struct [move](Carried): each field with its tag, or how it is rebuilt.
///
/// A *required* field has an odd tag: it is always there, and a release that does not know it
/// refuses the record. An *optional* field has an even tag: it may be missing, and is then the
/// default of its type. A field *if any* is an `Option`: it is there if it has a value, and then
/// its odd tag must be known, since the record would be wrong without it. A *rebuilt* field gets a
/// new value. `check` is a function that returns whether the whole record is a state that may
/// exist; others are malformed.
///
/// ```
/// struct Position { left: u64, is_inside: bool, cache: Vec<u8> }
///
/// throng_carry::carried! {
///     Position {
///         required { 1 left }
///         optional { 2 is_inside }
///         rebuilt { cache = Vec::new() }
///     }
/// }
///
/// let position = Position { left: 7, is_inside: true, cache: vec![1] };
/// let bytes = throng_carry::freeze(&position);
/// let moved: Position = throng_carry::thaw(&bytes)?;
/// assert!(moved.left == 7 && moved.is_inside && moved.cache.is_empty());
/// # Ok::<(), throng_carry::CarryError>(())
/// ```
///
/// A field that is not named does not compile:
///
/// ```compile_fail,E0027
/// struct Position { left: u64, added: u64 }
/// throng_carry::carried! { Position { required { 1 left } optional { } rebuilt { } } }
/// ```
#[macro_export]
macro_rules! carried {
    ($name:ident {
        required { $($odd:literal $needed:ident),* $(,)? }
        optional { $($even:literal $spare:ident),* $(,)? }
        $(if_any { $($any_odd:literal $any:ident),* $(,)? })?
        rebuilt { $($built:ident = $value:expr),* $(,)? }
        $(check $check:expr)?
    }) => {
        const _: () = {
            $( assert!($odd % 2 == 1, "a required field has an odd tag"); )*
            $( assert!($even % 2 == 0, "an optional field has an even tag"); )*
            $($( assert!($any_odd % 2 == 1, "a field that must be known has an odd tag"); )*)?
        };

        impl $crate::Carried for $name {
            fn put(&self, tag: u16, out: $crate::Encoder) -> $crate::Encoder {
                let Self { $($needed,)* $($spare,)* $($($any,)*)? $($built: _,)* } = self;
                let inner = $crate::Encoder::new($crate::RECORD);
                $( let inner = $crate::Carried::put($needed, $odd, inner); )*
                $( let inner = $crate::Carried::put($spare, $even, inner); )*
                $($( let inner = $crate::Carried::put($any, $any_odd, inner); )*)?
                out.message(tag, inner)
            }

            // Two fields with one tag.
            #[deny(unreachable_patterns)]
            fn take(content: $crate::Content<'_>) -> Result<Self, $crate::CarryError> {
                $( let mut $needed = None; )*
                $( let mut $spare = None; )*
                $($( let mut $any = None; )*)?
                content.message()?.read(|tag, content| {
                    match tag {
                        $( $odd => $needed = Some($crate::Carried::take(content)?), )*
                        $( $even => $spare = Some($crate::Carried::take(content)?), )*
                        $($( $any_odd => $any = Some($crate::Carried::take(content)?), )*)?
                        _ => return Ok(false),
                    }
                    Ok(true)
                })?;
                let whole = Self {
                    $( $needed: $needed.ok_or($crate::CarryError::Missing($odd))?, )*
                    $( $spare: $spare.unwrap_or_default(), )*
                    $($( $any: $any, )*)?
                    $( $built: $value, )*
                };
                $(
                    let is_sound: fn(&Self) -> bool = $check;
                    if !is_sound(&whole) {
                        return Err($crate::CarryError::Malformed);
                    }
                )?
                Ok(whole)
            }
        }
    };
}

/// Declares the bits of a word of flags, each as *moved*, *rebuilt*, or such that a connection
/// *waits*: it does not move as long as the bit is set. A bit in two lists does not compile.
///
/// ```
/// throng_carry::flags! {
///     /// Bits of a word.
///     mod flag: u8 {
///         moved {
///             /// Reading is paused.
///             PAUSED = 1,
///         }
///         rebuilt {
///             /// It is in a list.
///             QUEUED = 1 << 1,
///         }
///         waits {
///             /// It is not connected yet.
///             CONNECTING = 1 << 2,
///         }
///     }
/// }
/// # fn main() {
/// assert_eq!((flag::MOVED, flag::REBUILT, flag::WAITS), (1, 2, 4));
/// # let _ = (flag::PAUSED, flag::QUEUED, flag::CONNECTING);
/// # }
/// ```
///
/// ```compile_fail,E0080
/// throng_carry::flags! {
///     mod flag: u8 {
///         moved { PAUSED = 1 }
///         rebuilt { QUEUED = 1 }
///         waits { }
///     }
/// }
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! flags {
    (
        $(#[$outer:meta])*
        mod $name:ident: $word:ty {
            moved { $( $(#[$m:meta])* $moved:ident = $moved_bit:expr ),* $(,)? }
            rebuilt { $( $(#[$r:meta])* $rebuilt:ident = $rebuilt_bit:expr ),* $(,)? }
            waits { $( $(#[$w:meta])* $waits:ident = $waits_bit:expr ),* $(,)? }
        }
    ) => {
        $(#[$outer])*
        mod $name {
            $( $(#[$m])* pub(super) const $moved: $word = $moved_bit; )*
            $( $(#[$r])* pub(super) const $rebuilt: $word = $rebuilt_bit; )*
            $( $(#[$w])* pub(super) const $waits: $word = $waits_bit; )*

            /// The bits that move.
            #[allow(dead_code)]
            pub(super) const MOVED: $word = 0 $( | $moved )*;
            /// The bits that get a new value.
            #[allow(dead_code)]
            pub(super) const REBUILT: $word = 0 $( | $rebuilt )*;
            /// A connection with one of these bits does not move.
            #[allow(dead_code)]
            pub(super) const WAITS: $word = 0 $( | $waits )*;

            const _: () = {
                let single = 0 $( + $moved.count_ones() )* $( + $rebuilt.count_ones() )*
                    $( + $waits.count_ones() )*;
                let together = (MOVED | REBUILT | WAITS).count_ones();
                assert!(single == together, "each bit has one list");
            };
        }
    };
}

/// Returns a record as bytes.
#[must_use]
pub fn freeze(record: &impl Carried) -> Secret {
    record.put(RECORD, Encoder::new(RECORD)).finish()
}

/// Reads a record from the bytes of [`freeze`].
///
/// # Errors
/// They are cut off, malformed, or not of a release that this one reads.
pub fn thaw<T: Carried>(bytes: &[u8]) -> Result<T, CarryError> {
    let mut inbox = crate::wire::Inbox::new(bytes.len());
    inbox.push(bytes);
    let message = inbox.next_message()?.ok_or(CarryError::Cut)?;
    let mut record = None;
    message.read(|tag, content| {
        if tag == RECORD {
            record = Some(T::take(content)?);
        }
        Ok(tag == RECORD)
    })?;
    record.ok_or(CarryError::Missing(RECORD))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, PartialEq)]
    struct Inner {
        left: u64,
        is_inside: bool,
    }

    crate::carried! {
        Inner {
            required { 1 left, 3 is_inside }
            optional { }
            rebuilt { }
        }
    }

    #[derive(Debug, PartialEq)]
    struct Outer {
        inner: Box<Inner>,
        bytes: Vec<u8>,
        name: Option<String>,
        seen: Age,
        cache: usize,
    }

    crate::carried! {
        Outer {
            required { 1 inner, 3 bytes }
            optional { 2 name, 4 seen }
            rebuilt { cache = 0 }
        }
    }

    /// The struct of another release, with one field more.
    struct Later {
        left: u64,
        is_inside: bool,
        new: Option<u32>,
    }

    crate::carried! {
        Later {
            required { 1 left, 3 is_inside }
            optional { 2 new }
            rebuilt { }
        }
    }

    #[test]
    fn an_optional_field_of_another_release_may_be_missing_or_unknown() {
        let later = Later { left: 9, is_inside: true, new: Some(4) };
        let known = thaw::<Inner>(&freeze(&later));
        assert_eq!(known, Ok(Inner { left: 9, is_inside: true }));
        let later: Later = thaw(&freeze(&known.unwrap())).unwrap();
        assert_eq!((later.left, later.is_inside, later.new), (9, true, None));
    }

    #[test]
    fn a_required_field_must_be_there_and_numbers_must_fit() {
        let inner = Encoder::new(RECORD).number(1, 9);
        let cut = Encoder::new(RECORD).message(RECORD, inner).finish();
        assert_eq!(thaw::<Inner>(&cut), Err(CarryError::Missing(3)));
        let inner = Encoder::new(RECORD).number(1, 9).number(3, 2);
        let wrong = Encoder::new(RECORD).message(RECORD, inner).finish();
        assert_eq!(thaw::<Inner>(&wrong), Err(CarryError::Malformed));
        assert_eq!(u8::take(Content(&256u64.to_le_bytes())), Err(CarryError::Malformed));
    }

    #[test]
    fn times_go_on_while_they_are_on_their_way() {
        // Seen at 40, frozen at 100; the other clock shows 1,005 five later.
        assert_eq!(Age::of(40, 100).then(1_005, 5), 940);
        // Nothing underflows.
        assert_eq!(Age::of(100, 40), Age(0));
        assert_eq!(Age(u64::MAX).then(5, 5), 0);
    }

    proptest! {
        #[test]
        fn a_record_comes_back(
            left in any::<u64>(),
            is_inside in any::<bool>(),
            bytes in prop::collection::vec(any::<u8>(), 0..40),
            name in prop::option::of(".{0,10}"),
            seen in any::<u64>(),
        ) {
            let inner = Box::new(Inner { left, is_inside });
            let record = Outer { inner, bytes, name, seen: Age(seen), cache: 0 };
            let frozen = freeze(&record);
            for cut in 0..frozen.len() {
                prop_assert!(thaw::<Outer>(&frozen[..cut]).is_err());
            }
            prop_assert_eq!(thaw::<Outer>(&frozen), Ok(record));
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = thaw::<Outer>(&bytes);
        }

        #[test]
        fn a_changed_byte_makes_no_panic(at in any::<prop::sample::Index>(), to in any::<u8>()) {
            let inner = Box::new(Inner { left: 7, is_inside: true });
            let record = Outer { inner, bytes: vec![1], name: None, seen: Age(1), cache: 0 };
            let mut frozen = freeze(&record);
            let at = at.index(frozen.len());
            frozen[at] = to;
            let _ = thaw::<Outer>(&frozen);
        }
    }
}
