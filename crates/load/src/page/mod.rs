//! A self-contained HTML page of text, tables and plots: one file that loads nothing from
//! elsewhere.
//!
//! The page is also well-formed XML, so that any XML tool can process it. All benchmarks with plots
//! use it.

mod plot;
#[doc(hidden)]
pub mod well_formed;

use std::fmt::Write;

use throng_proto::escape::is_special;

pub use plot::{Axis, Plot, Scale, Series};

/// A page under construction. Its parts appear in the order of the calls.
#[derive(Clone, Debug)]
pub struct Page {
    title: String,
    body: String,
    tables: usize,
}

impl Page {
    /// An empty page.
    #[must_use]
    pub fn new(title: &str) -> Self {
        Self { title: title.to_owned(), body: String::new(), tables: 0 }
    }

    /// Adds a paragraph.
    #[must_use]
    pub fn text(mut self, text: &str) -> Self {
        self.element("p", text);
        self
    }

    /// Adds a highlighted paragraph, such as the verdict.
    #[must_use]
    pub fn notice(mut self, text: &str) -> Self {
        let _ = writeln!(self.body, r#"<p class="notice">{}</p>"#, escaped(text));
        self
    }

    /// Adds a heading.
    #[must_use]
    pub fn heading(mut self, text: &str) -> Self {
        self.element("h2", text);
        self
    }

    /// Adds a plot. A plot without any point to draw is replaced by a sentence.
    #[must_use]
    pub fn plot(mut self, plot: &Plot) -> Self {
        match plot.to_svg() {
            Some(svg) => {
                let _ = writeln!(
                    self.body,
                    "<figure>\n{svg}\n<figcaption>{}</figcaption>\n</figure>",
                    escaped(plot.caption())
                );
                self
            }
            None => {
                let text = format!("{}: nothing was measured that could be drawn.", plot.title());
                self.text(&text)
            }
        }
    }

    /// Adds a table. A column is right-aligned if all its cells begin with a digit or a sign.
    #[must_use]
    pub fn table(mut self, head: &[&str], rows: &[Vec<String>]) -> Self {
        let is_number = |cell: &String| cell.starts_with(|c: char| c.is_ascii_digit() || c == '-');
        let right = |column| rows.iter().all(|row| row.get(column).is_none_or(is_number));
        let class = |column| if right(column) { r#" class="number""# } else { "" };
        self.tables += 1;
        // On a narrow screen the table scrolls, also by keyboard. As a named landmark it is easy to
        // find.
        let _ = write!(
            self.body,
            "<div class=\"table\" role=\"region\" aria-label=\"Table {}\" \
             tabindex=\"0\">\n<table>\n<thead><tr>",
            self.tables
        );
        for (column, cell) in head.iter().enumerate() {
            let _ = write!(self.body, r#"<th scope="col"{}>{}</th>"#, class(column), escaped(cell));
        }
        self.body.push_str("</tr></thead>\n<tbody>\n");
        for row in rows {
            self.body.push_str("<tr>");
            for (column, cell) in row.iter().enumerate() {
                let _ = write!(self.body, "<td{}>{}</td>", class(column), escaped(cell));
            }
            self.body.push_str("</tr>\n");
        }
        self.body.push_str("</tbody>\n</table>\n</div>\n");
        self
    }

    /// Returns the finished document.
    #[must_use]
    pub fn to_html(&self) -> String {
        let title = escaped(&self.title);
        format!(
            "<!DOCTYPE html>\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\">\n<head>\n\
             <meta charset=\"utf-8\"/>\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
             <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n\
             <h1>{title}</h1>\n{}\
             </main>\n</body>\n</html>\n",
            self.body
        )
    }

    fn element(&mut self, name: &str, text: &str) {
        let _ = writeln!(self.body, "<{name}>{}</{name}>", escaped(text));
    }
}

const STYLE: &str = "\
:root { color-scheme: light dark; }
body { margin: 0; background: Canvas; color: CanvasText; font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
figure { margin: 1.5rem 0; }
figure svg { width: 100%; height: auto; background: #fff; border-radius: 6px; }
figcaption { font-size: .875rem; opacity: .8; }
.table { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .875rem; }
th, td { padding: .25rem .75rem; text-align: left; border-bottom: 1px solid #8884;
  white-space: nowrap; }
.number { text-align: right; }
.notice { padding: .6rem .9rem; border-left: 4px solid #d68a00; background: #fff1d6;
  color: #3d2900; }
";

/// Escapes text for HTML and for attributes.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            // These characters are not allowed in XML, even escaped.
            c if is_special(c) && c != '\n' && c != '\t' => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::well_formed::assert_well_formed;
    use super::*;

    #[test]
    fn a_page_holds_everything_and_is_well_formed() {
        let plot = Plot::new("Time & <size>", Axis::new("subscribers"), Axis::new("time in ms"))
            .series("naive \"loop\"", &[(1.0, 2.0), (2.0, 4.0)]);
        let empty = Plot::new("Nothing", Axis::new("x"), Axis::new("y"));
        let rows =
            [vec!["a<b".to_owned(), "12".to_owned()], vec!["c\u{1}".to_owned(), "-3".to_owned()]];
        let html = Page::new("A & B")
            .text("1 < 2")
            .notice("client-limited")
            .heading("Figures")
            .plot(&plot)
            .plot(&empty)
            .table(&["name", "value"], &rows)
            .to_html();
        assert_well_formed(&html);
        for words in [
            "<h1>A &amp; B</h1>",
            "1 &lt; 2",
            r#"<td class="number">-3</td>"#,
            "<td>a&lt;b</td>",
            "Nothing: nothing was measured",
            "client-limited",
            r#"role="region" aria-label="Table 1" tabindex="0""#,
        ] {
            assert!(html.contains(words), "{words:?} in\n{html}");
        }
        assert!(!html.contains("src="), "nothing is loaded from elsewhere");
    }

    #[test]
    #[should_panic(expected = "</b>")]
    fn the_check_notices_a_wrong_tag() {
        assert_well_formed("<a><b/></b></a>");
    }
}
