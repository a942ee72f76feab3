//! Text of configuration files.

use std::path::Path;
use std::time::Duration;

use throng_io::file::{Fault, read_text};

use crate::error::ConfigError;

/// The time between two reads of a file that may be being written.
const PAUSE: Duration = Duration::from_millis(50);

/// Reads the text of the file at `path`.
///
/// # Errors
/// The file is unreadable, not a regular file, too large, or not UTF-8.
pub fn read_file(path: &Path) -> Result<String, ConfigError> {
    read_text(path).map_err(|error| {
        let hint = match error.fault {
            Fault::Missing | Fault::TooLarge(_) => " of --config, or in THRONG_CONFIG",
            _ => " (named by --config, or THRONG_CONFIG)",
        };
        let what = format_args!("{} {error}{hint}", path.display()).to_string();
        ConfigError::message(what).passing_if(error.may_pass())
    })
}

/// Reads the text of the file of tuned settings at `path`.
///
/// # Errors
/// The file is unreadable, not a regular file, too large, or not UTF-8.
pub fn read_tuned_file(path: &Path) -> Result<String, ConfigError> {
    read_text(path).map_err(|error| {
        let what = format_args!("{} {error} (named by THRONG_TUNED)", path.display()).to_string();
        ConfigError::message(what).passing_if(error.may_pass())
    })
}

/// Reads the text of a file that is in use, and that another program may be writing at the same
/// time.
///
/// # Errors
/// The errors of [`read_file`], or the file looks incomplete.
pub fn read_file_in_use(path: &Path) -> Result<String, ConfigError> {
    let text = read_file(path)?;
    std::thread::sleep(PAUSE);
    whole(&text, &read_file(path)?).map_err(|why| {
        let remedy = "write another file and rename it, then reload";
        ConfigError::message(format_args!("{} {why}: {remedy}", path.display()))
    })?;
    Ok(text)
}

/// Returns an error if `text` does not look complete. `later` is the text a moment later.
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

    #[test]
    fn a_missing_file_of_tuned_settings_names_its_variable() {
        let error = read_tuned_file(Path::new("/nonexistent.toml")).unwrap_err().to_string();
        assert!(error.contains("/nonexistent.toml") && error.contains("THRONG_TUNED"), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn a_file_without_end_is_an_error() {
        let error = read_file(Path::new("/dev/zero")).unwrap_err().to_string();
        assert!(error.contains("/dev/zero") && error.contains("it is a device"), "{error}");
        let error = read_file(Path::new("/nonexistent.toml")).unwrap_err().to_string();
        assert!(error.ends_with("check the path of --config, or in THRONG_CONFIG"), "{error}");
    }
}
