//! Uploads and downloads of any size, which are never held in memory whole.
//!
//! ```text
//! cargo run --release --example files -- /tmp/shelf
//! curl -T video.mkv http://127.0.0.1:9001/files/video.mkv
//! curl -O http://127.0.0.1:9001/files/video.mkv
//! curl http://127.0.0.1:9001/sum/video.mkv
//! ```
//!
//! An upload is written chunk by chunk. A download may request a part (`-r 0-99`) or continue an
//! earlier one (`-C -`). A checksum is computed on a worker, so other requests do not wait for it.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::{env, fs, thread};

use throng::http::BodyReader;
use throng::prelude::*;

/// Files of up to a tebibyte.
const MAX_FILE: u64 = 1 << 40;

/// Returns a path that cannot point outside of the shelf.
fn place(shelf: &Path, request: &Request<'_>) -> Option<PathBuf> {
    let name = request.param("name")?;
    let is_plain = name.chars().all(|c| c.is_alphanumeric() || "._-".contains(c));
    (is_plain && !name.starts_with('.')).then(|| shelf.join(name))
}

/// Writes to a temporary file first, so that no client downloads half a file.
fn save(mut body: BodyReader, path: &Path) -> io::Result<u64> {
    let part = path.with_extension("part");
    let bytes = io::copy(&mut body, &mut File::create(&part)?)?;
    fs::rename(part, path)?;
    Ok(bytes)
}

fn sum(path: &Path) -> io::Result<u64> {
    let (mut file, mut buffer, mut sum) = (File::open(path)?, vec![0; 64 << 10], 0u64);
    loop {
        let bytes = match file.read(&mut buffer)? {
            0 => return Ok(sum),
            count => &buffer[..count],
        };
        sum = bytes.iter().fold(sum, |sum, &byte| sum.rotate_left(5) ^ u64::from(byte));
    }
}

fn main() -> throng::Result<()> {
    let shelf = PathBuf::from(env::args().nth(1).unwrap_or_else(|| ".".to_owned()));
    let (up, summed) = (shelf.clone(), shelf.clone());
    let upload = Route::streaming(Method::Put, move |request, body, responder| {
        let Some(path) = place(&up, request) else {
            return responder.send((400, "a file's name has letters, digits, and . _ -"));
        };
        // A thread for each upload: it reads from the network and writes to the disk, and may block
        // on both.
        thread::spawn(move || match save(body, &path) {
            Ok(bytes) => responder.send((201, format!("{bytes} bytes\n"))),
            Err(error) => responder.send((500, error.to_string())),
        });
    });
    let sums = Route::deferred(Method::Get, move |request, responder| {
        let Some(path) = place(&summed, request) else {
            return responder.send(Status::NOT_FOUND);
        };
        thread::spawn(move || match sum(&path) {
            Ok(sum) => responder.send(format!("{sum:016x}\n")),
            Err(error) => responder.send((404, error.to_string())),
        });
    });
    let app = App::new()
        .dir("/files", shelf)
        .route("/files/{name}", upload.max_body(MAX_FILE))
        .route("/sum/{name}", sums);
    Server::new(app).bind("127.0.0.1:9001")?.run()
}
