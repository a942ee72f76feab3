//! The pool of workers: the settings `workers.*`.

use throng::WorkerSettings;

use super::Settings;

impl Settings {
    /// The settings `workers.*` as the library takes them.
    pub(super) fn workers(&self) -> Result<WorkerSettings, String> {
        let workers = WorkerSettings {
            pool_size: self.count("workers.pool_size")?,
            queue_size: self.count("workers.queue_size")?,
            affinity: self.switch("workers.affinity")?,
            overload: self.parse("workers.overload", str::parse)?,
        };
        workers.check().map(|()| workers).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use throng::Overload;

    use super::*;

    fn with(pairs: &[&str]) -> Result<WorkerSettings, String> {
        let mut settings = Settings::new();
        for pair in pairs {
            settings.set_pair(pair)?;
        }
        settings.checked().map(|checked| checked.workers)
    }

    #[test]
    fn the_table_says_what_the_library_does() {
        assert_eq!(with(&[]), Ok(WorkerSettings::default()));
    }

    #[test]
    fn all_are_passed_on_and_mistakes_name_the_remedy() {
        let set = [
            "workers.pool_size=7",
            "workers.queue_size=9",
            "workers.affinity=true",
            "workers.overload=close",
        ];
        let expected = WorkerSettings {
            pool_size: 7,
            queue_size: 9,
            affinity: true,
            overload: Overload::Close,
        };
        assert_eq!(with(&set), Ok(expected));
        for (pair, part) in [
            ("workers.pool_size=4097", "at most 4096"),
            ("workers.pool_size=-1", "whole number"),
            ("workers.queue_size=0", "give at least 1"),
            ("workers.affinity=yes", "true or false"),
            ("workers.overload=drop", "pause or close"),
            ("workers.poolsize=1", "did you mean workers.pool_size?"),
        ] {
            let message = with(&[pair]).unwrap_err();
            assert!(message.contains(part), "{message:?} does not say {part:?}");
        }
    }
}
