//! The commands of a node, in pipelines, and their answers.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, Pipeline, RedisError, ServerErrorKind, Value};

use super::explain::has_code;
use super::names::Names;
use super::pool::Reserved;
use super::scripts::Scripts;
use super::{KeepRule, Outgoing};
use crate::envelope::Place;
use crate::outbox::Pending;
use crate::outcome::Ticket;
use crate::sequencer::SequenceAnswer;

/// Maximum publications in one answer to a node that has a place. The node asks again for later
/// publications.
const PAGE: usize = 1_000;

/// Maximum bytes of publications in such an answer, and in an answer to a node without a place. The
/// latter does not ask again, so a longer history begins later for it. Each answer has at least one
/// publication.
const PAGE_BYTES: usize = 64 << 10;
const BEGIN_BYTES: usize = 1 << 20;

/// Maximum bytes of publications in the answers to one pipeline, which must arrive within the time
/// limit.
pub(super) const ANSWER_BYTES: usize = 16 << 20;

/// Maximum attempts of a pipeline at a server that loses its scripts.
const RETRIES: usize = 5;

/// A publication renews the expiry of its history once this fraction of the history's age has
/// passed, and the expiry is longer by the same fraction. Renewing it with each publication would
/// add half of the script's cost.
pub(super) const REFRESHES: u32 = 16;

/// Answer of `publish.lua` to a publication whose predecessor was not accepted. `PUBLISH` never
/// returns a negative number.
const LEFT_OUT: i64 = -1;

/// A publication with its identification.
#[derive(Clone, Debug)]
pub(super) struct NumberedPublication {
    pub(super) outgoing: Outgoing,
    /// Its memory.
    pub(super) reserved: Reserved,
    /// The random tag of its place.
    pub(super) tag: u64,
    /// The number of the previous publication plus one.
    pub(super) number: u64,
    /// Whether the publication renews the expiry of the channel's history.
    pub(super) refreshes: bool,
    /// The key of a publication that was first delivered without a place: it ensures that only one
    /// node gives it a place.
    pub(super) mark: Option<String>,
    /// The number of subscriptions requested before the publication.
    pub(super) after: u64,
    /// The listener for the outcome.
    pub(super) ticket: Ticket,
}

/// A question about a channel.
#[derive(Clone, Debug)]
pub(super) struct Question {
    pub(super) channel: Arc<str>,
    pub(super) keep: KeepRule,
    pub(super) number: u64,
    pub(super) after: Option<Place>,
    /// The epoch of a sequence that begins now.
    pub(super) epoch: u64,
    /// The identity of the server's data, as the node knows it.
    pub(super) data: String,
    /// Whether an earlier answer came too late: the question is then asked alone.
    pub(super) was_late: bool,
}

impl Question {
    /// Returns the maximum bytes of publications in the answer.
    pub(super) fn most_bytes(&self) -> usize {
        if self.after.is_some() { PAGE_BYTES } else { BEGIN_BYTES }
    }
}

/// Returns whether the node must stop using this connection: it is lost, or the server is not a
/// master that answers.
pub(super) fn is_fatal(error: &RedisError) -> bool {
    use ServerErrorKind::{BusyLoading, MasterDown, NoScript, ReadOnly};
    match error.kind() {
        ErrorKind::Server(kind) => {
            matches!(kind, BusyLoading | MasterDown | NoScript | ReadOnly) || is_moved(error)
        }
        // An error of this command alone: a key of another type (WRONGTYPE), no memory (OOM).
        ErrorKind::Extension => false,
        _ => true,
    }
}

/// Returns whether the master has executed nothing, because the partition has another master now,
/// or has no master.
pub(super) fn is_moved(error: &RedisError) -> bool {
    use ServerErrorKind::{ClusterDown, Moved};
    matches!(error.kind(), ErrorKind::Server(Moved | ClusterDown))
}

/// Returns whether the master has executed nothing, because the partition is migrating to another
/// master.
pub(super) fn is_on_the_way(error: &RedisError) -> bool {
    use ServerErrorKind::{Ask, TryAgain};
    matches!(error.kind(), ErrorKind::Server(Ask | TryAgain))
}

/// Returns whether a script that reads did not find a key because its partition is migrating.
pub(super) fn is_read_on_the_way(error: &RedisError) -> bool {
    is_on_the_way(error) || error.detail().is_some_and(|detail| detail.contains("non local key"))
}

fn is_forgotten(result: &Result<Value, RedisError>) -> bool {
    let forgotten = ErrorKind::Server(ServerErrorKind::NoScript);
    result.as_ref().is_err_and(|error| error.kind() == forgotten)
}

/// Returns whether a publication was skipped because the previous one was not accepted.
fn is_left_out(result: &Result<Value, RedisError>) -> bool {
    matches!(result, Ok(Value::Int(LEFT_OUT)))
}

/// Returns whether the server refuses a command only for now: another client's script takes long,
/// memory or disk are full, or replicas are missing.
pub(super) fn is_for_now(error: &RedisError) -> bool {
    ["BUSY", "OOM", "MISCONF", "NOREPLICAS"].iter().any(|code| has_code(error, code))
}

/// Returns whether this answer to a script proves that it has published nothing: it was not
/// started, or it met a key of another type. Any other error may come from the script's last
/// command. If the user may not run a command within the script, the code is not `NOPERM`.
#[rustfmt::skip]
fn proves_nothing_done(error: &RedisError) -> bool {
    const CODES: [&str; 8] = [
        "WRONGTYPE", "NOAUTH", "NOPERM", "CROSSSLOT", "DENIED", "READONLY", "LOADING", "MASTERDOWN",
    ];
    is_for_now(error) || CODES.iter().any(|code| has_code(error, code))
}

/// Returns whether the user may not run a command in any channel: scripts at all, or a command
/// within a script.
fn lacks_command(error: &RedisError) -> bool {
    let says = |words: &str| error.detail().is_some_and(|detail| detail.contains(words));
    match has_code(error, "NOPERM") {
        true => says("to run the"),
        false => says("can't run this command") || says("ACL failure in script"),
    }
}

/// Returns whether the user lacks a right that the answer to a command on the node's own names
/// proves for all channels: to a command, or to keys with the node's prefix. The answer to a
/// publication only proves that the user may not access the keys of one channel.
pub(super) fn lacks_right(error: &RedisError) -> bool {
    // Redis 6 wraps the answer in an error of the script.
    let says = |words: &str| error.detail().is_some_and(|detail| detail.contains(words));
    has_code(error, "NOPERM") || lacks_command(error) || says("The user executing the script")
}

/// Returns whether the server has answered with this error and executed nothing.
fn is_proven(error: &RedisError, is_script: bool) -> bool {
    use ServerErrorKind::{BusyLoading, MasterDown, NoScript, ReadOnly};
    match error.kind() {
        ErrorKind::Server(BusyLoading | MasterDown | NoScript | ReadOnly) => true,
        ErrorKind::Server(_) | ErrorKind::Extension => !is_script || proves_nothing_done(error),
        _ => false,
    }
}

/// The server's answer to a publication that it has not accepted.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Refusal {
    pub(super) error: RedisError,
    /// Whether the server answers in this way to all publications of this kind.
    pub(super) concerns_all: bool,
}

/// Outcome of a publication.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum CallOutcome {
    Published,
    /// The server refuses the publication; `None`: it would follow later ones of its channel.
    Refused(Option<Refusal>),
    /// The server began to execute the publication, and failed.
    Unknown(Refusal),
    /// The server refuses the publication for now, with this error.
    NotNow(RedisError),
    /// The server skipped the publication because it refused an earlier one of the same channel.
    LeftOut,
    /// The partition is migrating to another master.
    OnTheWay,
    /// The partition has another master.
    Moved(RedisError),
    /// The connection must not be used; the server has not executed the command.
    Fatal(RedisError),
    /// The connection must not be used; the outcome is unknown.
    Broken(RedisError),
}

/// Returns the outcomes of publications. Sending a publication again would place it after later
/// ones of its channel: if the server has already accepted a later one, the outcome is a refusal.
fn outcomes(
    batch: &[Pending<NumberedPublication>],
    results: Vec<Result<Value, RedisError>>,
) -> Vec<CallOutcome> {
    let of = |(result, pending): (Result<Value, RedisError>, &Pending<NumberedPublication>)| {
        match result {
            left if is_left_out(&left) => CallOutcome::LeftOut,
            Ok(_) => CallOutcome::Published,
            Err(error) if is_moved(&error) => CallOutcome::Moved(error),
            Err(error) if is_on_the_way(&error) => CallOutcome::OnTheWay,
            Err(error) if is_fatal(&error) && is_proven(&error, pending.is_repeatable) => {
                CallOutcome::Fatal(error)
            }
            Err(error) if is_fatal(&error) => CallOutcome::Broken(error),
            Err(error) if is_for_now(&error) => CallOutcome::NotNow(error),
            Err(error) => {
                let is_refused = is_proven(&error, pending.is_repeatable);
                let refusal = Refusal { concerns_all: lacks_command(&error), error };
                match is_refused {
                    true => CallOutcome::Refused(Some(refusal)),
                    false => CallOutcome::Unknown(refusal),
                }
            }
        }
    };
    let mut outcomes: Vec<_> = results.into_iter().zip(batch).map(of).collect();
    let mut overtaken = HashSet::new();
    for (outcome, pending) in outcomes.iter_mut().zip(batch).rev() {
        let channel = &*pending.item.outgoing.channel;
        match outcome {
            CallOutcome::Published => drop(overtaken.insert(channel)),
            CallOutcome::NotNow(_)
            | CallOutcome::OnTheWay
            | CallOutcome::Moved(_)
            | CallOutcome::Fatal(_)
                if overtaken.contains(channel) =>
            {
                *outcome = CallOutcome::Refused(None)
            }
            _ => {}
        }
    }
    outcomes
}

/// Sends a pipeline for all items, and another for items that the server skipped, or whose script
/// it has lost. `pipeline` gets the indexes of these items, in order.
async fn pipelined(
    connection: &mut MultiplexedConnection,
    (scripts, names): (&Scripts, &Names),
    items: usize,
    pipeline: impl Fn(&Scripts, &[usize]) -> Pipeline,
) -> Result<Vec<Result<Value, RedisError>>, RedisError> {
    let mut results: Vec<Result<Value, RedisError>> = Vec::new();
    let mut missing: Vec<usize> = (0..items).collect();
    let mut scripts = scripts.clone();
    for attempt in 0..RETRIES {
        let mut pipeline = pipeline(&scripts, &missing);
        pipeline.ignore_errors();
        let answers: Vec<Result<Value, RedisError>> = pipeline.query_async(connection).await?;
        match attempt {
            0 => results = answers,
            _ => missing.iter().zip(answers).for_each(|(at, answer)| results[*at] = answer),
        }
        let is_missing = |result: &_| is_forgotten(result) || is_left_out(result);
        missing.retain(|at| results.get(*at).is_some_and(is_missing));
        if !missing.iter().any(|at| is_forgotten(&results[*at])) {
            break;
        }
        scripts = Scripts::load(connection, names).await?;
    }
    // Record no outcome: later publications of the same channel must follow this one.
    match results.iter().position(is_forgotten) {
        Some(at) => Err(results.swap_remove(at).expect_err("it is an error")),
        None => Ok(results),
    }
}

/// Publishes in order. Each publication names its predecessor in its channel, and the server skips
/// it if it has not accepted the predecessor, because it refused it or had lost the script for a
/// moment.
pub(super) async fn publish(
    connection: &mut MultiplexedConnection,
    scripts: &Scripts,
    names: &Names,
    epoch: u64,
    batch: &[Pending<NumberedPublication>],
) -> Result<Vec<CallOutcome>, RedisError> {
    let mut last = HashMap::new();
    let before = |pending: &'_ Pending<NumberedPublication>| {
        let NumberedPublication { outgoing, number, .. } = &pending.item;
        last.insert(Arc::clone(&outgoing.channel), *number).unwrap_or_default()
    };
    let before: Vec<u64> = batch.iter().map(before).collect();
    let results = pipelined(connection, (scripts, names), batch.len(), |scripts, items| {
        let mut pipeline = Pipeline::with_capacity(items.len());
        for (pending, before) in items.iter().map(|at| (&batch[*at], before[*at])) {
            let NumberedPublication { outgoing, tag, number, refreshes, mark, .. } = &pending.item;
            let Outgoing { channel, envelope, keep, .. } = outgoing;
            let name = names.channel(channel);
            let Some(keep) = keep else {
                pipeline.cmd(names.publish()).arg(name).arg(&envelope[..]);
                continue;
            };
            let age = keep.age + keep.age / REFRESHES;
            pipeline
                .cmd("EVALSHA")
                .arg(&scripts.publish)
                .arg(2 + usize::from(mark.is_some()))
                .arg(&names.keys(channel))
                .arg(mark)
                .arg(name)
                .arg(&envelope[..])
                .arg(*tag)
                .arg(format!("n{:016x}", names.node))
                .arg(*number)
                .arg(keep.count + 1)
                .arg(keep.bytes / (keep.count + 1))
                .arg(format!("{epoch:016x} {} {}", age.as_millis(), keep.bytes));
            let how = match pending.is_retry {
                true => Some("again"),
                false => refreshes.then_some("renew"),
            };
            if before > 0 || how.is_some() {
                pipeline.arg(before).arg(how);
            }
        }
        pipeline
    })
    .await?;
    Ok(outcomes(batch, results))
}

/// The answer about a channel; `None` if this release does not know its format.
pub(super) type Answered = Result<Option<SequenceAnswer<Vec<u8>>>, RedisError>;

/// Asks about several channels.
pub(super) async fn read(
    connection: &mut MultiplexedConnection,
    scripts: &Scripts,
    names: &Names,
    questions: &[Question],
) -> Result<Vec<Answered>, RedisError> {
    let answers = pipelined(connection, (scripts, names), questions.len(), |scripts, items| {
        let mut pipeline = Pipeline::with_capacity(items.len());
        for question in items.iter().map(|at| &questions[*at]) {
            let Question { channel, keep, after, epoch, data, .. } = question;
            let asked = after.map_or_else(String::new, |after| format!("{:016x}", after.epoch));
            // The entry before the history proves the place after it.
            let most = if after.is_some() { keep.count.max(PAGE) } else { keep.count + 1 };
            pipeline
                .cmd("EVALSHA")
                .arg(&scripts.read)
                .arg(3)
                .arg(&names.keys(channel))
                .arg(names.data())
                .arg(asked)
                .arg(after.map_or(0, |after| after.offset))
                .arg(after.map_or(0, |after| after.tag))
                .arg(most)
                .arg(keep.age.as_millis() as u64)
                .arg(format!("{epoch:016x}"))
                .arg(question.most_bytes())
                .arg(data);
        }
        pipeline
    })
    .await?;
    Ok(answers.into_iter().map(|answer| answer.map(answer_of)).collect())
}

/// Reads the answer of `read.lua`; `None` if this release does not know its format.
fn answer_of(value: Value) -> Option<SequenceAnswer<Vec<u8>>> {
    let Value::Array(parts) = value else { return None };
    let [epoch, offset, tag, continues, entries, before] = <[Value; 6]>::try_from(parts).ok()?;
    let top = format!("{}:{}:{}", text(epoch)?, text(offset)?, text(tag)?).parse().ok()?;
    let Value::Array(entries) = entries else { return None };
    let entries = entries.into_iter().map(entry_of).collect::<Option<_>>()?;
    let before = match text(before)? {
        none if none.is_empty() => None,
        id => Some(id_of(&id)?),
    };
    Some(SequenceAnswer { top, continues: continues == Value::Int(1), entries, before })
}

fn text(value: Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

/// Reads the id of an entry: `OFFSET-TAG`.
fn id_of(id: &str) -> Option<(u64, u64)> {
    let (offset, tag) = id.split_once('-')?;
    Some((offset.parse().ok()?, tag.parse().ok()?))
}

/// Reads an entry of the stream.
fn entry_of(value: Value) -> Option<(u64, u64, Vec<u8>)> {
    let Value::Array(parts) = value else { return None };
    let [id, fields] = <[Value; 2]>::try_from(parts).ok()?;
    let (offset, tag) = id_of(&text(id)?)?;
    let Value::Array(fields) = fields else { return None };
    let Some(Value::BulkString(envelope)) = fields.into_iter().nth(1) else { return None };
    Some((offset, tag, envelope))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use throng_testkit::Redis;

    use super::*;
    use crate::outbox::WhileDown;

    /// A connection, and the scripts of its server.
    async fn connect(redis: &Redis) -> (MultiplexedConnection, Scripts) {
        let client = redis::Client::open(redis.url("")).unwrap();
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        let scripts = Scripts::load(&mut connection, &names(1)).await.unwrap();
        (connection, scripts)
    }

    fn names(node: u64) -> Names {
        Names { prefix: "test".to_owned(), node, is_partition: false }
    }

    fn pending(number: u64, is_retry: bool) -> Pending<NumberedPublication> {
        let keep = Some(KeepRule { count: 10, bytes: 1 << 20, age: Duration::from_secs(60) });
        let (channel, envelope) = ("a".into(), [1].into());
        let while_down = WhileDown::Refuse;
        let outgoing = Outgoing { channel, envelope, keep, while_down };
        let item = NumberedPublication {
            outgoing,
            reserved: Reserved::default(),
            tag: number,
            number,
            refreshes: true,
            mark: None,
            after: 0,
            ticket: Ticket::default(),
        };
        Pending { item, bytes: 1, since: 0, is_repeatable: true, is_retry }
    }

    /// The offset of the last publication.
    async fn top(connection: &mut MultiplexedConnection) -> u64 {
        let get = redis::cmd("HGET").arg("test.o.a").arg("p").to_owned();
        let place: String = get.query_async(connection).await.unwrap();
        place.split(' ').next().unwrap().parse().unwrap()
    }

    fn run(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(test);
    }

    #[test]
    fn a_publication_that_is_sent_again_is_recognized_whatever_the_number_of_nodes() {
        let Some(redis) = Redis::start("retry", &[]) else { return };
        run(async {
            let (mut connection, scripts) = connect(&redis).await;
            for node in 1..=150 {
                let names = names(node);
                let (connection, batch) = (&mut connection, [pending(7, false)]);
                let done = publish(connection, &scripts, &names, 1, &batch).await;
                assert_eq!(done.unwrap(), [CallOutcome::Published]);
            }
            for node in 1..=150 {
                let names = names(node);
                let (connection, batch) = (&mut connection, [pending(7, true), pending(8, true)]);
                let done = publish(connection, &scripts, &names, 1, &batch).await;
                assert_eq!(done.unwrap(), [const { CallOutcome::Published }; 2]);
            }
            assert_eq!(top(&mut connection).await, 300, "one was published twice");
        });
    }

    #[test]
    fn of_more_nodes_than_are_remembered_those_that_have_published_last_are() {
        let Some(redis) = Redis::start("fields", &[]) else { return };
        run(async {
            let (mut connection, scripts) = connect(&redis).await;
            for (first, is_retry) in [(1, false), (801, true)] {
                for node in first..=1_000 {
                    // The server loses the stream, and continues it.
                    if (node, is_retry) == (950, false) {
                        redis.ask("DEL test.s.a");
                        redis.ask("XADD test.s.a 5000-1 d x");
                    }
                    let (names, batch) = (names(node), [pending(1, is_retry)]);
                    let done = publish(&mut connection, &scripts, &names, 1, &batch).await;
                    assert_eq!(done.unwrap(), [CallOutcome::Published]);
                }
            }
            assert_eq!(top(&mut connection).await, 1_000, "one was published twice");
        });
        let fields: usize = redis.ask("HLEN test.o.a")[1..].parse().unwrap();
        assert!(fields < 410, "{fields}");
    }
}
