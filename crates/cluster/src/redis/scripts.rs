//! The scripts that publish and read at the server.

use redis::RedisError;
use redis::aio::MultiplexedConnection;

use super::names::Names;

const PUBLISH: &str = include_str!("publish.lua");
const READ: &str = include_str!("read.lua");

/// The names by which the server knows them.
#[derive(Clone, Debug)]
pub(super) struct Scripts {
    pub(super) publish: String,
    pub(super) read: String,
}

impl Scripts {
    pub(super) async fn load(
        connection: &mut MultiplexedConnection,
        names: &Names,
    ) -> Result<Self, RedisError> {
        let mut sums = Vec::new();
        for script in [PUBLISH, READ] {
            let script = names.script(script);
            let load = redis::cmd("SCRIPT").arg("LOAD").arg(&*script).to_owned();
            sums.push(load.query_async::<String>(connection).await?);
        }
        let (read, publish) = (sums.pop().unwrap_or_default(), sums.pop().unwrap_or_default());
        Ok(Self { publish, read })
    }
}
