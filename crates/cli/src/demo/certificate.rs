//! A certificate that signs itself, in files that last as long as the process.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The certificate for `localhost` and loopback addresses, and its key.
pub(super) struct OwnCertificate {
    folder: PathBuf,
    pub(super) chain: PathBuf,
    pub(super) key: PathBuf,
}

impl OwnCertificate {
    /// Makes one, in a new folder for temporary files that only this user can read.
    ///
    /// # Errors
    /// A file cannot be written.
    pub(super) fn make() -> io::Result<Self> {
        let [certificate, private_key] = generate()?;
        let folder = std::env::temp_dir().join(format!("throng-demo-{}", std::process::id()));
        private_folder(&folder)?;
        let (chain, key) = (folder.join("certificate.pem"), folder.join("private.key"));
        let own = Self { folder, chain, key };
        for (file, text) in [(&own.chain, certificate), (&own.key, private_key)] {
            // Never one that somebody else has put there.
            let mut file = std::fs::File::create_new(file)?;
            file.write_all(text.as_bytes())?;
        }
        Ok(own)
    }
}

/// Makes a certificate and its private key (PEM).
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

impl Drop for OwnCertificate {
    fn drop(&mut self) {
        // What is left of it is in the folder for temporary files.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[cfg(unix)]
fn private_folder(folder: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().mode(0o700).create(folder)
}

#[cfg(not(unix))]
fn private_folder(folder: &Path) -> io::Result<()> {
    std::fs::create_dir(folder)
}
