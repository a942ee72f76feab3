//! The contents of a peer's certificate, for display and for decisions.

use std::net::IpAddr;

use aws_lc_rs::digest::{SHA256, digest};
use x509_parser::extensions::GeneralName;

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
            subject: parsed.subject().to_string(),
            names: names.filter_map(text).collect(),
            serial: parsed.raw_serial_as_string(),
            fingerprint: digest(&SHA256, der).as_ref().try_into().ok()?,
        })
    }
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
        params.distinguished_name.push(rcgen::DnType::CommonName, "client 7");
        params.serial_number = Some(rcgen::SerialNumber::from(0x0a1b));
        let made = params.self_signed(&key).unwrap();
        let certificate = Certificate::parse(made.der()).unwrap();
        assert!(certificate.subject.contains("CN=client 7"), "{}", certificate.subject);
        assert_eq!(certificate.names, ["client.example", "10.0.0.1", "2001:db8::1"]);
        assert_eq!(certificate.serial, "0a:1b");
        assert_eq!(certificate.fingerprint, digest(&SHA256, made.der()).as_ref());
        assert_eq!(Certificate::parse(&made.der()[1..]), None);
    }
}
