//! Media types by file name extension.

use throng_proto::ws::handshake::is_token;

use crate::response::HeaderError;

/// The type of unknown files: a browser saves it and does not guess, since sniffing is disabled.
const UNKNOWN: &str = "application/octet-stream";

/// Returns the extension of a file name, in lower case.
pub(super) fn extension(name: &str) -> Option<String> {
    let (_, extension) = name.rsplit('/').next().unwrap_or(name).rsplit_once('.')?;
    Some(extension.to_ascii_lowercase())
}

/// Checks that a file can have this extension, and that the type has the form of RFC 9110 section
/// 8.3.1.
pub(super) fn check(extension: &str, media_type: &str) -> Result<(), HeaderError> {
    let essence = media_type.split(';').next().unwrap_or_default().trim_ascii_end();
    let is_type = |(main, sub): (&str, &str)| is_token(main) && is_token(sub);
    if extension.is_empty() || extension.contains(['.', '/']) {
        return Err(HeaderError::MediaType);
    }
    essence.split_once('/').is_some_and(is_type).then_some(()).ok_or(HeaderError::MediaType)
}

/// Returns the media type of a file of this name. Text is declared as UTF-8.
pub(super) fn media_type(name: &str) -> &'static str {
    let Some(extension) = extension(name) else { return UNKNOWN };
    let found = TYPES.binary_search_by(|(known, _)| (*known).cmp(&extension));
    found.map_or(UNKNOWN, |index| TYPES[index].1)
}

/// Sorted by extension. As registered with IANA, and as browsers expect.
const TYPES: [(&str, &str); 71] = [
    ("3gp", "video/3gpp"),
    ("7z", "application/x-7z-compressed"),
    ("aac", "audio/aac"),
    ("apng", "image/apng"),
    ("atom", "application/atom+xml"),
    ("avi", "video/x-msvideo"),
    ("avif", "image/avif"),
    ("bmp", "image/bmp"),
    ("br", "application/x-brotli"),
    ("bz2", "application/x-bzip2"),
    ("cjs", "text/javascript; charset=utf-8"),
    ("css", "text/css; charset=utf-8"),
    ("csv", "text/csv; charset=utf-8"),
    ("doc", "application/msword"),
    ("docx", "application/vnd.openxmlformats-officedocument.wordprocessingml.document"),
    ("eot", "application/vnd.ms-fontobject"),
    ("epub", "application/epub+zip"),
    ("flac", "audio/flac"),
    ("geojson", "application/geo+json"),
    ("gif", "image/gif"),
    ("gz", "application/gzip"),
    ("htm", "text/html; charset=utf-8"),
    ("html", "text/html; charset=utf-8"),
    ("ico", "image/vnd.microsoft.icon"),
    ("ics", "text/calendar; charset=utf-8"),
    ("jpeg", "image/jpeg"),
    ("jpg", "image/jpeg"),
    ("js", "text/javascript; charset=utf-8"),
    ("json", "application/json"),
    ("jsonld", "application/ld+json"),
    ("jxl", "image/jxl"),
    ("log", "text/plain; charset=utf-8"),
    ("m4a", "audio/mp4"),
    ("map", "application/json"),
    ("md", "text/markdown; charset=utf-8"),
    ("mjs", "text/javascript; charset=utf-8"),
    ("mov", "video/quicktime"),
    ("mp3", "audio/mpeg"),
    ("mp4", "video/mp4"),
    ("mpeg", "video/mpeg"),
    ("ogg", "audio/ogg"),
    ("ogv", "video/ogg"),
    ("opus", "audio/ogg"),
    ("otf", "font/otf"),
    ("pdf", "application/pdf"),
    ("png", "image/png"),
    ("pptx", "application/vnd.openxmlformats-officedocument.presentationml.presentation"),
    ("rss", "application/rss+xml"),
    ("rtf", "application/rtf"),
    ("svg", "image/svg+xml"),
    ("tar", "application/x-tar"),
    ("tif", "image/tiff"),
    ("tiff", "image/tiff"),
    ("toml", "application/toml"),
    ("ttf", "font/ttf"),
    ("txt", "text/plain; charset=utf-8"),
    ("vtt", "text/vtt; charset=utf-8"),
    ("wasm", "application/wasm"),
    ("wav", "audio/wav"),
    ("weba", "audio/webm"),
    ("webm", "video/webm"),
    ("webmanifest", "application/manifest+json"),
    ("webp", "image/webp"),
    ("woff", "font/woff"),
    ("woff2", "font/woff2"),
    ("xhtml", "application/xhtml+xml"),
    ("xlsx", "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"),
    ("xml", "application/xml"),
    ("yaml", "application/yaml"),
    ("yml", "application/yaml"),
    ("zip", "application/zip"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use throng_proto::http1::HeaderValue;

    #[test]
    fn every_type_can_be_found_and_sent() {
        assert!(TYPES.is_sorted_by(|before, after| before.0 < after.0));
        for (extension, value) in TYPES {
            assert_eq!(media_type(&format!("a.b.{extension}")), value);
            assert!(HeaderValue::new(value).is_ok());
            let is_text = value.starts_with("text/");
            assert_eq!(value.ends_with("; charset=utf-8"), is_text, "{value}");
        }
    }

    #[test]
    fn a_type_of_the_programs_own_has_the_form_of_one() {
        for (extension, media_type) in
            [("glb", "model/gltf-binary"), ("X", "text/x-y; charset=utf-8"), ("ä", "a/b")]
        {
            assert!(check(extension, media_type).is_ok(), "{extension} {media_type}");
        }
        for (extension, media_type) in [
            ("", "a/b"),
            (".glb", "a/b"),
            ("a/b", "a/b"),
            ("glb", ""),
            ("glb", "model"),
            ("glb", "model/"),
            ("glb", "/gltf"),
            ("glb", "a b/c"),
            ("glb", "a/b/c"),
            ("glb", ";a/b"),
        ] {
            assert!(check(extension, media_type).is_err(), "{extension} {media_type}");
        }
    }

    #[test]
    fn the_last_extension_of_the_name_counts() {
        for (name, expected) in [
            ("dir.css/README", UNKNOWN),
            ("a.HTML", "text/html; charset=utf-8"),
            ("a.tar.gz", "application/gzip"),
            ("a.html.exe", UNKNOWN),
            ("a", UNKNOWN),
            ("a.", UNKNOWN),
            ("html", UNKNOWN),
            ("", UNKNOWN),
        ] {
            assert_eq!(media_type(name), expected, "{name}");
        }
    }
}
