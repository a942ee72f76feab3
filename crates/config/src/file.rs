//! Text of configuration files.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::time::Duration;

use throng_io::may_pass;

use crate::error::ConfigError;

/// The largest configuration file in bytes; a larger file is not a configuration.
const MAX_SIZE: u64 = 4 << 20;

/// The time between two reads of a file that may be being written.
const PAUSE: Duration = Duration::from_millis(50);

/// Reads the text of the file at `path`.
///
/// # Errors
/// It cannot be read, is too large, or is not UTF-8.
pub fn read_file(path: &Path) -> Result<String, ConfigError> {
    let name = path.display();
    let cannot = |error: io::Error| {
        let what =
            format!("cannot read {name}: {error}; check the path of --config, or in THRONG_CONFIG");
        ConfigError::message(what).passing_if(may_pass(&error))
    };
    let mut text = Vec::new();
    let file = File::open(path).map_err(cannot)?;
    file.take(MAX_SIZE + 1).read_to_end(&mut text).map_err(cannot)?;
    if text.len() as u64 > MAX_SIZE {
        return Err(ConfigError::message(format_args!(
            "{name} has more than {} MiB: it is not a configuration; check the path of --config, \
             or in THRONG_CONFIG",
            MAX_SIZE >> 20
        )));
    }
    String::from_utf8(text).map_err(|_| {
        let what = "is not UTF-8 text; check the path of --config, or in THRONG_CONFIG";
        ConfigError::message(format_args!("{name} {what}"))
    })
}

/// Reads the text of a file that is in use, and may be being written.
///
/// # Errors
/// Those of [`read_file`], or the file looks incomplete.
pub fn read_file_in_use(path: &Path) -> Result<String, ConfigError> {
    let text = read_file(path)?;
    std::thread::sleep(PAUSE);
    whole(&text, &read_file(path)?).map_err(|why| {
        let remedy = "write another file and rename it, then reload";
        ConfigError::message(format_args!("{} {why}: {remedy}", path.display()))
    })?;
    Ok(text)
}

/// Returns an error if `text` does not look complete, where the file was `later` a moment later.
fn whole(text: &str, later: &str) -> Result<(), &'static str> {
    match () {
        () if text != later => Err("is being written"),
        () if !text.ends_with('\n') => Err("does not end with a line break, as if it were cut off"),
        () => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_changes_or_is_cut_off_is_not_whole() {
        assert_eq!(whole("a = 1\n", "a = 1\n"), Ok(()));
        for (text, later) in [("a = 1\n", "a = 1\nb = 2\n"), ("", "a = 1\n")] {
            assert_eq!(whole(text, later), Err("is being written"));
        }
        for text in ["", "a = 1", "a = 1\nb"] {
            assert!(whole(text, text).unwrap_err().contains("line break"), "{text:?}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_file_without_end_is_an_error() {
        let error = read_file(Path::new("/dev/zero")).unwrap_err().to_string();
        assert!(error.contains("/dev/zero") && error.contains("not a configuration"), "{error}");
    }
}
