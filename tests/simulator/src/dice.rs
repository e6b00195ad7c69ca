//! Random draws from a seed. Each actor has a stream of its own: leaving one out changes what the others
//! meet, not what they try.

use oorandom::Rand64;

#[derive(Clone, Debug)]
pub struct Dice(Rand64);

impl Dice {
    pub fn new(seed: u64, stream: u64) -> Self {
        Self(Rand64::new(u128::from(seed) << 64 | u128::from(stream)))
    }

    /// 0 to `sides - 1`.
    pub fn roll(&mut self, sides: u64) -> u64 {
        self.0.rand_range(0..sides.max(1))
    }

    /// Both ends included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.roll(high - low + 1)
    }

    pub fn chance(&mut self, per_mille: u64) -> bool {
        self.roll(1000) < per_mille
    }

    pub fn small(&mut self, sides: u32) -> u32 {
        u32::try_from(self.roll(u64::from(sides))).unwrap_or(0)
    }

    /// An index into a list of that length; 0 if it is empty.
    pub fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.roll(u64::try_from(len).unwrap_or(1))).unwrap_or(0)
    }

    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        let at = self.index(items.len());
        items.get(at)
    }

    /// One item of a list that is not empty.
    pub fn one<T: Copy>(&mut self, items: &[T]) -> T {
        *self.pick(items).expect("a list that is not empty")
    }
}
