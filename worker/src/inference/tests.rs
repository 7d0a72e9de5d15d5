//! Figures of classifiers.

use super::*;

/// Scores of two classes, of which the first has this probability.
fn pair(probability: f32) -> [f32; 2] {
    [(probability / (1.0 - probability)).ln(), 0.0]
}

#[test]
fn calibration_compares_confidence_with_accuracy_bin_by_bin() {
    let (mut counts, mut figures) = (ClassifierTotals::new(2), LossFigures::default());
    // Nine in ten are right where it says 0.95, and half of them where it says 0.65.
    for sample in 0..10 {
        counts.add(&pair(0.95), usize::from(sample == 0), &mut figures);
        counts.add(&pair(0.65), usize::from(sample % 2 == 0), &mut figures);
    }
    let expected = (10.0 * 0.05 + 10.0 * 0.15) / 20.0;
    assert!((counts.calibration_error() - expected).abs() < 1e-6, "{}", counts.calibration_error());
    assert_eq!((figures.hits, figures.count), (14, 20));
    assert_eq!(counts.confusion, [[14, 0], [6, 0]]);
    let loss = -(9.0 * 0.95f64.ln() + 0.05f64.ln() + 5.0 * 0.65f64.ln() + 5.0 * 0.35f64.ln());
    assert!((figures.loss_sum - loss).abs() < 1e-5, "{} is not {loss}", figures.loss_sum);
}

#[test]
fn the_best_classes_come_first_with_their_names() {
    let names = ["ash", "birch", "cedar"].map(str::to_owned).to_vec();
    let preprocessing = Preprocessing { classes: Some(names), ..Preprocessing::default() };
    let found = best(&[0.0, 2.0, 1.0], 2, &preprocessing);
    assert_eq!(found.iter().map(|one| one.class.as_str()).collect::<Vec<_>>(), ["birch", "cedar"]);
    let all: f64 = best(&[0.0, 2.0, 1.0], 3, &preprocessing).iter().map(|one| one.probability).sum();
    assert!((all - 1.0).abs() < 1e-12 && found[0].probability > found[1].probability);
    assert_eq!(
        best(&[0.0, 0.0], 1, &Preprocessing::default())[0].class,
        "0",
        "numbers where there are no names"
    );
}
