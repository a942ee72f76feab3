//! Rows of settings that `throng serve` and programs of the library share: the ones that
//! `throng tune` searches. `serve` adds its flags to them.

use crate::key::{Key, Kind};
use crate::units::LARGEST;

const SOME: Kind = Kind::size(1, LARGEST);
/// The base-2 logarithms of the windows of permessage-deflate.
pub const WINDOW_BITS: Kind = Kind::count(9, 15);
/// The levels of compression.
pub const LEVEL: Kind = Kind::count(1, 9);

/// The number of event loops.
pub const SHARDS: Key =
    Key::new("shards", Kind::COUNT, "0", "event loops; 0 = one per usable CPU").at_start();

/// The I/O backend.
#[rustfmt::skip]
pub const IO: Key = Key::new("io", Kind::Word(&["auto", "epoll", "iocp", "portable", "threads"]),
    "auto", "I/O backend: auto, epoll, iocp, portable, or threads (one per connection)").at_start();

/// The CPUs of event loops.
#[rustfmt::skip]
pub const PIN: Key = Key::new("pin", Kind::Word(&["none", "cores"]), "none",
    "cores: each event loop on a CPU of its own (Linux); or none").at_start();

/// The length from which messages are fragmented.
#[rustfmt::skip]
pub const FRAGMENT_THRESHOLD: Key = Key::new("fragment_threshold", Kind::SIZE, "1MiB",
    "longer messages are sent in fragments, unless compressed");

/// The size of fragments.
pub const FRAGMENT_SIZE: Key = Key::new("fragment_size", SOME, "64KiB", "the size of a fragment");

/// Whether messages are compressed.
#[rustfmt::skip]
pub const DEFLATE_ENABLED: Key = Key::new("deflate.enabled", Kind::Switch, "false",
    "compress messages for clients that offer permessage-deflate").at_start();

/// The context of compression.
#[rustfmt::skip]
pub const DEFLATE_MODE: Key =
    Key::new("deflate.mode", Kind::Word(&["shared", "window"]), "shared",
        "shared: each message by itself; window: with earlier messages as context").at_start();

/// The window of a connection.
#[rustfmt::skip]
pub const DEFLATE_WINDOW_BITS: Key = Key::new("deflate.window_bits", WINDOW_BITS, "10",
    "for mode window: 2^bits bytes of context per connection; 9 to 15").at_start();

/// The effort of compression.
pub const DEFLATE_LEVEL: Key =
    Key::new("deflate.level", LEVEL, "1", "1 (fastest) to 9 (smallest)").at_start();

/// The length from which messages are compressed.
#[rustfmt::skip]
pub const DEFLATE_THRESHOLD: Key =
    Key::new("deflate.threshold", Kind::Or("auto", &Kind::SIZE), "auto",
        "shorter messages are not compressed; auto = 256, or 0 with context").at_start();
