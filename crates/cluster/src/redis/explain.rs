//! Explains errors of a server, and adds a remedy.

use redis::{ErrorKind, RedisError, ServerErrorKind};

use super::StartError;
use super::tls::Insecure;

const PASSWORD: &str = "give the user and password of the server in cluster.url, as in \
                        redis://user:password@host or redis-sentinel://user:password@host/master";

const FULL: &str = "the server's memory is full: raise its maxmemory, or remove data that is not \
                    needed; docs/cluster.md says how much the cluster needs";

const SHARDED: &str = "a Redis Cluster must have Redis 7.0 or later on all servers, or Valkey: \
                       earlier \
                       ones have no sharded pub/sub";

const DATABASE: &str = "the number at the end of cluster.url names a database: write a number \
                        that the server has (`databases` in its configuration), or leave it out, \
                        and give the user the right to select it";

/// The beginning of the error for a server without sharded pub/sub.
pub(super) const TOO_OLD: &str = "version";

/// The beginning of the error for a sentinel where a server is expected.
pub(super) const SENTINEL: &str = "a sentinel";

/// Returns the cause and the remedy, with the server's own text. Errors about passwords, rights,
/// databases and the kind of a server last until someone changes the configuration.
pub(super) fn explain(shown: &str, error: &RedisError) -> StartError {
    if let Some(insecure) = explain_insecure(shown, error) {
        return insecure;
    }
    let is_locked = matches!(error.code(), Some("NOAUTH" | "WRONGPASS"));
    let is_lasting = is_locked
        || has_no_database(error)
        || is_unknown_command(error)
        || matches!(
            error.kind(),
            ErrorKind::AuthenticationFailed
                | ErrorKind::RESP3NotSupported
                | ErrorKind::Server(ServerErrorKind::NoPerm)
        );
    let remedy = match error.kind() {
        ErrorKind::InvalidClientConfig => {
            return StartError::lasting(format!(
                "cluster.url: {shown} is in cluster mode; write redis-cluster://host:port, \
                 with \
                 one or more of the servers of the Redis Cluster"
            ));
        }
        ErrorKind::Client if has_text(error, SENTINEL) => {
            return StartError::lasting(format!(
                "cluster.url: {shown} is a sentinel; write redis-sentinel://{shown}/MASTER, with \
                 the name of the master as `sentinel monitor` gives it"
            ));
        }
        _ if is_locked => PASSWORD,
        _ if has_no_database(error) => DATABASE,
        _ if has_code(error, "OOM") => FULL,
        ErrorKind::AuthenticationFailed => PASSWORD,
        ErrorKind::RESP3NotSupported => "the cluster needs Redis 6.2 or later, or Valkey",
        ErrorKind::Client => {
            "cluster.url must be the address of the master: a replica takes no publications"
        }
        ErrorKind::Server(ServerErrorKind::NoPerm) => {
            "give the user the rights that docs/cluster.md lists"
        }
        ErrorKind::Server(ServerErrorKind::BusyLoading) => "the server reads its data; wait",
        ErrorKind::Io => {
            "is it the address of a Redis server, does it run, and is it one with TLS (rediss://) \
             as cluster.url says, or without?"
        }
        _ => "the cluster needs Redis 6.2 or later, or Valkey; docs/cluster.md has the rights",
    };
    let message = format!("cluster.url: {shown} answers: {error}; {remedy}");
    if is_lasting { StartError::lasting(message) } else { StartError::new(message) }
}

/// Returns the cause and the remedy of a TLS failure.
pub(super) fn explain_insecure(shown: &str, error: &RedisError) -> Option<StartError> {
    let insecure = Insecure::of(error)?;
    let message = format!("cluster.url: {shown}: {insecure}; {}", insecure.remedy);
    Some(match insecure.is_lasting {
        true => StartError::lasting(message),
        false => StartError::new(message),
    })
}

/// Returns the same for a server of a Redis Cluster.
pub(super) fn explain_cluster(shown: &str, error: &RedisError) -> StartError {
    match error.kind() {
        ErrorKind::InvalidClientConfig => StartError::lasting(format!(
            "cluster.url: {shown} is not in cluster mode; write redis://{shown} for a single \
             server, or a list of such for independent ones"
        )),
        ErrorKind::Client if has_text(error, TOO_OLD) => {
            StartError::lasting(format!("cluster.url: {shown} answers: {error}; {SHARDED}"))
        }
        ErrorKind::Server(ServerErrorKind::ClusterDown) => StartError::new(format!(
            "cluster.url: {shown} answers: {error}; `redis-cli --cluster check {shown}` says \
             what is wrong"
        )),
        _ => explain(shown, error),
    }
}

fn has_text(error: &RedisError, text: &str) -> bool {
    error.to_string().contains(text)
}

/// Returns whether the server lacks the database of the URL.
fn has_no_database(error: &RedisError) -> bool {
    // The library replaces the code of the server's answer.
    has_text(error, "refused to switch database")
}

/// Returns whether the server does not have the command: it is too old or of another kind, or
/// its configuration renames the command.
pub(super) fn is_unknown_command(error: &RedisError) -> bool {
    let text = error.detail().unwrap_or_default().to_ascii_lowercase();
    error.code() == Some("ERR")
        && (text.contains("unknown command") || text.contains("unknown subcommand"))
}

/// Returns whether an answer has this code.
pub(super) fn has_code(error: &RedisError, code: &str) -> bool {
    // Redis 6 wraps the answer to a command within a script in an error of the script.
    let has = |detail: &str| detail.contains(&format!("-{code} "));
    error.code() == Some(code) || error.detail().is_some_and(has)
}
