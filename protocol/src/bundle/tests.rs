//! Tests of complete, truncated, damaged, newer and malicious bundles.

use super::*;

fn trial() -> TrialRecord {
    let text = |word: &str| word.to_owned();
    TrialRecord {
        id: TrialId("01M84B1AN3D6BS8C5CT0NRC956".into()),
        name: text("tiny-1"),
        machine: text("m"),
        host: text("gpu-01"),
        recipe: text("tiny"),
        study: Some(StudyName { name: text("tiny-tune-1"), digest: hash("x") }),
        objective: text("valid.loss"),
        goal: text("min"),
        layout: text("one rank"),
        batch: 32,
        learning_rate: 1e-3,
        config_hash: hash("c"),
        host_digest: hash("h"),
        model_digest: hash("m"),
        predicted: (Some(0.1), None, Some(7)),
        measured: (Some(0.2), Some(0.01), None),
        created_ms: 1,
        git_revision: None,
        git_dirty: false,
        program: text("0.1.0"),
        documents: ["recipe", "plan", "candidate", "provenance"].map(|kind| (text(kind), text("{}"))).into(),
        patch: Some(hash("+x")),
        environment: None,
        params: vec![(text("train.batch"), text("32"), text("recipe"))],
        records: vec![(5, text("\"resumed\""))],
        series: vec![Series { key: text("loss"), rank: 0, attempt: 1, points: 5000 }],
        notes: vec![(9, text("good"))],
        tags: BTreeMap::from([(text("keep"), text("yes"))]),
    }
}

fn records() -> Vec<Record> {
    let sample = |step: u64| MetricSample { step, at_ms: 10 * step, value: (step as f64).sqrt() };
    let samples: Vec<_> = (0..5000).map(sample).collect();
    let study = StudyRecord {
        name: trial().study.expect("it has one"),
        json: "{}".into(),
        created_ms: 3,
        trials: vec![StudyTrialRecord {
            number: 0,
            json: "{}".into(),
            trial: Some(trial().id),
            rejection: None,
        }],
        events: vec![(0, 4, "{}".into())],
    };
    let mut all = vec![Record::Text("+x".into()), Record::Trial(Box::new(trial()))];
    all.extend(samples.chunks(POINTS).map(|part| Record::Points(part.to_vec())));
    all.push(Record::Study(study));
    all
}

fn bundle(records: &[Record]) -> Vec<u8> {
    let head =
        ArchiveHeader { machine: "m".into(), host: "gpu-01".into(), program: "0.1.0".into(), trials: 1 };
    let mut writer = Writer::new(Vec::new(), &head).expect("memory");
    records.iter().for_each(|record| writer.write(record).expect("memory"));
    writer.finish().expect("memory")
}

fn read(bytes: &[u8]) -> Result<Vec<Record>, BundleError> {
    let mut reader = Reader::new(bytes)?;
    let mut all = Vec::new();
    while let Some(record) = reader.read()? {
        all.push(record);
    }
    Ok(all)
}

#[test]
fn records_come_back_and_every_cut_and_every_flipped_byte_is_refused() {
    let bytes = bundle(&records());
    assert_eq!(read(&bytes).expect("whole"), records());
    for length in (0..bytes.len()).step_by(97).chain(bytes.len() - 60..bytes.len()) {
        let error = read(&bytes[..length]).expect_err("cut");
        assert!(matches!(error, BundleError::Torn | BundleError::NoBundle), "{length}: {error}");
    }
    for at in (0..bytes.len()).step_by(89).chain(0..60) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        read(&damaged).expect_err("a byte differs");
    }
    let more = [&bytes[..], b"x"].concat();
    assert!(read(&more).expect_err("more").to_string().contains("more follows"), "after its end");
}

#[test]
fn what_is_no_bundle_and_a_newer_one_are_told_apart() {
    assert!(matches!(read(b"PK\x03\x04 a zip of something else"), Err(BundleError::NoBundle)));
    let mut newer = bundle(&records());
    newer[8] = 3;
    let error = read(&newer).expect_err("newer");
    assert!(error.to_string().contains("format 3") && error.to_string().contains("up to 2"), "{error}");
}

#[test]
fn ids_that_are_paths_names_that_steer_terminals_and_missing_points_are_refused() {
    let with = |change: &dyn Fn(&mut TrialRecord)| {
        let mut all = records();
        let Record::Trial(trial) = &mut all[1] else { panic!("it is the trial") };
        change(trial);
        read(&bundle(&all)).map(drop)
    };
    with(&|_| {}).expect("whole");
    for id in ["../../../../../../home/x/a", "01m84b1an3d6bs8c5ct0nrc956", ""] {
        with(&|trial| trial.id = TrialId(id.into())).expect_err(id);
    }
    with(&|trial| trial.host = "a\u{1b}[2J".into()).expect_err("it clears a screen");
    for name in ["/home/x/a", "../../a", "a/b", "..", ".a", "-a", "a\u{1b}[2J", "", &"a".repeat(201)] {
        let error = with(&|trial| trial.name = name.into()).expect_err(name).to_string();
        assert!(error.contains("a trial: `name` is ") && error.contains("plain name"), "{error}");
        with(&|trial| trial.recipe = format!("{name}/")).expect_err(name);
        with(&|trial| trial.study.as_mut().expect("it has one").name = name.into()).expect_err(name);
    }
    with(&|trial| trial.name = "last".into()).expect_err("it means another");
    with(&|trial| trial.series[0].points = 4999).expect_err("one too many");
    with(&|trial| trial.series[0].points = 5001).expect_err("one is missing");
    with(&|trial| trial.series.clear()).expect_err("of no series");
}

#[test]
fn a_field_that_an_import_would_stumble_over_is_named() {
    let said = |change: &dyn Fn(&mut Vec<Record>)| {
        let mut all = records();
        change(&mut all);
        read(&bundle(&all)).expect_err("it is wrong").to_string()
    };
    let trial_with = |change: &dyn Fn(&mut TrialRecord)| {
        said(&|all| {
            let Record::Trial(trial) = &mut all[1] else { panic!("it is the trial") };
            change(trial);
        })
    };
    let study_with = |change: &dyn Fn(&mut StudyRecord)| {
        said(&|all| {
            let Some(Record::Study(study)) = all.last_mut() else { panic!("it is the study") };
            change(study);
        })
    };
    let put = |trial: &mut TrialRecord, kind: &str, json: &str| {
        drop(trial.documents.insert(kind.into(), json.into()));
    };
    for (error, wanted) in [
        (
            trial_with(&|trial| trial.params[0].1 = "3x".into()),
            "trial tiny-1: `params.train.batch` is not JSON",
        ),
        (trial_with(&|trial| trial.params[0].1 = "[1]".into()), "`params.train.batch` is not a number"),
        (
            trial_with(&|trial| trial.params.push(trial.params[0].clone())),
            "`params.train.batch` is there twice",
        ),
        (
            trial_with(&|trial| trial.params[0].1 = format!("{:?}", "x".repeat(1 << 20))),
            "`params.train.batch` has 1048578 bytes, more than 1048576",
        ),
        (
            trial_with(&|trial| trial.notes[0].1 = "x".repeat(70_000)),
            "`notes[0]` has 70000 bytes, more than 65536",
        ),
        (
            trial_with(&|trial| drop(trial.tags.insert("keep".into(), "x".repeat(70_000)))),
            "`tags.keep` has 70000 bytes, more than 65536",
        ),
        (trial_with(&|trial| put(trial, "plan", "{")), "`documents.plan` is not JSON"),
        (trial_with(&|trial| put(trial, "plan", "[]")), "`documents.plan` is not a JSON object"),
        (trial_with(&|trial| drop(trial.documents.remove("candidate"))), "`documents.candidate` is missing"),
        (trial_with(&|trial| trial.records[0].1 = "resumed".into()), "`records[0]` is not JSON"),
        (trial_with(&|trial| trial.records[0].0 = u64::MAX), "`records[0]` is 18446744073709551615"),
        (trial_with(&|trial| trial.batch = u64::MAX), "`batch` is 18446744073709551615"),
        (trial_with(&|trial| trial.environment = Some(hash("other"))), "`environment` names a text"),
        (trial_with(&|trial| trial.goal = "best".into()), "`goal` is \"best\""),
        (study_with(&|study| study.json = "?".into()), "study tiny-tune-1: `json` is not JSON"),
        (study_with(&|study| study.trials.push(study.trials[0].clone())), "`trials[0]` is there twice"),
        (study_with(&|study| study.events[0].2.clear()), "`events[0]` is not JSON"),
        (said(&|all| all.push(all[1].clone())), "which another trial of the bundle has"),
        (said(&|all| all.push(all[all.len() - 1].clone())), "`name` is in the bundle twice"),
        (said(&|all| all[2..4].reverse()), "`series[loss]`"),
    ] {
        assert!(error.contains(wanted), "{error}, not {wanted}");
    }
}

#[test]
fn a_field_of_another_type_is_named_with_its_trial() {
    let head = ArchiveHeader { machine: "m".into(), host: "h".into(), program: "0.1.0".into(), trials: 1 };
    let mut json = serde_json::to_value(trial()).expect("JSON");
    json["notes"] = serde_json::json!([[1, "a \" quoted: {"]]);
    json["series"] = serde_json::json!("none");
    let mut writer = Writer::new(Vec::new(), &head).expect("memory");
    writer.write(&Record::Text("+x".into())).expect("memory");
    writer.json(TRIAL, &json).expect("memory");
    let error = read(&writer.finish().expect("memory")).expect_err("it is a text").to_string();
    assert!(error.starts_with("trial tiny-1: `series` cannot be read: invalid type"), "{error}");
}
