//! A self-signed certificate, in files that last as long as the process.

use std::io::{self, Write};
use std::path::PathBuf;

use crate::folder::Folder;

/// The certificate for `localhost` and loopback addresses, and its key.
pub(super) struct OwnCertificate {
    pub(super) chain: PathBuf,
    pub(super) key: PathBuf,
    _folder: Folder,
}

impl OwnCertificate {
    /// Creates one, in a new folder for temporary files that only this user can read.
    ///
    /// # Errors
    /// A file cannot be written.
    pub(super) fn make() -> io::Result<Self> {
        let [certificate, private_key] = generate()?;
        let folder = Folder::make("throng-demo")?;
        let path = folder.path();
        let (chain, key) = (path.join("certificate.pem"), path.join("private.key"));
        let own = Self { chain, key, _folder: folder };
        for (file, text) in [(&own.chain, certificate), (&own.key, private_key)] {
            // Never use a file that another user has created.
            let mut file = std::fs::File::create_new(file)?;
            file.write_all(text.as_bytes())?;
        }
        Ok(own)
    }
}

/// Creates a certificate and its private key (PEM).
#[cfg(feature = "tls")]
fn generate() -> io::Result<[String; 2]> {
    let names = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
    let made = rcgen::generate_simple_self_signed(names).map_err(io::Error::other)?;
    Ok([made.cert.pem(), made.signing_key.serialize_pem()])
}

#[cfg(not(feature = "tls"))]
fn generate() -> io::Result<[String; 2]> {
    Err(io::Error::other(crate::NO_TLS))
}
