//! The benchmark's work: a document in, a smaller one out.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::str::Utf8Error;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Number;
use serde_json::error::Category;

use super::timestamp::Timestamp;

/// Bytes of an answer besides the two texts: braces, names, two dates, a balance of up to 24
/// characters.
const ANSWER: usize = 160;

/// The longest complaint in bytes: it may quote the document, which may be large.
const COMPLAINT: usize = 160;

/// Fields of the request; all others in the document are ignored.
#[derive(Deserialize)]
struct Request<'a> {
    #[serde(borrow)]
    product: Cow<'a, str>,
    #[serde(borrow, rename = "requestId")]
    request_id: Cow<'a, str>,
    #[serde(deserialize_with = "object")]
    group: Group,
}

#[derive(Deserialize)]
struct Group {
    /// Whole numbers stay whole; fractions are the nearest `f64`, and printed so that they are read
    /// as the same.
    balance: Number,
    dates: Extent,
}

/// The least and the greatest of a list of dates, which is not kept.
#[derive(Clone, Copy)]
struct Extent {
    least: Timestamp,
    greatest: Timestamp,
}

/// Error in a document, as a sentence.
#[derive(Debug)]
pub(super) struct Mistake(String);

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<Utf8Error> for Mistake {
    fn from(error: Utf8Error) -> Self {
        Self(format!("this is not JSON: {error}"))
    }
}

impl From<serde_json::Error> for Mistake {
    fn from(error: serde_json::Error) -> Self {
        let what = match error.classify() {
            Category::Data => "this is not the benchmark's document",
            Category::Syntax | Category::Eof | Category::Io => "this is not JSON",
        };
        let mut sentence = format!("{what}: {error}");
        if sentence.len() > COMPLAINT {
            sentence.truncate(sentence.floor_char_boundary(COMPLAINT));
            sentence += "...";
        }
        Self(sentence)
    }
}

/// The answer to a document: minified JSON. One allocation, unless a text in the document has
/// escapes.
pub(super) fn answer(document: &str) -> Result<Vec<u8>, Mistake> {
    // From a text that is known to be UTF-8, and not from bytes: each string would be checked by
    // itself.
    let mut json = serde_json::Deserializer::from_str(document);
    let Request { product, request_id, group } = object(&mut json)?;
    json.end()?;
    let Extent { least, greatest } = group.dates;
    let mut out = Vec::with_capacity(ANSWER + product.len() + request_id.len());
    // Written out, since most of it is known to need no escapes; in the order that the suite's
    // client compares.
    out.extend_from_slice(b"{\"product\":");
    serde_json::to_writer(&mut out, &product)?;
    out.extend_from_slice(b",\"requestId\":");
    serde_json::to_writer(&mut out, &request_id)?;
    out.extend_from_slice(b",\"client\":{\"balance\":");
    serde_json::to_writer(&mut out, &group.balance)?;
    out.extend_from_slice(b",\"minDate\":\"");
    out.extend_from_slice(&least.print());
    out.extend_from_slice(b"\",\"maxDate\":\"");
    out.extend_from_slice(&greatest.print());
    out.extend_from_slice(b"\"}}");
    Ok(out)
}

/// A `T` out of an object only: what serde derives takes a list as well, as the fields in their
/// order.
fn object<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    struct Object<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for Object<T> {
        type Value = T;

        fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
            to.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<T, A::Error> {
            T::deserialize(MapAccessDeserializer::new(members))
        }
    }

    from.deserialize_map(Object(PhantomData))
}

impl<'de> Deserialize<'de> for Extent {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Dates;

        impl<'de> Visitor<'de> for Dates {
            type Value = Extent;

            fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
                to.write_str("a list of dates")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut dates: A) -> Result<Extent, A::Error> {
                let Some(first) = dates.next_element()? else {
                    return Err(A::Error::custom(
                        "dates is empty: it has no least and no greatest",
                    ));
                };
                let mut extent = Extent { least: first, greatest: first };
                while let Some(date) = dates.next_element::<Timestamp>()? {
                    extent.least = extent.least.min(date);
                    extent.greatest = extent.greatest.max(date);
                }
                Ok(extent)
            }
        }

        from.deserialize_seq(Dates)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn answer_to(document: &str) -> Result<String, String> {
        let bytes = answer(document).map_err(|mistake| mistake.to_string())?;
        Ok(String::from_utf8(bytes).unwrap())
    }

    fn document(balance: &str, dates: &[&str]) -> String {
        let dates: Vec<String> = dates.iter().map(|date| format!("{date:?}")).collect();
        let dates = dates.join(", ");
        format!(
            r#"{{"product": "test", "requestId": "{{1}}", "group":
                {{"kind": "clients", "default": true, "balance": {balance}, "dates": [{dates}]}}}}"#
        )
    }

    #[test]
    fn the_contract_byte_for_byte() {
        let request = r#"{"product":"test","requestId":"{BC6B8989-DAB7-484E-9AD3-F7C34A800A1A}",
            "group":{"kind":"clients","default":true,"balance":109240.59,
            "dates":["2020-01-12T10:53:17.773Z","2020-11-10T06:47:04.462Z",
            "2020-01-01T00:00:00.007Z","2020-03-14T22:36:33.316Z","2020-04-09T14:47:25.082Z",
            "2020-09-02T03:41:33.744Z",
            "2020-04-26T07:44:07.926Z","2020-02-29T01:19:41.793Z","2020-05-15T20:48:28.880Z",
            "2020-06-04T08:54:07.931Z"]}}"#;
        let expected = concat!(
            r#"{"product":"test","requestId":"{BC6B8989-DAB7-484E-9AD3-F7C34A800A1A}","client":"#,
            r#"{"balance":109240.59,"minDate":"2020-01-01T00:00:00.007Z","#,
            r#""maxDate":"2020-11-10T06:47:04.462Z"}}"#
        );
        assert_eq!(answer_to(request).unwrap(), expected);
        let spaced = request.replace(',', ",\r\n\t").replace(':', ": ");
        // Within the dates a space is no longer one of JSON.
        assert!(answer_to(&spaced).is_err());
    }

    #[test]
    fn other_orders_other_keys_and_escapes() {
        let document = r#"{"x":[{"y":null}],"group":{"dates":["2020-01-01T00:00:00.007\u005a"],
            "z":1e99,"balance":-1},"requestId":"","product":"a\"\\\u00e9\n\ud83d\ude00é"}"#;
        assert_eq!(
            answer_to(document).unwrap(),
            "{\"product\":\"a\\\"\\\\é\\n😀é\",\"requestId\":\"\",\"client\":{\"balance\":-1,\
             \"minDate\":\"2020-01-01T00:00:00.007Z\",\"maxDate\":\"2020-01-01T00:00:00.007Z\"}}"
        );
    }

    #[test]
    fn dates_are_compared_as_instants() {
        for (dates, least, greatest) in [
            (&["2020-01-01T00:00:00.7Z", "2020-01-01T00:00:00.07Z"][..], "00.070Z", "00.700Z"),
            (&["2020-01-01T00:00:01Z", "2020-01-01T00:00:01.001Z"], "01.000Z", "01.001Z"),
            (&["2020-01-01T01:00:02+01:00", "2020-01-01T00:00:03Z"], "02.000Z", "03.000Z"),
        ] {
            let answer: Value =
                serde_json::from_str(&answer_to(&document("1", dates)).unwrap()).unwrap();
            let expected = |end: &str| json!(format!("2020-01-01T00:00:{end}"));
            assert_eq!(answer["client"]["minDate"], expected(least));
            assert_eq!(answer["client"]["maxDate"], expected(greatest));
        }
    }

    #[test]
    fn balances_are_printed_as_they_are_read() {
        for (written, printed) in [
            ("109240.59", "109240.59"),
            ("0", "0"),
            ("-7", "-7"),
            ("18446744073709551615", "18446744073709551615"),
            ("0.1", "0.1"),
            ("1.0", "1.0"),
            ("5e-324", "5e-324"),
            ("1.7976931348623157e308", "1.7976931348623157e+308"),
            ("2.2250738585072011e-308", "2.225073858507201e-308"),
            // A fast way of reading it would be one bit off.
            ("4.1748526e+29", "4.1748526e+29"),
            ("31.245270191439438", "31.245270191439438"),
        ] {
            let answer = answer_to(&document(written, &["2020-01-01T00:00:00Z"])).unwrap();
            let balance = answer.split("\"balance\":").nth(1).unwrap().split(',').next().unwrap();
            assert_eq!(balance, printed, "{written}");
            assert_eq!(balance.parse::<f64>().unwrap(), written.parse::<f64>().unwrap());
        }
    }

    #[test]
    fn an_error_is_reported_in_one_short_sentence() {
        let good = document("1", &["2020-01-01T00:00:00Z"]);
        let long = format!("{:?}", "é".repeat(100_000));
        for (document, parts) in [
            (String::new(), &["not JSON", "EOF"][..]),
            ("\u{feff}{}".into(), &["not JSON"]),
            ("{".into(), &["not JSON", "EOF"]),
            (good.replace("\"test\"", "test"), &["not JSON"]),
            (format!("{good} x"), &["not JSON", "trailing"]),
            (good.replace("true,", "true,,"), &["not JSON"]),
            ("[".repeat(100_000), &["document"]),
            (good.replace('1', "01"), &["not JSON"]),
            ("null".into(), &["not the benchmark's document", "null"]),
            ("{}".into(), &["not the benchmark's document", "product"]),
            (
                good.replace("requestId", "requestid"),
                &["not the benchmark's document", "requestId"],
            ),
            (good.replace("group", "groups"), &["not the benchmark's document", "group"]),
            (good.replace("balance", "Balance"), &["not the benchmark's document", "balance"]),
            (good.replace("dates", "date"), &["not the benchmark's document", "dates"]),
            (good.replace("\"test\"", "5"), &["not the benchmark's document", "string"]),
            (good.replace("\"kind\"", "\"balance\":1,\"kind\""), &["duplicate", "balance"]),
            (document("\"1\"", &["2020-01-01T00:00:00Z"]), &["not the benchmark's document"]),
            (document("1e400", &["2020-01-01T00:00:00Z"]), &["out of range"]),
            (document("NaN", &["2020-01-01T00:00:00Z"]), &["not JSON"]),
            (document("1", &[]), &["not the benchmark's document", "empty"]),
            (document("1", &["2020-02-30T00:00:00Z"]), &["no such date"]),
            (document("1", &["2020-02-20T00:00:00Z", "today"]), &["no such date"]),
            (good.replace("\"2020-01-01T00:00:00Z\"", "1"), &["a date like"]),
            (good.replace("[\"2020", "{\"2020"), &["list of dates"]),
            // A list with the right things in the right places is no object.
            (
                r#"["test","{B}",{"balance":1,"dates":["2020-01-01T00:00:00Z"]}]"#.into(),
                &["not the benchmark's document", "sequence", "an object"],
            ),
            (
                r#"{"product":"test","requestId":"","group":[1,["2020-01-01T00:00:00Z"]]}"#.into(),
                &["not the benchmark's document", "sequence", "an object"],
            ),
            (document(&long, &["2020-01-01T00:00:00Z"]), &["..."]),
        ] {
            let shown: String = document.chars().take(200).collect();
            let mistake = answer_to(&document).expect_err(&shown);
            for part in parts {
                assert!(mistake.contains(part), "{shown}: {mistake}");
            }
            assert!(mistake.len() <= COMPLAINT + 3 && !mistake.contains('\n'), "{mistake}");
        }
        assert!(answer_to(&good).is_ok());
    }

    proptest! {
        /// Texts of one form sort as the moments they stand for, so sorted texts are an oracle.
        #[test]
        fn the_least_and_the_greatest_are_those_of_the_sorted_texts(
            product in any::<String>(),
            id in any::<String>(),
            balance in any::<f64>().prop_filter("JSON has no other", |number| number.is_finite()),
            dates in prop::collection::vec(
                "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])\
                 T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]\\.[0-9]{3}Z",
                1..20,
            ),
        ) {
            let request = json!({
                "product": product, "requestId": id,
                "group": {"kind": "clients", "default": true, "balance": balance, "dates": dates},
            });
            let mut sorted = dates.clone();
            sorted.sort();
            let (least, greatest) = (&sorted[0], &sorted[sorted.len() - 1]);
            let expected = json!({
                "product": product, "requestId": id,
                "client": {"balance": balance, "minDate": least, "maxDate": greatest},
            });
            for text in [request.to_string(), serde_json::to_string_pretty(&request).unwrap()] {
                let got = answer_to(&text).unwrap();
                prop_assert_eq!(&serde_json::from_str::<Value>(&got).unwrap(), &expected);
                let in_order = ["{\"product\":", ",\"requestId\":", ",\"client\":{\"balance\":"];
                let places: Vec<_> = in_order.iter().map(|part| got.find(part)).collect();
                prop_assert!(places[0] == Some(0) && places.is_sorted());
            }
        }
    }
}
