//! The commands of presence, and their answers.

use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, Pipeline, RedisError, Value};

use super::{Listed, RemoteMember};
use crate::announcement::number;
use crate::redis::calls::is_fatal;
use crate::redis::names::Names;
use crate::roster::{Change, Update};

const SCRIPTS: [&str; 5] = [
    include_str!("beat.lua"),
    include_str!("join.lua"),
    include_str!("leave.lua"),
    include_str!("list.lua"),
    include_str!("remove_dead.lua"),
];

/// The lifetime of a node after its last heartbeat, in milliseconds.
pub(super) const LIFE: u64 = 10_000;

/// Batch size for removing a dead node's members, and the time in milliseconds for which the
/// remover's lock excludes other nodes.
const REMOVED_AT_ONCE: usize = 500;
const REMOVAL_TIME: u64 = 5_000;

/// Maximum bytes of members in one answer.
const LIST_BYTES: usize = 1 << 20;

/// Channels in one question about this node's own members.
const AUDITED: usize = 64;

/// The names by which the server knows the scripts.
#[derive(Clone, Debug)]
pub(crate) struct Scripts {
    beat: String,
    join: String,
    leave: String,
    list: String,
    remove_dead: String,
}

impl Scripts {
    pub(super) async fn load(
        connection: &mut MultiplexedConnection,
        names: &Names,
    ) -> Result<Self, RedisError> {
        let mut sums = Vec::new();
        for script in SCRIPTS {
            let script = names.script(script);
            let load = redis::cmd("SCRIPT").arg("LOAD").arg(&*script).to_owned();
            sums.push(load.query_async::<String>(connection).await?);
        }
        let [beat, join, leave, list, remove_dead] = sums.try_into().expect("one for each script");
        Ok(Self { beat, join, leave, list, remove_dead })
    }
}

/// The keys of a cluster's presence at the server.
struct Keys<'a>(&'a Names);

impl Keys<'_> {
    fn own(&self) -> String {
        format!("{:016x}", self.0.node)
    }

    fn of(&self, kind: &str, name: &str) -> String {
        format!("{}.{kind}.{name}", self.0.prefix)
    }

    fn nodes(&self) -> String {
        format!("{}.nodes", self.0.prefix)
    }

    fn epoch(&self) -> String {
        self.0.data()
    }

    /// The members of this node in a channel, the channel's nodes, and the node's channels.
    fn of_channel(&self, channel: &str) -> [String; 3] {
        let own = self.own();
        let members = self.of("p", &format!("{own}.{channel}"));
        [members, self.of("w", channel), self.of("i", &own)]
    }
}

/// Answer to a heartbeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Heartbeat {
    pub(super) has_lived: bool,
    /// The identity of the server's data, which changes when the data are lost.
    pub(super) epoch: String,
    /// Time until another node may be dead.
    pub(super) rest: u64,
    pub(super) dead: Vec<String>,
    /// Nodes with different rules for channels.
    pub(super) differing: Vec<String>,
}

/// Sends a heartbeat: this node lives.
pub(super) async fn send_heartbeat(
    connection: &mut MultiplexedConnection,
    scripts: &Scripts,
    names: &Names,
    (fresh, rules): (u64, u64),
) -> Result<Heartbeat, RedisError> {
    let keys = Keys(names);
    let (has_lived, epoch, rest, dead, differing) = redis::cmd("EVALSHA")
        .arg(&scripts.beat)
        .arg(3)
        .arg(keys.of("n", &keys.own()))
        .arg(keys.nodes())
        .arg(keys.epoch())
        .arg(keys.own())
        .arg(LIFE)
        .arg(format!("{fresh:016x}"))
        .arg(keys.of("n", ""))
        .arg(format!("{rules:016x}"))
        .query_async(connection)
        .await?;
    Ok(Heartbeat { has_lived, epoch, rest, dead, differing })
}

/// Writes joins and leaves.
pub(super) async fn write(
    connection: &mut MultiplexedConnection,
    scripts: &Scripts,
    names: &Names,
    epoch: &str,
    updates: &[Update],
) -> Result<Vec<Result<Value, RedisError>>, RedisError> {
    let keys = Keys(names);
    let mut pipeline = Pipeline::with_capacity(updates.len());
    for Update { channel, client, info, announces, change } in updates {
        let (script, key) = match change {
            Change::Join => (&scripts.join, keys.nodes()),
            Change::Leave { .. } => (&scripts.leave, keys.epoch()),
        };
        let mut command = Cmd::new();
        command.arg("EVALSHA").arg(script).arg(4).arg(&keys.of_channel(channel)).arg(key);
        command.arg(keys.own()).arg(&**channel).arg(format!("{client:016x}")).arg(&**info);
        command.arg(u8::from(*announces)).arg(names.channel(channel));
        if let Change::Leave { is_lost } = change {
            command.arg(u8::from(*is_lost)).arg(epoch);
        }
        pipeline.add_command(command);
    }
    pipeline.ignore_errors();
    pipeline.query_async(connection).await
}

/// Lists the members of channels, except the members of one node.
pub(super) async fn list(
    connection: &mut MultiplexedConnection,
    scripts: &Scripts,
    names: &Names,
    except: Option<u64>,
    questions: &[(Arc<str>, usize)],
) -> Result<Vec<Result<PresenceListing, RedisError>>, RedisError> {
    let keys = Keys(names);
    let except = except.map(|node| format!("{node:016x}")).unwrap_or_default();
    let mut pipeline = Pipeline::with_capacity(questions.len());
    for (channel, most) in questions {
        pipeline
            .cmd("EVALSHA")
            .arg(&scripts.list)
            .arg(2)
            .arg(keys.of("w", channel))
            .arg(keys.epoch())
            .arg(&except)
            .arg(&**channel)
            .arg(&names.prefix)
            .arg(*most)
            .arg(LIST_BYTES);
    }
    pipeline.ignore_errors();
    let answers: Vec<Result<Value, RedisError>> = pipeline.query_async(connection).await?;
    Ok(answers.into_iter().map(|answer| answer.and_then(listed)).collect())
}

/// The members of a channel, and the identity of the server's data at that time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PresenceListing {
    pub(super) epoch: String,
    pub(super) listed: Listed,
}

fn listed(value: Value) -> Result<PresenceListing, RedisError> {
    let (epoch, total, fields): (String, u64, Vec<Vec<u8>>) = redis::from_redis_value(value)?;
    let member = |fields: &[Vec<u8>]| {
        let [node, client, info] = fields else { return None };
        let of = |digits: &[u8]| number(digits.try_into().ok()?).ok();
        let info = str::from_utf8(info).ok()?.into();
        Some(RemoteMember { node: of(node)?, client: of(client)?, info })
    };
    // Ignores entries written by other programs.
    let members = fields.chunks(3).filter_map(member).collect();
    Ok(PresenceListing { epoch, listed: Listed { total, members } })
}

/// A member of this node that the server has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(super) channel: Arc<str>,
    pub(super) client: u64,
    /// Whether members of the channel get joins and leaves.
    pub(super) announces: bool,
}

/// Returns the members that the server has of this node. It reads at most the entries that this
/// node has written; the memory of presence bounds their number.
pub(super) async fn audit(
    connection: &mut MultiplexedConnection,
    names: &Names,
) -> Result<Vec<Found>, RedisError> {
    let keys = Keys(names);
    let index = keys.of("i", &keys.own());
    let channels: Vec<String> =
        redis::cmd("HKEYS").arg(&index).to_owned().query_async(connection).await?;
    let mut found = Vec::new();
    for channels in channels.chunks(AUDITED) {
        let mut pipeline = Pipeline::with_capacity(1 + channels.len());
        pipeline.cmd("HMGET").arg(&index).arg(channels);
        for channel in channels {
            let [members, ..] = keys.of_channel(channel);
            pipeline.cmd("HKEYS").arg(members);
        }
        let lists: Vec<Vec<Option<Vec<u8>>>> = pipeline.query_async(connection).await?;
        let mut lists = lists.into_iter();
        let announced = lists.next().unwrap_or_default();
        for ((channel, clients), announces) in channels.iter().zip(lists).zip(announced) {
            let channel: Arc<str> = channel.as_str().into();
            let announces = announces.as_deref() == Some(b"1");
            let of = |client: &Option<Vec<u8>>| {
                number(client.as_ref()?.as_slice().try_into().ok()?).ok()
            };
            found.extend(clients.iter().filter_map(of).map(|client| Found {
                channel: Arc::clone(&channel),
                client,
                announces,
            }));
        }
    }
    Ok(found)
}

/// Removes the members of dead nodes, and publishes their leaves. If the server refuses to remove
/// one node, the others are still removed.
pub(super) async fn remove_dead(
    connection: &mut MultiplexedConnection,
    scripts: &Scripts,
    names: &Names,
    dead: &[String],
) -> Result<(), RedisError> {
    let keys = Keys(names);
    let mut outcome = Ok(());
    for node in dead {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&scripts.remove_dead).arg(4);
        for kind in ["n", "bury", "i"] {
            command.arg(keys.of(kind, node));
        }
        command.arg(keys.nodes()).arg(node).arg(keys.own()).arg(&names.prefix);
        command.arg(REMOVED_AT_ONCE).arg(REMOVAL_TIME);
        let done = loop {
            match command.query_async::<bool>(connection).await {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        match done {
            Err(error) if is_fatal(&error) => return Err(error),
            Err(error) => outcome = Err(error),
            Ok(()) => {}
        }
    }
    outcome
}

/// Unregisters this node, which has no members left. If the server has lost some of their leaves,
/// it still lists members: other nodes then find this node dead, and remove them.
pub(super) async fn unregister(
    connection: &mut MultiplexedConnection,
    names: &Names,
) -> Result<(), RedisError> {
    let keys = Keys(names);
    let own = keys.own();
    let mut pipeline = Pipeline::new();
    pipeline.cmd("DEL").arg(keys.of("n", &own)).ignore();
    pipeline.cmd("EXISTS").arg(keys.of("i", &own));
    let (has_members,): (bool,) = pipeline.query_async(connection).await?;
    if !has_members {
        redis::cmd("SREM").arg(keys.nodes()).arg(own).query_async::<()>(connection).await?;
    }
    Ok(())
}

/// Returns whether the server has lost a script.
pub(super) fn is_forgotten(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(redis::ServerErrorKind::NoScript)
}
