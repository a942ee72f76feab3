//! The contract suite: every rule of [`driver`](throng_io::driver), as tests that run on every
//! driver.
//!
//! A driver brings a [`Rig`], which provides the driver and plays the far end of its connections,
//! and instantiates the suite with [`contract_suite!`](crate::contract_suite). No test assumes
//! sockets or real time: each runs until a condition holds, by the driver's own clock. In every
//! test, a [`World`](world::World) also checks at each event the rules that hold at all times: C3,
//! C4 and C5 for every id.

pub mod bytes;
pub mod ends;
pub mod parking;
pub mod sends;
pub mod tcp;
#[cfg(unix)]
pub mod unix;
pub mod waits;
pub mod world;

use std::net::SocketAddr;
use std::time::Duration;

use throng_io::PeerAddress;
use throng_io::driver::{Driver, ListenerId};

/// A driver under test and its environment.
pub trait Rig: Sized {
    /// The driver under test.
    type Driver: Driver;
    /// The far end of one connection. Dropping it may leave the connection open.
    type Peer;
    /// A listener of the environment, which the driver can connect to.
    type Remote;

    /// Whether other threads can call the driver's waker during a wait.
    const THREADS: bool = true;
    /// Whether the driver secures accepted connections; they are complete when that is done.
    const SECURES: bool = false;
    /// Length of one wait while a test polls for a condition, in the driver's time.
    const SLICE: Duration = Duration::from_millis(5);
    /// The time that a condition may take, in the driver's time, before the test fails.
    const TIMEOUT: Duration = Duration::from_secs(120);
    /// More bytes than fit between a sender and a receiver that does not read, in either direction.
    const CAPACITY: usize;

    /// Creates a rig without connections.
    fn new() -> Self;

    /// Returns the driver.
    fn driver(&mut self) -> &mut Self::Driver;

    /// Advances the environment while no wait runs. Does nothing where it advances by itself.
    fn step(&mut self) {}

    /// Makes the driver listen on one address, and returns it. Returns the same address at each
    /// call.
    fn listen(&mut self) -> SocketAddr;

    /// Makes the driver listen on an additional address.
    fn listen_also(&mut self) -> (ListenerId, SocketAddr);

    /// Connects a peer, whether the driver has accepted it yet or not. `None`: refused.
    fn dial(&mut self, to: SocketAddr) -> Option<Self::Peer>;

    /// Returns a listener for the driver to connect to, and its address.
    fn remote(&mut self) -> (Self::Remote, PeerAddress);

    /// Accepts the next connection of a remote, if there is one.
    fn accept(&mut self, remote: &mut Self::Remote) -> Option<Self::Peer>;

    /// Returns an address that refuses connections.
    fn refusing_address(&mut self) -> PeerAddress;

    /// Makes the peer write as much as fits at once; returns how much.
    fn write(&mut self, peer: &mut Self::Peer, bytes: &[u8]) -> usize;

    /// Makes the peer read available bytes, up to 64 KiB, to the end of `into`.
    fn read(&mut self, peer: &mut Self::Peer, into: &mut Vec<u8>) -> PeerRead;

    /// Ends the peer's side of the stream.
    fn finish(&mut self, peer: &mut Self::Peer);

    /// Makes the peer reset the connection.
    fn reset(&mut self, peer: Self::Peer);

    /// Replaces the driver by its successor: of the same shard, on the same system, without
    /// listeners and connections. Returns the driver that was replaced.
    fn replace_driver(&mut self) -> Self::Driver;

    /// Duplicates a descriptor, as sending it to another process does.
    fn duplicate(
        descriptor: &<Self::Driver as Driver>::Descriptor,
    ) -> <Self::Driver as Driver>::Descriptor;

    /// Makes accepting fail for lack of descriptors from now on, or work again. Returns false if
    /// this rig cannot do that; the test is then skipped.
    fn exhaust_descriptors(&mut self, exhaust: bool) -> bool;
}

/// The result of a peer's read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerRead {
    /// Bytes.
    Bytes,
    /// Nothing yet.
    Nothing,
    /// The driver's side ended the stream.
    Finished,
    /// The driver's side reset the connection.
    Reset,
}

/// Returns bytes that differ from their neighbours and from page to page.
#[must_use]
pub fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at ^ at >> 8 ^ at >> 16) as u8 ^ seed).collect()
}

/// Defines a `#[test]` for each test of the suite on a [`Rig`]. With `without resets` it omits
/// tests that need a reset, which Unix sockets do not have.
#[macro_export]
macro_rules! contract_suite {
    ($rig:ty) => {
        $crate::contract_suite!($rig, without resets);
        $crate::contract_suite!($rig;
            sends: c3_reset_returns_the_batch_before_closed,
            sends: c3_reset_returns_the_batch_while_paused,
            sends: c3_try_send_on_a_closed_connection_takes_nothing,
            ends: c4_a_reset_and_a_close_are_one_end,
            ends: c8_a_reset_found_by_a_send_is_reported_while_paused,
            ends: c9_a_reset_that_comes_with_the_end_of_stream_is_reported,
            ends: c9_input_before_a_reset_is_delivered_during_a_send,
            ends: c9_input_before_a_reset_is_delivered_though_sends_fail,
            ends: c9_reset_is_distinguished_from_end_of_stream,
            ends: c9_the_peer_sees_close_as_an_end_and_abort_as_a_reset,
            parking: c14_a_reset_while_parked_is_reported_after,
            waits: c8_a_paused_connection_reports_a_reset,
        );
    };
    ($rig:ty, without resets) => {
        $crate::contract_suite!($rig;
            bytes: c1_lent_bytes_are_sent_in_place,
            bytes: c1_lent_bytes_are_copied_when_the_send_must_wait,
            bytes: c1_lent_bytes_survive_every_call_but_the_next_event,
            bytes: c1_nothing_is_lent_without_a_receive,
            bytes: c1_parts_of_lent_bytes_are_sent_between_others,
            bytes: c2_bytes_arrive_in_order_and_once,
            bytes: c2_bytes_before_the_end_of_stream_come_before_it,
            bytes: c2_both_directions_at_once,
            bytes: c2_more_segments_than_one_vectored_send_takes,
            bytes: c2_more_than_a_thousand_connections,
            bytes: c11_bytes_in_flight_are_not_overwritten,
            sends: c3_a_send_that_fits_is_returned_at_once,
            sends: c3_a_send_that_must_wait_is_returned_once,
            sends: c3_a_slow_reader_gets_every_byte,
            sends: c3_close_returns_the_batch_before_closed,
            sends: c3_abort_returns_the_batch_before_closed,
            sends: c3_unsent_falls_while_a_slow_reader_reads,
            sends: c3_try_send_takes_what_fits_and_send_takes_the_rest,
            sends: c3_a_send_before_connected_leaves_when_it_is,
            ends: c4_closed_comes_once_and_last,
            ends: c4_a_cancelled_connect_is_closed_once,
            ends: c5_an_event_of_a_closed_connection_does_not_reach_its_successor,
            ends: c5_stale_ids_do_nothing,
            ends: c5_unknown_ids_do_nothing,
            ends: c9_end_of_stream_leaves_the_other_direction_open,
            ends: c9_our_end_of_stream_leaves_the_other_direction_open,
            ends: c9_a_closed_connection_still_sends_accepted_bytes,
            ends: c9_connected_or_refused,
            ends: c12_an_accepted_socket_carries_its_listener,
            ends: c12_a_stream_that_its_peer_ended_was_not_truncated,
            ends: c13_a_released_connection_goes_on_under_another_id,
            ends: c13_a_connection_that_is_not_at_rest_stays,
            ends: listening_ends_and_connections_stay,
            parking: c14_bytes_that_come_while_parked_arrive_once,
            parking: c14_a_connection_goes_on_at_the_successor_under_its_id,
            parking: c14_an_end_of_stream_while_parked_is_reported_after,
            parking: c14_nothing_leaves_while_parked,
            parking: c14_the_rest_of_a_batch_leaves_at_the_successor,
            parking: c14_a_paused_connection_stays_paused,
            parking: c14_input_that_waits_its_turn_is_not_lost,
            parking: c14_a_connection_that_must_wait_is_not_parked,
            parking: c14_a_surrendered_connection_is_open_as_long_as_a_duplicate_is,
            parking: c14_no_id_names_two_connections,
            parking: c14_a_slot_that_is_not_reserved_is_refused,
            parking: c14_a_driver_goes_on_when_its_successor_is_gone,
            waits: c6_an_idle_wait_lasts_to_its_deadline,
            waits: c6_short_deadlines_do_not_spin,
            waits: c6_a_past_deadline_polls,
            waits: c6_a_finished_connection_does_not_spin,
            waits: c6_a_full_connection_does_not_spin,
            waits: c6_one_busy_connection_does_not_fill_a_turn,
            waits: c6_events_left_over_are_not_lost,
            waits: c6_output_and_input_left_over_are_not_lost,
            waits: c7_accepting_stops_without_descriptors_and_resumes,
            waits: c8_a_paused_connection_loses_nothing,
            waits: c8_pause_takes_effect_within_the_turn,
            waits: c8_a_paused_connection_still_sends,
            waits: c8_a_paused_connection_that_ended_does_not_spin,
            waits: c8_resume_without_input,
            waits: c10_a_wake_before_the_wait_ends_it,
            waits: c10_many_wakes_end_one_wait,
            waits: c10_wakes_from_other_threads_end_waits,
        );
    };
    ($rig:ty; $($module:ident: $test:ident,)*) => {
        $(
            #[test]
            fn $test() {
                $crate::contract::$module::$test::<$rig>();
            }
        )*
    };
}
