//! Certificates, keys and lists of revoked certificates, from files in PEM.

use std::path::Path;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use throng_io::file::{self, FileError};
use throng_proto::pem::{Block, PemError, Wanted};
use x509_parser::x509::X509Version;
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
        check_whole(file, block.line, &list)?;
        webpki::OwnedCertRevocationList::from_der(&list).map_err(|error| {
            let why = flaw_of_list(&list).map_or_else(|| error.to_string(), str::to_owned);
            let line = block.line;
            let what =
                format!("line {line}: this list of revoked certificates cannot be used: {why}");
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
    let certificate = |block: &Block<'_>| {
        let certificate: CertificateDer<'static> = decode(file, block)?;
        check_whole(file, block.line, &certificate)?;
        Ok::<_, ConfigError>(certificate)
    };
    let certificates = blocks.iter().map(certificate).collect::<Result<_, _>>()?;
    Ok(Chain { certificates, lines: blocks.iter().map(|block| block.line).collect() })
}

/// Reads the private key in the text of a file, which is wiped when dropped.
///
/// # Errors
/// The text has none.
pub fn key(file: &Path, text: &Text) -> Result<Zeroizing<PrivateKeyDer<'static>>, ConfigError> {
    let blocks = Wanted::Key.blocks(text).map_err(|error| wrong(file, &error))?;
    let key: PrivateKeyDer<'static> = decode(file, &blocks[0])?;
    let key = Zeroizing::new(key);
    check_whole(file, blocks[0].line, key.secret_der())?;
    Ok(key)
}

/// Returns what a list of revoked certificates lacks, with the remedy: the fields that RFC 5280
/// section 5 requires of it.
fn flaw_of_list(list: &[u8]) -> Option<&'static str> {
    let (_, list) = x509_parser::parse_x509_crl(list).ok()?;
    if list.version() != Some(X509Version::V2) {
        return Some(
            "it is of version 1; make one of version 2: `openssl ca -gencrl` needs \
             crl_extensions and crlnumber in its configuration",
        );
    }
    if list.extensions().is_empty() {
        return Some(
            "it has no number and no key identifier; `openssl ca -gencrl` needs crl_extensions \
             with authorityKeyIdentifier, and crlnumber, in its configuration",
        );
    }
    list.next_update().is_none().then_some(
        "it names no next update; `openssl ca -gencrl` needs default_crl_days in its \
         configuration, or -crldays",
    )
}

/// Checks that the data of a block have the length that they begin with: base64 without some of its
/// lines is still base64.
fn check_whole(file: &Path, line: usize, der: &[u8]) -> Result<(), ConfigError> {
    let has = der.len();
    let what = match stated_len(der) {
        Some(stated) if has < stated => {
            format!("the block is cut off: {has} of its {stated} bytes are there")
        }
        Some(stated) if has > stated => {
            format!("the block has {has} bytes, and its data end after {stated}")
        }
        _ => return Ok(()),
    };
    Err(ConfigError::new(file, format!("line {line}: {what}; copy the file again")))
}

/// Returns the length of a sequence in DER by its header (ITU-T X.690 section 8.1.3).
fn stated_len(der: &[u8]) -> Option<usize> {
    let [0x30, first, rest @ ..] = der else { return None };
    match *first {
        short @ ..=0x7f => Some(2 + usize::from(short)),
        long @ 0x81..=0x84 => {
            let digits = rest.get(..usize::from(long - 0x80))?;
            let length = digits.iter().fold(0_usize, |sum, byte| (sum << 8) | usize::from(*byte));
            length.checked_add(2 + digits.len())
        }
        _ => None,
    }
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
