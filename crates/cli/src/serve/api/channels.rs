//! Commands that look at channels.

use std::collections::HashSet;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use throng::Hub;
use throng::centrifuge::describe;
use throng::channel::{Pattern, Publication};

use super::command::check_channel;
use super::problem::{Problem, parameters};

/// Maximum members, publications and channels in an answer.
const MOST: usize = 1_000;

#[derive(Deserialize)]
struct OfChannel {
    channel: String,
}

fn channel(body: &[u8]) -> Result<String, Problem> {
    let OfChannel { channel } = parameters(body)?;
    check_channel(&channel)?;
    Ok(channel)
}

/// A member and its information.
type Member = (String, String);

/// Returns the number of members of a channel, and up to [`MOST`] of them.
fn members(hub: &Hub, channel: &str) -> Result<(usize, Vec<Member>), Problem> {
    #[cfg(feature = "redis")]
    if let Some(asked) = hub.cluster().and_then(|cluster| cluster.presence(channel, MOST)) {
        let presence = asked.wait().map_err(|error| Problem::internal(error.to_string()))?;
        let clients = presence.clients.iter();
        let listed = clients.map(|one| (one.handle.to_string(), one.info.to_string()));
        return Ok((presence.total, listed.collect()));
    }
    let members = hub.presence(channel, MOST);
    let members = members.ok_or_else(|| Problem::not_available("the channel has no presence"))?;
    let listed = members.iter().map(|one| (one.handle.to_string(), one.info.to_string()));
    Ok((hub.subscribers(channel), listed.collect()))
}

pub(super) fn presence(hub: &Hub, body: &[u8]) -> Result<Value, Problem> {
    let (_, members) = members(hub, &channel(body)?)?;
    let of_one = |(client, info): Member| {
        let described = describe(&info);
        let mut member = json!({ "client": client, "user": described.user });
        for (name, info) in [("conn_info", described.conn_info), ("chan_info", described.chan_info)]
        {
            if !info.is_empty() {
                member[name] = serde_json::from_str(&info).unwrap_or_default();
            }
        }
        (client, member)
    };
    let presence: Map<String, Value> = members.into_iter().map(of_one).collect();
    Ok(json!({ "presence": presence }))
}

pub(super) fn presence_stats(hub: &Hub, body: &[u8]) -> Result<Value, Problem> {
    let (number, members) = members(hub, &channel(body)?)?;
    let users: HashSet<String> = members.iter().map(|(_, info)| describe(info).user).collect();
    Ok(json!({ "num_clients": number, "num_users": users.len() }))
}

#[derive(Deserialize)]
struct Since {
    offset: u64,
    epoch: String,
}

pub(super) fn history(hub: &Hub, body: &[u8]) -> Result<Value, Problem> {
    #[derive(Deserialize)]
    struct History {
        channel: String,
        /// None: the position alone; below zero: all.
        #[serde(default)]
        limit: i64,
        since: Option<Since>,
        #[serde(default)]
        reverse: bool,
    }
    let History { channel, limit, since, reverse } = parameters(body)?;
    check_channel(&channel)?;
    if !hub.has_history(&channel) {
        return Err(Problem::not_available("the channel has no history"));
    }
    let page = hub.history(&channel, usize::MAX);
    let page = page.ok_or_else(|| Problem::not_available("no client of this server follows it"))?;
    let epoch = format!("{:016x}", page.position.epoch);
    let mut publications: Vec<&Publication> = page.publications.iter().collect();
    if let Some(Since { offset, epoch: of }) = since {
        if of != epoch || offset > page.position.offset {
            return Err(Problem::unrecoverable());
        }
        publications.retain(|one| match reverse {
            true => one.position().offset < offset,
            false => one.position().offset > offset,
        });
    }
    if reverse {
        publications.reverse();
    }
    publications.truncate(usize::try_from(limit).unwrap_or(MOST).min(MOST));
    let publications: Vec<Value> = publications.into_iter().map(publication).collect();
    Ok(json!({
        "publications": publications, "offset": page.position.offset, "epoch": epoch
    }))
}

/// Returns a publication as JSON. What is not JSON is a string, and binary data has base64.
fn publication(publication: &Publication) -> Value {
    use base64::Engine as _;
    let (payload, offset) = (publication.frame().payload(), publication.position().offset);
    match (serde_json::from_slice::<Value>(payload), std::str::from_utf8(payload)) {
        (Ok(data), _) => json!({ "data": data, "offset": offset }),
        (Err(_), Ok(text)) => json!({ "data": text, "offset": offset }),
        (Err(_), Err(_)) => {
            let text = base64::prelude::BASE64_STANDARD.encode(payload);
            json!({ "b64data": text, "offset": offset })
        }
    }
}

pub(super) fn channels(hub: &Hub, body: &[u8]) -> Result<Value, Problem> {
    #[derive(Deserialize)]
    struct Channels {
        #[serde(default)]
        pattern: String,
    }
    let Channels { pattern } = parameters(body)?;
    let all = if pattern.is_empty() { ">" } else { &pattern };
    let pattern = Pattern::new(all).map_err(|error| Problem::bad_request(error.to_string()))?;
    let mut found = hub.channels();
    found.retain(|one| pattern.as_str() == ">" || pattern.matches(&one.name));
    found.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    found.truncate(MOST);
    let of_one = |one: throng::channel::ChannelSize| {
        (one.name.to_string(), json!({ "num_clients": one.members }))
    };
    let channels: Map<String, Value> = found.into_iter().map(of_one).collect();
    Ok(json!({ "channels": channels }))
}

/// Returns this server. Each server of a cluster has its own.
pub(super) fn info(hub: &Hub) -> Value {
    let (version, channels) = (env!("CARGO_PKG_VERSION"), hub.channels().len());
    json!({ "nodes": [{ "name": "throng", "version": version, "num_channels": channels }] })
}
