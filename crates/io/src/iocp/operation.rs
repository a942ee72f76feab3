//! Memory that the kernel writes to: it outlives its operation (C11).
//!
//! An operation in flight is known to the kernel by the address of its OVERLAPPED, at which its
//! packet finds it again. If its owner goes first, the memory stays until the packet has come.

use std::cell::{Cell, UnsafeCell};
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::OnceLock;

use windows_sys::Win32::System::IO::OVERLAPPED;

/// The start of every operation.
#[repr(C)]
pub(super) struct Header {
    /// First, so that its address is the operation's.
    overlapped: UnsafeCell<OVERLAPPED>,
    /// The number of its socket: a handle of Windows has 32 bits.
    pub(super) socket: Cell<u32>,
    /// The kind, flags of this module, [flags of the operation](Self::has), and above them the
    /// number of the socket's port.
    word: Cell<u32>,
}

/// The type that a [`Header`] is the start of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A connection.
    Connection,
    /// An accept.
    Accept,
}

/// The bit of the kind.
const KIND: u32 = 1;
/// The kernel has the operation, until its packet comes.
const PENDING: u32 = 1 << 1;
/// The owner has gone.
const ORPHANED: u32 = 1 << 2;
/// A list of the poller has it.
const LISTED: u32 = 1 << 3;

/// The first flag of the operation's own.
pub(super) const OWN: u32 = 1 << 4;
/// The first bit above these flags.
pub(super) const END: u32 = 1 << PORT_SHIFT;
const PORT_SHIFT: u32 = 9;

/// The largest number of a port.
pub(super) const MAX_PORT: u32 = u32::MAX >> PORT_SHIFT;

/// A function that frees an operation.
type Free = unsafe fn(NonNull<Header>);

/// By kind, the function that frees an operation.
static FREE: [OnceLock<Free>; 2] = [OnceLock::new(), OnceLock::new()];

impl Header {
    /// Returns the header of a new operation of the type `T`.
    pub(super) fn of<T: Operation>() -> Self {
        FREE[T::KIND as usize].get_or_init(|| free::<T>);
        let overlapped = UnsafeCell::new(OVERLAPPED::default());
        Self { overlapped, socket: Cell::new(0), word: Cell::new(T::KIND as u32) }
    }

    /// Returns the address that an operation is started with.
    pub(super) fn overlapped(&self) -> *mut OVERLAPPED {
        debug_assert!(!self.is_pending(), "one operation at a time has this memory");
        self.overlapped.get()
    }

    /// Returns the address of an operation in flight.
    pub(super) fn in_flight(&self) -> Option<*const OVERLAPPED> {
        self.is_pending().then(|| self.overlapped.get().cast_const())
    }

    pub(super) fn is_pending(&self) -> bool {
        self.has(PENDING)
    }

    /// Records that the kernel has the operation.
    pub(super) fn set_pending(&self) {
        self.set(PENDING, true);
    }

    pub(super) fn is_orphaned(&self) -> bool {
        self.has(ORPHANED)
    }

    /// Returns the number of the port that the socket belongs to; 0 if it is not known.
    pub(super) fn port(&self) -> u32 {
        self.word.get() >> PORT_SHIFT
    }

    pub(super) fn set_port(&self, port: u32) {
        debug_assert!(port <= MAX_PORT);
        self.word.set(self.word.get() & (END - 1) | port << PORT_SHIFT);
    }

    /// Returns whether a flag is set: one of this module, or from [`OWN`] to [`END`] one of the
    /// operation.
    pub(super) fn has(&self, flag: u32) -> bool {
        self.word.get() & flag != 0
    }

    pub(super) fn set(&self, flag: u32, is_set: bool) {
        let others = self.word.get() & !flag;
        self.word.set(if is_set { others | flag } else { others });
    }

    fn kind(&self) -> Kind {
        if self.word.get() & KIND == Kind::Accept as u32 { Kind::Accept } else { Kind::Connection }
    }
}

/// A type that begins with a [`Header`] of its kind.
///
/// # Safety
/// The type is `repr(C)`, its first field is the header, which [`Header::of`] made for it, and no
/// other type has its kind.
#[allow(unsafe_code)]
pub(super) unsafe trait Operation {
    /// Its kind.
    const KIND: Kind;

    /// Returns the first field.
    fn header(&self) -> &Header;
}

/// The owner of an operation.
pub(super) struct Owned<T: Operation>(NonNull<T>);

// SAFETY: an operation goes to another thread only with its owner. While one is in flight or
// listed, the thread of its poller alone uses it; a connection gets another one before it changes
// its poller.
#[allow(unsafe_code)]
unsafe impl<T: Operation> Send for Owned<T> {}

impl<T: Operation> Owned<T> {
    pub(super) fn new(operation: T) -> Self {
        let operation = NonNull::from(Box::leak(Box::new(operation)));
        // The kernel returns the address alone.
        operation.as_ptr().expose_provenance();
        #[cfg(test)]
        LIVE.set(LIVE.get() + 1);
        Self(operation)
    }
}

impl<T: Operation> Deref for Owned<T> {
    type Target = T;

    #[allow(unsafe_code)]
    fn deref(&self) -> &T {
        // SAFETY: the memory lives as long as its owner, and is only used through shared
        // references; the kernel writes only inside of the `UnsafeCell`.
        unsafe { self.0.as_ref() }
    }
}

impl<T: Operation> Drop for Owned<T> {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        let header = self.header();
        header.set(ORPHANED, true);
        if header.is_pending() {
            ORPHANS.set(ORPHANS.get() + 1);
        }
        if !header.has(PENDING | LISTED) {
            // SAFETY: nothing else refers to it.
            unsafe { free_any(self.0.cast()) };
        }
    }
}

/// An operation that the poller refers to: by a packet, or in a list.
#[derive(Clone, Copy)]
pub(super) struct Reference(NonNull<Header>);

impl Reference {
    /// Takes an operation back from the kernel, whose packet has come. `None` if its owner has
    /// gone.
    ///
    /// # Safety
    /// The address is the one of an operation that was pending until now.
    #[allow(unsafe_code)]
    pub(super) unsafe fn of_packet(overlapped: *mut OVERLAPPED) -> Option<Self> {
        let reference = Self::at(overlapped.addr())?;
        let header = reference.header();
        header.set(PENDING, false);
        if header.is_orphaned() {
            ORPHANS.set(ORPHANS.get().saturating_sub(1));
            reference.free_if_unused();
            return None;
        }
        Some(reference)
    }

    fn at(address: usize) -> Option<Self> {
        NonNull::new(std::ptr::with_exposed_provenance_mut(address)).map(Self)
    }

    /// Puts it into a list, until [`Self::unlist`]. Returns false if it is in one.
    pub(super) fn list(self) -> bool {
        let is_new = !self.header().has(LISTED);
        self.header().set(LISTED, true);
        is_new
    }

    /// Removes it from the list. It must not be used again.
    pub(super) fn unlist(self) {
        self.header().set(LISTED, false);
        self.free_if_unused();
    }

    /// Returns the operation if it has this type.
    #[allow(unsafe_code)]
    pub(super) fn get<T: Operation>(&self) -> Option<&T> {
        // SAFETY: a reference exists only as long as the memory, and `Operation` promises that this
        // kind is the start of this type.
        (self.header().kind() == T::KIND).then(|| unsafe { self.0.cast().as_ref() })
    }

    #[allow(unsafe_code)]
    fn header(&self) -> &Header {
        // SAFETY: a reference exists only as long as the memory, which begins with a header.
        unsafe { self.0.as_ref() }
    }

    /// Frees it if neither an owner nor the kernel nor a list has it.
    #[allow(unsafe_code)]
    fn free_if_unused(self) {
        let header = self.header();
        if header.is_orphaned() && !header.has(PENDING | LISTED) {
            // SAFETY: nothing else refers to it.
            unsafe { free_any(self.0) };
        }
    }
}

/// Frees an operation of any kind.
///
/// # Safety
/// [`Owned::new`] made it, and nothing refers to it.
#[allow(unsafe_code)]
unsafe fn free_any(operation: NonNull<Header>) {
    // SAFETY: the memory is not free yet, and begins with a header.
    let kind = unsafe { operation.as_ref() }.kind();
    if let Some(free) = FREE[kind as usize].get() {
        // SAFETY: the function of its kind, and the caller's promise.
        unsafe { free(operation) };
    }
}

/// Frees an operation.
///
/// # Safety
/// [`Owned::new`] made it as this type, and nothing refers to it.
#[allow(unsafe_code)]
unsafe fn free<T>(operation: NonNull<Header>) {
    #[cfg(test)]
    LIVE.set(LIVE.get() - 1);
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(operation.cast::<T>().as_ptr()) });
}

std::thread_local! {
    /// Operations in flight whose owner this thread has dropped.
    static ORPHANS: Cell<usize> = const { Cell::new(0) };
}

/// Returns whether packets come that only free memory, if this thread has the poller.
pub(super) fn has_orphans() -> bool {
    ORPHANS.get() > 0
}

#[cfg(test)]
std::thread_local! {
    /// Operations whose memory is not free, of this thread.
    pub(super) static LIVE: Cell<usize> = const { Cell::new(0) };
}
