//! Publications in a server's history.

use throng_testkit::Redis;

use crate::support::{name, payload};

/// Returns the publications in a server's history of a channel, in order.
pub(crate) fn kept_by(server: &Redis, channel: usize) -> Vec<Vec<u8>> {
    let client = redis::Client::open(server.url("")).unwrap();
    let mut connection = client.get_connection().unwrap();
    let mut read = redis::cmd("XRANGE");
    read.arg(format!("test.s.{}", name(channel))).arg("-").arg("+");
    let entries: Vec<(String, Vec<Vec<u8>>)> = read.query(&mut connection).unwrap();
    entries.iter().map(|(_, fields)| payload(&fields[1])).collect()
}
