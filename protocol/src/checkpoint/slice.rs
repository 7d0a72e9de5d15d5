//! Slices: sets of elements of a global tensor that are stored, written or read together.

use crate::Region;
use std::ops::Range;

/// A range of elements of a region, in the region's row-major order.
///
/// The region is the part of a tensor that a rank holds by sharding; the range is the part of it that a rank
/// owns or writes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Slice {
    region: Region,
    range: Range<u64>,
}

/// A run of elements that are contiguous in two slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SliceOverlap {
    /// Offset of the run's first element in the first slice.
    pub first: u64,
    /// Offset of the run's first element in the second slice.
    pub second: u64,
    /// Number of elements in the run.
    pub length: u64,
}

/// A box inside a global tensor: one range per dimension.
pub(super) type BoxRanges = Vec<Range<u64>>;

impl Slice {
    /// Returns the slice with elements `range` of `region`. Panics if the region has fewer elements.
    pub fn of(region: Region, range: Range<u64>) -> Self {
        let elements = region.elements();
        assert!(range.start <= range.end && range.end <= elements, "{range:?} of {elements} elements");
        Self { region, range }
    }

    /// Returns the slice with all elements of a region.
    pub fn all(region: Region) -> Self {
        let range = 0..region.elements();
        Self { region, range }
    }

    /// Returns the slice with all elements of a tensor.
    pub fn whole(shape: &[u64]) -> Self {
        Self::all(Region::whole(shape))
    }

    /// Returns the region that the slice is part of.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Returns the range of elements of the slice, in the row-major order of its region.
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// Returns the number of elements in the slice.
    pub fn elements(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Returns `true` if the slice has all elements of its region.
    pub fn is_all(&self) -> bool {
        self.range == (0..self.region.elements())
    }

    /// Returns `true` if the slice has all elements of the tensor.
    pub fn is_whole(&self) -> bool {
        self.is_all() && self.region.is_whole()
    }

    /// Returns the elements that both slices have, in row-major order of the tensor, in runs as long as
    /// possible.
    pub fn overlaps<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = SliceOverlap> + 'a {
        let meet = intersection(&self.region.sides, &other.region.sides).is_some();
        let (mine, others) = if meet { (self.boxes(), other.boxes()) } else { (Vec::new(), Vec::new()) };
        // The boxes of each are in row-major order, so their intersections are too.
        let both = mine.into_iter().flat_map(move |mine| {
            let both = others.iter().filter_map(|other| intersection(&mine, other));
            both.collect::<Vec<_>>()
        });
        both.flat_map(move |both| self.runs(other, &both))
    }

    /// Returns the contiguous runs of elements in the box `both`, which is part of both slices.
    fn runs(&self, other: &Self, both: &[Range<u64>]) -> impl Iterator<Item = SliceOverlap> + use<> {
        let (mine, others) = (&self.region.sides, &other.region.sides);
        // Runs extend over trailing dimensions in which both regions equal the box.
        let full = |d: &usize| both[*d] == mine[*d] && both[*d] == others[*d];
        let trailing = (0..both.len()).rev().take_while(full).count();
        let split = (both.len() - trailing).saturating_sub(1);
        let length = both[split..].iter().map(len).product();
        let steps: Vec<_> = both[..split].iter().map(len).collect();
        let [first, second] = [self, other].map(|of| {
            let (begin, strides) = place(&of.region.sides, both);
            (begin - of.range.start, strides)
        });
        (0..steps.iter().product()).map(move |index: u64| {
            let mut run = SliceOverlap { first: first.0, second: second.0, length };
            let mut rest = index;
            for (d, steps) in steps.iter().enumerate().rev() {
                run.first += rest % steps * first.1[d];
                run.second += rest % steps * second.1[d];
                rest /= steps;
            }
            run
        })
    }

    /// Returns disjoint boxes that make up the slice, in row-major order.
    pub(super) fn boxes(&self) -> Vec<BoxRanges> {
        let mut boxes = Vec::new();
        if !self.range.is_empty() {
            cut(&self.region.sides, 0, self.range.clone(), &mut boxes);
        }
        boxes
    }
}

/// Cuts elements `range` of the box `sides` into boxes, which are added to `boxes`. The dimensions before
/// `dimension` have a single index.
fn cut(sides: &[Range<u64>], dimension: usize, range: Range<u64>, boxes: &mut Vec<BoxRanges>) {
    if range == (0..sides.iter().map(len).product()) {
        return boxes.push(sides.to_vec());
    }
    let row: u64 = sides[dimension + 1..].iter().map(len).product();
    let rows = |rows: Range<u64>| {
        let mut some = sides.to_vec();
        let begin = sides[dimension].start;
        some[dimension] = begin + rows.start..begin + rows.end;
        some
    };
    // A row that is only partly in the range is cut along the next dimension.
    let mut inside = |at: u64, part: Range<u64>| cut(&rows(at..at + 1), dimension + 1, part, boxes);
    let full = range.start.div_ceil(row)..range.end / row;
    if full.start > full.end {
        return inside(full.end, range.start - full.end * row..range.end - full.end * row);
    }
    if range.start < full.start * row {
        inside(full.start - 1, range.start - (full.start - 1) * row..row);
    }
    if !full.is_empty() {
        boxes.push(rows(full.clone()));
    }
    if full.end * row < range.end {
        cut(&rows(full.end..full.end + 1), dimension + 1, 0..range.end - full.end * row, boxes);
    }
}

/// Returns the offset of the first element of the box `inner` in the row-major order of the box `outer`, and
/// the stride of each dimension.
fn place(outer: &[Range<u64>], inner: &[Range<u64>]) -> (u64, Vec<u64>) {
    let mut strides = vec![1; outer.len()];
    for d in (1..outer.len()).rev() {
        strides[d - 1] = strides[d] * len(&outer[d]);
    }
    let begin = (0..outer.len()).map(|d| (inner[d].start - outer[d].start) * strides[d]).sum();
    (begin, strides)
}

/// Returns the intersection of two boxes; `None` if it is empty.
fn intersection(a: &[Range<u64>], b: &[Range<u64>]) -> Option<BoxRanges> {
    let both = a.iter().zip(b).map(|(a, b)| a.start.max(b.start)..a.end.min(b.end));
    let both: BoxRanges = both.collect();
    both.iter().all(|side| !side.is_empty()).then_some(both)
}

fn len(side: &Range<u64>) -> u64 {
    side.end - side.start
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the elements of a slice, as offsets in the whole tensor.
    fn elements(slice: &Slice) -> Vec<u64> {
        let all = slice.region.runs().flat_map(|run| run.global..run.global + run.length);
        all.skip(slice.range.start as usize).take(slice.elements() as usize).collect()
    }

    prop_compose! {
        /// Generates a slice of a tensor of this shape.
        fn slice(shape: Vec<u64>)(cuts in prop::collection::vec((0u64..10, 0u64..10), 4), shape in Just(shape)) -> Slice {
            let between = |size: u64, (a, b): (u64, u64)| {
                let (a, b) = (a % (size + 1), b % (size + 1));
                a.min(b)..a.max(b)
            };
            let sides = shape.iter().zip(&cuts).map(|(side, cut)| between(*side, *cut)).collect();
            let region = Region { shape, sides };
            let range = between(region.elements(), (cuts[3].0 * 7, cuts[3].1 * 11));
            Slice::of(region, range)
        }
    }

    fn two_slices() -> impl Strategy<Value = (Slice, Slice)> {
        let shape = prop::collection::vec(1u64..7, 0..4);
        shape.prop_flat_map(|shape| (slice(shape.clone()), slice(shape)))
    }

    proptest! {
        #[test]
        fn what_two_slices_share_is_found_in_order((one, other) in two_slices()) {
            let (first, second) = (elements(&one), elements(&other));
            let expected: Vec<_> = first.iter().copied().filter(|at| second.contains(at)).collect();
            let mut found = Vec::new();
            for SliceOverlap { first: a, second: b, length } in one.overlaps(&other) {
                prop_assert!(length > 0);
                let (a, b) = (&first[a as usize..][..length as usize], &second[b as usize..][..length as usize]);
                prop_assert_eq!(a, b);
                found.extend_from_slice(a);
            }
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn rows_that_both_have_whole_are_one_run() {
        let shape = [6, 4, 5];
        let rows = |rows| Slice::all(Region { shape: shape.to_vec(), sides: vec![rows, 0..4, 0..5] });
        let found: Vec<_> = rows(1..5).overlaps(&rows(2..6)).collect();
        assert_eq!(found, [SliceOverlap { first: 20, second: 0, length: 60 }]);
        let scalar = Slice::whole(&[]);
        assert_eq!(
            scalar.overlaps(&scalar).collect::<Vec<_>>(),
            [SliceOverlap { first: 0, second: 0, length: 1 }]
        );
    }
}
