//! Compression settings as text.

use throng_proto::ws::deflate::{Mode as DeflateMode, Settings as Deflate};

/// Parses `off`, `no-context` (or its name in `throng serve`, `shared`) and `window:BITS`.
///
/// # Errors
/// The text is not one of these.
pub fn parse(text: &str) -> Result<Deflate, String> {
    let mode = match text.split_once(':') {
        None if text == "off" => return Ok(Deflate::default()),
        None if matches!(text, "no-context" | "shared") => DeflateMode::Shared,
        Some(("window", bits)) => {
            let bits = bits.parse().ok().filter(|bits| (9..=15).contains(bits));
            DeflateMode::Window { bits: bits.ok_or("a window has 9 to 15 bits, as in window:10")? }
        }
        _ => return Err("write no-context, window:BITS with 9 to 15 bits, or off".to_owned()),
    };
    Ok(Deflate::new(mode))
}
