//! The documents that are asked about, each with what its answer has to say.

use std::hash::{BuildHasher, Hasher, RandomState};

/// A request's body, and the values of its answer.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Document {
    /// Pretty-printed with the suite's white space.
    pub(super) request: Vec<u8>,
    pub(super) product: String,
    pub(super) request_id: String,
    pub(super) balance: f64,
    pub(super) min_date: String,
    pub(super) max_date: String,
}

impl Document {
    /// The suite's own, byte for byte: what the load sends.
    pub(super) fn of_the_suite() -> Self {
        let dates = [
            "2020-01-12T10:53:17.773Z",
            "2020-11-10T06:47:04.462Z",
            "2020-01-01T00:00:00.007Z",
            "2020-03-14T22:36:33.316Z",
            "2020-04-09T14:47:25.082Z",
            "2020-09-02T03:41:33.744Z",
            "2020-04-26T07:44:07.926Z",
            "2020-02-29T01:19:41.793Z",
            "2020-05-15T20:48:28.880Z",
            "2020-06-04T08:54:07.931Z",
        ];
        let id = "{BC6B8989-DAB7-484E-9AD3-F7C34A800A1A}";
        Self::of("test", id, 109_240.59, &dates.map(str::to_owned))
    }

    /// Returns a new random document, so that a stored answer is distinguished from a computed one.
    pub(super) fn random() -> Self {
        Self::drawn(RandomState::new().build_hasher().finish())
    }

    /// By a seed.
    fn drawn(seed: u64) -> Self {
        let mut state = seed | 1;
        let mut draw = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 20) % below
        };
        let dates: Vec<String> = (0..10)
            .map(|_| {
                let (year, month, day) = (1990 + draw(60), 1 + draw(12), 1 + draw(28));
                let (hour, minute, second) = (draw(24), draw(60), draw(60));
                // Never a 0 at the end, which the suite's own Go server leaves out of its answers.
                let millisecond = draw(100) * 10 + 1 + draw(9);
                format!(
                    "{year}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millisecond:03}Z"
                )
            })
            .collect();
        let product = format!("product {}", draw(1_000_000));
        let id = format!(
            "{{{:08X}-{:04X}-{:04X}-{:04X}-{:012X}}}",
            draw(1 << 32),
            draw(1 << 16),
            draw(1 << 16),
            draw(1 << 16),
            draw(1 << 40)
        );
        let balance = draw(100_000_000) as f64 / 100.0;
        Self::of(&product, &id, balance, &dates)
    }

    fn of(product: &str, request_id: &str, balance: f64, dates: &[String]) -> Self {
        // Texts of this form sort as the moments they stand for.
        let extreme = |date: Option<&String>| date.cloned().unwrap_or_default();
        Self {
            request: printed(product, request_id, balance, dates).into_bytes(),
            product: product.to_owned(),
            request_id: request_id.to_owned(),
            balance,
            min_date: extreme(dates.iter().min()),
            max_date: extreme(dates.iter().max()),
        }
    }
}

/// With the suite's white space. The texts are ours and need no escapes.
fn printed(product: &str, request_id: &str, balance: f64, dates: &[String]) -> String {
    let dates: Vec<String> = dates.iter().map(|date| format!("\t\t\t\t\t\"{date}\"")).collect();
    let dates = dates.join(",\n");
    format!(
        "{{\n\t\"product\": \"{product}\",\n\t\"requestId\": \"{request_id}\",\n\t\"group\": {{\n\
         \t\t\t\t\"kind\": \"clients\",\n\t\t\t\t\"default\": true,\n\
         \t\t\t\t\"balance\": {balance},\n\
         \t\t\t\t\"dates\": [\n{dates}\n\t\t\t\t]\n\t\t\t}}\n}}"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn the_suites_document_has_its_length_and_its_answer() {
        let document = Document::of_the_suite();
        assert_eq!(document.request.len(), 516);
        assert_eq!(document.min_date, "2020-01-01T00:00:00.007Z");
        assert_eq!(document.max_date, "2020-11-10T06:47:04.462Z");
    }

    #[test]
    fn a_random_document_is_json_and_agrees_with_its_answer() {
        for seed in 0..200 {
            let document = Document::drawn(seed * 7919);
            let json: Value = serde_json::from_slice(&document.request).unwrap();
            assert_eq!(json["product"], document.product);
            assert_eq!(json["requestId"], document.request_id);
            assert_eq!(json["group"]["balance"].as_f64(), Some(document.balance));
            let dates = json["group"]["dates"].as_array().unwrap();
            assert_eq!(dates.len(), 10);
            assert!(dates.iter().all(|date| date.as_str().unwrap().len() == 24), "{dates:?}");
            let texts = || dates.iter().filter_map(Value::as_str);
            assert_eq!(texts().min(), Some(document.min_date.as_str()));
            assert_eq!(texts().max(), Some(document.max_date.as_str()));
        }
        assert_ne!(Document::drawn(1), Document::drawn(3));
        assert_ne!(Document::random(), Document::random());
    }
}
