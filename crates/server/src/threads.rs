//! Servers with one thread per connection: the limit on their number, and how they are built.

use std::sync::Arc;

use throng_engine::{Admission, BuildOptions, Service, ThreadOptions};
use throng_io::capacity::ThreadLimit;
use throng_io::threads::{RECEIVE_BUFFER, connection_options, thread_limit};
use throng_io::{Listener, Options, Threads};

use crate::error::{Error, Result};
use crate::io_backend::FEWEST_CONNECTIONS;
use crate::running::ShardThreads;
use crate::tls::{Security, wrap};

/// The smallest stack of a connection's thread, in bytes.
const MIN_STACK: usize = 64 * 1024;

/// Maximum refused connections that the acceptor's thread answers with a reason at a time, with
/// some to spare.
const REFUSING: usize = 64;

/// The limit where the system reports none.
const UNLIMITED: ThreadLimit = ThreadLimit { threads: usize::MAX, limit: "", each: 1 };

/// Returns an error if a stack of `bytes` is too small.
pub(crate) fn check_stack(bytes: usize) -> Result<()> {
    if bytes < MIN_STACK {
        return Err(Error::setting(
            "thread_stack",
            format!(
                "thread_stack is {bytes} bytes, too few to report a handler's panic; \
             set it to at least {MIN_STACK}"
            ),
        ));
    }
    Ok(())
}

/// Returns the number of connections that can have a thread each, where the descriptors suffice for
/// `described`; `asked` is 0 for the maximum.
pub(crate) fn possible(asked: usize, described: usize) -> Result<usize> {
    let limit = thread_limit().unwrap_or(UNLIMITED);
    Ok(choose(asked, limit)?.min(described))
}

fn choose(asked: usize, lowest: ThreadLimit) -> Result<usize> {
    let (numbers, free) = (ThreadLimit::NUMBERS, lowest.connections());
    let ThreadLimit { threads, limit, each } = lowest;
    if asked > numbers {
        return Err(Error::setting(
            "max_connections",
            format!(
                "max_connections is {asked}, but io is threads, which allows at most {numbers}; \
             lower max_connections, or use io = auto"
            ),
        ));
    }
    if free < FEWEST_CONNECTIONS || asked > free {
        return Err(Error::setting(
            "io",
            format!(
                "io is threads, but the system allows {threads} threads, too few for {} \
                 connections: raise {limit} to {}, lower max_connections, or use io = auto",
                asked.max(FEWEST_CONNECTIONS),
                (asked.max(1_000) + ThreadLimit::RESERVED) * each,
            ),
        ));
    }
    Ok(free.min(numbers))
}

/// Builds the acceptor, which starts the connections' threads; `base` has the options of sockets.
pub(crate) fn build<S: Service + Send + 'static>(
    listeners: impl IntoIterator<Item = Listener>,
    base: Options,
    security: &Security,
    stack_size: usize,
    options: &BuildOptions,
    service: impl Fn(&Arc<Admission>) -> S + Send + Sync + 'static,
) -> Result<ShardThreads> {
    let accepting =
        Options { receive_buffer: RECEIVE_BUFFER, max_connections: REFUSING, ..base.clone() };
    let mut acceptor = wrap(Threads::new(accepting).map_err(Error::Shard)?);
    for listener in listeners {
        let add = |inner: &mut Threads| inner.add_listener(listener);
        crate::tls::listen(&mut acceptor, security, add).map_err(Error::Shard)?;
    }
    let driver = move |number, generation| {
        Threads::new(connection_options(&base, number, generation)).map(wrap)
    };
    let threads = ThreadOptions { stack_size, driver: Box::new(driver) };
    ShardThreads::build_threads(acceptor, options, threads, service)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_few_threads_are_an_error_that_names_the_limit_to_raise() {
        let choose = |asked, threads| {
            choose(asked, ThreadLimit { threads, limit: "kernel.pid_max", each: 1 })
                .map_err(|error| error.to_string())
        };
        assert_eq!(choose(0, 32_768), Ok(32_704));
        assert_eq!(choose(0, 1 << 20), Ok(65_535));
        assert_eq!(choose(1000, 1064), Ok(1000));
        assert_eq!(super::choose(0, UNLIMITED).unwrap(), 65_535);
        let few = choose(1001, 1064).unwrap_err();
        assert!(few.contains("1064 threads, too few for 1001 connections"), "{few}");
        assert!(few.contains("raise kernel.pid_max to 1065"), "{few}");
        assert!(choose(0, 70).unwrap_err().contains("raise kernel.pid_max to 1064"));
        assert!(choose(65_536, 1 << 20).unwrap_err().contains("65535"));
        let maps = ThreadLimit { threads: 300, limit: "vm.max_map_count", each: 5 };
        let few = super::choose(1000, maps).unwrap_err().to_string();
        assert!(few.contains("raise vm.max_map_count to 5320"), "{few}");
    }

    #[test]
    fn a_stack_that_is_too_small_is_an_error() {
        assert!(check_stack(256 * 1024).is_ok() && check_stack(MIN_STACK).is_ok());
        assert!(check_stack(MIN_STACK - 1).unwrap_err().to_string().contains("thread_stack"));
    }
}
