//! Parquet files.

use super::*;
use parquet::basic::{Compression, GzipLevel, ZstdLevel};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DoubleType, Int32Type, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::Type;

/// The values of a column of a row group.
enum Column<'a> {
    /// `None` is null; the column must be optional.
    Texts(&'a [Option<&'a [u8]>]),
    Bools(&'a [bool]),
    Ints(&'a [i32]),
    Longs(&'a [i64]),
    Doubles(&'a [f64]),
}
use Column::*;

/// A Parquet file with the columns of `schema`.
fn written(schema: &str, compression: Compression, groups: &[&[Column]]) -> Vec<u8> {
    let schema = parse_message_type(&format!("message rows {{ {schema} }}")).expect("a schema");
    written_as(schema, WriterProperties::builder().set_compression(compression).build(), groups)
}

fn written_as(schema: Type, properties: WriterProperties, groups: &[&[Column]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut file =
        SerializedFileWriter::new(&mut bytes, Arc::new(schema), Arc::new(properties)).expect("a file");
    for group in groups {
        let mut to = file.next_row_group().expect("a row group");
        for column in *group {
            let mut writer = to.next_column().expect("the ones before").expect("a column of the schema");
            let written = match column {
                Texts(texts) => {
                    let levels: Vec<i16> = texts.iter().map(|text| i16::from(text.is_some())).collect();
                    let texts: Vec<ByteArray> = texts.iter().flatten().map(|text| (*text).into()).collect();
                    writer.typed::<ByteArrayType>().write_batch(&texts, Some(&levels), None)
                }
                Bools(values) => writer.typed::<BoolType>().write_batch(values, None, None),
                Ints(values) => writer.typed::<Int32Type>().write_batch(values, None, None),
                Longs(values) => writer.typed::<Int64Type>().write_batch(values, None, None),
                Doubles(values) => writer.typed::<DoubleType>().write_batch(values, None, None),
            };
            written.expect("written");
            writer.close().expect("a column");
        }
        to.close().expect("a row group");
    }
    file.close().expect("a file");
    bytes
}

fn plain(schema: &str, groups: &[&[Column]]) -> Vec<u8> {
    written(schema, Compression::UNCOMPRESSED, groups)
}

const TEXT: &str = "OPTIONAL BYTE_ARRAY text (UTF8);";

fn texts() -> Data {
    let documents = Documents::Parquet("text".into());
    let format = DataFormat::Text { tokenizer: Tokenizer::Bytes, documents, separator: Separator::Auto };
    data(format, &["t.parquet"], ValidationSource::Fraction(0.1))
}

fn tables(valid: ValidationSource) -> Data {
    data(DataFormat::Parquet(Columns::of("kind")), &["t.parquet"], valid)
}

#[test]
fn a_page_that_takes_much_memory_is_refused() {
    let text = vec![b'a'; (256 << 20) + 1];
    let bytes =
        written(TEXT, Compression::ZSTD(ZstdLevel::default()), &[&[Texts(&[Some(b"b"), Some(&text)])]]);
    assert!(bytes.len() < 1 << 20);
    let expected = ["t.parquet, row group 0", "column `text`", "smaller pages"];
    check_error(&[("t.parquet", &bytes)], &texts(), &decoder(1, 256), &expected);
}

#[test]
fn many_pages_may_be_more_than_one_may() {
    let texts_of_a_page = vec![b'a'; 8 << 20];
    let rows = vec![Some(&texts_of_a_page[..]); 40];
    let schema = parse_message_type(&format!("message rows {{ {TEXT} }}")).expect("a schema");
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_dictionary_enabled(false)
        .build();
    let bytes = written_as(schema, properties, &[&[Texts(&rows)]]);
    let root = folder(&[("t.parquet", &bytes)]);
    let facts = corpus(&texts(), root.path(), 0).expect("320 MiB in pages of 8").expect("text");
    assert_eq!((facts.documents, facts.duplicates, facts.bytes), (40, 39, 40 * (8 << 20)));
}

#[test]
fn rows_of_every_row_group_are_documents_however_they_are_compressed() {
    let schema = "REQUIRED INT64 id; OPTIONAL BYTE_ARRAY text (UTF8);";
    let lines: Vec<String> = (0..150).map(|line| format!("line {line}")).collect();
    let first: Vec<Option<&[u8]>> = lines.iter().map(|line| Some(line.as_bytes())).collect();
    let ids: Vec<i64> = (0..150).collect();
    let last = [Some("ä".as_bytes()), Some(b"".as_slice()), Some(b"end".as_slice())];
    let groups: [&[Column]; 2] = [&[Longs(&ids), Texts(&first)], &[Longs(&[1, 2, 3]), Texts(&last)]];
    let expected = format!("{}\nä\n\nend\n", lines.join("\n"));
    for compression in [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::GZIP(GzipLevel::default()),
        Compression::ZSTD(ZstdLevel::default()),
    ] {
        let root = folder(&[("t.parquet", &written(schema, compression, &groups))]);
        let set = opened(&root, &texts(), &decoder(1, 256)).expect("opened");
        let mut found = inputs(&set);
        found.push(u32::from(b'\n'));
        assert_eq!(found, expected.bytes().map(u32::from).collect::<Vec<_>>(), "{compression:?}");
        let facts = corpus(&texts(), root.path(), 1).expect("read").expect("text");
        assert_eq!((facts.documents, facts.samples), (153, vec!["line 0".to_owned()]));
    }
}

#[test]
fn columns_in_structures_have_dots_in_their_names() {
    let schema = "REQUIRED group page { OPTIONAL BYTE_ARRAY text (UTF8); }";
    let root = folder(&[("t.parquet", &plain(schema, &[&[Texts(&[Some(b"abc")])]]))]);
    let format = |column: &str| DataFormat::Text {
        tokenizer: Tokenizer::Bytes,
        documents: Documents::Parquet(column.into()),
        separator: Separator::None,
    };
    let set = opened(
        &root,
        &data(format("page.text"), &["t.parquet"], ValidationSource::Fraction(0.5)),
        &decoder(1, 256),
    );
    assert_eq!(inputs(&set.expect("opened")), [u32::from(b'a'), u32::from(b'b')]);
}

#[test]
fn wrong_columns_of_text_are_told_with_their_row() {
    let check = |file: &[u8], expected: &[&str]| {
        check_error(&[("t.parquet", file)], &texts(), &decoder(1, 256), expected);
    };
    let good: [Option<&[u8]>; 70] = [Some(b"a"); 70];
    let mut null = good;
    null[67] = None;
    let null = plain(TEXT, &[&[Texts(&good)], &[Texts(&null)]]);
    check(&null, &["t.parquet, row group 1, row 67", "column `text` is null"]);
    let bytes = plain(TEXT, &[&[Texts(&[Some(b"a"), Some(b"\xff")])]]);
    check(&bytes, &["row group 0, row 1", "column `text`", "UTF-8"]);
    let other = plain("REQUIRED INT64 id; OPTIONAL BYTE_ARRAY body (UTF8);", &[]);
    check(&other, &["t.parquet, the schema", "no column `text`", "id, body", "`data.field`"]);
    check(&plain("REQUIRED INT64 text;", &[]), &["the schema", "`text` is INT64", "expected text"]);
    let list = "REQUIRED group text (LIST) { REPEATED group list { REQUIRED BYTE_ARRAY element (UTF8); } }";
    check(&plain(list, &[]), &["no column `text`", "text.list.element"]);
    check(b"{\"text\": \"a\"}\n", &["t.parquet, the end", "expected a Parquet file"]);
    check(&null[..null.len() / 2], &["t.parquet, the end", "is the file whole?"]);
    check(&plain(TEXT, &[]), &["no text", "data.train"]);
}

#[test]
fn tables_are_read_as_those_of_csv() {
    let schema = "REQUIRED INT32 a; OPTIONAL BYTE_ARRAY kind (UTF8); REQUIRED DOUBLE b; REQUIRED BOOLEAN c; \
                  REQUIRED INT64 d;";
    let parquet = plain(
        schema,
        &[
            &[
                Ints(&[1, -2]),
                Texts(&[Some(b"y"), Some(b"x")]),
                Doubles(&[0.5, 8.0]),
                Bools(&[true, false]),
                Longs(&[7, 9]),
            ],
            &[Ints(&[3]), Texts(&[Some(b"z")]), Doubles(&[-1.0]), Bools(&[true]), Longs(&[8])],
        ],
    );
    let table = b"a,kind,b,c,d\n1,y,0.5,1,7\n-2,x,8,0,9\n3,z,-1,1,8\n";
    let root = folder(&[("t.parquet", &parquet), ("t.csv", table)]);
    let read = |data: &Data| {
        let set = opened(&root, data, &mlp(4, 3)).expect("opened");
        (rows(&*set.train), rows(&*set.valid))
    };
    assert_eq!(read(&tables(ValidationSource::Fraction(0.3))), read(&csv(ValidationSource::Fraction(0.3))));
}

#[test]
fn classes_may_be_numbers_or_true_and_false() {
    let classes = |kind: &str, values: Column| {
        let schema = format!("REQUIRED INT32 a; REQUIRED {kind} kind;");
        let root = folder(&[("t.parquet", &plain(&schema, &[&[Ints(&[1, 2, 3]), values]]))]);
        let set = opened(&root, &tables(ValidationSource::Fraction(0.3)), &mlp(1, 3)).expect("opened");
        [rows(&*set.train).1, rows(&*set.valid).1].concat()
    };
    assert_eq!(classes("INT64", Longs(&[2, 0, 1])), [2, 0, 1]);
    assert_eq!(classes("DOUBLE", Doubles(&[2.0, 0.0, 1.0])), [2, 0, 1]);
    assert_eq!(classes("BOOLEAN", Bools(&[true, false, true])), [1, 0, 1]);
}

#[test]
fn integers_without_a_sign_are_not_negative() {
    let schema = "REQUIRED INT32 a (UINT_32); REQUIRED INT32 kind;";
    // As stored, -1 is the largest number and not the smallest.
    let file = plain(schema, &[&[Ints(&[0, -1, 0]), Ints(&[0, 1, 0])]]);
    let root = folder(&[("t.parquet", &file)]);
    let set = opened(&root, &tables(ValidationSource::Fraction(0.3)), &mlp(1, 2)).expect("opened");
    assert_eq!(rows(&*set.train).0, [-1.0, 1.0]);
}

#[test]
fn nulls_dates_and_texts_of_parquet_are_those_of_csv() {
    let schema = "REQUIRED INT64 time (TIMESTAMP_MILLIS); OPTIONAL BYTE_ARRAY city (UTF8); REQUIRED DOUBLE n; \
                  REQUIRED INT32 day (DATE); REQUIRED INT32 kind;";
    let parquet = plain(
        schema,
        &[&[
            Longs(&[0, 86_400_000, 0, 86_400_000]),
            Texts(&[Some(b"Rome"), None, Some(b"Bonn"), Some(b"Rome")]),
            Doubles(&[1.0, f64::NAN, 3.0, 1_700_000_001.0]),
            Ints(&[19_000, 19_002, 19_000, 19_002]),
            Ints(&[0, 1, 0, 1]),
        ]],
    );
    let table = b"time,city,n,day,kind\n1970-01-01,Rome,1,2022-01-08,0\n1970-01-02,,nan,2022-01-10,1\n\
                  1970-01-01,Bonn,3,2022-01-08,0\n1970-01-02,Rome,1700000001,2022-01-10,1\n";
    let root = folder(&[("t.parquet", &parquet), ("t.csv", table)]);
    let read = |data: &Data| {
        let set = opened(&root, data, &mlp(6, 2)).expect("opened");
        (rows(&*set.train), rows(&*set.valid))
    };
    assert_eq!(read(&tables(ValidationSource::Fraction(0.5))), read(&csv(ValidationSource::Fraction(0.5))));
}

#[test]
fn wrong_tables_of_parquet_are_told_with_their_row() {
    let check = |file: &[u8], expected: &[&str]| {
        check_error(&[("t.parquet", file)], &tables(ValidationSource::Fraction(0.5)), &mlp(1, 2), expected);
    };
    let numbers = "REQUIRED DOUBLE a; REQUIRED INT32 kind;";
    let good: &[Column] = &[Doubles(&[1.0, 2.0]), Ints(&[0, 1])];
    let infinite = plain(numbers, &[good, &[Doubles(&[1.0, f64::INFINITY]), Ints(&[0, 1])]]);
    check(&infinite, &["t.parquet, row group 1, row 1", "column `a` has `inf`", "finite"]);
    let class = plain(numbers, &[good, &[Doubles(&[1.0]), Ints(&[2])]]);
    check(&class, &["row group 1, row 0", "2 classes", "class 2"]);
    let time = plain("REQUIRED INT32 a (TIME_MILLIS); REQUIRED INT32 kind;", &[]);
    check(
        &time,
        &["the schema", "column `a` is INT32 (", "expected numbers, dates", "data.ignore = [\"a\"]"],
    );
    let null = plain(
        "REQUIRED DOUBLE a; OPTIONAL BYTE_ARRAY kind (UTF8);",
        &[&[Doubles(&[1.0, 2.0]), Texts(&[Some(b"x"), None])]],
    );
    check(&null, &["row group 0, row 1", "column `kind` is empty"]);
    let none = plain("REQUIRED DOUBLE a; REQUIRED DOUBLE b;", &[]);
    check(&none, &["the schema", "no column `kind`", "a, b", "`data.target`"]);
    let wide = plain(
        "REQUIRED DOUBLE a; REQUIRED DOUBLE b; REQUIRED INT32 kind;",
        &[&[Doubles(&[1.0]), Doubles(&[1.0]), Ints(&[0])]],
    );
    check(&wide, &["the schema", "besides `kind` give 2 inputs", "model.inputs = 2"]);
    check(&plain(numbers, &[]), &["the schema", "no row"]);
    let cell = vec![b'a'; 257 << 20];
    let large = written(
        "OPTIONAL BYTE_ARRAY a (UTF8); REQUIRED INT32 kind;",
        Compression::ZSTD(ZstdLevel::default()),
        &[&[Texts(&[Some(&cell)]), Ints(&[0])]],
    );
    check(&large, &["column `a` has 257 MiB of text", "at most 256 MiB"]);
}

#[test]
fn equal_values_count_as_what_comes_out_of_them() {
    let rows = 100_000;
    let schema = "REQUIRED DOUBLE a; REQUIRED INT32 kind;";
    let file = written(
        schema,
        Compression::ZSTD(ZstdLevel::default()),
        &[&[Doubles(&vec![0.0; rows]), Ints(&vec![1; rows])]],
    );
    assert!(file.len() < 10_000, "{} bytes", file.len());
    let root = folder(&[("t.parquet", &file)]);
    let bytes = unpacked_bytes(&root.path().join("t.parquet"), u64::MAX).expect("a Parquet file");
    assert!(bytes >= 2 * 8 * rows as u64, "{bytes}");
}
