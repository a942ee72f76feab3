//! `throng demo --attack`, short: properties that hold on a machine of any speed.

use serde_json::Value;

/// Maximum memory that any of the attacks may take from a server with its settings.
const MAX_MEMORY: u64 = 512 << 20;

#[test]
fn others_are_served_and_stay_connected_while_a_server_is_attacked() {
    let words = ["demo", "--attack", "--for", "300ms", "--json"];
    let output = crate::support::throng().args(words).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let rows: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = rows.as_array().unwrap();
    assert!(rows.len() >= 12, "{rows:?}");
    for row in rows {
        let count = |key: &str| row[key].as_u64().unwrap();
        assert!(count("echoes") > 0, "{row}");
        assert!(count("served") > 0, "{row}");
        assert_eq!(count("disconnected"), 0, "{row}");
        assert!(count("memory_peak") < MAX_MEMORY, "{row}");
        let attacked = count("attacker_connections") > 0;
        assert_eq!(attacked, row["attack"] != "none", "{row}");
    }
}
