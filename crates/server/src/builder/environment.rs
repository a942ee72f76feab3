//! Settings of a server from the environment: a file of `throng tune`, and variables.

use throng_config::{ConfigErrors, Draft, Key, Kind, Sources, Table, read_tuned_file, server_keys};
use throng_engine::SettingError;
#[cfg(feature = "deflate")]
use throng_proto::ws::deflate::Mode;

use super::Server;
use crate::error::{Error, Result};

/// The settings of a library's program: they have the names and meanings of `throng serve`.
static TABLE: Table = Table { program: "serve", keys: KEYS };

#[rustfmt::skip]
static KEYS: &[Key] = &[
    server_keys::SHARDS,
    server_keys::IO,
    server_keys::PIN,
    Key::new("workers.pool_size", Kind::COUNT, "0", "worker threads; 0 = one per usable CPU"),
    server_keys::FRAGMENT_THRESHOLD,
    server_keys::FRAGMENT_SIZE,
    #[cfg(feature = "deflate")]
    server_keys::DEFLATE_ENABLED,
    #[cfg(feature = "deflate")]
    server_keys::DEFLATE_MODE,
    #[cfg(feature = "deflate")]
    server_keys::DEFLATE_WINDOW_BITS,
    #[cfg(feature = "deflate")]
    server_keys::DEFLATE_LEVEL,
    #[cfg(feature = "deflate")]
    server_keys::DEFLATE_THRESHOLD,
];

impl Server {
    /// Sets what the environment sets, over the settings that were made before this call: the
    /// file that `THRONG_TUNED` names, which `throng tune` writes, and then variables such as
    /// `THRONG_SHARDS=2`. Other settings stay as they are.
    ///
    /// The settings are `shards`, `io`, `pin`, `workers.pool_size`, `fragment_threshold`,
    /// `fragment_size`, and with the feature `deflate` also `deflate.enabled`, `deflate.mode`,
    /// `deflate.window_bits`, `deflate.level` and `deflate.threshold`. The compression of a route
    /// has precedence over the server's. Variables for other settings are ignored.
    ///
    /// # Errors
    /// [`Error::Setting`]: the file cannot be read, or has an unknown key; or a value is not valid.
    ///
    /// ```
    /// # use throng::prelude::*;
    /// # fn main() -> throng::Result<()> {
    /// let server = Server::new(App::new()).shards(2).settings_from_env()?;
    /// # server.check()
    /// # }
    /// ```
    pub fn settings_from_env(self) -> Result<Self> {
        let mut sources = Sources::new(&TABLE);
        if let Some(path) = Sources::tuned_path() {
            let text = read_tuned_file(&path).map_err(|error| setting_error(&error.into()))?;
            sources.file(&path.display().to_string(), &text);
        }
        sources.environment(std::env::vars_os());
        self.with_draft(sources.finish())
    }

    /// Sets the values that a source sets.
    fn with_draft(mut self, draft: Draft) -> Result<Self> {
        let number = |key| draft.get::<usize>(key);
        let unless_0 = |key| Some(number(key)).filter(|&number| number > 0);
        let is_set = |key| draft.values().is_set(key);
        if is_set("shards") {
            self.shards.count = unless_0("shards");
        }
        if is_set("io")
            && let Some(io) = draft.parse("io")
        {
            self.shards.io = io;
        }
        if is_set("pin")
            && let Some(pin) = draft.parse("pin")
        {
            self.shards.pin = pin;
        }
        if is_set("workers.pool_size") {
            self.workers.pool_size = unless_0("workers.pool_size");
        }
        if is_set("fragment_threshold") {
            self.limits.fragment_threshold = Some(number("fragment_threshold"));
        }
        if is_set("fragment_size") {
            self.limits.fragment_size = number("fragment_size");
        }
        #[cfg(feature = "deflate")]
        self.set_compression(&draft);
        draft.finish().map_err(|errors| setting_error(&errors))?;
        Ok(self)
    }

    #[cfg(feature = "deflate")]
    fn set_compression(&mut self, draft: &Draft) {
        let is_set = |key| draft.values().is_set(key);
        let compression = &mut self.compression;
        if is_set("deflate.enabled") {
            compression.enabled = draft.get("deflate.enabled");
        }
        if is_set("deflate.mode") || is_set("deflate.window_bits") {
            let bits = draft.get("deflate.window_bits");
            let is_window = match (is_set("deflate.mode"), compression.mode) {
                (true, _) => draft.get::<String>("deflate.mode") == "window",
                (false, mode) => matches!(mode, Mode::Window { .. }),
            };
            compression.mode = if is_window { Mode::Window { bits } } else { Mode::Shared };
        }
        if is_set("deflate.level") {
            compression.level = draft.get("deflate.level");
        }
        if is_set("deflate.threshold") {
            compression.threshold = draft.get("deflate.threshold");
        }
    }
}

fn setting_error(errors: &ConfigErrors) -> Error {
    let may_pass = errors.may_pass();
    SettingError::new("the environment", errors.to_string()).passing_if(may_pass).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::App;
    use crate::io_backend::IoBackend;

    fn with(text: &str, variables: &[(&str, &str)]) -> Result<Server> {
        let mut sources = Sources::new(&TABLE);
        sources.file("throng.tuned.toml", text);
        sources.environment(variables.iter().map(|(name, value)| (name.into(), value.into())));
        Server::new(App::new()).shards(3).with_draft(sources.finish())
    }

    #[test]
    fn only_what_is_set_changes() {
        let server = with("", &[]).unwrap();
        assert_eq!(server.shards.count, Some(3));
        assert_eq!(server.workers.pool_size, None);
        let text =
            "shards = 1\nio = \"portable\"\nworkers.pool_size = 64\nfragment_size = \"1KiB\"";
        let server = with(text, &[("THRONG_SHARDS", "2"), ("THRONG_LISTEN", "x")]).unwrap();
        assert_eq!(server.shards.count, Some(2), "the variable has precedence");
        assert!(matches!(server.shards.io, IoBackend::Portable));
        assert_eq!(server.workers.pool_size, Some(64));
        assert_eq!(server.limits.fragment_size, 1024);
    }

    #[cfg(feature = "deflate")]
    #[test]
    fn compression_is_set_by_its_parts() {
        let text = "deflate.enabled = true\ndeflate.mode = \"window\"\ndeflate.level = 3";
        let server = with(text, &[("THRONG_DEFLATE_THRESHOLD", "1KiB")]).unwrap();
        let compression = server.compression;
        assert!(compression.enabled && compression.level == 3);
        assert_eq!(compression.mode, Mode::Window { bits: 10 });
        assert_eq!(compression.threshold, Some(1024));
    }

    #[test]
    fn mistakes_name_the_place() {
        for (text, words) in [
            ("shards = \"many\"", "throng.tuned.toml:1"),
            ("pool_size = 3", "pool_size is an unknown key"),
            ("io = \"fibers\"", "io"),
        ] {
            let error = with(text, &[]).map(|_| ()).unwrap_err();
            assert!(error.to_string().contains(words), "{words}: {error}");
        }
    }
}
