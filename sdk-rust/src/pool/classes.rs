//! The sizes of blocks: multiples of 256 bytes, four to a doubling, so that no block is more than a quarter larger
//! than requested, or than 256 bytes.

/// The alignment of every block.
pub(crate) const ALIGNMENT: usize = 256;
/// Slabs begin at multiples of this, and their length is one.
pub(super) const PAGE: usize = 64 << 10;

/// The number of sizes of each doubling, as a power of two.
const STEPS_SHIFT: u32 = 2;
/// Up to this size, every multiple of the alignment is a class.
const LINEAR: usize = ALIGNMENT << STEPS_SHIFT;
const LINEAR_COUNT: usize = LINEAR / ALIGNMENT;
/// A slab may waste this fraction of itself at its end: one in 16.
const WASTE_DIVISOR: usize = 16;

/// The index of a size, from the smallest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Class(usize);

impl Class {
    /// The smallest class that fits `size` bytes, at least one.
    #[inline]
    pub(super) fn of(size: usize) -> Self {
        let index = if size <= LINEAR {
            size.div_ceil(ALIGNMENT) - 1
        } else {
            // The doubling that the last byte lies in, and the step within it.
            let last = size - 1;
            let doubling = last.ilog2();
            let step = (last >> (doubling - STEPS_SHIFT)) & ((1 << STEPS_SHIFT) - 1);
            LINEAR_COUNT + (((doubling - LINEAR.ilog2()) as usize) << STEPS_SHIFT) + step
        };
        Self(index)
    }

    #[inline]
    pub(super) fn index(self) -> usize {
        self.0
    }

    pub(super) fn size(self) -> usize {
        let index = self.index();
        if index < LINEAR_COUNT {
            return (index + 1) * ALIGNMENT;
        }
        let above = index - LINEAR_COUNT;
        let (doubling, step) = (above >> STEPS_SHIFT, above & ((1 << STEPS_SHIFT) - 1));
        (LINEAR << doubling) + (step + 1) * ((LINEAR << doubling) >> STEPS_SHIFT)
    }

    /// All whose size is at max this.
    pub(super) fn up_to(largest: usize) -> impl Iterator<Item = Self> {
        (0..).map(Self).take_while(move |class| class.size() <= largest)
    }

    /// The `count` smallest classes.
    pub(super) fn smallest(count: usize) -> impl Iterator<Item = Self> {
        (0..).map(Self).take(count)
    }

    /// The pages of a slab: the fewest of which no more than a sixteenth is wasted.
    pub(super) fn slab_pages(self) -> u32 {
        let size = self.size();
        let fits = |pages: &u32| {
            let slab = *pages as usize * PAGE;
            slab >= size && (slab % size) * WASTE_DIVISOR <= slab
        };
        (1..).find(fits).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGEST: usize = 256 << 20;

    #[test]
    fn every_size_has_the_smallest_class_that_fits() {
        let classes: Vec<_> = Class::up_to(LARGEST).collect();
        let mut below = 0;
        for (index, class) in classes.iter().enumerate() {
            let size = class.size();
            assert_eq!(class.index(), index);
            assert!(size > below && size % ALIGNMENT == 0, "{size} after {below}");
            for asked in [below + 1, (below + 1 + size) / 2, size] {
                assert_eq!(Class::of(asked), *class, "{asked}");
            }
            assert!(size - below <= (size / 5).max(ALIGNMENT), "{size} after {below}");
            below = size;
        }
        assert_eq!(below, LARGEST);
    }

    #[test]
    fn sizes_are_four_to_a_doubling() {
        let sizes: Vec<_> = Class::up_to(4096).map(Class::size).collect();
        assert_eq!(sizes, [256, 512, 768, 1024, 1280, 1536, 1792, 2048, 2560, 3072, 3584, 4096]);
    }

    #[test]
    fn slabs_waste_little() {
        for class in Class::up_to(LARGEST) {
            let slab = class.slab_pages() as usize * PAGE;
            assert!(
                slab >= class.size() && (slab % class.size()) * WASTE_DIVISOR <= slab,
                "{}",
                class.size()
            );
            assert!(class.slab_pages() <= 7 || slab == class.size(), "{} pages", class.slab_pages());
        }
    }
}
