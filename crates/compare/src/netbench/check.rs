//! A full check that a server's answers keep the contract.

use throng_http::blocking_client::ClientResponse;

use super::document::Document;
use super::ordered::Node;

/// Bytes of a wrong answer that are quoted.
const QUOTED: usize = 120;

/// The blank answer: 200, text, two bytes.
///
/// # Errors
/// What is wrong with it, in words.
pub(super) fn check_blank(answer: &ClientResponse) -> Result<(), String> {
    check_head(answer, "text/plain")?;
    match &*answer.body {
        b"OK" => Ok(()),
        body => Err(format!("the answer is {}, not exactly OK", quoted(body))),
    }
}

/// The answer to `document`: 200, JSON, its keys in their order and no others.
///
/// # Errors
/// What is wrong with it, in words.
pub(super) fn check_work(answer: &ClientResponse, document: &Document) -> Result<(), String> {
    check_head(answer, "application/json")?;
    let node: Node = serde_json::from_slice(&answer.body)
        .map_err(|error| format!("the answer {} is no JSON: {error}", quoted(&answer.body)))?;
    let [product, request_id, client] =
        members(&node, ["product", "requestId", "client"], "the answer")?;
    let [balance, min_date, max_date] =
        members(client, ["balance", "minDate", "maxDate"], "the answer's client")?;
    check_text("product", product, &document.product)?;
    check_text("requestId", request_id, &document.request_id)?;
    match balance {
        // One reader of decimals may differ from another in the last bit; cents do not.
        Node::Number(number) if (number - document.balance).abs() < 1e-6 => {}
        Node::Number(number) => {
            return Err(format!("balance is {number}, and the document's is {}", document.balance));
        }
        other => return Err(format!("balance is {}; it must be a number", other.kind())),
    }
    check_text("minDate", min_date, &document.min_date)?;
    check_text("maxDate", max_date, &document.max_date)
}

fn check_head(answer: &ClientResponse, wanted: &str) -> Result<(), String> {
    if answer.status != 200 {
        let body = if answer.body.is_empty() { String::new() } else { quoted(&answer.body) };
        return Err(format!("the status is {}, not 200 {body}", answer.status).trim().to_owned());
    }
    match &answer.content_type {
        None => Err(format!(
            "the answer has no Content-Type, which crashes the suite's client; it must be {wanted}"
        )),
        Some(given) if given.to_ascii_lowercase().contains(wanted) => Ok(()),
        Some(given) => Err(format!("the Content-Type is {given:?}; it must be {wanted}")),
    }
}

/// The values of exactly these keys in this order.
fn members<'a>(node: &'a Node, keys: [&str; 3], what: &str) -> Result<[&'a Node; 3], String> {
    let wanted = keys.join(", ");
    let Node::Object(members) = node else {
        return Err(format!("{what} is {}; it must be an object with {wanted}", node.kind()));
    };
    let found: Vec<&str> = members.iter().map(|(key, _)| key.as_str()).collect();
    match &members[..] {
        [(_, a), (_, b), (_, c)] if found == keys => Ok([a, b, c]),
        _ => Err(format!(
            "{what} has the keys {}; they must be {wanted}, in this order and no others",
            shortened(&found.join(", "))
        )),
    }
}

fn check_text(key: &str, node: &Node, wanted: &str) -> Result<(), String> {
    match node {
        Node::Text(text) if text == wanted => Ok(()),
        Node::Text(text) => Err(format!(
            "{key} is {:?}, and by the document it must be {wanted:?} (a fixed answer?)",
            shortened(text)
        )),
        other => Err(format!("{key} is {}; it must be a text", other.kind())),
    }
}

fn quoted(bytes: &[u8]) -> String {
    format!("{:?}", shortened(&String::from_utf8_lossy(bytes)))
}

fn shortened(text: &str) -> String {
    match text.len() <= QUOTED {
        true => text.to_owned(),
        false => format!("{}...", &text[..text.floor_char_boundary(QUOTED)]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = concat!(
        r#"{"product":"test","requestId":"{BC6B8989-DAB7-484E-9AD3-F7C34A800A1A}","client":"#,
        r#"{"balance":109240.59,"minDate":"2020-01-01T00:00:00.007Z","#,
        r#""maxDate":"2020-11-10T06:47:04.462Z"}}"#
    );

    fn work(body: &str) -> Result<(), String> {
        let content_type = Some("application/json; charset=utf-8".to_owned());
        let answer = ClientResponse { status: 200, content_type, body: body.as_bytes().to_vec() };
        check_work(&answer, &Document::of_the_suite())
    }

    #[test]
    fn white_space_is_free_and_nothing_else() {
        work(GOOD).unwrap();
        work(&GOOD.replace(',', " ,\r\n\t").replace("\":", "\" : ")).unwrap();
        work(&GOOD.replace("109240.59", "1.0924059e5")).unwrap();
        for (from, to, words) in [
            ("109240.59", "\"109240.59\"", "must be a number"),
            ("109240.59", "109240.6", "balance is 109240.6"),
            (".462Z", ".4620Z", "maxDate"),
            (".007Z", ".7Z", "minDate"),
            (".462Z\"}", ".462Z\",\"x\":1}", "no others"),
            ("\"test\"", "\"Test\"", "product"),
            ("\"test\"", "5", "it must be a text"),
            ("\"product\":\"test\",", "", "keys requestId, client"),
            ("{\"product\":\"test\",", "{\"product\":\"test\",\"product\":\"test\",", "no others"),
            ("BC6B", "CC6B", "requestId"),
            ("}}", "}", "no JSON"),
            ("}}", "}}x", "no JSON"),
        ] {
            let error = work(&GOOD.replacen(from, to, 1)).unwrap_err();
            assert!(error.contains(words), "{from} -> {to}: {error}");
        }
        let swapped = GOOD.replace(
            r#""minDate":"2020-01-01T00:00:00.007Z","maxDate":"2020-11-10T06:47:04.462Z""#,
            r#""maxDate":"2020-11-10T06:47:04.462Z","minDate":"2020-01-01T00:00:00.007Z""#,
        );
        assert!(work(&swapped).unwrap_err().contains("in this order"));
        assert!(work("[1]").unwrap_err().contains("a list; it must be an object"));
        assert!(work("").unwrap_err().contains("no JSON"));
        let error = work(&"é".repeat(10_000)).unwrap_err();
        assert!(error.len() < 400, "{error}");
    }

    #[test]
    fn a_canned_answer_is_none_to_another_document() {
        let content_type = Some("application/json".to_owned());
        let answer = ClientResponse { status: 200, content_type, body: GOOD.as_bytes().to_vec() };
        let error = check_work(&answer, &Document::random()).unwrap_err();
        assert!(error.contains("a fixed answer?"), "{error}");
    }

    #[test]
    fn blank_is_two_bytes_of_text() {
        let answer = |status, content_type: Option<&str>, body: &str| {
            let content_type = content_type.map(str::to_owned);
            check_blank(&ClientResponse { status, content_type, body: body.as_bytes().to_vec() })
        };
        answer(200, Some("Text/Plain; charset=utf-8"), "OK").unwrap();
        for (status, content_type, body, words) in [
            (204, Some("text/plain"), "", "the status is 204, not 200"),
            (500, Some("text/plain"), "oh", "the status is 500, not 200 \"oh\""),
            (200, None, "OK", "no Content-Type"),
            (200, Some("text/html"), "OK", "\"text/html\"; it must be text/plain"),
            (200, Some("text/plain"), "OK\n", "not exactly OK"),
            (200, Some("text/plain"), "", "not exactly OK"),
        ] {
            let error = answer(status, content_type, body).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }
}
