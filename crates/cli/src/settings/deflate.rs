//! permessage-deflate: the settings `deflate.*`, and `--deflate`, which stands for three of them.

use throng::{Deflate, DeflateMode};

use super::{Origin, Settings};

/// The value of `--deflate`.
const FORMS: &str = "shared, window:BITS with 9 to 15 bits, or off";

/// For what follows from the mode.
const AUTO: &str = "auto";

impl Settings {
    /// Takes the value of `--deflate`.
    pub(crate) fn set_deflate(&mut self, text: &str, flag: &str) -> Result<(), String> {
        let mut set =
            |key: &str, value: &str| self.set(key, value.to_owned(), Origin::Flag(flag.to_owned()));
        let (mode, bits) = match text.trim().split_once(':') {
            None if text == "off" => return set("deflate.enabled", "false"),
            None if text == "shared" => (text, None),
            Some(("window", bits)) => ("window", Some(bits)),
            _ => return Err(format!("{flag} is {text:?}: write {FORMS}")),
        };
        set("deflate.enabled", "true")?;
        set("deflate.mode", mode)?;
        bits.map_or(Ok(()), |bits| set("deflate.window_bits", bits))
    }

    /// The settings `deflate.*` as the library takes them.
    pub(super) fn deflate(&self) -> Result<Deflate, String> {
        let bits = self.small("deflate.window_bits")?;
        let mode = self.parse("deflate.mode", |text| match text {
            "shared" => Ok(DeflateMode::Shared),
            "window" => Ok(DeflateMode::Window { bits }),
            _ => Err("write shared or window; deflate.window_bits says how large".to_owned()),
        })?;
        let deflate = Deflate {
            enabled: self.switch("deflate.enabled")?,
            mode,
            level: self.small("deflate.level")?,
            mem_level: self.small("deflate.mem_level")?,
            threshold: self.or_auto("deflate.threshold", |key| self.size(key))?,
            max_size: self.size("deflate.max_size")?,
            server_max_window_bits: self.small("deflate.server_max_window_bits")?,
            client_max_window_bits: self.small("deflate.client_max_window_bits")?,
            server_no_context_takeover: self
                .or_auto("deflate.server_no_context_takeover", |key| self.switch(key))?,
            client_no_context_takeover: self
                .or_auto("deflate.client_no_context_takeover", |key| self.switch(key))?,
        };
        // A mistake in a setting that the chosen mode does not use is reported, too.
        let windowed = Deflate { mode: DeflateMode::Window { bits }, ..deflate };
        deflate.check().and_then(|_| windowed.check()).map(|_| deflate).map_err(|error| {
            let key = match error.setting {
                "mode.window.bits" => "deflate.window_bits".to_owned(),
                name => format!("deflate.{name}"),
            };
            let (value, origin) = &self.values[key.as_str()];
            format!("{key} is {value:?} ({origin}): {}", error.remedy)
        })
    }

    fn small(&self, key: &'static str) -> Result<u8, String> {
        self.parse(key, |text| {
            text.parse().map_err(|_| "write a whole number, at most 15".to_owned())
        })
    }

    /// `None` for `auto`.
    fn or_auto<T>(
        &self,
        key: &'static str,
        read: impl Fn(&'static str) -> Result<T, String>,
    ) -> Result<Option<T>, String> {
        match self.values[key].0.trim() {
            AUTO => Ok(None),
            _ => read(key).map(Some).map_err(|why| format!("{why}, or {AUTO}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(pairs: &[&str]) -> Result<Deflate, String> {
        let mut settings = Settings::new();
        for pair in pairs {
            match pair.strip_prefix("--deflate ") {
                Some(value) => settings.set_deflate(value, "--deflate")?,
                None => settings.set_pair(pair)?,
            }
        }
        settings.checked().map(|checked| checked.deflate)
    }

    #[test]
    fn the_table_says_what_the_library_does() {
        assert_eq!(with(&[]).unwrap(), Deflate::default());
    }

    #[test]
    fn the_flag_stands_for_the_settings() {
        let on = Deflate { enabled: true, ..Deflate::default() };
        assert_eq!(with(&["--deflate shared"]).unwrap(), on);
        let window = |bits| Deflate { mode: DeflateMode::Window { bits }, ..on };
        assert_eq!(with(&["--deflate window:12"]).unwrap(), window(12));
        assert_eq!(with(&["deflate.enabled=true", "deflate.mode=window"]).unwrap(), window(10));
        assert!(!with(&["deflate.enabled=true", "--deflate off"]).unwrap().enabled);
    }

    #[test]
    fn every_source_has_every_setting() {
        let mut settings = Settings::new();
        settings
            .read_toml(
                "t.toml",
                "[deflate]\nenabled = true\nmode = \"window\"\nwindow_bits = 11\nlevel = 6\nmem_level = 7\n\
                 threshold = \"1KiB\"\n",
            )
            .unwrap();
        let variables = [
            ("THRONG_DEFLATE_SERVER_MAX_WINDOW_BITS", "12"),
            ("THRONG_DEFLATE_CLIENT_MAX_WINDOW_BITS", "13"),
            ("THRONG_DEFLATE_SERVER_NO_CONTEXT_TAKEOVER", "true"),
            ("THRONG_DEFLATE_CLIENT_NO_CONTEXT_TAKEOVER", "false"),
        ];
        settings.read_environment(variables.iter().map(|(k, v)| (k.into(), v.into()))).unwrap();
        let all = Deflate {
            enabled: true,
            mode: DeflateMode::Window { bits: 11 },
            level: 6,
            mem_level: 7,
            threshold: Some(1024),
            max_size: 4 << 20,
            server_max_window_bits: 12,
            client_max_window_bits: 13,
            server_no_context_takeover: Some(true),
            client_no_context_takeover: Some(false),
        };
        assert_eq!(settings.checked().unwrap().deflate, all);
    }

    #[test]
    fn mistakes_name_the_setting_the_value_the_place_and_the_remedy() {
        for (pairs, parts) in [
            (&["--deflate on"][..], &["--deflate is \"on\"", "window:BITS"][..]),
            (&["--deflate window"], &["--deflate is \"window\"", "9 to 15"]),
            (
                &["--deflate window:8"],
                &["deflate.window_bits is \"8\" (flag --deflate)", "choose 9 to 15"],
            ),
            (&["--deflate window:x"], &["deflate.window_bits is \"x\"", "whole number"]),
            (&["deflate.window_bits=16"], &["deflate.window_bits is \"16\" (flag --set)"]),
            (&["deflate.mode=dedicated"], &["deflate.mode is \"dedicated\"", "shared or window"]),
            (&["deflate.level=0"], &["deflate.level is \"0\" (flag --set)", "choose 1 to 9"]),
            (&["deflate.mem_level=300"], &["deflate.mem_level", "at most 15"]),
            (&["deflate.threshold=some"], &["deflate.threshold", "4KiB", "or auto"]),
            (&["deflate.server_max_window_bits=8"], &["deflate.server_max_window_bits", "9 to 15"]),
            (
                &["deflate.server_no_context_takeover=false"],
                &["deflate.server_no_context_takeover is \"false\"", "window mode"],
            ),
            (&["deflate.client_no_context_takeover=no"], &["true or false, or auto"]),
            (&["deflate.windowbits=9"], &["did you mean deflate.window_bits?"]),
        ] {
            let message = with(pairs).unwrap_err();
            for part in parts {
                assert!(message.contains(part), "{message:?} does not say {part:?}");
            }
            assert!(!message.contains('\n'), "{message:?} is not one line");
        }
    }
}
