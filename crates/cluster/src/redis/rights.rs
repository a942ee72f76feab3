//! The rights of the node's user at the server. They are checked before the node starts: otherwise
//! a missing right would only show much later, when its command is needed.

use redis::RedisError;

use super::StartError;
use super::explain::explain;
use super::link::Link;
use super::names::Names;

const RIGHTS: &str = include_str!("rights.lua");

impl Link {
    /// Tries the commands that the node will need.
    pub(super) async fn check_rights(&self, names: &Names) -> Result<(), StartError> {
        let refused = self.refused(names).await;
        let refused = refused.map_err(|error| explain(&self.shown, &error))?;
        let Some((_, answer)) = refused.first() else { return Ok(()) };
        let rights: Vec<_> = refused.iter().map(|(name, _)| format!("+{name}")).collect();
        Err(StartError::lasting(format!(
            "cluster.url: {} answers: {answer}; give the user the rights {} (docs/cluster.md lists \
             all)",
            self.shown,
            rights.join(" ")
        )))
    }

    /// Returns names and answers for the commands of scripts that the user may not execute; an
    /// error for another command.
    async fn refused(&self, names: &Names) -> Result<Vec<(String, String)>, RedisError> {
        let (mut commands, mut subscriptions) = (self.commands.clone(), self.subscriptions.clone());
        let rights = names.script(RIGHTS);
        let load = redis::cmd("SCRIPT").arg("LOAD").arg(&*rights).to_owned();
        let script: String = load.query_async(&mut commands).await?;
        let name = |kind: &str| format!("{}.x.{:016x}.{kind}", names.prefix, names.node);
        let refused = redis::cmd("EVALSHA")
            .arg(script)
            .arg(4)
            .arg(&["hash", "stream", "set", "string"].map(name))
            .arg(name("messages"))
            .query_async(&mut commands)
            .await?;
        redis::cmd(names.publish())
            .arg(name("messages"))
            .arg("")
            .query_async::<()>(&mut commands)
            .await?;
        // No connection has this address.
        let kill = redis::cmd("CLIENT").arg(&["KILL", "ID", "1", "ADDR", "0.0.0.0:0"]).to_owned();
        kill.query_async::<()>(&mut commands).await?;
        if !names.is_partition {
            subscriptions.unsubscribe(name("messages")).await?;
            return Ok(refused);
        }
        // There are no other subscriptions yet, so the answers belong to these commands.
        for verb in ["SSUBSCRIBE", "SUNSUBSCRIBE"] {
            let command = redis::cmd(verb).arg(name("messages")).to_owned();
            command.query_async::<()>(&mut subscriptions).await?;
        }
        Ok(refused)
    }
}
