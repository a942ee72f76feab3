//! Comma-separated values in the format of RFC 4180, with a header line.

/// A document of `head` and `rows`; a cell with a comma, quote or line break is quoted.
pub fn document(head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut out = line(head.iter().map(|cell| (*cell).to_owned()));
    for row in rows {
        out.push_str(&line(row.into_iter()));
    }
    out
}

/// Formats a number for programs; an unknown value is an empty cell.
pub fn number(value: Option<f64>) -> String {
    match value {
        // Thousandths of the unit are far below the accuracy of these figures.
        Some(value) => format!("{}", (value * 1e3).round() / 1e3),
        None => String::new(),
    }
}

fn line(cells: impl Iterator<Item = String>) -> String {
    let quoted = cells.map(|cell| match cell.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell,
    });
    let mut line = quoted.collect::<Vec<_>>().join(",");
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_quoted_where_they_must_be() {
        let rows = [
            vec!["a,b".to_owned(), "say \"x\"".to_owned()],
            vec!["plain".to_owned(), String::new()],
        ];
        let text = document(&["one", "two"], rows.into_iter());
        assert_eq!(text, "one,two\n\"a,b\",\"say \"\"x\"\"\"\nplain,\n");
    }

    #[test]
    fn numbers() {
        assert_eq!(number(Some(45_000.0)), "45000");
        assert_eq!(number(Some(1.234_56)), "1.235");
        assert_eq!(number(None), "");
    }
}
