//! The response for an open file: its status and the ranges that it sends.

use super::conditions::{self, Verdict};
use super::encoding::Encoding;
use super::open::Failure;
use super::ranges::{self, Wanted};
use super::send::{FileSegments, Segment};
use super::validators::Validators;
use super::{Files, refuse};
use crate::body::SourcePull;
use crate::request::Request;
use crate::response::Response;
use crate::status::Status;
use std::borrow::Cow;
use std::fs::{File, Metadata};
use std::hash::{BuildHasher as _, RandomState};
use std::ops::Range;
use std::time::SystemTime;
use throng_proto::calendar::imf_fixdate;

/// Maximum size of a file that is read at once and sent with its head: cheaper than a stream, and
/// an error while reading can still be reported as 500.
const SMALL: u64 = 16 * 1024;

/// The file to send, before ranges are applied.
pub(super) struct Representation {
    file: File,
    length: u64,
    validators: Validators,
    media_type: Cow<'static, str>,
    encoding: Option<Encoding>,
}

impl Representation {
    pub(super) fn new(
        file: File,
        metadata: &Metadata,
        media_type: Cow<'static, str>,
        encoding: Option<Encoding>,
        now: SystemTime,
    ) -> Self {
        let validators = Validators::of(metadata, now);
        Self { file, length: metadata.len(), validators, media_type, encoding }
    }
}

impl Files {
    pub(super) fn build(
        &self,
        request: &Request<'_>,
        found: Representation,
        now: SystemTime,
    ) -> Response {
        let lines = request.head().lines();
        let unix_seconds = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        match conditions::evaluate(lines, &found.validators, unix_seconds) {
            Verdict::Proceed => {}
            Verdict::NotModified => {
                return self.describe(Response::new(Status::NOT_MODIFIED), &found);
            }
            Verdict::Failed => {
                return Response::error(Status::new(412), "the file is not the one expected");
            }
        }
        let is_head = request.method() == "HEAD";
        // RFC 9110 section 14.2: a Range applies to GET only, and two of them are ignored.
        let mut values = lines.all_bytes("range").filter(|_| !is_head);
        let range = match (values.next(), values.next()) {
            (Some(range), None)
                if conditions::allows_range(lines, &found.validators, unix_seconds) =>
            {
                range
            }
            _ => b"",
        };
        match ranges::parse(range, found.length) {
            Wanted::Whole => self.whole(found, is_head),
            Wanted::Nothing => {
                Response::error(Status::new(416), "the range is beyond the end of the file")
                    .push_checked("Content-Range", format!("bytes */{}", found.length))
            }
            Wanted::Parts(parts) => match <[_; 1]>::try_from(parts) {
                Ok([part]) => self.part(found, part),
                Err(parts) => self.parts(found, parts),
            },
        }
    }

    fn whole(&self, found: Representation, is_head: bool) -> Response {
        let response = self.describe(Response::new(Status::OK), &found).push_safety();
        let (media_type, length) = (found.media_type, found.length);
        if is_head {
            // A HEAD response has the same fields, and needs no open file.
            return response
                .push_checked("Content-Type", media_type)
                .with_stream(Some(length), |_, _: &mut Vec<u8>| Ok(SourcePull::End));
        }
        self.send(response, media_type, FileSegments::new(found.file, [Segment::Bytes(0..length)]))
    }

    fn part(&self, found: Representation, part: Range<u64>) -> Response {
        let content_range = content_range(&part, found.length);
        let response = self
            .describe(Response::new(Status::new(206)), &found)
            .push_safety()
            .push_checked("Content-Range", content_range);
        self.send(response, found.media_type, FileSegments::new(found.file, [Segment::Bytes(part)]))
    }

    /// Builds a multipart response, RFC 9110 section 14.6.
    fn parts(&self, found: Representation, parts: Vec<Range<u64>>) -> Response {
        // Random, so that the content of the file cannot contain it on purpose.
        let random = || RandomState::new().hash_one(&found.validators.opaque);
        let boundary = format!("{:016x}{:016x}", random(), random());
        let mut segments = Vec::with_capacity(2 * parts.len() + 1);
        for (index, part) in parts.into_iter().enumerate() {
            let (start, media_type) = (if index == 0 { "" } else { "\r\n" }, &found.media_type);
            let content_range = content_range(&part, found.length);
            segments.push(Segment::Text(format!(
                "{start}--{boundary}\r\nContent-Type: {media_type}\r\n\
                 Content-Range: {content_range}\r\n\r\n"
            )));
            segments.push(Segment::Bytes(part));
        }
        segments.push(Segment::Text(format!("\r\n--{boundary}--\r\n")));
        let response = self.describe(Response::new(Status::new(206)), &found).push_safety();
        let media_type = format!("multipart/byteranges; boundary={boundary}");
        self.send(response, media_type, FileSegments::new(found.file, segments))
    }

    /// Adds the body: at once if it is short, else streamed, if another file may be open.
    fn send(
        &self,
        response: Response,
        media_type: impl Into<Cow<'static, str>>,
        segments: FileSegments,
    ) -> Response {
        let response = response.push_checked("Content-Type", media_type);
        let length = segments.length();
        if length > SMALL {
            return match self.open.stream(segments) {
                Some(streamed) => response.with_stream(Some(length), streamed),
                None => refuse(Failure::Busy),
            };
        }
        match segments.read() {
            Ok(bytes) => response.with_bytes_only(bytes),
            Err(_) => refuse(Failure::Broken),
        }
    }

    /// Adds the fields that a 304 and its 200 share (RFC 9110 section 15.4.5).
    fn describe(&self, response: Response, found: &Representation) -> Response {
        let mut response = response.push_checked("ETag", found.validators.etag());
        if let Some(seconds) = found.validators.last_modified {
            let date = String::from_utf8_lossy(&imf_fixdate(seconds)).into_owned();
            response = response.push_checked("Last-Modified", date);
        }
        if let Some(value) = &self.cache_control {
            response = response.push_checked("Cache-Control", value.clone());
        }
        if self.precompressed {
            response = response.push_checked("Vary", "Accept-Encoding");
        }
        if let Some(encoding) = found.encoding
            && response.status() != Status::NOT_MODIFIED
        {
            response = response.push_checked("Content-Encoding", encoding.name());
        }
        response
    }
}

impl Response {
    /// Adds the security header of every file that is sent.
    fn push_safety(self) -> Self {
        self.push_checked("Accept-Ranges", "bytes")
            .push_checked("X-Content-Type-Options", "nosniff")
    }
}

fn content_range(part: &Range<u64>, length: u64) -> String {
    format!("bytes {}-{}/{length}", part.start, part.end - 1)
}
