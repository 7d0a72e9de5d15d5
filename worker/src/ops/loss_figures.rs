//! Loss figures of the head: the loss and the hits.

use burn::tensor::{Int, Tensor, Transaction};

/// The losses and hits of a number of predictions.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LossFigures {
    /// Sum of the cross-entropies of the predictions, in nats.
    pub loss_sum: f64,
    /// Number of predictions whose most likely class was right.
    pub hits: u64,
    /// Number of predictions.
    pub count: u64,
}

impl LossFigures {
    fn add(&mut self, other: Self) {
        self.loss_sum += other.loss_sum;
        self.hits += other.hits;
        self.count += other.count;
    }
}

/// The [`LossFigures`] of some micro-batches, which stay on the device that computed them until they are
/// read, because a read waits for all queued work.
#[derive(Clone, Debug, Default)]
pub struct DeferredLossFigures {
    read: LossFigures,
    unread: Vec<PendingFigures>,
}

/// The figures of one micro-batch, not yet read from their device.
#[derive(Clone, Debug)]
struct PendingFigures {
    mean_loss: Tensor<1>,
    hits: Tensor<1, Int>,
    count: u64,
}

impl DeferredLossFigures {
    /// Creates figures on a device: the mean loss of `count` predictions, and the number of hits.
    pub(crate) fn on_device(mean_loss: Tensor<1>, hits: Tensor<1, Int>, count: u64) -> Self {
        Self { read: LossFigures::default(), unread: vec![PendingFigures { mean_loss, hits, count }] }
    }

    /// Adds the figures of other micro-batches.
    pub fn add(&mut self, other: Self) {
        self.read.add(other.read);
        self.unread.extend(other.unread);
    }

    /// Returns the figures on the host; waits once for the device, if there is one.
    pub fn read(self) -> LossFigures {
        let Self { mut read, unread } = self;
        if unread.is_empty() {
            return read;
        }
        let transaction = unread.iter().fold(Transaction::default(), |transaction, one| {
            transaction.register(one.mean_loss.clone()).register(one.hits.clone())
        });
        let values = transaction.execute();
        for (one, values) in unread.iter().zip(values.chunks_exact(2)) {
            let mean_loss = values[0].iter::<f64>().next().expect("the mean loss is one value");
            let hits = values[1].iter::<i64>().next().expect("the number of hits is one value");
            read.add(LossFigures {
                loss_sum: mean_loss * one.count as f64,
                hits: u64::try_from(hits).unwrap_or(0),
                count: one.count,
            });
        }
        read
    }
}

impl From<LossFigures> for DeferredLossFigures {
    fn from(read: LossFigures) -> Self {
        Self { read, unread: Vec::new() }
    }
}
