//! The addresses of this machine, which show whether an address leads back to this process.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The time for which a list is used. Reading one takes some microseconds for each interface, and a
/// file may have thousands of backends.
const FRESH: Duration = Duration::from_secs(1);

/// The addresses of all interfaces.
#[derive(Debug)]
pub(crate) struct Machine {
    /// `None`: the system does not list them to this process.
    own: Option<Vec<IpAddr>>,
    broadcasts: Vec<Ipv4Addr>,
}

impl Machine {
    /// Returns the addresses, at most a second old.
    pub(crate) fn now() -> Arc<Self> {
        static LAST: Mutex<Option<(Instant, Arc<Machine>)>> = Mutex::new(None);
        let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some((read, machine)) if read.elapsed() < FRESH => Arc::clone(machine),
            _ => {
                let machine = Arc::new(Self::read());
                *last = Some((Instant::now(), Arc::clone(&machine)));
                machine
            }
        }
    }

    fn read() -> Self {
        let Ok(interfaces) = if_addrs::get_if_addrs() else {
            // A sandbox without netlink sockets, for example.
            return Self { own: None, broadcasts: Vec::new() };
        };
        let broadcasts = interfaces.iter().filter_map(|interface| match &interface.addr {
            // The system names none for loopback.
            if_addrs::IfAddr::V4(address) => address.broadcast.or_else(|| last(address)),
            if_addrs::IfAddr::V6(_) => None,
        });
        let broadcasts = broadcasts.collect();
        let own = interfaces.iter().map(|interface| interface.ip().to_canonical()).collect();
        Self { own: Some(own), broadcasts }
    }

    /// Returns whether connections to `ip`, in its canonical form, stay on this machine.
    pub(crate) fn has(&self, ip: IpAddr) -> bool {
        ip.is_loopback()
            || match &self.own {
                Some(own) => own.contains(&ip),
                // Only addresses of the machine can be bound, unless ip_nonlocal_bind is set: then
                // too many are refused, and none leads back.
                None => UdpSocket::bind((ip, 0)).is_ok(),
            }
    }

    /// Returns whether `ip` is the broadcast address of a network.
    pub(crate) fn is_broadcast(&self, ip: IpAddr) -> bool {
        match ip {
            IpAddr::V4(ip) => ip.is_broadcast() || self.broadcasts.contains(&ip),
            IpAddr::V6(_) => false,
        }
    }
}

/// Returns the last address of an interface's network, by which all its machines are reached;
/// `None` for a network of one or two (RFC 3021).
fn last(address: &if_addrs::Ifv4Addr) -> Option<Ipv4Addr> {
    let mask = address.netmask.to_bits();
    (mask.count_zeros() > 1).then(|| Ipv4Addr::from_bits(address.ip.to_bits() | !mask))
}

#[cfg(test)]
impl Machine {
    /// Creates a list with these addresses; without any, the system does not list them.
    pub(crate) fn with(own: Option<&[&str]>, broadcasts: &[&str]) -> Self {
        let parse = |ip: &&str| ip.parse().unwrap();
        Self {
            own: own.map(|own| own.iter().map(parse).collect()),
            broadcasts: broadcasts.iter().map(|ip| ip.parse().unwrap()).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_an_interface_is_of_this_machine_however_it_is_found() {
        let listed = Machine::now();
        let own = listed.own.as_deref().expect("no sandbox");
        let loopback = IpAddr::from([127, 0, 0, 1]);
        assert!(own.contains(&loopback), "{own:?}");
        // TEST-NET-3 belongs to no machine.
        let strange = IpAddr::from([203, 0, 113, 7]);
        for machine in [&*listed, &Machine::with(None, &[])] {
            assert!(own.iter().all(|&ip| is_link_local(ip) || machine.has(ip)), "{machine:?}");
            assert!(machine.has(IpAddr::from([127, 9, 9, 9])));
            assert!(!machine.has(strange) && !machine.is_broadcast(strange));
            assert!(machine.is_broadcast(IpAddr::from([255, 255, 255, 255])));
        }
        assert!(Machine::with(None, &["10.0.0.255"]).is_broadcast(IpAddr::from([10, 0, 0, 255])));
    }

    /// It cannot be bound without its interface.
    fn is_link_local(ip: IpAddr) -> bool {
        matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
    }
}
