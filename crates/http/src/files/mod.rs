//! Static files from a directory.
//! [RFC 9110 section 8](https://www.rfc-editor.org/rfc/rfc9110#section-8),
//! [RFC 9110 section 13](https://www.rfc-editor.org/rfc/rfc9110#section-13) and
//! [RFC 9110 section 14](https://www.rfc-editor.org/rfc/rfc9110#section-14).
//!
//! Start reading at [`Files::respond_at`]. `path.rs` validates paths, `open.rs` ensures that no
//! file outside the root is opened, and `respond.rs` builds the response with `conditions.rs` and
//! `ranges.rs`.

mod conditions;
mod encoding;
mod http_date;
mod media;
mod open;
mod open_limit;
mod path;
mod ranges;
mod respond;
mod send;
mod validators;

use crate::into_response::IntoResponse as _;
use crate::method::{Allow, Method};
use crate::reject::Reject;
use crate::request::Request;
use crate::response::{HeaderError, Response, check_header};
use crate::status::Status;
use encoding::Encoding;
use open::{Failure, Opened, Root};
use open_limit::OpenLimit;
use path::{BadPath, Subpath};
use respond::Representation;
use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io;
use std::path::{Path, PathBuf, absolute};
use std::time::SystemTime;

/// The default of [`Files::max_open`].
const MAX_OPEN: usize = 1024;

/// A handler that serves only the files of a directory.
///
/// It uses the part of the path that the route calls `{*rest}`; on a route without that name, the
/// whole path. Each response has an ETag, Last-Modified and `Accept-Ranges`; conditions and ranges
/// of a request are honoured. A file is streamed, 64 KiB at a time, so its size costs no memory; it
/// is open until its last byte is read, and the number of open files is [limited](Self::max_open).
/// Files of 16 KiB or less are read at once, and keep no descriptor. Reading happens on the thread
/// that serves the connection: on a slow disk the connections of that shard wait for it.
///
/// No file outside the directory is ever opened, by any path, even if entries below the directory
/// change during a request. A symbolic link counts as its target (see
/// [`follow_symlinks`](Self::follow_symlinks)); a hard link is the file itself. On Linux the kernel
/// ensures this (with `openat2` if it exists, otherwise name by name); other Unix systems open the
/// names one by one. Elsewhere the path is resolved, checked and then opened, which is safe as long
/// as only trusted users can write below the directory.
///
/// Files whose names are not UTF-8 cannot be requested. There are no directory listings.
///
/// ```
/// # mod throng { pub use throng_http::*; pub use throng_http as http; }
/// use throng::{Request, Response};
/// use throng::http::Files;
///
/// let files = Files::new("public").cache_control("max-age=3600")?;
/// // As the handler of "/assets/{*rest}":
/// let assets = move |request: &Request<'_>| -> Response { files.respond(request) };
/// # let _ = assets;
/// # Ok::<(), throng_http::HeaderError>(())
/// ```
///
/// | target of the path | response |
/// |---|---|
/// | a file | 200, 206, 304, 412 or 416 |
/// | a directory, with a final `/` | its index, or 404 |
/// | a directory with an index, without a final `/` | 301 to the same path with `/` |
/// | none; a hidden file; a fifo, socket or device; outside of the directory | 404 |
/// | a file that this process may not read | 403 |
/// | any, but no descriptors are left | 503 |
/// | a file to stream, but [the maximum](Self::max_open) is reached | 503 |
#[derive(Clone, Debug)]
pub struct Files {
    root: Root,
    index: Option<String>,
    cache_control: Option<String>,
    with_hidden: bool,
    precompressed: bool,
    /// The program's own media types, by extension in lower case.
    media_types: HashMap<String, String>,
    open: OpenLimit,
}

impl Files {
    /// Serves the files below `root`. A relative path is made absolute now. Nothing is opened yet:
    /// see [`check`](Self::check).
    #[must_use]
    pub fn new(root: impl AsRef<Path>) -> Self {
        let path = absolute(&root).unwrap_or_else(|_| root.as_ref().to_path_buf());
        Self {
            root: Root { path, follows_links: true },
            index: Some("index.html".into()),
            cache_control: None,
            with_hidden: false,
            precompressed: false,
            media_types: HashMap::new(),
            open: OpenLimit::new(MAX_OPEN),
        }
    }

    /// Checks that the directory exists and is readable, to find a mistake in the path when the
    /// program starts.
    ///
    /// # Errors
    /// The system's error, with the path of the directory.
    pub fn check(&self) -> io::Result<()> {
        let path = &self.root.path;
        // The appended dot requires that the path is a searchable directory; Windows drops it.
        let is_folder = std::fs::metadata(path.join(".")).and_then(|it| match it.is_dir() {
            true => Ok(()),
            false => Err(io::ErrorKind::NotADirectory.into()),
        });
        is_folder.map_err(|error| {
            let message = format!("static files: cannot use directory {}: {error}", path.display());
            io::Error::new(error.kind(), message)
        })
    }

    /// Returns the directory as an absolute path.
    #[must_use]
    pub const fn root(&self) -> &PathBuf {
        &self.root.path
    }

    /// Sets the name of the file that is served for its directory. Default: `index.html`. The name
    /// comes from the program, so it is not validated.
    #[must_use]
    pub fn index(mut self, name: impl Into<String>) -> Self {
        self.index = Some(name.into());
        self
    }

    /// Serves no index: a directory is 404.
    #[must_use]
    pub fn without_index(mut self) -> Self {
        self.index = None;
        self
    }

    /// Sets the Cache-Control of responses
    /// ([RFC 9111 section 5.2](https://www.rfc-editor.org/rfc/rfc9111#section-5.2)), such as
    /// `max-age=3600`. Default: none, which lets a cache guess by the age of the file.
    ///
    /// # Errors
    /// [`HeaderError`]: the value is not valid in a header.
    pub fn cache_control(mut self, value: impl Into<String>) -> Result<Self, HeaderError> {
        let value = value.into();
        check_header("Cache-Control", &value)?;
        self.cache_control = Some(value);
        Ok(self)
    }

    /// Sets whether files and directories with a name that begins with a dot are served. Default:
    /// false; they are 404, except `.well-known` (RFC 8615) at the top.
    #[must_use]
    pub const fn hidden_files(mut self, are_served: bool) -> Self {
        self.with_hidden = are_served;
        self
    }

    /// Sets whether symbolic links are followed. Default: true, if the target is within the
    /// directory; other links are always 404. The directory itself may be a link, and may be
    /// retargeted while the server runs.
    #[must_use]
    pub const fn follow_symlinks(mut self, are_followed: bool) -> Self {
        self.root.follows_links = are_followed;
        self
    }

    /// Sets whether `app.js.br` or `app.js.gz` is sent in place of `app.js` to a client that
    /// accepts it. Default: false. It is sent only if it is as new as the original file, so that an
    /// outdated one does no harm.
    #[must_use]
    pub const fn precompressed(mut self, are_used: bool) -> Self {
        self.precompressed = are_used;
        self
    }

    /// Sets the media type of files whose names end with `.` and `extension`, in any case; it takes
    /// precedence over the built-in type. Default: the common types; other files are
    /// `application/octet-stream`, which browsers save.
    ///
    /// # Errors
    /// [`HeaderError`] if the extension is empty or contains `.` or `/`, or if the type is not of
    /// the form `type/subtype`, optionally with parameters after `;`.
    pub fn media_type(
        mut self,
        extension: impl Into<String>,
        media_type: impl Into<String>,
    ) -> Result<Self, HeaderError> {
        let (extension, media_type) = (extension.into(), media_type.into());
        check_header("Content-Type", &media_type)?;
        media::check(&extension, &media_type)?;
        self.media_types.insert(extension.to_ascii_lowercase(), media_type);
        Ok(self)
    }

    /// Sets the maximum number of files that are open at once while being sent. Each uses one
    /// descriptor. Default 1,024.
    ///
    /// A client may take any time for a download. A download above the limit gets 503 with
    /// Retry-After, so that slow downloads cannot use up the descriptors of connections. Clones
    /// share the limit and the count.
    ///
    /// The server's `dir` reserves as many descriptors, and lowers the limit if the process may
    /// have few. If your own handler calls [`respond`](Self::respond), reserve descriptors by
    /// lowering the limit on connections.
    #[must_use]
    pub fn max_open(self, files: usize) -> Self {
        self.open.set(files);
        self
    }

    /// Lowers [`max_open`](Self::max_open) to `files`, if it is higher. Open files stay open.
    pub fn lower_max_open(&self, files: usize) {
        self.open.lower(files);
    }

    /// Returns the current value of [`max_open`](Self::max_open).
    #[must_use]
    pub fn open_limit(&self) -> usize {
        self.open.get()
    }

    /// Returns the response to `request`: a file for GET and HEAD, `Allow` for OPTIONS, and 405 for
    /// any other method.
    pub fn respond(&self, request: &Request<'_>) -> Response {
        self.respond_at(request, SystemTime::now())
    }

    /// Returns the response to `request` at the time `now`, for a caller that knows the time;
    /// otherwise like [`respond`](Self::respond).
    pub fn respond_at(&self, request: &Request<'_>, now: SystemTime) -> Response {
        let allow = Allow::NONE.with(Method::Get);
        match request.method() {
            "GET" | "HEAD" => {}
            "OPTIONS" => return Response::allowing(Status::NO_CONTENT, allow),
            _ => return Response::allowing(Status::METHOD_NOT_ALLOWED, allow),
        }
        let path = request.path();
        let rest = request.raw_param("rest").unwrap_or(path.strip_prefix('/').unwrap_or(path));
        let path = match Subpath::parse(rest, self.with_hidden) {
            Ok(path) => path,
            Err(BadPath::Encoding) => {
                return Reject::bad_request(crate::percent::BadEncoding.to_string())
                    .into_response();
            }
            Err(BadPath::Name) => return refuse(Failure::Missing),
        };
        match self.find(&path) {
            Ok(Some(found)) => self.build(request, self.select(request, found, now), now),
            Ok(None) => redirect(&path, request.query_string()),
            Err(failure) => refuse(failure),
        }
    }

    /// Finds the file for `path`. Returns `None` for a directory that was requested without its
    /// final slash.
    fn find(&self, path: &Subpath) -> Result<Option<Found>, Failure> {
        if !path.is_directory()
            && let Opened::File(file, metadata) = self.root.open(path.as_str())?
        {
            return Ok(Some(Found { name: path.as_str().to_owned(), file, metadata }));
        }
        // A directory without an index is not redirected to, so that its existence is not
        // disclosed.
        let name = path.join(self.index.as_deref().ok_or(Failure::Missing)?);
        let Opened::File(file, metadata) = self.root.open(&name)? else {
            return Err(Failure::Missing);
        };
        Ok(path.is_directory().then_some(Found { name, file, metadata }))
    }

    /// Selects the representation (RFC 9110 section 3.2): the file, or its compressed form.
    fn select(&self, request: &Request<'_>, found: Found, now: SystemTime) -> Representation {
        let Found { name, file, metadata } = found;
        let media_type = self.type_of(&name);
        let lines = request.head().lines();
        for encoding in Encoding::accepted(lines).filter(|_| self.precompressed) {
            let sibling = self.root.open(&format!("{name}.{}", encoding.extension()));
            if let Ok(Opened::File(sibling, of_sibling)) = sibling
                && of_sibling.modified().ok() >= metadata.modified().ok()
            {
                return Representation::new(sibling, &of_sibling, media_type, Some(encoding), now);
            }
        }
        Representation::new(file, &metadata, media_type, None, now)
    }

    fn type_of(&self, name: &str) -> Cow<'static, str> {
        let own = || self.media_types.get(&media::extension(name)?);
        match self.media_types.is_empty() {
            true => media::media_type(name).into(),
            false => own().map_or_else(|| media::media_type(name).into(), |own| own.clone().into()),
        }
    }
}

impl<P: AsRef<Path>> From<P> for Files {
    fn from(root: P) -> Self {
        Self::new(root)
    }
}

/// An open file and its name below the root.
struct Found {
    name: String,
    file: File,
    metadata: Metadata,
}

fn redirect(path: &Subpath, query: Option<&str>) -> Response {
    let mut location = path.location();
    if let Some(query) = query {
        location.extend(["?", query]);
    }
    Response::error(Status::new(301), "a directory ends with a slash")
        .push_checked("Location", location)
}

fn refuse(failure: Failure) -> Response {
    match failure {
        Failure::Missing => Response::error(Status::NOT_FOUND, "no such file"),
        // 403 instead of 404, so that the operator can find the mistake.
        Failure::Forbidden => {
            Response::error(Status::FORBIDDEN, "the server has no permission to read the file")
        }
        Failure::Busy => Response::unavailable(1, "too many files are open"),
        Failure::Broken => Response::error(Status::INTERNAL_SERVER_ERROR, "cannot read the file"),
    }
}
