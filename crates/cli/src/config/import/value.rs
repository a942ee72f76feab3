//! Values of nginx as values of Throng.

/// Returns a text with nginx's variables as a template; `None` if one has no counterpart.
pub(super) fn template(text: &str) -> Option<String> {
    let mut template = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        template.push_str(&literal(&rest[..at])?);
        rest = &rest[at + 1..];
        let (name, after) = match rest.strip_prefix('{') {
            Some(braced) => braced.split_once('}')?,
            None => {
                let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
                rest.split_at(rest.find(|c| !is_part(c)).unwrap_or(rest.len()))
            }
        };
        template.push_str(&format!("${{{}}}", variable(name)?));
        rest = after;
    }
    template.push_str(&literal(rest)?);
    Some(template)
}

/// Returns a text without variables; `None` if it has the sign of one.
fn literal(text: &str) -> Option<String> {
    (!text.contains("${")).then(|| text.to_owned())
}

fn variable(name: &str) -> Option<String> {
    let known = match name {
        "host" | "http_host" => "host",
        "remote_addr" => "client",
        "realip_remote_addr" => "peer",
        "scheme" => "scheme",
        "request_method" => "method",
        "uri" | "document_uri" => "path",
        "args" | "query_string" => "query",
        "request_uri" => "uri",
        "request_id" => "request_id",
        "ssl_server_name" => "server_name",
        "ssl_client_s_dn" => "client_cert.subject",
        _ => {
            let kinds = [("http_", "header"), ("cookie_", "cookie"), ("arg_", "query")];
            let (kind, name) =
                kinds.iter().find_map(|(is, kind)| Some((kind, name.strip_prefix(is)?)))?;
            let name = if *kind == "header" { name.replace('_', "-") } else { name.to_owned() };
            return (!name.is_empty()).then(|| format!("{kind}.{name}"));
        }
    };
    Some(known.to_owned())
}

/// Returns a time such as `30s`, `5m` or `1h 30m` as a duration.
pub(super) fn duration(text: &str) -> Option<String> {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
    let units = [("ms", "ms"), ("s", "s"), ("m", "m"), ("h", "h"), ("d", "d")];
    let with_unit = units.iter().find_map(|(unit, ours)| Some((text.strip_suffix(unit)?, ours)));
    match with_unit {
        Some((number, ours)) if is_number(number) => match *ours {
            "d" => Some(format!("{}h", number.parse::<u64>().ok()?.checked_mul(24)?)),
            ours => Some(format!("{number}{ours}")),
        },
        None if is_number(text) => Some(format!("{text}s")),
        _ => None,
    }
}

/// Returns a size such as `1m` or `64k`.
pub(super) fn size(text: &str) -> Option<String> {
    let lower = text.to_ascii_lowercase();
    let (number, unit) = match lower.char_indices().last()? {
        (at, 'k') => (&lower[..at], "KiB"),
        (at, 'm') => (&lower[..at], "MiB"),
        (at, 'g') => (&lower[..at], "GiB"),
        _ => (&lower[..], ""),
    };
    let is_number = !number.is_empty() && number.bytes().all(|c| c.is_ascii_digit());
    is_number.then(|| format!("{number}{unit}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_have_counterparts_or_the_text_has_none() {
        for (text, expected) in [
            ("https://$host$request_uri", Some("https://${host}${uri}")),
            ("${scheme}s", Some("${scheme}s")),
            (
                "$http_x_api_key-$cookie_id-$arg_q",
                Some("${header.x-api-key}-${cookie.id}-${query.q}"),
            ),
            ("plain", Some("plain")),
            ("$upstream_addr", None),
            ("${host", None),
            ("$", None),
            ("$http_", None),
        ] {
            assert_eq!(template(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn times_and_sizes_have_the_units_of_both() {
        let times = ["30", "30s", "500ms", "2m", "1d", "1h30m", "", "x"].map(duration);
        let expected =
            [Some("30s"), Some("30s"), Some("500ms"), Some("2m"), Some("24h"), None, None, None];
        assert_eq!(times.each_ref().map(Option::as_deref), expected);
        let sizes = ["10m", "64K", "1g", "100", "m", "1.5m"].map(size);
        let expected = [Some("10MiB"), Some("64KiB"), Some("1GiB"), Some("100"), None, None];
        assert_eq!(sizes.each_ref().map(Option::as_deref), expected);
    }
}
