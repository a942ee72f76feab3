//! The maximum number of connections of a server: the setting, and the limits of descriptors and
//! threads.

#[cfg(feature = "files")]
use throng_http::Files;
use throng_io::capacity::{Descriptors, Needs};

use super::Server;
use crate::error::{Error, Result};
use crate::io_backend::{FEWEST_CONNECTIONS, IoBackend};

impl Server {
    /// Raises the limit on descriptors as far as it goes, and divides them. `shared_listeners` will
    /// be opened where shards share a table, `own_listeners` in a shard's own table.
    pub(super) fn descriptors(&self, shared_listeners: usize, own_listeners: usize) -> Descriptors {
        // Some systems, such as sandboxes, do not allow this; the limit then does not change.
        let limit = throng_io::limits::raise_descriptors()
            .unwrap_or_else(|_| throng_io::limits::descriptor_limits().0);
        #[cfg(feature = "files")]
        let for_files =
            share_among(&self.app.files, usize::try_from(limit).unwrap_or(usize::MAX) / 4);
        #[cfg(not(feature = "files"))]
        let for_files = 0;
        let used = throng_io::limits::descriptors_in_use();
        Descriptors {
            limit,
            used: used + for_files + shared_listeners,
            used_in_own: own_listeners + for_files,
        }
    }

    /// Returns the connection limit in force where shards share a table: the setting, or as many as
    /// the descriptors allow, minus the `listeners` that will be opened.
    pub(super) fn max_connections(&self, shards: usize, listeners: usize) -> Result<usize> {
        let descriptors = self.descriptors(listeners, 0);
        let (reserve, free) = (
            Needs::SERVER.reserve(shards, descriptors.used),
            Needs::SERVER.free(&descriptors, shards),
        );
        let asked = self.limits.max_connections.unwrap_or(0);
        if self.shards.io == IoBackend::Threads {
            let each = throng_io::threads::DESCRIPTORS;
            let possible = crate::threads::possible(asked, free / each)?;
            return choose_max_connections(asked, possible, descriptors.limit, reserve, each);
        }
        choose_max_connections(asked, free, descriptors.limit, reserve, 1)
    }
}

/// Lowers the limits on open files in proportion, so that all directories together have at most
/// `most`. Returns their sum.
#[cfg(feature = "files")]
fn share_among(files: &[Files], most: usize) -> usize {
    let limits: Vec<u128> = files.iter().map(|files| files.open_limit() as u128).collect();
    let wanted: u128 = limits.iter().sum();
    if wanted > most as u128 {
        for (files, limit) in files.iter().zip(limits) {
            let share = usize::try_from(limit * most as u128 / wanted).unwrap_or(usize::MAX);
            // At least one: with none, no file of the directory could be served.
            files.lower_max_open(share.max(1));
        }
    }
    files.iter().map(Files::open_limit).sum()
}

/// Chooses the limit on connections.
///
/// `reserve` of the `descriptors` are reserved, which leaves `possible` connections of `each`
/// descriptors; `asked` is 0 for the maximum.
fn choose_max_connections(
    asked: usize,
    possible: usize,
    descriptors: u64,
    reserve: usize,
    each: usize,
) -> Result<usize> {
    let problem = match asked {
        0 if possible >= FEWEST_CONNECTIONS => return Ok(possible),
        0 => String::new(),
        _ if asked <= possible => return Ok(asked),
        _ => format!("max_connections is {asked}, but "),
    };
    let (wanted, remedy) = match asked {
        0 => (1000 * each + reserve, ""),
        _ => (asked * each + reserve, ", or lower max_connections"),
    };
    let raise = throng_io::limits::raise_remedy(wanted);
    Err(Error::setting(
        "max_connections",
        format!(
            "{problem}the descriptor limit of {descriptors} allows {possible} connections, since \
             {reserve} descriptors are needed for other purposes; {raise}{remedy}"
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(feature = "files")]
    fn directories_share_the_descriptors_that_files_may_have() {
        let files = |most| Files::new(".").max_open(most);
        let limits = |files: &[Files]| files.iter().map(Files::open_limit).collect::<Vec<_>>();
        assert_eq!(share_among(&[], 100), 0);
        let few = [files(30), files(70)];
        assert_eq!((share_among(&few, 100), limits(&few)), (100, vec![30, 70]));
        let many = [files(300), files(100)];
        assert_eq!((share_among(&many, 100), limits(&many)), (100, vec![75, 25]));
        let unbounded = [files(usize::MAX), files(usize::MAX), files(1)];
        assert_eq!((share_among(&unbounded, 100), limits(&unbounded)), (99, vec![49, 49, 1]));
        let one = files(100);
        let twice = [one.clone(), one];
        assert_eq!((share_among(&twice, 100), limits(&twice)), (100, vec![50, 50]));
    }

    #[test]
    fn too_few_descriptors_are_an_error_that_names_the_setting_if_there_is_one() {
        let choose = |asked, possible: usize| {
            choose_max_connections(asked, possible, possible as u64 + 80, 80, 1)
                .map_err(|error| error.to_string())
        };
        assert_eq!(choose(0, 16), Ok(16));
        assert_eq!(choose(3, 3), Ok(3));
        let nothing_set = choose(0, 15).unwrap_err();
        assert!(
            nothing_set.starts_with("the descriptor limit of 95 allows 15 conn"),
            "{nothing_set}"
        );
        let remedy = throng_io::limits::raise_remedy;
        assert!(nothing_set.contains(&remedy(1080)), "{nothing_set}");
        assert!(!nothing_set.contains("max_connections"), "{nothing_set}");
        let too_many = choose(17, 16).unwrap_err();
        assert!(too_many.starts_with("max_connections is 17, but the descriptor"), "{too_many}");
        assert!(too_many.contains(&remedy(97)), "{too_many}");
        assert!(too_many.ends_with("or lower max_connections"), "{too_many}");
        let of_threads = choose_max_connections(17, 16, 32 + 80, 80, 2).unwrap_err().to_string();
        assert!(of_threads.contains(&remedy(114)), "{of_threads}");
    }
}
