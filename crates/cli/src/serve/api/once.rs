//! Commands that an application repeats because it has not seen the answer.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::problem::Problem;

/// Time for which the result of a command with an idempotency key is kept.
const KEPT: Duration = Duration::from_secs(5 * 60);

/// Parts of the results, each with a lock: a command may wait for the cluster for seconds, and
/// holds up only the commands of its part.
const PARTS: usize = 256;

/// Maximum results that a part keeps. Beyond, its oldest is forgotten.
const MOST: usize = 256;

/// Maximum bytes of a key.
const MAX_KEY: usize = 256;

/// A channel and a key.
type Name = Arc<(Box<str>, Box<str>)>;

/// The results of commands with idempotency keys.
#[derive(Debug)]
pub(super) struct Once {
    parts: Vec<Mutex<Results>>,
    hasher: RandomState,
}

impl Default for Once {
    fn default() -> Self {
        let parts = std::iter::repeat_with(Mutex::default).take(PARTS).collect();
        Self { parts, hasher: RandomState::new() }
    }
}

#[derive(Debug, Default)]
struct Results {
    of: HashMap<Name, Value>,
    by_age: VecDeque<(Instant, Name)>,
}

impl Once {
    /// Executes a command, or returns the result of the earlier one with this key. Without a key it
    /// executes the command. A failed command can be repeated.
    pub(super) fn execute(
        &self,
        channel: &str,
        key: &str,
        command: impl FnOnce() -> Result<Value, Problem>,
    ) -> Result<Value, Problem> {
        if key.is_empty() {
            return command();
        }
        if key.len() > MAX_KEY {
            let message = format!("idempotency_key has at most {MAX_KEY} bytes");
            return Err(Problem::bad_request(message));
        }
        let name: Name = Arc::new((channel.into(), key.into()));
        // The same command may come twice at once, so that the second waits for the first.
        let part = self.hasher.hash_one(&name) as usize % PARTS;
        let mut results = self.parts[part].lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        results.forget_until(now);
        if let Some(result) = results.of.get(&name) {
            return Ok(result.clone());
        }
        let result = command()?;
        results.of.insert(Arc::clone(&name), result.clone());
        results.by_age.push_back((now, name));
        Ok(result)
    }
}

impl Results {
    /// Forgets results that are too old, or too many with one more.
    fn forget_until(&mut self, now: Instant) {
        while let Some((at, _)) = self.by_age.front() {
            if now.duration_since(*at) < KEPT && self.by_age.len() < MOST {
                return;
            }
            if let Some((_, name)) = self.by_age.pop_front() {
                self.of.remove(&name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use serde_json::json;

    use super::*;

    #[test]
    fn a_command_with_a_key_is_executed_once_for_its_channel() {
        let once = Once::default();
        let executed = Cell::new(0);
        let execute = |channel: &str, key: &str| {
            once.execute(channel, key, || {
                executed.set(executed.get() + 1);
                Ok(json!(executed.get()))
            })
        };
        assert_eq!(execute("a", "k"), Ok(json!(1)));
        assert_eq!(execute("a", "k"), Ok(json!(1)));
        assert_eq!(execute("b", "k"), Ok(json!(2)));
        assert_eq!(execute("a", ""), Ok(json!(3)));
        assert_eq!(execute("a", ""), Ok(json!(4)));
        assert!(execute("a", &"k".repeat(257)).is_err());
        assert!(once.execute("a", "failing", || Err(Problem::NO_METHOD)).is_err());
        assert_eq!(execute("a", "failing"), Ok(json!(5)));
    }

    #[test]
    fn the_oldest_results_make_space_for_new_ones() {
        let once = Once::default();
        for number in 0..2 * PARTS * MOST {
            once.execute("a", &number.to_string(), || Ok(json!(number))).unwrap();
        }
        for part in &once.parts {
            let results = part.lock().unwrap();
            assert_eq!((results.of.len(), results.by_age.len()), (MOST, MOST));
        }
    }
}
