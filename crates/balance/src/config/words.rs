//! The words for choices, in files, flags and the API.

use std::str::FromStr;

use throng_config::units::did_you_mean;

use crate::settings::{Observe, Pick, Removed, SameSite, Sticky};

/// All picks with their words.
const PICKS: [(&str, Pick); 6] = [
    ("power_of_two", Pick::PowerOfTwo),
    ("least_connections", Pick::LeastConnections),
    ("round_robin", Pick::RoundRobin),
    ("rendezvous", Pick::Rendezvous),
    ("random", Pick::Random),
    ("ip_hash", Pick::IpHash),
];

impl Pick {
    /// Returns its word in files, flags and the API.
    #[must_use]
    pub fn word(self) -> &'static str {
        PICKS.iter().find(|(_, pick)| *pick == self).map_or("", |(word, _)| word)
    }
}

impl FromStr for Pick {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words = PICKS.map(|(word, _)| word);
        PICKS.iter().find(|(word, _)| *word == text).map(|(_, pick)| *pick).ok_or_else(|| {
            did_you_mean(text, words)
                .unwrap_or_else(|| format!("write one of {}", words.join(", ")))
        })
    }
}

impl FromStr for Observe {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        match text {
            "connections" => Ok(Self::Connections),
            "answers" => Ok(Self::Answers),
            _ => Err("write \"connections\" or \"answers\""),
        }
    }
}

impl FromStr for Removed {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        match text {
            "keep" => Ok(Self::Keep),
            "drain" => Ok(Self::Drain),
            _ => Err("write \"keep\" or \"drain\""),
        }
    }
}

impl SameSite {
    /// Returns the value of the attribute, and whether it needs `Secure`.
    pub(crate) const fn attribute(self) -> (&'static str, bool) {
        match self {
            Self::Lax => ("Lax", false),
            Self::Strict => ("Strict", false),
            Self::None => ("None", true),
        }
    }
}

impl FromStr for SameSite {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        match text {
            "lax" => Ok(Self::Lax),
            "strict" => Ok(Self::Strict),
            "none" => Ok(Self::None),
            _ => Err("write \"lax\", \"strict\" or \"none\""),
        }
    }
}

/// Parses `none`, `ip`, `cookie:NAME`, `header:NAME` and `query:NAME`.
impl FromStr for Sticky {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        match text.split_once(':') {
            None if text == "none" => Ok(Self::None),
            None if text == "ip" => Ok(Self::Ip),
            Some(("cookie", name)) => Ok(Self::Cookie(name.to_owned())),
            Some(("header", name)) => Ok(Self::Header(name.to_owned())),
            Some(("query", name)) => Ok(Self::Query(name.to_owned())),
            _ => Err("write \"none\", \"ip\", \"cookie:NAME\", \"header:NAME\" or \"query:NAME\""),
        }
    }
}
