//! Files that the balancer answers with. They are read when the configuration is loaded, so no
//! request waits for a disk.

use std::path::Path;
use std::sync::Arc;

use throng_http::{Response, Status};
use throng_proto::http1::Request;

/// The largest file, in bytes.
pub(crate) const MAX_PAGE: usize = 64 << 10;

/// The most bytes of all files together.
pub(crate) const MAX_PAGES: usize = 4 << 20;

/// A file in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    content: Arc<[u8]>,
    media_type: &'static str,
}

/// Content is compared, and not hashed: pages are large and few.
impl std::hash::Hash for Page {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.content.len().hash(state);
    }
}

impl Page {
    /// Creates a page of this content, whose media type follows from the name of its file.
    #[must_use]
    pub fn new(name: &Path, content: &[u8]) -> Self {
        let extension = name.extension().and_then(|it| it.to_str()).unwrap_or_default();
        Self { content: content.into(), media_type: media_type(&extension.to_ascii_lowercase()) }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// The remedy: it cannot be read, is not a regular file, or is too large.
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let content =
            throng_io::file::read(path).map_err(|error| format!("{} {error}", path.display()))?;
        if content.len() > MAX_PAGE {
            let (path, len) = (path.display(), content.len());
            return Err(format!(
                "{path} has {len} bytes: {MAX_PAGE} are the most; let a backend serve it, for \
                 example `throng serve --dir`"
            ));
        }
        Ok(Self::new(path, &content))
    }

    /// Returns the number of its bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.content.len()
    }

    /// Returns whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.content.is_empty()
    }

    /// Returns its media type and its content.
    pub(crate) fn parts(&self) -> (&'static str, &[u8]) {
        (self.media_type, &self.content)
    }

    /// Returns an answer with this page for a body.
    pub(crate) fn body_of(&self, response: Response) -> Response {
        response.with_bytes(self.media_type, self.content.to_vec())
    }
}

/// Returns the media type of files with this ending, in lower case.
fn media_type(extension: &str) -> &'static str {
    match extension {
        "html" | "htm" => "text/html; charset=utf-8",
        "txt" => "text/plain; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "json" => "application/json",
        "xml" => "application/xml",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "webp" => "image/webp",
        "ico" => "image/vnd.microsoft.icon",
        _ => "application/octet-stream",
    }
}

/// The seconds after which clients of a site under maintenance may try again.
const RETRY_AFTER: &str = "60";

/// Returns the answer of a site under maintenance: JSON for clients that prefer it, otherwise the
/// site's page, if it has one.
pub(super) fn maintenance(page: Option<&Page>, request: &Request<'_>) -> Response {
    let status = Status::SERVICE_UNAVAILABLE;
    let response = match page {
        _ if prefers_json(request) => Response::new(status)
            .with_body("application/json", "{\"error\":\"maintenance\",\"retry_after\":60}\n"),
        Some(page) => page.body_of(Response::new(status)),
        None => Response::error(status, "the site is under maintenance"),
    };
    // A number is a valid header.
    response.header("Retry-After", RETRY_AFTER).unwrap_or_else(|_| Response::new(status))
}

/// Returns whether Accept has JSON with a higher weight than HTML (RFC 9110 section 12.5.1).
fn prefers_json(request: &Request<'_>) -> bool {
    let (mut json, mut html) = (Weight::default(), Weight::default());
    for member in request.lines().list_members("Accept") {
        let Ok(member) = str::from_utf8(member) else { continue };
        let mut parts = member.split(';').map(str::trim);
        let range = parts.next().unwrap_or_default().to_ascii_lowercase();
        let weight = parts.find_map(|it| it.strip_prefix("q=").or(it.strip_prefix("Q=")));
        let weight = weight.and_then(|it| it.parse::<f32>().ok()).unwrap_or(1.0);
        json.note(&range, ["application/json", "application/*"], weight);
        html.note(&range, ["text/html", "text/*"], weight);
    }
    json.value > html.value
}

/// The weight of a media type by the most specific range that has it.
#[derive(Default)]
struct Weight {
    value: f32,
    specific: u8,
}

impl Weight {
    fn note(&mut self, range: &str, [exact, group]: [&str; 2], weight: f32) {
        let specific = match range {
            _ if range == exact => 3,
            _ if range == group => 2,
            "*/*" => 1,
            _ => return,
        };
        if specific >= self.specific {
            (self.value, self.specific) = (weight, specific);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::site::tests::{get, with_request};

    #[test]
    fn json_is_preferred_where_its_weight_is_higher() {
        for (accept, expected) in [
            ("", false),
            ("Accept: */*", false),
            ("Accept: text/html,application/xhtml+xml,*/*;q=0.8", false),
            ("Accept: application/json", true),
            ("Accept: APPLICATION/JSON, */*;q=0.1", true),
            ("Accept: application/json;q=0.5, text/html", false),
            ("Accept: application/json, text/html", false),
            ("Accept: application/*", true),
            ("Accept: text/*;q=0.9, application/json", true),
            ("Accept: application/json;q=x", true),
            ("Accept: application/json;q=0", false),
        ] {
            let head = format!("{}\n{accept}", get("a", "/"));
            let head = head.trim_end();
            assert_eq!(with_request(head, prefers_json), expected, "{accept}");
        }
    }

    #[test]
    fn the_media_type_follows_from_the_ending() {
        for (name, expected) in [
            ("a.html", "text/html; charset=utf-8"),
            ("A.HTM", "text/html; charset=utf-8"),
            ("down.json", "application/json"),
            ("a.tar.gz", "application/octet-stream"),
            ("a", "application/octet-stream"),
        ] {
            assert_eq!(Page::new(Path::new(name), b"").parts(), (expected, &b""[..]), "{name}");
        }
    }
}
