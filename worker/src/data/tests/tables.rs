//! Tables.

use super::*;

#[test]
fn tables_are_standardised_by_what_is_trained_on() {
    let table = b"x, kind ,y\n1,b,7\n3,a,7\n1,b,7\n3,c,7\n100,a,8\n";
    let root = folder(&[("t.csv", table)]);
    let set = opened(&root, &csv(ValidationSource::Fraction(0.2)), &mlp(2, 3)).expect("opened");
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
    let half = csv(ValidationSource::Fraction(0.5));
    let check =
        |table: &[u8], expected: &[&str]| check_error(&[("t.csv", table)], &half, &mlp(2, 2), expected);
    check(b"x,y,class\n1,2,0\n", &["t.csv, line 1", "no column `kind`", "x, y, class"]);
    check(b"x,kind\n1,0\n2,1\n", &["line 1", "besides `kind` give 1 inputs", "model.inputs = 1"]);
    check(b"x,y,kind\n1,2,0\n1,two,1\n", &["line 3", "column `y`", "`two`", "data.ignore = [\"y\"]"]);
    check(b"x,y,kind\n1,inf,0\n1,2,1\n", &["line 2", "`inf`", "finite"]);
    check(b"x,x,kind\n1,2,0\n", &["line 1", "`x` occurs twice"]);
    check(b"x,y,kind\n1,31.12.2024,0\n2,1.1.2025,1\n", &["column `y`", "31.12.2024", "2024-12-31"]);
    check(b"x;y;kind\n1,5;1;0\n1.5;1;1\n", &["column `x`", "decimal comma (`1,5`)", "point (`1.5`)"]);
    check(b"kind\n1\n2\n", &["no column to learn from"]);
    check(b"\xff\xfex\0,\0k\0i\0n\0d\0", &["t.csv, byte 0", "UTF-16", "iconv"]);
    let long = format!("x,y,kind\n1,2,0\n1,{},1\n", "a".repeat(17 << 20));
    check(long.as_bytes(), &["line 3", "longer than 16 MiB"]);
    check(b"x,y,kind\n1,2,0\n1,2\n", &["t.csv, line 3", "2 fields, the header 3"]);
    check(b"x,y,kind\n1,2,0\n1,2,\n", &["line 3", "column `kind` is empty", "remove the row"]);
    for odd in ["NA", "?", "1.0", "two"] {
        let table = format!("x,y,kind\n1,2,0\n1,2,1\n1,2,{odd}\n");
        check(table.as_bytes(), &["line 4", &format!("class `{odd}`"), "not an integer"]);
    }
    check(b"x,y,kind\n1,2,0\n1,2,2\n", &["line 3", "2 classes", "class 2"]);
    check(b"x,y,kind\n1,2,a\n1,2,b\n1,2,c\n", &["line 4", "`c`", "number 2 of 3"]);
    check(b"x,y,kind\n", &["line 1", "no row"]);
    check(b"x,y,kind\n1,2,0\n", &["1 samples"]);
    let valid = csv(files(&["v.csv"]));
    let train: &[u8] = b"x,y,kind\n1,2,a\n1,3,b\n";
    check_error(
        &[("t.csv", train), ("v.csv", b"z,x,kind\n1,2,a\n")],
        &valid,
        &mlp(2, 2),
        &["v.csv, line 1", "column `y` is missing", "z, x"],
    );
    check_error(
        &[("t.csv", train), ("v.csv", b"x,y,kind,z\n1,2,a,0\n")],
        &valid,
        &mlp(2, 2),
        &["v.csv, line 1", "column `z` is not in the training data"],
    );
    check_error(
        &[("t.csv", train), ("v.csv", b"x,y,kind\n1,b,a\n")],
        &valid,
        &mlp(2, 2),
        &["v.csv, line 2", "column `y` has `b`", "finite number"],
    );
    check_error(
        &[("t.csv", train), ("v.csv", b"x,y,kind\n1,2,z\n")],
        &valid,
        &mlp(2, 2),
        &["v.csv, line 2", "`z`"],
    );
}

/// A table with this format of its columns.
fn ignoring(ignore: &[&str], valid: ValidationSource) -> Data {
    let ignore = ignore.iter().map(|name| (*name).to_owned()).collect();
    data(DataFormat::Csv(Columns { target: "kind".into(), ignore }), &["t.csv"], valid)
}

#[test]
fn numbers_keep_64_bits_until_they_are_standardised() {
    let table = b"time,kind\n1700000001,0\n1700000003,1\n1700000001,0\n1700000003,1\n1700000003,1\n";
    let root = folder(&[("t.csv", table)]);
    let set = opened(&root, &csv(ValidationSource::Fraction(0.2)), &mlp(1, 2)).expect("opened");
    assert_eq!(rows(&*set.train).0, [-1.0, 1.0, -1.0, 1.0]);
    assert_eq!(rows(&*set.valid).0, [1.0]);
}

#[test]
fn texts_become_categories_and_empty_cells_are_filled() {
    let table = "\u{feff}n;city;\"day; of entry\";id;kind\n\
                 1,5;Rome;2024-01-01;a1;x\n\
                 ;\"Bonn; West\";2024-01-03;a2;y\n\
                 2,5;;2024-01-01;a3;x\n\
                 NA;Rome;2024-01-03;a4;y\n";
    let root =
        folder(&[("t.csv", table.as_bytes()), ("v.csv", b"kind,city,n,day; of entry\ny,Paris,1.5,\n")]);
    let data = ignoring(&["id"], files(&["v.csv"]));
    let set = opened(&root, &data, &mlp(5, 2)).expect("opened");
    let expected = [
        [-1.0, 0.0, 0.0, 1.0, -1.0],
        [0.0, 0.0, 1.0, 0.0, 1.0],
        [1.0, 1.0, 0.0, 0.0, -1.0],
        [0.0, 0.0, 0.0, 1.0, 1.0],
    ];
    assert_eq!(rows(&*set.train).0, expected.concat(), "n, city: empty, Bonn and Rome, the day");
    assert_eq!(
        rows(&*set.valid),
        (vec![-1.0, 0.0, 0.0, 0.0, 0.0], vec![1]),
        "by name; Paris is none of them"
    );
    let facts = table_facts(&data, root.path()).expect("read").expect("a table");
    assert_eq!((facts.separator, facts.inputs), (Some("semicolons"), 5));
    let kinds: Vec<_> = facts.columns.iter().map(|column| (column.kind.clone(), column.empty)).collect();
    let categories = ["", "Bonn; West", "Rome"].map(str::to_owned).to_vec();
    assert_eq!(
        kinds,
        [
            (ColumnKind::Number, 2),
            (ColumnKind::Category(categories), 1),
            (ColumnKind::Date, 0),
            (ColumnKind::Ignored, 0),
            (ColumnKind::Class, 0)
        ]
    );
    check_error(
        &[("t.csv", table.as_bytes())],
        &ignoring(&["ID"], ValidationSource::Fraction(0.5)),
        &mlp(5, 2),
        &["`ID`", "n, city"],
    );
}

#[test]
fn the_separator_is_found() {
    for separator in [",", ";", "\t", "|"] {
        let table = "a,b,kind\n1,2,0\n3,\"4\",1\n".replace(',', separator);
        let root = folder(&[("t.csv", table.as_bytes())]);
        let set = opened(&root, &csv(ValidationSource::Fraction(0.5)), &mlp(2, 2)).expect("opened");
        assert_eq!(set.valid.len(), 1, "{separator:?}");
    }
}

#[test]
fn rows_are_mixed_by_the_seed_before_they_are_cut() {
    let table: String = (0..90).map(|row| format!("{row}.5,{}\n", row / 30)).collect();
    let root = folder(&[("t.csv", format!("x,kind\n{table}").as_bytes())]);
    let mixed = |mix| Data { mix, ..csv(ValidationSource::Fraction(0.25)) };
    let classes = |mix| {
        let set = opened(&root, &mixed(mix), &mlp(1, 3)).expect("opened");
        (rows(&*set.valid).1, set.warnings)
    };
    let (as_they_stand, warnings) = classes(None);
    assert!(as_they_stand.iter().all(|class| *class == 2), "the end of the file");
    assert_eq!(warnings, ["classes `0`, `1` are in the training data and not in the validation data"]);
    let (one, warnings) = classes(Some(1));
    assert!((0..3).all(|class| one.contains(&class)), "{one:?}");
    assert_eq!(warnings, [""; 0]);
    assert_eq!(one, classes(Some(1)).0);
    assert_ne!(one, classes(Some(2)).0);
}

#[test]
fn columns_from_which_nothing_can_be_learned_are_told() {
    let table: String = (0..30).map(|row| format!("{row},a{row},{},,{}\n", row % 7, row % 2)).collect();
    let root = folder(&[("t.csv", format!(",name,customer id,note,kind\n{table}").as_bytes())]);
    let facts =
        table_facts(&csv(ValidationSource::Fraction(0.5)), root.path()).expect("read").expect("a table");
    for (warning, part) in facts.warnings.iter().zip([
        "`column 1` counts the rows",
        "`name` has another text in each row",
        "`customer id` is called an id",
        "`note` is empty in every row",
    ]) {
        assert!(warning.contains(part) && warning.contains("data.ignore"), "`{part}` in: {warning}");
    }
    assert_eq!(facts.warnings.len(), 4);
    let many: String = (0..300).map(|row| format!("a{row},{}\n", row % 2)).collect();
    let table = format!("name,kind\n{many}");
    let expected = ["column `name`", "more than 256 different texts", "data.ignore = [\"name\"]"];
    check_error(&[("t.csv", table.as_bytes())], &csv(ValidationSource::Fraction(0.5)), &mlp(1, 2), &expected);
}
