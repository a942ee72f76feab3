//! Values of `--listen` that are not addresses: Unix sockets, and sockets that the service manager
//! opened before it started this process.

use throng::Error;
use throng::server::{Listener, SettingError};
use throng_config::Listen;
use throng_io::HeldListeners;

/// Opens the Unix sockets that `listen` names, with `mode` as permissions.
///
/// # Errors
/// A socket cannot be opened.
#[cfg(unix)]
pub(crate) fn open(
    listen: &[Listen<'_>],
    mode: u32,
    held: Option<&HeldListeners>,
) -> throng::Result<Vec<Listener>> {
    let open = |path: &str| {
        let failed = |source| Error::Bind { address: format!("unix:{path}"), source };
        let socket = match held {
            Some(held) => held.bind_unix(path, mode),
            None => throng::server::UnixSocket::bind(path, mode),
        };
        socket.map(Listener::from).map_err(failed)
    };
    let path = |listen: &Listen<'_>| match *listen {
        Listen::Unix(path) => Some(open(path)),
        _ => None,
    };
    listen.iter().filter_map(path).collect()
}

/// Does the same as on Unix without such sockets.
#[cfg(not(unix))]
pub(crate) fn open(
    listen: &[Listen<'_>],
    _mode: u32,
    _held: Option<&HeldListeners>,
) -> throng::Result<Vec<Listener>> {
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
/// A socket is missing.
pub(crate) fn take(
    listen: &[Listen<'_>],
    held: Option<&HeldListeners>,
) -> throng::Result<Vec<Listener>> {
    if !listen.iter().any(|listen| listen.is_inherited()) {
        return Ok(Vec::new());
    }
    let failed = |source| Error::Bind { address: "inherited sockets".to_owned(), source };
    let all = match held {
        Some(held) => held.inherited(),
        None => throng::server::inherited_listeners(),
    }
    .map_err(failed)?;
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
