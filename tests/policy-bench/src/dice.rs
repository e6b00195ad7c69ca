//! Random numbers from a seed, the same on every machine: splitmix64.

#[derive(Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to one below `sides`, which is not zero.
    pub(crate) const fn below(&mut self, sides: u64) -> u64 {
        self.next() % sides
    }

    /// Both ends included.
    pub(crate) const fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// From 1 on, distributed exponentially. `mean` is below 2^53.
    pub(crate) fn exponential(&mut self, mean: u64) -> u64 {
        let number = |whole: u64| whole.to_string().parse::<f64>().expect("a number");
        let share = number(1 + self.below(1 << 32)) / number(1 << 32);
        rounded(-share.ln() * number(mean)).max(1)
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            let other = self.below(u64::try_from(at + 1).expect("64 bits"));
            items.swap(at, usize::try_from(other).expect("an index"));
        }
    }
}

/// Rounds a number from 0 to 2^53, away from the last digits, which may differ between machines.
fn rounded(number: f64) -> u64 {
    format!("{:.0}", number.round().abs()).parse().expect("an integer")
}

/// A Zipf distribution over `0..len`, with shuffled ranks.
#[derive(Debug)]
pub(crate) struct Zipf {
    /// The sums of the weights up to each rank.
    sums: Vec<u64>,
    items: Vec<u32>,
}

impl Zipf {
    /// `exponent` is in hundredths.
    pub(crate) fn new(len: u32, exponent: u32, dice: &mut Dice) -> Self {
        let mut sum = 0;
        let weight = |rank: u32| rounded(1e9 / f64::from(rank + 1).powf(f64::from(exponent) / 100.0));
        let sums = (0..len).map(|rank| {
            sum += weight(rank);
            sum
        });
        let sums = sums.collect();
        let mut items: Vec<u32> = (0..len).collect();
        dice.shuffle(&mut items);
        Self { sums, items }
    }

    pub(crate) fn draw(&self, dice: &mut Dice) -> u32 {
        let at = dice.below(*self.sums.last().expect("a distribution over something"));
        self.items[self.sums.partition_point(|sum| *sum <= at)]
    }
}
