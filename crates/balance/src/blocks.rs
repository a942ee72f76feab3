//! Networks of clients that operators have blocked for a time.
//!
//! Without any, a request costs one load. They are in memory only, and go on in a successor.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use throng_http::Network;

/// The most blocks.
pub const MAX_BLOCKS: usize = 65_536;

/// The longest name of an operator.
const MAX_NAME: usize = 128;

/// The reason of a refusal, for the log.
pub(crate) const BLOCKED: &str = "an operator has blocked the client's network";

/// All blocked networks, shared by all shards.
#[derive(Debug, Default)]
pub struct Blocks {
    count: AtomicUsize,
    all: RwLock<ByPrefix>,
}

#[derive(Debug, Default)]
struct ByPrefix {
    blocks: HashMap<Prefix, Block>,
    /// The numbers of blocks by family and length: an address is looked up with each length.
    lengths: BTreeMap<(bool, u8), usize>,
}

/// The first bits of the addresses of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Prefix {
    is_ipv4: bool,
    len: u8,
    bits: u128,
}

/// A blocked network.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Block {
    /// The network, such as `203.0.113.0/24`.
    pub network: String,
    /// When it ends, in seconds since 1970.
    pub until: u64,
    /// The name of the operator or program that has set it.
    pub by: String,
}

impl Prefix {
    fn new(address: IpAddr, len: u8) -> Self {
        let (bits, is_ipv4) = match address.to_canonical() {
            IpAddr::V4(address) => (u128::from(address.to_bits()) << 96, true),
            IpAddr::V6(address) => (address.to_bits(), false),
        };
        let mask = u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0);
        Self { is_ipv4, len, bits: bits & mask }
    }

    /// Reads a network, and returns it with its first address. The error is the remedy.
    fn read(text: &str) -> Result<(Self, String), String> {
        let network: Network = text.parse()?;
        let remedy = || "write a network such as 203.0.113.0/24, or an address".to_owned();
        let first = network.addresses().next().ok_or_else(remedy)?;
        let most = if first.is_ipv4() { 32 } else { 128 };
        let written = text.split_once('/').and_then(|(address, len)| {
            let is_mapped = address.contains(':') && first.is_ipv4();
            len.parse::<u8>().ok()?.checked_sub(if is_mapped { 96 } else { 0 })
        });
        let len = written.unwrap_or(most);
        Ok((Self::new(first, len), format!("{first}/{len}")))
    }
}

impl ByPrefix {
    fn remove_if(&mut self, is_over: impl Fn(&Prefix, &Block) -> bool) -> usize {
        let before = self.blocks.len();
        let Self { blocks, lengths } = self;
        blocks.retain(|prefix, block| {
            let goes = is_over(prefix, block);
            if goes && let Some(count) = lengths.get_mut(&(prefix.is_ipv4, prefix.len)) {
                *count -= 1;
            }
            !goes
        });
        lengths.retain(|_, count| *count > 0);
        before - blocks.len()
    }

    /// Returns whether an address is in a block that is not over.
    fn has(&self, address: IpAddr, now: u64) -> bool {
        let is_ipv4 = address.to_canonical().is_ipv4();
        let mut lengths = self.lengths.keys().filter(|(family, _)| *family == is_ipv4);
        lengths.any(|(_, len)| {
            let block = self.blocks.get(&Prefix::new(address, *len));
            block.is_some_and(|block| block.until > now)
        })
    }
}

impl Blocks {
    /// Returns whether requests of a client are refused.
    pub(crate) fn has(&self, client: IpAddr) -> bool {
        self.count.load(Relaxed) > 0 && self.has_now(client, unix_seconds(SystemTime::now()))
    }

    #[cold]
    fn has_now(&self, client: IpAddr, now: u64) -> bool {
        self.all.read().unwrap_or_else(PoisonError::into_inner).has(client, now)
    }

    /// Blocks a network for a time, or changes its block.
    ///
    /// # Errors
    /// The remedy.
    pub(crate) fn add(
        &self,
        network: &str,
        time: Duration,
        by: &str,
        now: SystemTime,
    ) -> Result<Block, String> {
        let until = unix_seconds(now).saturating_add(time.as_secs().max(1));
        let by: String = by.chars().filter(|it| !it.is_control()).take(MAX_NAME).collect();
        self.put(network, until, by, unix_seconds(now))
    }

    fn put(&self, network: &str, until: u64, by: String, now: u64) -> Result<Block, String> {
        let (prefix, network) = Prefix::read(network)?;
        let block = Block { network, until, by };
        let mut all = self.all.write().unwrap_or_else(PoisonError::into_inner);
        if all.blocks.len() >= MAX_BLOCKS {
            all.remove_if(|_, block| block.until <= now);
        }
        if all.blocks.len() >= MAX_BLOCKS && !all.blocks.contains_key(&prefix) {
            return Err(format!("there are {MAX_BLOCKS} blocks, which are the most"));
        }
        if all.blocks.insert(prefix, block.clone()).is_none() {
            *all.lengths.entry((prefix.is_ipv4, prefix.len)).or_default() += 1;
        }
        self.count.store(all.blocks.len(), Relaxed);
        Ok(block)
    }

    /// Ends the block of a network. Returns whether it had one.
    ///
    /// # Errors
    /// The remedy.
    pub(crate) fn remove(&self, network: &str) -> Result<bool, String> {
        let (prefix, _) = Prefix::read(network)?;
        let mut all = self.all.write().unwrap_or_else(PoisonError::into_inner);
        let removed = all.remove_if(|it, _| *it == prefix);
        self.count.store(all.blocks.len(), Relaxed);
        Ok(removed > 0)
    }

    /// Returns all blocks, in the order of their networks, and drops those that are over.
    pub(crate) fn list(&self, now: SystemTime) -> Vec<Block> {
        if self.count.load(Relaxed) == 0 {
            return Vec::new();
        }
        let now = unix_seconds(now);
        let mut all = self.all.write().unwrap_or_else(PoisonError::into_inner);
        all.remove_if(|_, block| block.until <= now);
        self.count.store(all.blocks.len(), Relaxed);
        let mut blocks: Vec<_> = all.blocks.iter().collect();
        blocks.sort_by_key(|(prefix, _)| (!prefix.is_ipv4, prefix.bits, prefix.len));
        blocks.into_iter().map(|(_, block)| block.clone()).collect()
    }

    /// Takes over the blocks of a predecessor.
    pub(crate) fn take_over(&self, blocks: &[Block], now: SystemTime) {
        let now = unix_seconds(now);
        for Block { network, until, by } in blocks.iter().filter(|block| block.until > now) {
            // It was checked there.
            let _ = self.put(network, *until, by.clone(), now);
        }
    }
}

fn unix_seconds(at: SystemTime) -> u64 {
    at.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn is_blocked(blocks: &Blocks, address: &str, now: u64) -> bool {
        blocks.has_now(address.parse().unwrap(), now)
    }

    #[test]
    fn networks_are_blocked_for_their_time() {
        let blocks = Blocks::default();
        let hour = Duration::from_secs(3600);
        let block = blocks.add("203.0.113.77/24", hour, "ops\n", at(100)).unwrap();
        let network = "203.0.113.0/24".to_owned();
        assert_eq!(block, Block { network, until: 3700, by: "ops".to_owned() });
        blocks.add("2001:db8::/64", hour, "a", at(100)).unwrap();
        blocks.add("203.0.0.0/16", Duration::from_secs(10), "b", at(100)).unwrap();
        blocks.add("::ffff:198.51.100.7", hour, "c", at(100)).unwrap();
        for (address, now, expected) in [
            ("203.0.113.5", 200, true),
            ("::ffff:203.0.113.5", 200, true),
            ("203.0.114.5", 105, true),
            ("203.0.114.5", 110, false),
            ("203.0.113.5", 3700, false),
            ("2001:db8::ffff", 200, true),
            ("2001:db8:0:1::", 200, false),
            ("198.51.100.7", 200, true),
            ("198.51.100.8", 200, false),
        ] {
            assert_eq!(is_blocked(&blocks, address, now), expected, "{address} at {now}");
        }
        assert!(blocks.remove("203.0.113.0/24").unwrap());
        assert!(!blocks.remove("203.0.113.0/24").unwrap());
        assert!(!is_blocked(&blocks, "203.0.113.5", 200));
        let successor = Blocks::default();
        successor.take_over(&blocks.list(at(120)), at(120));
        let networks: Vec<_> = successor.list(at(120)).into_iter().map(|it| it.network).collect();
        assert_eq!(networks, ["198.51.100.7/32", "2001:db8::/64"]);
        assert_eq!(successor.list(at(4000)), []);
        assert!(!successor.has("198.51.100.7".parse().unwrap()));
    }

    #[test]
    fn mistakes_have_remedies_and_there_is_a_most() {
        let blocks = Blocks::default();
        let hour = Duration::from_secs(3600);
        for text in ["", "x", "unix:", "10.0.0.0/33"] {
            assert!(blocks.add(text, hour, "", at(0)).is_err(), "{text}");
        }
        for number in 0..MAX_BLOCKS as u32 {
            let address = std::net::Ipv4Addr::from_bits(number);
            blocks.add(&address.to_string(), hour, "", at(0)).unwrap();
        }
        let full = blocks.add("10.0.0.1", hour, "", at(10)).unwrap_err();
        assert!(full.contains("65536 blocks"), "{full}");
        // Time makes place.
        blocks.add("10.0.0.1", hour, "", at(3600)).unwrap();
        assert_eq!(blocks.list(at(3600)).len(), 1);
    }
}
