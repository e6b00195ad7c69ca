//! The memory that a model needs of a device, and the speed at which it streams where that does not fit. All sizes are
//! bytes.

use super::model::{Experts, Model};

/// A process that uses CUDA takes so much of a device before it allocates anything, as measured on an H100.
pub(super) const CONTEXT: u64 = 523 << 20;

/// How the model is used.
#[derive(Clone, Copy, Debug)]
pub(super) struct Use {
    pub(super) batch: u64,
    /// Tokens that each sequence of the batch keeps.
    pub(super) tokens: u64,
    /// Tokens that one step computes at most.
    pub(super) step_tokens: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Need {
    pub(super) weights: u64,
    pub(super) cache: u64,
    pub(super) activations: u64,
    pub(super) context: u64,
    /// A tenth of all else.
    pub(super) reserve: u64,
}

/// A pass over a model whose weights do not fit: most stay, the rest is copied at each pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Stream {
    /// The weights that stay on the device.
    pub(super) resident: u64,
    /// The room for two layers: one that is used, and one that arrives.
    pub(super) buffers: u64,
    /// The bytes that each pass copies.
    pub(super) copied: u64,
    /// The least time of a pass.
    pub(super) seconds: f64,
}

impl Need {
    pub(super) fn of(model: &Model, how: Use) -> Self {
        let bytes = |factors: &[u64]| {
            factors.iter().fold(model.bytes_per_value, |product, factor| product.saturating_mul(*factor))
        };
        let cache = bytes(&[model.layers, model.cached_per_token, how.tokens, how.batch]);
        // A layer's input, output and attention, and the two halves of its feed-forward; then single-precision logits.
        let widths = model.hidden.saturating_mul(4).saturating_add(model.intermediate.saturating_mul(2));
        let logits = how.batch.saturating_mul(model.vocabulary).saturating_mul(4);
        let activations = bytes(&[how.step_tokens, widths]).saturating_add(logits);
        let context = CONTEXT;
        let sum = [model.weights, cache, activations, context].into_iter().fold(0, u64::saturating_add);
        Self { weights: model.weights, cache, activations, context, reserve: sum / 10 }
    }

    pub(super) fn sum(&self) -> u64 {
        self.weights.saturating_add(self.beside_weights()).saturating_add(self.reserve)
    }

    fn beside_weights(&self) -> u64 {
        [self.cache, self.activations, self.context].into_iter().fold(0, u64::saturating_add)
    }

    /// How the weights stream through what memory is left beside all else, over a link of so many bytes per second.
    /// Here too, a tenth more than all that is there stays free. `None`: not even two layers find room.
    pub(super) fn stream(&self, model: &Model, how: Use, memory: u64, link: u64) -> Option<Stream> {
        let layer = self.weights / model.layers;
        let buffers = layer.saturating_mul(2);
        let resident = share(memory, 10, 11).checked_sub(self.beside_weights())?.checked_sub(buffers)?;
        let away = self.weights.saturating_sub(resident);
        // A pass reads the experts that its tokens choose, and they are away as often as all weights are.
        let copied = match model.experts {
            Some(experts) => share(away, self.read_by_a_pass(experts, how.batch), self.weights),
            None => away,
        };
        Some(Stream { resident, buffers, copied, seconds: copied as f64 / link as f64 })
    }

    fn read_by_a_pass(&self, experts: Experts, batch: u64) -> u64 {
        let chosen = experts.used.saturating_mul(batch).min(experts.all);
        let left_out = share(experts.bytes, experts.all.saturating_sub(chosen), experts.all);
        self.weights.saturating_sub(left_out)
    }
}

/// `bytes * part / whole`.
fn share(bytes: u64, part: u64, whole: u64) -> u64 {
    let product = u128::from(bytes) * u128::from(part);
    let share = product.checked_div(whole.into()).unwrap_or_default();
    u64::try_from(share).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::{super::model::WeightsFrom, *};

    const GB: u64 = 1_000_000_000;

    fn model(weights: u64) -> Model {
        Model {
            layers: 32,
            hidden: 4096,
            intermediate: 11008,
            vocabulary: 32000,
            bytes_per_value: 2,
            cached_per_token: 2 * 32 * 128,
            experts: None,
            weights,
            weights_from: WeightsFrom::Files,
        }
    }

    const USE: Use = Use { batch: 8, tokens: 2048, step_tokens: 2048 };

    #[test]
    fn cache_of_32_layers_and_8_sequences_is_8_gib() {
        let need = Need::of(&model(13 * GB), USE);
        assert_eq!(need.cache, 8 << 30);
        let others = need.weights + need.cache + need.activations + need.context;
        assert_eq!((need.reserve, need.sum()), (others / 10, others + others / 10));
    }

    /// With 24 of 140 GB on the device, a pass copies the other 116, in 4.1 s at 28 GB/s.
    #[test]
    fn a_pass_takes_as_long_as_its_copies() {
        let model = model(140 * GB);
        let need = Need { weights: 140 * GB, cache: 0, activations: 0, context: 0, reserve: 0 };
        let buffers = 2 * (140 * GB / 32);
        let memory = (24 * GB + buffers) / 10 * 11;
        let stream = need.stream(&model, USE, memory, 28 * GB).unwrap();
        assert_eq!((stream.resident, stream.copied), (24 * GB, 116 * GB));
        assert!((4.1..4.2).contains(&stream.seconds), "{}", stream.seconds);
        assert_eq!(need.stream(&model, USE, buffers, 28 * GB), None);
        assert_eq!(Need { cache: GB, ..need }.stream(&model, USE, GB, 28 * GB), None);
    }

    #[test]
    fn a_pass_copies_only_the_experts_that_it_uses() {
        let experts = Experts { all: 8, used: 2, bytes: 80 * GB };
        let model = Model { experts: Some(experts), ..model(100 * GB) };
        let need = Need { weights: 100 * GB, cache: 0, activations: 0, context: 0, reserve: 0 };
        let one = Use { batch: 1, ..USE };
        let memory = 2 * (100 * GB / 32) / 10 * 11;
        let copied = |how| need.stream(&model, how, memory, GB).unwrap().copied;
        assert_eq!((copied(one), copied(USE)), (40 * GB, 100 * GB));
    }
}
