//! Random numbers from a seed, the same on every machine: splitmix64.

#[derive(Debug)]
pub struct Dice(u64);

impl Dice {
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to one below `sides`, which is not zero.
    pub fn below(&mut self, sides: usize) -> usize {
        let sides = u64::try_from(sides).expect("64 bits");
        usize::try_from(self.next() % sides).expect("below a usize")
    }

    /// Takes any item out of the list.
    pub fn take<T>(&mut self, items: &mut Vec<T>) -> Option<T> {
        (!items.is_empty()).then(|| items.swap_remove(self.below(items.len())))
    }
}
