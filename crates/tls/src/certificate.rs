//! The contents of a peer's certificate, for display and for decisions.

use std::net::IpAddr;

use aws_lc_rs::digest::{SHA256, digest};
use x509_parser::extensions::GeneralName;
use x509_parser::objects::{oid_registry, oid2abbrev};
use x509_parser::x509::X509Name;

/// The owner of a certificate that was verified before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// The subject, such as `CN=client.example, O=Example`.
    pub subject: String,
    /// The subject's alternative names: host names, addresses, mail addresses and URIs.
    pub names: Vec<String>,
    /// The serial number in hexadecimal, such as `0a:1b`.
    pub serial: String,
    /// The SHA-256 of the certificate.
    pub fingerprint: [u8; 32],
}

impl Certificate {
    /// Reads a certificate in DER; `None` if it is not valid.
    #[must_use]
    pub fn parse(der: &[u8]) -> Option<Self> {
        let (_, parsed) = x509_parser::parse_x509_certificate(der).ok()?;
        let alternative = parsed.subject_alternative_name().ok().flatten();
        let names = alternative.iter().flat_map(|names| &names.value.general_names);
        Some(Self {
            subject: owner(parsed.subject()),
            names: names.filter_map(text).collect(),
            serial: parsed.raw_serial_as_string(),
            fingerprint: digest(&SHA256, der).as_ref().try_into().ok()?,
        })
    }
}

/// Returns a subject as text: characters that separate its parts are escaped as in RFC 4514 section
/// 2.4, so that no part can look like two.
fn owner(subject: &X509Name<'_>) -> String {
    let mut out = String::new();
    for attribute in subject.iter_attributes() {
        if !out.is_empty() {
            out.push_str(", ");
        }
        let oid = attribute.attr_type();
        let short = oid2abbrev(oid, oid_registry()).map(str::to_owned);
        out.push_str(&short.unwrap_or_else(|_| oid.to_id_string()));
        out.push('=');
        for character in attribute.as_str().unwrap_or_default().chars() {
            if ",+\"\\<>;=".contains(character) {
                out.push('\\');
            }
            out.push(character);
        }
    }
    out
}

/// Returns a name as text, if its type is a common one.
fn text(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) | GeneralName::RFC822Name(name) | GeneralName::URI(name) => {
            Some((*name).to_owned())
        }
        GeneralName::IPAddress(bytes) => {
            let address = <[u8; 4]>::try_from(*bytes).map(IpAddr::from);
            let address = address.or_else(|_| <[u8; 16]>::try_from(*bytes).map(IpAddr::from));
            address.ok().map(|address| address.to_string())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_says_who_its_owner_is() {
        let key = rcgen::KeyPair::generate().unwrap();
        let names = ["client.example", "10.0.0.1", "2001:db8::1"].map(str::to_owned);
        let mut params = rcgen::CertificateParams::new(names).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::CommonName, "client 7, O=other");
        params.distinguished_name.push(rcgen::DnType::OrganizationName, "own");
        params.serial_number = Some(rcgen::SerialNumber::from(0x0a1b));
        let made = params.self_signed(&key).unwrap();
        let certificate = Certificate::parse(made.der()).unwrap();
        assert_eq!(certificate.subject, "CN=client 7\\, O\\=other, O=own");
        assert_eq!(certificate.names, ["client.example", "10.0.0.1", "2001:db8::1"]);
        assert_eq!(certificate.serial, "0a:1b");
        assert_eq!(certificate.fingerprint, digest(&SHA256, made.der()).as_ref());
        assert_eq!(Certificate::parse(&made.der()[1..]), None);
    }
}
