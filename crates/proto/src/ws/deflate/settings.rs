//! Compression settings and their validation.

use std::{error, fmt};

use super::Codec;

/// Whether connections keep a context: the plaintext that later messages may refer to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Mode {
    /// No context: every message is compressed independently, by the one compressor of its shard.
    ///
    /// A connection costs no memory. Good for messages of a kilobyte and more; short ones hardly
    /// shrink.
    #[default]
    Shared,
    /// A context of the last 2^`bits` bytes of plaintext, per connection and direction in use.
    ///
    /// Compressor and decompressor belong to the shard. Short messages that resemble each other
    /// shrink to a fraction.
    Window {
        /// 9 to 15; 10 is 1 KiB.
        bits: u8,
    },
}

/// Settings of permessage-deflate (RFC 7692).
///
/// The names are from the RFC and independent of our role: `server_...` always concerns the
/// messages that the server compresses.
///
/// ```
/// # mod throng {
/// #     pub mod ws {
/// #         pub use throng_proto::ws::deflate::{Mode as DeflateMode, Settings as Deflate};
/// #     }
/// # }
/// use throng::ws::{Deflate, DeflateMode};
///
/// let settings = Deflate::new(DeflateMode::Window { bits: 10 }).level(2).threshold(64);
/// assert!(settings.check().is_ok());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub struct Settings {
    /// Whether to negotiate compression at all. Default false.
    pub enabled: bool,
    /// Whether connections keep a context. Default [`Mode::Shared`].
    pub mode: Mode,
    /// Effort, 1 (fastest; the default) to 9 (smallest).
    ///
    /// Level 1 writes blocks with the fixed code of the standard. From level 2 on each block gets a
    /// code of its own, which costs about 8 µs more for a message of 1 KB and saves a fifth of its
    /// compressed size.
    pub level: u8,
    /// Memory level, 1 to 9, default 5: the maximum number of symbols in a block is 64 *
    /// 2^`mem_level`.
    ///
    /// The memory belongs to the shard, not to a connection. From level 2 on, memory levels 1 and 2
    /// split a message of a kilobyte into blocks that each pay for a code of their own. More than 5
    /// does not help below 8 KB, and costs time with every message.
    pub mem_level: u8,
    /// Minimum length in bytes of a message to compress. `None`, the default: 256 without context,
    /// 0 with.
    pub threshold: Option<usize>,
    /// Maximum length in bytes of a message to compress. Default 4 MiB.
    ///
    /// A message is compressed in one call, at some 15 MB per second if it hardly shrinks. Its
    /// shard serves no other connection during the call.
    pub max_size: usize,
    /// Maximum window of the server's compression, 9 to 15, default 15. A smaller one saves clients
    /// memory.
    pub server_max_window_bits: u8,
    /// Maximum window of the client's compression, 9 to 15, default 15; window mode requests at
    /// most that mode's bits.
    pub client_max_window_bits: u8,
    /// Whether the server compresses every message independently. `None`, the default: in shared
    /// mode only.
    pub server_no_context_takeover: Option<bool>,
    /// Whether the client compresses every message independently. `None`, the default: in shared
    /// mode only.
    pub client_no_context_takeover: Option<bool>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            enabled: false,
            mode: Mode::Shared,
            level: 1,
            mem_level: 5,
            threshold: None,
            max_size: 4 << 20,
            server_max_window_bits: 15,
            client_max_window_bits: 15,
            server_no_context_takeover: None,
            client_no_context_takeover: None,
        }
    }
}

impl Settings {
    /// Creates settings of enabled compression in this mode, otherwise with the defaults.
    pub fn new(mode: Mode) -> Self {
        Self { enabled: true, mode, ..Self::default() }
    }

    /// Sets [`enabled`](Self#structfield.enabled).
    pub fn enabled(mut self, enabled: bool) -> Self {
        self.enabled = enabled;
        self
    }

    /// Sets [`mode`](Self#structfield.mode).
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Sets [`level`](Self#structfield.level).
    pub fn level(mut self, level: u8) -> Self {
        self.level = level;
        self
    }

    /// Sets [`mem_level`](Self#structfield.mem_level).
    pub fn mem_level(mut self, mem_level: u8) -> Self {
        self.mem_level = mem_level;
        self
    }

    /// Sets [`max_size`](Self#structfield.max_size).
    pub fn max_size(mut self, max_size: usize) -> Self {
        self.max_size = max_size;
        self
    }

    /// Sets [`server_max_window_bits`](Self#structfield.server_max_window_bits).
    pub fn server_max_window_bits(mut self, server_max_window_bits: u8) -> Self {
        self.server_max_window_bits = server_max_window_bits;
        self
    }

    /// Sets [`client_max_window_bits`](Self#structfield.client_max_window_bits).
    pub fn client_max_window_bits(mut self, client_max_window_bits: u8) -> Self {
        self.client_max_window_bits = client_max_window_bits;
        self
    }

    /// Sets [`threshold`](Self#structfield.threshold).
    pub fn threshold(mut self, threshold: impl Into<Option<usize>>) -> Self {
        self.threshold = threshold.into();
        self
    }

    /// Sets [`server_no_context_takeover`](Self#structfield.server_no_context_takeover).
    pub fn server_no_context_takeover(
        mut self,
        server_no_context_takeover: impl Into<Option<bool>>,
    ) -> Self {
        self.server_no_context_takeover = server_no_context_takeover.into();
        self
    }

    /// Sets [`client_no_context_takeover`](Self#structfield.client_no_context_takeover).
    pub fn client_no_context_takeover(
        mut self,
        client_no_context_takeover: impl Into<Option<bool>>,
    ) -> Self {
        self.client_no_context_takeover = client_no_context_takeover.into();
        self
    }
}

/// An invalid setting; `Display` names it, its value and the remedy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidSetting {
    /// Name of the field of [`Settings`].
    pub setting: &'static str,
    /// The invalid value.
    pub value: Rejected,
    /// The remedy.
    pub remedy: &'static str,
}

/// The value of an [`InvalidSetting`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejected {
    /// A number.
    Number(u8),
    /// A switch.
    Switch(bool),
}

impl fmt::Display for InvalidSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { setting, value, remedy } = self;
        match value {
            Rejected::Number(value) => write!(f, "deflate.{setting} is {value}: {remedy}"),
            Rejected::Switch(value) => write!(f, "deflate.{setting} is {value}: {remedy}"),
        }
    }
}

impl error::Error for InvalidSetting {}

impl Settings {
    /// Validates the settings and resolves their defaults; `None` if compression is disabled.
    ///
    /// # Errors
    /// The first setting that is out of range or contradicts the mode; also while `enabled` is
    /// false, so that a mistake is found before compression is enabled.
    pub fn check(&self) -> Result<Option<Policy>, InvalidSetting> {
        let range = |setting, value, min, remedy| match value {
            _ if (min..=15).contains(&value) => Ok(()),
            _ => Err(InvalidSetting { setting, value: Rejected::Number(value), remedy }),
        };
        const BITS: &str = "choose 9 to 15; zlib's format has no window of 8 bits";
        if let Mode::Window { bits } = self.mode {
            range("mode.window.bits", bits, 9, BITS)?;
        }
        range("server_max_window_bits", self.server_max_window_bits, 9, BITS)?;
        range("client_max_window_bits", self.client_max_window_bits, 9, BITS)?;
        for (setting, value) in [("level", self.level), ("mem_level", self.mem_level)] {
            if !(1..=9).contains(&value) {
                let value = Rejected::Number(value);
                return Err(InvalidSetting { setting, value, remedy: "choose 1 to 9" });
            }
        }
        let shared = self.mode == Mode::Shared;
        for (setting, switch) in [
            ("server_no_context_takeover", self.server_no_context_takeover),
            ("client_no_context_takeover", self.client_no_context_takeover),
        ] {
            if shared && switch == Some(false) {
                return Err(InvalidSetting {
                    setting,
                    value: Rejected::Switch(false),
                    remedy: "shared mode keeps no context; leave it on, or choose window mode",
                });
            }
        }
        let codec = match Codec::available() {
            Some(codec) if self.enabled => codec,
            None if self.enabled => {
                return Err(InvalidSetting {
                    setting: "enabled",
                    value: Rejected::Switch(true),
                    remedy: "this program was built without the feature deflate: build it with it",
                });
            }
            _ => return Ok(None),
        };
        Ok(Some(Policy {
            codec,
            mode: self.mode,
            level: self.level,
            mem_level: self.mem_level,
            threshold: self.threshold,
            max_size: self.max_size,
            server_bits: self.server_max_window_bits,
            client_bits: self.client_max_window_bits,
            server_no_context: self.server_no_context_takeover.unwrap_or(shared),
            client_no_context: self.client_no_context_takeover.unwrap_or(shared),
        }))
    }
}

/// Validated [`Settings`] of enabled compression.
///
/// A server negotiates with [`Policy::accept`], a client with [`Policy::offer`] and
/// [`Policy::check_answer`]; a shard creates its [`Deflater`](super::Deflater) from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    pub(super) codec: Codec,
    pub(super) mode: Mode,
    pub(super) level: u8,
    pub(super) mem_level: u8,
    threshold: Option<usize>,
    max_size: usize,
    pub(super) server_bits: u8,
    pub(super) client_bits: u8,
    pub(super) server_no_context: bool,
    pub(super) client_no_context: bool,
}

impl Policy {
    /// Returns the length below which messages are not worth compressing on a connection that
    /// `agreed` on these parameters.
    #[must_use]
    pub fn threshold(&self, agreed: &super::Agreed) -> usize {
        const WITHOUT_CONTEXT: usize = 256;
        let by_mode = if agreed.our_history_bits.is_some() { 0 } else { WITHOUT_CONTEXT };
        self.threshold.unwrap_or(by_mode)
    }

    /// Returns whether a message of `len` bytes can be compressed, and is worth it, on a connection
    /// that `agreed` on these parameters.
    #[must_use]
    pub fn compresses(&self, len: usize, agreed: &super::Agreed) -> bool {
        (self.threshold(agreed)..=self.max_size).contains(&len)
    }

    /// Returns the bits of the context kept for each direction, if there is one.
    pub(super) fn history_bits(&self) -> Option<u8> {
        match self.mode {
            Mode::Shared => None,
            Mode::Window { bits } => Some(bits),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on() -> Settings {
        Settings { enabled: true, ..Settings::default() }
    }

    fn refused(settings: Settings) -> String {
        let error = settings.check().unwrap_err();
        assert_eq!(Settings { enabled: false, ..settings }.check(), Err(error), "also while off");
        error.to_string()
    }

    #[test]
    fn off_by_default_and_shared_when_on() {
        assert_eq!(Settings::default().check(), Ok(None));
        let policy = on().check().unwrap().unwrap();
        assert_eq!((policy.mode, policy.level, policy.server_bits), (Mode::Shared, 1, 15));
        assert!(policy.server_no_context && policy.client_no_context);
        let window = Settings { mode: Mode::Window { bits: 10 }, ..on() };
        let policy = window.check().unwrap().unwrap();
        assert!(!policy.server_no_context && !policy.client_no_context);
    }

    #[test]
    fn an_invalid_setting_is_named_with_its_remedy() {
        for bits in [0, 8, 16, 255] {
            let window = refused(Settings { mode: Mode::Window { bits }, ..on() });
            assert!(
                window.starts_with(&format!("deflate.mode.window.bits is {bits}: choose 9 to 15"))
            );
            let server = refused(Settings { server_max_window_bits: bits, ..on() });
            assert!(server.starts_with(&format!("deflate.server_max_window_bits is {bits}: ")));
            let client = refused(Settings { client_max_window_bits: bits, ..on() });
            assert!(client.starts_with(&format!("deflate.client_max_window_bits is {bits}: ")));
        }
        for level in [0, 10] {
            let text = format!("deflate.level is {level}: choose 1 to 9");
            assert_eq!(refused(Settings { level, ..on() }), text);
            let text = format!("deflate.mem_level is {level}: choose 1 to 9");
            assert_eq!(refused(Settings { mem_level: level, ..on() }), text);
        }
        for settings in [
            Settings { server_no_context_takeover: Some(false), ..on() },
            Settings { client_no_context_takeover: Some(false), ..on() },
        ] {
            assert!(refused(settings).contains("_no_context_takeover is false: shared mode"));
            let window = Settings { mode: Mode::Window { bits: 15 }, ..settings };
            assert!(window.check().is_ok());
        }
    }
}
