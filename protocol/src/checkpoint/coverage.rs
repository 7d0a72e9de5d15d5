//! Checks that slices cover a tensor: every element exactly once.

use super::Slice;
use super::slice::BoxRanges;

/// An element of a tensor that is not in exactly one slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CoverageError {
    /// Index of the element along each dimension.
    pub(super) index: Vec<u64>,
    /// Number of slices that contain the element.
    pub(super) times: usize,
}

/// Returns the first element of a tensor of `shape`, in row-major order, that is not in exactly one slice.
///
/// Every slice is a few boxes. Between two box boundaries along the first dimension, the same boxes apply, so
/// one index stands for the whole slab; the other dimensions are swept in the same way. The cost grows with
/// the number of boxes, not of elements.
pub(super) fn first_coverage_error(shape: &[u64], slices: &[Slice]) -> Option<CoverageError> {
    if shape.contains(&0) {
        return None;
    }
    let boxes: Vec<_> = slices.iter().flat_map(Slice::boxes).collect();
    let mut index = Vec::with_capacity(shape.len());
    let times = sweep(shape, &boxes.iter().collect::<Vec<_>>(), &mut index)?;
    // A slab that is wrong as a whole is wrong from index 0 of the other dimensions.
    index.resize(shape.len(), 0);
    Some(CoverageError { index, times })
}

/// Sweeps the dimensions after those in `index`, over the `boxes` that contain `index`. Leaves `index` at the
/// first wrong element, and returns the number of boxes that contain it.
fn sweep(shape: &[u64], boxes: &[&BoxRanges], index: &mut Vec<u64>) -> Option<usize> {
    let dimension = index.len();
    if let [only] = boxes
        && (dimension..shape.len()).all(|d| only[d] == (0..shape[d]))
    {
        return None;
    }
    if dimension == shape.len() || boxes.is_empty() {
        return Some(boxes.len());
    }
    let mut waiting = boxes.to_vec();
    waiting.sort_unstable_by_key(|sides| sides[dimension].start);
    let sides = boxes.iter().map(|sides| &sides[dimension]);
    let mut boundaries: Vec<_> = sides.flat_map(|side| [side.start, side.end]).collect();
    boundaries.extend([0, shape[dimension]]);
    boundaries.sort_unstable();
    boundaries.dedup();
    let (mut met, mut next) = (Vec::new(), 0);
    for slab in boundaries.windows(2) {
        met.retain(|sides: &&BoxRanges| sides[dimension].end > slab[0]);
        let begin = waiting[next..].iter().take_while(|sides| sides[dimension].start == slab[0]).count();
        met.extend_from_slice(&waiting[next..next + begin]);
        next += begin;
        index.push(slab[0]);
        let times = sweep(shape, &met, index);
        if times.is_some() {
            return times;
        }
        index.pop();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Region;
    use proptest::prelude::*;
    use std::ops::Range;

    fn slice(shape: &[u64], sides: &[Range<u64>], range: Range<u64>) -> Slice {
        Slice::of(Region { shape: shape.to_vec(), sides: sides.to_vec() }, range)
    }

    /// Reference implementation: counts element by element.
    fn counted(shape: &[u64], slices: &[Slice]) -> Option<CoverageError> {
        let mut times = vec![0; shape.iter().product::<u64>() as usize];
        let whole = Slice::whole(shape);
        for run in slices.iter().flat_map(|slice| slice.overlaps(&whole)) {
            (run.second..run.second + run.length).for_each(|at| times[at as usize] += 1);
        }
        let at = times.iter().position(|times| *times != 1)?;
        let index = (0..shape.len()).map(|d| at as u64 / shape[d + 1..].iter().product::<u64>() % shape[d]);
        Some(CoverageError { index: index.collect(), times: times[at] })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        /// Cuts tensors into boxes and those into ranges, of which one may then be changed.
        #[test]
        fn the_first_wrong_element_is_found(
            shape in prop::collection::vec(1u64..6, 0..4),
            cuts in prop::array::uniform3(prop::collection::vec(0u64..6, 0..3)),
            ranges in prop::collection::vec(0u64..40, 0..3),
            (victim, damage) in (any::<prop::sample::Index>(), 0..6),
        ) {
            let mut sides: Vec<BoxRanges> = vec![Vec::new()];
            for (size, cuts) in shape.iter().zip(&cuts) {
                let mut at: Vec<_> = cuts.iter().map(|cut| cut % (size + 1)).chain([0, *size]).collect();
                at.sort_unstable();
                let parts: Vec<_> = at.windows(2).map(|w| w[0]..w[1]).collect();
                let add = |sides: BoxRanges| parts.clone().into_iter().map(move |part| [sides.clone(), vec![part]].concat());
                sides = sides.into_iter().flat_map(add).collect();
            }
            let mut slices = Vec::new();
            for sides in sides {
                let elements = sides.iter().map(|side| side.end - side.start).product::<u64>();
                let mut at: Vec<_> = ranges.iter().map(|cut| cut % (elements + 1)).chain([0, elements]).collect();
                at.sort_unstable();
                slices.extend(at.windows(2).map(|w| slice(&shape, &sides, w[0]..w[1])));
            }
            prop_assert_eq!(first_coverage_error(&shape, &slices), None);
            let victim = victim.index(slices.len());
            let (region, range) = (slices[victim].region().clone(), slices[victim].range());
            match damage {
                0 => drop(slices.remove(victim)),
                1 => slices.push(slices[victim].clone()),
                2 => slices[victim] = Slice::of(region, range.start..range.end.max(range.start + 1) - 1),
                3 => slices[victim] = Slice::of(region, range.start.saturating_sub(1)..range.end),
                4 => slices[victim] = Slice::all(region),
                _ => slices.push(Slice::whole(&shape)),
            }
            prop_assert_eq!(first_coverage_error(&shape, &slices), counted(&shape, &slices));
        }
    }

    #[test]
    fn a_region_shifted_by_a_row_is_found_at_its_first_element() {
        let shape = [4, 6];
        let column = |columns: Range<u64>, rows: Range<u64>| slice(&shape, &[rows, columns], 0..12);
        assert_eq!(first_coverage_error(&shape, &[column(0..3, 0..4), column(3..6, 0..4)]), None);
        let rows = [slice(&shape, &[0..2, 0..6], 0..12), slice(&shape, &[1..3, 0..6], 0..12)];
        assert_eq!(first_coverage_error(&shape, &rows), Some(CoverageError { index: vec![1, 0], times: 2 }));
        let apart = [slice(&shape, &[0..2, 0..6], 0..12), slice(&shape, &[3..4, 0..6], 0..6)];
        assert_eq!(first_coverage_error(&shape, &apart), Some(CoverageError { index: vec![2, 0], times: 0 }));
    }

    #[test]
    fn a_matrix_of_a_billion_columns_in_parts_is_looked_at_quickly() {
        let shape = [1 << 20, 1 << 30];
        let blocks = (0..64u64).flat_map(|at| {
            let region = Region { shape: shape.to_vec(), sides: vec![0..1 << 20, at << 24..(at + 1) << 24] };
            let each = region.elements() / 61;
            let cut = move |part: u64| if part == 61 { 1 << 44 } else { part * each };
            (0..61).map(move |part| Slice::of(region.clone(), cut(part)..cut(part + 1)))
        });
        let mut slices: Vec<_> = blocks.collect();
        assert_eq!(first_coverage_error(&shape, &slices), None);
        let last = slices.pop().expect("there are many");
        slices.push(Slice::of(last.region().clone(), last.range().start..last.range().end - 1));
        let wrong = CoverageError { index: shape.map(|side| side - 1).to_vec(), times: 0 };
        assert_eq!(first_coverage_error(&shape, &slices), Some(wrong));
    }
}
