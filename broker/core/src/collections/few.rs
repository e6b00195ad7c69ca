//! A list that nearly always has at most one item. The first item lives inside it, and only a second one
//! allocates. It is as large as a `Vec`.

use std::ops::{Deref, DerefMut};

#[derive(Clone, Debug)]
pub(crate) enum Few<T> {
    One(T),
    /// No item, or several, or what is left of several.
    Many(Vec<T>),
}

impl<T> Few<T> {
    pub(crate) fn push(&mut self, item: T) {
        self.insert(self.len(), item);
    }

    /// Inserts at an index, or at the end if the index is beyond it.
    pub(crate) fn insert(&mut self, at: usize, item: T) {
        *self = match std::mem::take(self) {
            Self::One(first) if at == 0 => Self::Many(vec![item, first]),
            Self::One(first) => Self::Many(vec![first, item]),
            Self::Many(items) if items.is_empty() => Self::One(item),
            Self::Many(mut items) => {
                items.insert(at.min(items.len()), item);
                Self::Many(items)
            }
        };
    }

    /// Removes the item at an index, if there is one.
    pub(crate) fn remove(&mut self, at: usize) {
        match self {
            Self::Many(items) if at < items.len() => _ = items.remove(at),
            Self::One(_) if at == 0 => *self = Self::default(),
            Self::One(_) | Self::Many(_) => {}
        }
    }

    pub(crate) fn retain(&mut self, keeps: impl Fn(&T) -> bool) {
        match self {
            Self::One(item) if !keeps(item) => *self = Self::default(),
            Self::One(_) => {}
            Self::Many(items) => items.retain(keeps),
        }
    }
}

impl<T> Default for Few<T> {
    fn default() -> Self {
        Self::Many(Vec::new())
    }
}

impl<T> Deref for Few<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::One(item) => std::slice::from_ref(item),
            Self::Many(items) => items,
        }
    }
}

impl<T> DerefMut for Few<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Self::One(item) => std::slice::from_mut(item),
            Self::Many(items) => items,
        }
    }
}

impl<T> FromIterator<T> for Few<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        let mut items = items.into_iter();
        match (items.next(), items.next()) {
            (None, _) => Self::default(),
            (Some(only), None) => Self::One(only),
            (Some(first), Some(second)) => Self::Many([first, second].into_iter().chain(items).collect()),
        }
    }
}

impl<'a, T> IntoIterator for &'a Few<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_behaves_like_a_list() {
        for steps in 0..6 {
            let (mut few, mut list) = (Few::default(), Vec::new());
            for number in 0..steps {
                let at = if number % 2 == 0 { 0 } else { list.len() };
                few.insert(at, number);
                list.insert(at, number);
                assert_eq!(&*few, &*list);
            }
            assert_eq!(&*list.iter().copied().collect::<Few<_>>(), &*list);
            let mut even = few.clone();
            even.retain(|number| number % 2 == 0);
            assert!(even.iter().eq(list.iter().filter(|number| *number % 2 == 0)));
            few.remove(steps);
            assert_eq!(few.len(), list.len(), "there is nothing at the end");
            while !list.is_empty() {
                let at = list.len() / 2;
                few.remove(at);
                list.remove(at);
                assert_eq!(&*few, &*list);
            }
        }
    }

    #[test]
    fn few_is_as_large_as_a_vec() {
        assert_eq!(size_of::<Few<(u64, bool)>>(), size_of::<Vec<u8>>());
    }
}
