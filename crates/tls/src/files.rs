//! Certificates, keys and lists of revoked certificates, from files in PEM.

use std::path::Path;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use throng_io::file::{self, FileError};
use throng_proto::pem::{Block, PemError, Wanted};
use zeroize::Zeroizing;

use crate::error::ConfigError;

/// The text of a file that may contain a private key: it is wiped when dropped.
pub type Text = Zeroizing<Vec<u8>>;

/// The certificates of a file, in its order.
#[derive(Clone, PartialEq, Eq)]
pub struct Chain {
    /// The certificates.
    pub certificates: Vec<CertificateDer<'static>>,
    /// The line at which each begins in the file.
    pub lines: Vec<usize>,
}

/// Reads a file.
///
/// # Errors
/// It is missing, or out of reach.
pub fn read(file: &Path) -> Result<Text, ConfigError> {
    let text = file::read(file).map(Zeroizing::new);
    text.map_err(|error| out_of_reach(file, &error))
}

/// Returns whether there is a file.
///
/// # Errors
/// The file is inaccessible.
pub fn exists(file: &Path) -> Result<bool, ConfigError> {
    file::exists(file).map_err(|error| out_of_reach(file, &error))
}

fn out_of_reach(file: &Path, error: &FileError) -> ConfigError {
    ConfigError::new(file, error.to_string()).passing_if(error.may_pass())
}

/// Reads certificates of authorities.
pub(crate) fn read_authorities(file: &Path) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    let Chain { certificates, lines } = chain(file, &read(file)?, Wanted::Authorities)?;
    for (certificate, line) in certificates.iter().zip(lines) {
        let usable = webpki::anchor_from_trusted_cert(certificate);
        usable.map_err(|error| {
            let what = format!("line {line}: this authority cannot be used: {error}");
            ConfigError::new(file, what)
        })?;
    }
    Ok(certificates)
}

/// Reads lists of revoked certificates.
pub(crate) fn read_revoked(
    file: &Path,
) -> Result<Vec<CertificateRevocationListDer<'static>>, ConfigError> {
    let text = read(file)?;
    let blocks = Wanted::Revoked.blocks(&text).map_err(|error| wrong(file, &error))?;
    let list = |block: &Block<'_>| {
        let list: CertificateRevocationListDer<'_> = decode(file, block)?;
        webpki::OwnedCertRevocationList::from_der(&list).map_err(|error| {
            let line = block.line;
            let what =
                format!("line {line}: this list of revoked certificates cannot be used: {error}");
            ConfigError::new(file, what)
        })?;
        Ok(list)
    };
    blocks.iter().map(list).collect()
}

/// Reads the certificates in the text of a file: for [`Wanted::Chain`] or [`Wanted::Authorities`].
///
/// # Errors
/// The text has none, or something else.
pub fn chain(file: &Path, text: &Text, wanted: Wanted) -> Result<Chain, ConfigError> {
    let blocks = wanted.blocks(text).map_err(|error| wrong(file, &error))?;
    let certificates = blocks.iter().map(|block| decode(file, block)).collect::<Result<_, _>>()?;
    Ok(Chain { certificates, lines: blocks.iter().map(|block| block.line).collect() })
}

/// Reads the private key in the text of a file, which is wiped when dropped.
///
/// # Errors
/// The text has none.
pub fn key(file: &Path, text: &Text) -> Result<Zeroizing<PrivateKeyDer<'static>>, ConfigError> {
    let blocks = Wanted::Key.blocks(text).map_err(|error| wrong(file, &error))?;
    decode(file, &blocks[0]).map(Zeroizing::new)
}

fn decode<T: PemObject>(file: &Path, block: &Block<'_>) -> Result<T, ConfigError> {
    let pem = Zeroizing::new(block.to_pem());
    T::from_pem_slice(&pem).map_err(|error| {
        let what = format!("the block is not valid PEM: {error}; copy the file again");
        wrong(file, &PemError::at(block.line, what))
    })
}

fn wrong(file: &Path, error: &PemError) -> ConfigError {
    ConfigError::new(file, error.to_string())
}
