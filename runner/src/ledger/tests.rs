//! A full disk, simulated without root by SQLite's limit on the size of the file.

use crate::History;

#[test]
fn a_full_disk_keeps_whole_batches_and_later_ones_once_there_is_room() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("history.db");
    let mut history = History::open(&path).expect("made");
    let fill = |history: &mut History, batch: i64| {
        history.write("write to", |transaction| {
            for row in 0..10 {
                let text = format!("{row}").repeat(2000);
                transaction.execute("INSERT INTO scratch VALUES (?1, ?2)", (batch, text))?;
            }
            Ok(())
        })
    };
    let rows = |history: &History| -> i64 {
        history
            .read("count in", |database| {
                Ok(database.query_row("SELECT count(*) FROM scratch", [], |row| row.get(0))?)
            })
            .expect("it is read")
    };
    history
        .write("prepare", |transaction| {
            Ok(transaction.execute_batch("CREATE TABLE scratch(batch INTEGER, text TEXT) STRICT")?)
        })
        .expect("there is room");
    let pages: i64 =
        history.database.query_row("PRAGMA page_count", [], |row| row.get(0)).expect("it is told");
    history.database.pragma_update(None, "max_page_count", pages + 40).expect("it is obeyed");
    let kept = (0..).take_while(|batch| fill(&mut history, *batch).is_ok()).count() as i64;
    let error = fill(&mut history, kept).expect_err("there is no room").source.to_string();
    assert!(error.contains("full"), "{error}");
    assert!(kept > 1 && rows(&history) == 10 * kept, "whole batches");
    history.database.pragma_update(None, "max_page_count", pages + 400).expect("it is obeyed");
    fill(&mut history, kept).expect("there is room again");
    assert_eq!(rows(&History::open(&path).expect("opens")), 10 * (kept + 1));
}
