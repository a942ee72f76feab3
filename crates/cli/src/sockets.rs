//! Values of `--listen` that are no addresses: Unix sockets, and sockets that the service manager
//! opened before it started this process.

use std::net::SocketAddr;

use throng::{Error, Listener, SettingError};

/// A value of `--listen`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Listen<'a> {
    /// `HOST:PORT`.
    Address(&'a str),
    /// `fd:N`: the inherited socket of this descriptor.
    Descriptor(i32),
    /// `systemd`: all inherited sockets.
    Inherited,
    /// `unix:PATH`.
    Unix(&'a str),
}

impl<'a> Listen<'a> {
    pub(crate) fn parse(text: &'a str) -> Self {
        let descriptor = || text.strip_prefix("fd:")?.parse().ok();
        match descriptor() {
            Some(number) => Self::Descriptor(number),
            None if text == "systemd" => Self::Inherited,
            None => text.strip_prefix("unix:").map_or(Self::Address(text), Self::Unix),
        }
    }

    pub(crate) fn is_inherited(self) -> bool {
        matches!(self, Self::Descriptor(_) | Self::Inherited)
    }

    pub(crate) fn is_address(self) -> bool {
        matches!(self, Self::Address(_))
    }

    /// Returns the addresses of the sockets that it stands for, whether they were taken or not; a
    /// Unix socket has none. Empty if they cannot be had, which [`take`] reports.
    pub(crate) fn addresses(self) -> Vec<Option<SocketAddr>> {
        if matches!(self, Self::Unix(_)) {
            return vec![None];
        }
        let all = throng::inherited_addresses().unwrap_or_default();
        let is_meant = |descriptor| match self {
            Self::Address(_) | Self::Unix(_) => false,
            Self::Descriptor(number) => number == descriptor,
            Self::Inherited => true,
        };
        let meant = all.into_iter().filter(|(descriptor, _)| is_meant(*descriptor));
        meant.map(|(_, address)| address).collect()
    }
}

/// Opens the Unix sockets that `listen` names, with `mode` as permissions.
///
/// # Errors
/// One cannot be opened.
#[cfg(unix)]
pub(crate) fn open(listen: &[Listen<'_>], mode: u32) -> throng::Result<Vec<Listener>> {
    let open = |path: &str| {
        let failed = |source| Error::Bind { address: format!("unix:{path}"), source };
        throng::UnixSocket::bind(path, mode).map(Listener::from).map_err(failed)
    };
    let path = |listen: &Listen<'_>| match *listen {
        Listen::Unix(path) => Some(open(path)),
        _ => None,
    };
    listen.iter().filter_map(path).collect()
}

/// As on Unix, where there are none.
#[cfg(not(unix))]
pub(crate) fn open(listen: &[Listen<'_>], _mode: u32) -> throng::Result<Vec<Listener>> {
    match listen.iter().any(|listen| matches!(listen, Listen::Unix(_))) {
        true => {
            Err(SettingError::new("listen", "Unix sockets are for Unix: write HOST:PORT").into())
        }
        false => Ok(Vec::new()),
    }
}

/// Takes the inherited sockets that `listen` names, and closes the others.
///
/// # Errors
/// One is missing.
pub(crate) fn take(listen: &[Listen<'_>]) -> throng::Result<Vec<Listener>> {
    if !listen.iter().any(|listen| listen.is_inherited()) {
        return Ok(Vec::new());
    }
    let failed = |source| Error::Bind { address: "inherited sockets".to_owned(), source };
    let all = throng::inherited_listeners().map_err(failed)?;
    for wanted in listen {
        if let Listen::Descriptor(number) = wanted
            && all.iter().all(|socket| socket.descriptor != *number)
        {
            let last = all.len() + 2;
            let message =
                format!("listen is fd:{number}; the descriptors passed on are fd:3 to fd:{last}");
            return Err(SettingError::new("listen", message).into());
        }
    }
    let is_wanted = |descriptor| {
        listen.contains(&Listen::Inherited) || listen.contains(&Listen::Descriptor(descriptor))
    };
    let wanted = all.into_iter().filter(|socket| is_wanted(socket.descriptor));
    Ok(wanted.map(|socket| socket.listener).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inherited_sockets_are_distinguished_from_addresses() {
        for (text, expected) in [
            ("systemd", Listen::Inherited),
            ("fd:3", Listen::Descriptor(3)),
            ("fd:x", Listen::Address("fd:x")),
            ("127.0.0.1:80", Listen::Address("127.0.0.1:80")),
            ("systemd:80", Listen::Address("systemd:80")),
            ("unix:/run/app.sock", Listen::Unix("/run/app.sock")),
        ] {
            assert_eq!(Listen::parse(text), expected, "{text}");
        }
    }
}
