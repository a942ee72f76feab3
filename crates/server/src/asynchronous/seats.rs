//! Futures that wait for the same thing.

use std::task::Waker;

/// Wakers by seat. A future keeps its seat from its first wait to its end.
///
/// Wakers come out rather than being woken or dropped here: either may run code that wants the lock around this.
#[derive(Debug, Default)]
pub(super) struct Seats {
    seats: Vec<Seat>,
}

#[derive(Debug)]
enum Seat {
    Free,
    /// Taken; a waker if its future waits.
    Taken(Option<Waker>),
}

impl Seats {
    /// Has `waker` woken next time, in `seat` or in a new one. The waker it takes the place of comes back.
    #[must_use = "dropped only where no lock is held"]
    pub(super) fn wait(&mut self, seat: &mut Option<usize>, waker: &Waker) -> Option<Waker> {
        let number = *seat.get_or_insert_with(|| {
            let free = self.seats.iter().position(|seat| matches!(seat, Seat::Free));
            free.unwrap_or_else(|| {
                self.seats.push(Seat::Free);
                self.seats.len() - 1
            })
        });
        match &mut self.seats[number] {
            Seat::Taken(Some(old)) if old.will_wake(waker) => None,
            seat => match std::mem::replace(seat, Seat::Taken(Some(waker.clone()))) {
                Seat::Taken(old) => old,
                Seat::Free => None,
            },
        }
    }

    /// Gives a seat back, if there is one.
    #[must_use = "dropped only where no lock is held"]
    pub(super) fn leave(&mut self, seat: &mut Option<usize>) -> Option<Waker> {
        let left = std::mem::replace(&mut self.seats[seat.take()?], Seat::Free);
        if self.seats.iter().all(|seat| matches!(seat, Seat::Free)) {
            // An idle session keeps no memory for who waited once.
            self.seats = Vec::new();
        }
        match left {
            Seat::Taken(waker) => waker,
            Seat::Free => None,
        }
    }

    /// Everyone who waits. They keep their seats.
    pub(super) fn take_waiting(&mut self, into: &mut Vec<Waker>) {
        for seat in &mut self.seats {
            if let Seat::Taken(waker) = seat {
                into.extend(waker.take());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seat_is_kept_while_taken_and_given_to_another_after() {
        let mut seats = Seats::default();
        let (mut first, mut second, mut third) = (None, None, None);
        assert!(seats.wait(&mut first, Waker::noop()).is_none());
        assert!(seats.wait(&mut second, Waker::noop()).is_none());
        assert_eq!((first, second), (Some(0), Some(1)));
        let mut woken = Vec::new();
        seats.take_waiting(&mut woken);
        assert_eq!(woken.len(), 2);
        seats.take_waiting(&mut woken);
        assert_eq!(woken.len(), 2, "nobody is woken twice");
        assert!(seats.wait(&mut second, Waker::noop()).is_none());
        assert_eq!(second, Some(1));
        assert!(seats.leave(&mut first).is_none() && first.is_none());
        assert!(seats.wait(&mut third, Waker::noop()).is_none());
        assert_eq!(third, Some(0));
        assert!(seats.leave(&mut second).is_some());
        assert!(seats.leave(&mut third).is_some());
        assert_eq!(seats.seats.capacity(), 0);
    }
}
