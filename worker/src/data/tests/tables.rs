//! Tables.

use super::*;

#[test]
fn tables_are_standardised_by_what_is_trained_on() {
    let table = b"x, kind ,y\n1,b,7\n3,a,7\n1,b,7\n3,c,7\n100,a,8\n";
    let root = folder(&[("t.csv", table)]);
    let set = opened(&root, &csv(Valid::Fraction(0.2)), &mlp(2, 3)).expect("opened");
    let (values, classes) = rows(&*set.train);
    assert_eq!(
        values,
        [-1.0, 0.0, 1.0, 0.0, -1.0, 0.0, 1.0, 0.0],
        "mean 2, deviation 1; a constant becomes 0"
    );
    assert_eq!(classes, [1, 0, 1, 2], "names in alphabetical order");
    assert_eq!(rows(&*set.valid), (vec![98.0, 1.0], vec![0]), "the last row is scaled by the others");
}

#[test]
fn integer_classes_are_used_as_they_are_and_validation_follows_the_training_names() {
    let root = folder(&[("t.csv", b"x,kind\n1,2\n2,0\n"), ("v.csv", b"x,kind\n5,1\n")]);
    let set = opened(&root, &csv(files(&["v.csv"])), &mlp(1, 3)).expect("opened");
    assert_eq!((rows(&*set.train).1, rows(&*set.valid).1), (vec![2, 0], vec![1]));
    let root = folder(&[("t.csv", b"x,kind\n1,no\n2,yes\n"), ("v.csv", b"x,kind\n5,yes\n")]);
    let set = opened(&root, &csv(files(&["v.csv"])), &mlp(1, 2)).expect("opened");
    assert_eq!(rows(&*set.valid).1, [1]);
}

#[test]
fn wrong_tables_are_told_with_their_line() {
    let half = csv(Valid::Fraction(0.5));
    let check =
        |table: &[u8], expected: &[&str]| check_error(&[("t.csv", table)], &half, &mlp(2, 2), expected);
    check(b"x,y,class\n1,2,0\n", &["t.csv, line 1", "no column `kind`", "x, y, class"]);
    check(b"x,kind\n1,0\n2,1\n", &["line 1", "1 columns besides `kind`", "2 inputs", "model.inputs = 1"]);
    check(b"x,y,kind\n1,2,0\n1,two,1\n", &["line 3", "column `y`", "`two`"]);
    check(b"x,y,kind\n1,nan,0\n1,2,1\n", &["line 2", "finite"]);
    check(b"x,y,kind\n1,2,0\n1,2\n", &["t.csv, line 3"]);
    check(b"x,y,kind\n1,2,0\n1,2,2\n", &["line 3", "2 classes", "class 2"]);
    check(b"x,y,kind\n1,2,a\n1,2,b\n1,2,c\n", &["line 4", "`c`", "number 2 of 3"]);
    check(b"x,y,kind\n", &["line 1", "no row"]);
    check(b"x,y,kind\n1,2,0\n", &["1 samples"]);
    let valid = csv(files(&["v.csv"]));
    let train: &[u8] = b"x,y,kind\n1,2,a\n1,3,b\n";
    check_error(
        &[("t.csv", train), ("v.csv", b"y,x,kind\n1,2,a\n")],
        &valid,
        &mlp(2, 2),
        &["v.csv, line 1", "y, x"],
    );
    check_error(
        &[("t.csv", train), ("v.csv", b"x,y,kind\n1,2,z\n")],
        &valid,
        &mlp(2, 2),
        &["v.csv, line 2", "`z`"],
    );
}
