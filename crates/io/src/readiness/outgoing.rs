//! The batches in flight, kept beside the table: an idle connection has none.

use crate::batch::Batch;

/// Batches by a small index that the connection's entry holds.
#[derive(Default)]
pub(crate) struct Outgoing {
    batches: Vec<Option<Box<Batch>>>,
    free: Vec<u32>,
}

impl Outgoing {
    /// Stores a batch and returns its index.
    pub(crate) fn insert(&mut self, batch: Box<Batch>) -> u32 {
        if let Some(index) = self.free.pop() {
            self.batches[index as usize] = Some(batch);
            return index;
        }
        self.batches.push(Some(batch));
        (self.batches.len() - 1) as u32
    }

    /// Returns the batch at `index`, which is in use.
    pub(crate) fn batch(&mut self, index: u32) -> &mut Batch {
        self.batches[index as usize].as_mut().expect("an index in an entry is in use")
    }

    /// Returns the number of unsent bytes of the batch at `index`.
    pub(crate) fn unsent(&self, index: u32) -> usize {
        self.batches[index as usize].as_ref().map_or(0, |batch| batch.len())
    }

    /// Returns the memory of the batch at `index`.
    pub(crate) fn memory(&self, index: u32) -> usize {
        self.batches[index as usize].as_ref().map_or(0, |batch| batch.memory())
    }

    /// Returns the memory of all batches.
    pub(crate) fn held(&self) -> usize {
        self.batches.iter().flatten().map(|batch| batch.memory()).sum()
    }

    /// Removes and returns the batch at `index`.
    pub(crate) fn remove(&mut self, index: u32) -> Box<Batch> {
        self.free.push(index);
        self.batches[index as usize].take().expect("an index in an entry is in use")
    }
}
