//! Sentences about backends, for the log and for operators.

use throng_io::PeerAddress;

/// Returns the sentence for a backend that was added.
pub(super) fn added_in_words(address: PeerAddress, weight: u32, passthrough: &[String]) -> String {
    let names: String = passthrough.iter().map(|name| format!(", passthrough={name}")).collect();
    format!("added {address}, weight {weight}{names}")
}

/// Returns the fate of a removed backend's tunnels.
pub(super) fn removed_in_words(tunnels: u32, rate: Option<u32>) -> String {
    match (tunnels, rate) {
        (0, _) => "it has no tunnels".to_owned(),
        (_, None) => format!("{tunnels} tunnels stay"),
        (_, Some(rate)) => format!("{tunnels} tunnels are closed, at most {rate} a second"),
    }
}
