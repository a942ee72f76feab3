//! The partitions of a cluster's channels over several servers.
//!
//! A channel is in one of 128 partitions, by a hash of its name, and a partition is on one server.
//! All nodes must agree on this: with another hash, tag or order they would form another cluster.

/// The number of partitions of a cluster's channels.
pub(crate) const PARTITIONS: u16 = 128;

/// Hash slots of a Redis Cluster.
const SLOTS: u16 = 16_384;

/// Letters of tags, and the maximum length of a tag.
const LETTERS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
const MAX_TAG: usize = 3;

/// Returns the partition of a channel.
pub(crate) fn partition_of(channel: &str) -> u16 {
    // The low bits of the product depend on all of the name.
    (mix(hash(channel)) % u64::from(PARTITIONS)) as u16
}

/// Returns the server of each partition: the server with the highest hash of server and partition
/// (rendezvous hashing). An added server takes its share from all others; no other partition moves.
pub(crate) fn servers_of(names: &[String]) -> Vec<u16> {
    let hashes: Vec<_> = names.iter().map(|name| hash(name)).collect();
    let best = |partition: u16| {
        let score = |server: &usize| mix(hashes[*server] ^ mix(u64::from(partition) + 1));
        (0..hashes.len()).max_by_key(score).unwrap_or(0) as u16
    };
    (0..PARTITIONS).map(best).collect()
}

/// Returns the tag of each partition. Names with this tag are in one slot, and the slots of
/// consecutive partitions are 128 apart, so that each master of a Redis Cluster has partitions in
/// proportion to its slots.
pub(crate) fn tags() -> Vec<String> {
    let mut of_slot = vec![None; usize::from(SLOTS)];
    let mut words = vec![Vec::new()];
    for _ in 0..MAX_TAG {
        let longer = |word: &Vec<u8>| {
            let word = word.clone();
            LETTERS.iter().map(move |letter| [&word[..], &[*letter]].concat())
        };
        words = words.iter().flat_map(longer).collect();
        for word in &words {
            of_slot[usize::from(slot(word))].get_or_insert_with(|| word.clone());
        }
    }
    let width = usize::from(SLOTS / PARTITIONS);
    let tag = |partition: usize| {
        let slots = &of_slot[partition * width..][..width];
        let middle = |at: &usize| at.abs_diff(width / 2);
        let nearest = (0..width).filter(|at| slots[*at].is_some()).min_by_key(middle);
        nearest.and_then(|at| slots[at].clone()).expect("words of three letters reach each part")
    };
    (0..usize::from(PARTITIONS))
        .map(|partition| String::from_utf8(tag(partition)).expect("it has letters only"))
        .collect()
}

/// Returns the slot of a tag: CRC-16 with the polynomial 0x1021, as in the Redis Cluster
/// specification.
pub(crate) fn slot(tag: &[u8]) -> u16 {
    let crc = tag.iter().fold(0u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    });
    crc % SLOTS
}

/// FNV-1a.
fn hash(name: &str) -> u64 {
    let step = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    name.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

/// The finalizer of SplitMix64: each bit of the result depends on all input bits.
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_and_tags_are_those_of_other_releases() {
        let partitions = ["", "a", "chat.lobby", "user.ann"].map(partition_of);
        assert_eq!(partitions, [27, 120, 108, 23]);
        let tags = tags();
        assert_eq!([&tags[0], &tags[1], &tags[64], &tags[127]], ["5n3", "d5m", "7lu", "45c"]);
        // The example of the specification, and a key checked with `CLUSTER KEYSLOT`.
        assert_eq!((slot(b"123456789"), slot(b"user1000")), (0x31c3, 3_443));
    }

    #[test]
    fn partitions_are_spread_over_any_number_of_masters() {
        let slots: Vec<_> = tags().iter().map(|tag| slot(tag.as_bytes())).collect();
        assert!(slots.is_sorted());
        for masters in 1..=128usize {
            let mut counts = vec![0; masters];
            slots.iter().for_each(|slot| counts[usize::from(*slot) * masters / 16_384] += 1);
            let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
            assert!(most - least <= 1, "{masters} masters: {counts:?}");
        }
    }

    #[test]
    fn channels_are_spread_over_all_partitions() {
        let mut counts = vec![0; usize::from(PARTITIONS)];
        (0..128_000).for_each(|n| counts[usize::from(partition_of(&format!("chat.{n}")))] += 1);
        assert!(counts.iter().all(|count| (800..1_200).contains(count)), "{counts:?}");
    }

    #[test]
    fn a_server_that_is_added_takes_partitions_from_all_others_and_moves_no_other() {
        let names: Vec<_> = (0..6).map(|n| format!("10.0.0.{n}:6379")).collect();
        for count in 1..names.len() {
            let (before, after) = (servers_of(&names[..count]), servers_of(&names[..=count]));
            let moved = before.iter().zip(&after).filter(|(before, after)| before != after);
            let moved: Vec<_> = moved.map(|(_, after)| usize::from(*after)).collect();
            assert!(moved.iter().all(|after| *after == count));
            let fair = 128 / (count + 1);
            assert!((fair / 2..2 * fair).contains(&moved.len()), "{count}: {}", moved.len());
        }
        let reversed: Vec<_> = names.iter().rev().cloned().collect();
        let other = servers_of(&reversed);
        for (one, other) in servers_of(&names).iter().zip(&other) {
            assert_eq!(names[usize::from(*one)], reversed[usize::from(*other)]);
        }
    }
}
