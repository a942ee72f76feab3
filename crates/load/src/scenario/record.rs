//! A scenario from the statistics of a running server.

use std::fmt::Write as _;

use serde_json::Value;

use crate::client::JSON_SMALLEST;
use crate::plan::FANOUT_STAMP;

/// Messages or requests between two readings, from which on there is a load.
const MIN_COUNT: f64 = 10.0;

/// Bytes of a frame's header from a client, and to a client: the shortest ones of RFC 6455.
const HEADER_IN: f64 = 6.0;

/// Maximum subscribers and channels that are recorded: the generator has one machine.
const MOST: f64 = 50_000.0;

/// The work of a server between two readings of its statistics.
struct Between<'v> {
    before: &'v Value,
    after: &'v Value,
}

impl Between<'_> {
    fn now(&self, name: &str) -> f64 {
        self.after[name].as_f64().unwrap_or(0.0)
    }

    fn growth(&self, name: &str) -> f64 {
        (self.now(name) - self.before[name].as_f64().unwrap_or(0.0)).max(0.0)
    }
}

/// Makes a scenario of two readings of `/stats.json`, so many seconds apart: the connections,
/// sizes, rates and the fan-out of the load. Returns the text of its file.
///
/// It is a model: all connections are alike, and the content is invented.
///
/// # Errors
/// There was no load, or the readings have no statistics of a server.
pub fn recorded(before: &Value, after: &Value, seconds: f64) -> Result<String, String> {
    let it = Between { before, after };
    if after["messages_in"].as_u64().is_none() {
        return Err("these are not statistics of `throng serve` or of the library".to_owned());
    }
    let [messages_in, messages_out] = ["messages_in", "messages_out"].map(|name| it.growth(name));
    let requests = it.growth("requests") - it.growth("opened");
    let seconds = seconds.max(0.001);
    let sessions = it.now("sessions").clamp(1.0, MOST);
    let mut text = format!(
        "# Recorded over {seconds:.0} s: {:.0} messages/s in, {:.0} messages/s out, {:.0} \
         requests/s, {:.0} sessions.\n# A model: all connections are alike. Change it at will.\n",
        messages_in / seconds,
        messages_out / seconds,
        requests.max(0.0) / seconds,
        it.now("sessions")
    );
    let size = it.growth("bytes_in") / messages_in.max(1.0) - HEADER_IN;
    let size = size.round().clamp(0.0, 1e9);
    let fan = messages_out / messages_in.max(1.0);
    if messages_in < MIN_COUNT && requests < MIN_COUNT {
        return Err(format!(
            "in {seconds:.0} s it received {messages_in:.0} messages and {:.0} requests: record \
             while clients are busy",
            requests.max(0.0)
        ));
    } else if requests > messages_in {
        http(&mut text, &it, requests / seconds);
    } else if it.growth("publishes") >= MIN_COUNT && fan >= 1.5 {
        fanout(&mut text, (sessions, fan, messages_in / seconds, size));
    } else {
        let rate = messages_in / seconds;
        let _ = writeln!(text, "mode = \"echo\"\nconnections = {sessions:.0}\nsize = {size:.0}");
        let _ = writeln!(text, "rate = {:.0}\nmaximize = \"latency\"", rate.max(1.0));
    }
    let input = it.growth("deflate_input_bytes") + it.growth("deflate_kept_bytes");
    if input > 0.0 && text.contains("\"echo\"") {
        let kept = it.growth("deflate_kept_bytes") / input;
        let payload = if kept > 0.5 { "random" } else { "json" };
        let _ = writeln!(text, "deflate = \"shared\"");
        // The smallest JSON document of the generator is longer than some messages.
        if payload == "random" || size >= JSON_SMALLEST as f64 {
            let _ = writeln!(text, "payload = \"{payload}\"");
        }
    }
    Ok(text)
}

fn http(text: &mut String, it: &Between<'_>, rate: f64) {
    let connections = (it.now("connections") - it.now("sessions")).clamp(1.0, MOST);
    let _ = writeln!(text, "mode = \"http\"\npath = \"/\"\nconnections = {connections:.0}");
    let _ = writeln!(text, "rate = {:.0}\nmaximize = \"latency\"", rate.max(1.0));
}

/// Writes channels that together have the sessions, and whose messages reach `fan` of them each.
fn fanout(text: &mut String, (sessions, fan, rate, size): (f64, f64, f64, f64)) {
    let subscribers = fan.round().clamp(1.0, sessions);
    let channels = (sessions / (subscribers + 1.0)).round().max(1.0);
    let size = size.max(FANOUT_STAMP as f64);
    let _ = writeln!(text, "mode = \"fanout\"\nchannels = {channels:.0}");
    let _ = writeln!(text, "subscribers = {subscribers:.0}\nsize = {size:.0}");
    let _ = writeln!(text, "rate = {:.0}\nmaximize = \"latency\"", rate.max(1.0));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::Scenario;
    use super::*;

    fn zero() -> Value {
        json!({ "messages_in": 0, "messages_out": 0, "requests": 0, "opened": 0, "publishes": 0,
            "bytes_in": 0, "deflate_input_bytes": 0, "deflate_kept_bytes": 0 })
    }

    fn scenario(after: &Value) -> (String, Scenario) {
        let text = recorded(&zero(), after, 10.0).unwrap();
        let scenario = Scenario::parse("recorded.toml", &text).unwrap();
        scenario.load("127.0.0.1:1", false).unwrap();
        (text, scenario)
    }

    #[test]
    fn a_chat_becomes_channels() {
        let (text, scenario) = scenario(&json!({ "messages_in": 5000, "messages_out": 50_000,
            "publishes": 5000, "bytes_in": 5000 * 126, "sessions": 1100, "connections": 1100,
            "requests": 1100, "opened": 1100 }));
        for line in ["channels = 100", "subscribers = 10", "rate = 500", "size = 120"] {
            assert!(text.contains(&format!("\n{line}\n")), "{line}: {text}");
        }
        assert_eq!(scenario.connections(), 1100);
    }

    #[test]
    fn answers_become_echoes_with_the_compression_of_the_clients() {
        let (text, scenario) = scenario(&json!({ "messages_in": 1000, "messages_out": 1000,
            "bytes_in": 1000 * 1030, "sessions": 50, "deflate_kept_bytes": 1_000_000,
            "deflate_input_bytes": 1000 }));
        assert!(text.contains("payload = \"random\"") && text.contains("rate = 100\n"), "{text}");
        assert!(scenario.offers_deflate() && scenario.size() == 1024);
    }

    #[test]
    fn requests_become_requests_and_no_load_is_an_error() {
        let (text, _) = scenario(&json!({ "messages_in": 0, "requests": 900, "connections": 20 }));
        assert!(text.contains("mode = \"http\"") && text.contains("connections = 20"), "{text}");
        let idle = recorded(&zero(), &zero(), 10.0).unwrap_err();
        assert!(idle.contains("record while clients are busy"), "{idle}");
        assert!(recorded(&zero(), &json!({ "tunnels": 5 }), 10.0).is_err());
    }
}
