//! Static files: a directory, served. RFC 9110 sections 8, 13 and 14.
//!
//! Start reading at [`Files::respond_at`]. What a path may name is decided in `path.rs`, that nothing outside the root is opened in
//! `open.rs`, and what of a file is sent in `answer.rs`, which asks `conditions.rs` and `ranges.rs`.

mod answer;
mod conditions;
mod encoding;
mod http_date;
mod media;
mod open;
mod open_limit;
mod path;
mod ranges;
mod send;
mod validators;

use crate::method::{Allow, Method};
use crate::request::Request;
use crate::response::{HeaderError, Response, check_header};
use crate::status::Status;
use crate::{IntoResponse as _, Reject};
use answer::Representation;
use encoding::Encoding;
use open::{Failure, Opened, Root};
use open_limit::OpenLimit;
use path::{BadPath, Subpath};
use std::fs::{File, Metadata};
use std::io;
use std::path::{Path, PathBuf, absolute};
use std::time::SystemTime;

/// The default of [`Files::max_open`].
const MAX_OPEN: usize = 1024;

/// A directory of which every file is served, and nothing outside of it.
///
/// The files answer the part of the path that the route calls `{*rest}`; a route without that name is answered by its whole path.
/// Each answer has an ETag, Last-Modified and `Accept-Ranges`; conditions and ranges of a request are obeyed. A file is
/// streamed, 64 KiB at a time, so its size costs no memory; it is open until its last byte has been read, and how many are is
/// [bounded](Self::max_open). What has 16 KiB or fewer is read at once, and holds no descriptor. Reading happens on the thread that serves the connection: on a disk that is
/// slow, the connections of that shard wait for it.
///
/// Nothing outside the directory is ever opened, whatever the path, and whatever is changed below the directory meanwhile. A
/// symbolic link counts by where it ends (see [`follow_symlinks`](Self::follow_symlinks)); a hard link is the file itself. On Linux the
/// kernel sees to it (`openat2`, else name by name), on other Unixes the names are opened one by one. Elsewhere the path is resolved, checked
/// and then opened, which is safe as long as none but the trusted write below the directory.
///
/// Names that are not UTF-8 cannot be asked for. There are no listings of directories.
///
/// ```
/// use throng_http::{Files, Request, Response};
///
/// let files = Files::new("public").cache_control("max-age=3600")?;
/// // As the handler of "/assets/{*rest}":
/// let assets = move |request: &Request<'_>| -> Response { files.respond(request) };
/// # let _ = assets;
/// # Ok::<(), throng_http::HeaderError>(())
/// ```
///
/// | the path leads to | answer |
/// |---|---|
/// | a file | 200, 206, 304, 412 or 416 |
/// | a directory, and ends with `/` | its index, or 404 |
/// | a directory with an index, and ends without | 301 to the same with `/` |
/// | nothing; a hidden file; a fifo, socket or device; out of the directory | 404 |
/// | a file that this process may not read | 403 |
/// | anything, but descriptors have run out | 503 |
/// | what is streamed, but [as many](Self::max_open) are already | 503 |
#[derive(Clone, Debug)]
pub struct Files {
    root: Root,
    index: Option<String>,
    cache_control: Option<String>,
    with_hidden: bool,
    precompressed: bool,
    open: OpenLimit,
}

impl Files {
    /// Serves the files below `root`. A relative path is made absolute now. Nothing is opened yet: see [`check`](Self::check).
    #[must_use]
    pub fn new(root: impl AsRef<Path>) -> Self {
        let path = absolute(&root).unwrap_or_else(|_| root.as_ref().to_path_buf());
        Self {
            root: Root { path, follows_links: true },
            index: Some("index.html".into()),
            cache_control: None,
            with_hidden: false,
            precompressed: false,
            open: OpenLimit::new(MAX_OPEN),
        }
    }

    /// Whether the directory is there and may be looked into: for the start of a program, to which a mistake in the path is worth more
    /// than to its visitors.
    ///
    /// # Errors
    /// What the system says of the directory, with its path.
    pub fn check(&self) -> io::Result<()> {
        let path = &self.root.path;
        // With the dot: it has to be a directory, and one that may be looked into.
        std::fs::metadata(path.join(".")).map(drop).map_err(|error| {
            let message = format!("static files: no use of directory {}: {error}", path.display());
            io::Error::new(error.kind(), message)
        })
    }

    /// The directory, as an absolute path.
    #[must_use]
    pub const fn root(&self) -> &PathBuf {
        &self.root.path
    }

    /// The file that stands for its directory. Default: `index.html`. It is the program's to name, and not checked.
    #[must_use]
    pub fn index(mut self, name: impl Into<String>) -> Self {
        self.index = Some(name.into());
        self
    }

    /// A directory is 404.
    #[must_use]
    pub fn without_index(mut self) -> Self {
        self.index = None;
        self
    }

    /// The Cache-Control of what is served (RFC 9111 section 5.2), such as `max-age=3600`. Default: none, which lets a cache guess
    /// by the age of the file.
    ///
    /// # Errors
    /// [`HeaderError`]: not valid as the value of a header.
    pub fn cache_control(mut self, value: impl Into<String>) -> Result<Self, HeaderError> {
        let value = value.into();
        check_header("Cache-Control", &value)?;
        self.cache_control = Some(value);
        Ok(self)
    }

    /// Whether files and directories are served whose name begins with a dot. Default: no, they are 404, but for
    /// `.well-known` (RFC 8615) at the top.
    #[must_use]
    pub const fn hidden_files(mut self, are_served: bool) -> Self {
        self.with_hidden = are_served;
        self
    }

    /// Whether symbolic links are followed. Default: yes, if they end within the directory; one that leads out of it is 404 always.
    /// The directory itself may be a link, and may be pointed elsewhere while the server runs.
    #[must_use]
    pub const fn follow_symlinks(mut self, are_followed: bool) -> Self {
        self.root.follows_links = are_followed;
        self
    }

    /// Whether `app.js.br` or `app.js.gz` is sent in place of `app.js` to a client that accepts it. Default: no. It is only sent
    /// if it is a file as new as the one it stands for, so that one that was forgotten does no harm.
    #[must_use]
    pub const fn precompressed(mut self, are_used: bool) -> Self {
        self.precompressed = are_used;
        self
    }

    /// How many files are open at once because they are being sent, a descriptor each: as many clients may take as long as they like
    /// over a download. One more is answered with 503 and Retry-After, so that slow downloads cannot take the descriptors of
    /// everybody's connections. Default 1,024. Clones have one bound, and one count, between them.
    ///
    /// The server's `dir` keeps as many descriptors back from its connections, and lowers the bound where the process may have
    /// few: see there. Who calls [`respond`](Self::respond) in a handler of his own leaves room by the limit on connections.
    #[must_use]
    pub fn max_open(self, files: usize) -> Self {
        self.open.set(files);
        self
    }

    /// Lowers [`max_open`](Self::max_open) to `files`, if it is higher. What is open by then stays open.
    pub fn lower_max_open(&self, files: usize) {
        self.open.lower(files);
    }

    /// What [`max_open`](Self::max_open) is now.
    #[must_use]
    pub fn open_limit(&self) -> usize {
        self.open.get()
    }

    /// The answer to `request`: GET and HEAD by a file, OPTIONS by `Allow`, and any other method by 405.
    pub fn respond(&self, request: &Request<'_>) -> Response {
        self.respond_at(request, SystemTime::now())
    }

    /// As [`respond`](Self::respond), for a caller that knows what time it is.
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
                return Reject::bad_request("the path has an invalid percent-encoding")
                    .into_response();
            }
            Err(BadPath::Name) => return refuse(Failure::Missing),
        };
        match self.find(&path) {
            Ok(Some(found)) => self.answer(request, self.select(request, found, now), now),
            Ok(None) => redirect(&path, request.query_string()),
            Err(failure) => refuse(failure),
        }
    }

    /// The file that answers `path`; none if it is a directory that was asked for without its slash.
    fn find(&self, path: &Subpath) -> Result<Option<Found>, Failure> {
        if !path.is_directory()
            && let Opened::File(file, metadata) = self.root.open(path.as_str())?
        {
            return Ok(Some(Found { name: path.as_str().to_owned(), file, metadata }));
        }
        // A directory without an index is not redirected to: that it is there is no one's business.
        let name = path.join(self.index.as_deref().ok_or(Failure::Missing)?);
        let Opened::File(file, metadata) = self.root.open(&name)? else {
            return Err(Failure::Missing);
        };
        Ok(path.is_directory().then_some(Found { name, file, metadata }))
    }

    /// The representation (RFC 9110 section 3.2): the file, or its compressed form.
    fn select(&self, request: &Request<'_>, found: Found, now: SystemTime) -> Representation {
        let Found { name, file, metadata } = found;
        let media_type = media::media_type(&name);
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
}

impl<P: AsRef<Path>> From<P> for Files {
    fn from(root: P) -> Self {
        Self::new(root)
    }
}

/// A file, open, and its name below the root.
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
        // Not 404: it is the operator's mistake, and he is who looks for it.
        Failure::Forbidden => Response::error(Status::FORBIDDEN, "the server may not read it"),
        Failure::Busy => Response::unavailable(1, "no file can be opened now"),
        Failure::Broken => Response::error(Status::INTERNAL_SERVER_ERROR, "cannot read the file"),
    }
}
