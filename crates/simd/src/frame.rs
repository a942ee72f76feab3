//! Appending a frame to a buffer.

/// Appends a head of constant size and a payload to `out`, with one capacity check. Appending them
/// one after the other would check the capacity twice more, and store the length in between.
#[inline]
pub fn append<const N: usize>(head: [u8; N], payload: &[u8], out: &mut Vec<u8>) {
    let (start, added) = (out.len(), N + payload.len());
    out.reserve(added);
    // SAFETY: that many bytes were reserved just now.
    let room = unsafe { out.spare_capacity_mut().get_unchecked_mut(..added) };
    let (head_room, payload_room) = room.split_at_mut(N);
    head_room.write_copy_of_slice(&head);
    payload_room.write_copy_of_slice(payload);
    // SAFETY: the `added` bytes after `start` were written just now, all of them.
    unsafe { out.set_len(start + added) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_parts_are_appended_whatever_the_spare_capacity() {
        for room in 0..20 {
            for len in 0..12 {
                let payload: Vec<_> = (10..10 + len).collect();
                let mut out = Vec::with_capacity(1 + room);
                out.push(1);
                append([2, 3], &payload, &mut out);
                append([4], &[], &mut out);
                assert_eq!(out, [&[1, 2, 3], &payload[..], &[4]].concat());
            }
        }
    }
}
