//! Damaged checkpoints of every kind.

use super::*;

#[test]
fn a_flipped_bit_is_always_found_and_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let tensors =
        [whole("first", TensorKind::Parameter, &[3000]), whole("second", TensorKind::Parameter, &[3000])];
    write(folder.path(), &tensors, 2);
    let name = "rank-00001.safetensors";
    let path = folder.path().join(name);
    let intact = fs::read(&path).expect("read");
    for position in 0..200 {
        let at = intact.len() * position / 200;
        let mut bytes = intact.clone();
        bytes[at] ^= 1 << (position % 8);
        fs::write(&path, &bytes).expect("written");
        let reader = TensorReader::open(folder.path()).expect("the length is right");
        // The first tensor is in the other file, which is intact.
        assert!(read(&reader, &tensors[0], 0..3000).is_ok(), "byte {at}");
        match read(&reader, &tensors[1], 10..20) {
            Err(CheckpointError::Corrupt { tensor, file, offset: 0, .. }) => {
                assert_eq!((tensor.as_str(), file.as_str()), ("second", name));
            }
            other => panic!("byte {at}: {other:?}"),
        }
    }
}

#[test]
fn a_flipped_bit_in_a_later_chunk_names_its_offset_and_spares_the_others() {
    let folder = tempfile::tempdir().expect("a folder");
    let elements = CHUNK_BYTES / 2;
    let tensors = [whole("large", TensorKind::Parameter, &[elements])];
    write(folder.path(), &tensors, 1);
    let path = folder.path().join("rank-00000.safetensors");
    let mut bytes = fs::read(&path).expect("read");
    bytes[CHUNK_BYTES as usize + 77] ^= 4;
    fs::write(&path, &bytes).expect("written");
    let reader = TensorReader::open(folder.path()).expect("opened");
    assert!(read(&reader, &tensors[0], 0..100).is_ok());
    let error = read(&reader, &tensors[0], elements - 600_000..elements - 500_000).expect_err("damaged");
    assert!(matches!(error, CheckpointError::Corrupt { offset: CHUNK_BYTES, .. }), "{error}");
    assert!(read(&reader, &tensors[0], 0..100).is_ok(), "the good chunk is still good");
}

#[test]
fn what_was_not_fetched_is_never_taken_for_zeros_nor_for_damage() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = root.path().join("step-000000005.a1.fetched");
    fs::create_dir(&folder).expect("a folder");
    let elements = CHUNK_BYTES;
    let tensors = [whole("large", TensorKind::Parameter, &[elements])];
    write(&folder, &tensors, 1);
    let path = folder.join("rank-00000.safetensors");
    let bytes = fs::read(&path).expect("read");
    // Like a file of which only the second chunk was not fetched.
    let chunk = CHUNK_BYTES as usize;
    let holed = [&bytes[..chunk], &vec![0; chunk][..], &bytes[2 * chunk..]].concat();
    fs::write(&path, holed).expect("written");
    let reader = TensorReader::open(&folder).expect("opened");
    assert!(read(&reader, &tensors[0], 0..100).is_ok());
    assert!(read(&reader, &tensors[0], elements - 100..elements).is_ok());
    let error = read(&reader, &tensors[0], elements / 2 - 5000..elements / 2 - 4990).expect_err("a hole");
    let CheckpointError::NotFetched { file, offset: CHUNK_BYTES, .. } = &error else { panic!("{error}") };
    assert!(file == "rank-00000.safetensors" && error.is_of_this_process(), "the checkpoint is not to blame");
}

/// Writes a small checkpoint, damages it, and expects that it cannot be opened, with `expected` in the
/// message.
fn check_refused(expected: &str, damage: impl FnOnce(&Path)) {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), &model(), 2);
    check_whole(folder.path(), &model());
    damage(folder.path());
    let error = TensorReader::open(folder.path()).map(drop).expect_err(expected).to_string();
    assert!(error.contains(expected), "expected `{expected}` in: {error}");
}

/// Expects an error for a damaged manifest with a valid `COMMIT`: the reader itself must notice.
fn check_lie(expected: &str, lie: impl FnOnce(&mut Manifest)) {
    check_refused(expected, |folder| {
        let json = fs::read(folder.join("manifest.json")).expect("read");
        let mut manifest = serde_json::from_slice(&json).expect("json");
        lie(&mut manifest);
        put_manifest(folder, &serde_json::to_vec(&manifest).expect("json"));
    });
}

#[test]
fn a_checkpoint_that_is_not_whole_is_refused() {
    let first = |folder: &Path| folder.join("rank-00000.safetensors");
    check_refused("manifest.json", |folder| fs::remove_file(folder.join("manifest.json")).expect("removed"));
    check_refused("COMMIT", |folder| fs::remove_file(folder.join("COMMIT")).expect("removed"));
    check_refused("COMMIT has blake3 00", |folder| fs::write(folder.join("COMMIT"), "00").expect("written"));
    check_refused("rank-00000", |folder| fs::remove_file(first(folder)).expect("removed"));
    check_refused(" bytes, expected ", |folder| {
        let length = fs::metadata(first(folder)).expect("there").len();
        fs::File::options().write(true).open(first(folder)).expect("open").set_len(length - 1).expect("cut");
    });
    check_refused("not a regular file", |folder| {
        fs::rename(first(folder), folder.join("elsewhere")).expect("renamed");
        std::os::unix::fs::symlink(folder.join("elsewhere"), first(folder)).expect("linked");
    });
    check_refused("COMMIT has blake3", |folder| {
        let path = folder.join("manifest.json");
        let text = fs::read_to_string(&path).expect("read").replace("\"cursor\":40", "\"cursor\":41");
        fs::write(path, text).expect("written");
    });
}

#[test]
fn swapped_files_are_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let tensors = [whole("x", TensorKind::Parameter, &[64])];
    write(folder.path(), &tensors, 2);
    let path = |name: &str| folder.path().join(name);
    fs::rename(path("rank-00000.safetensors"), path("kept")).expect("renamed");
    fs::rename(path("rank-00001.safetensors"), path("rank-00000.safetensors")).expect("renamed");
    fs::rename(path("kept"), path("rank-00001.safetensors")).expect("renamed");
    let reader = TensorReader::open(folder.path()).expect("lengths are equal");
    let error = read(&reader, &tensors[0], 0..64).expect_err("they are swapped");
    assert!(matches!(error, CheckpointError::Corrupt { .. }), "{error}");
}

#[test]
fn a_lying_manifest_is_refused() {
    for name in ["../secret", "/etc/passwd", "a/b", "..", "", ".hidden", "a\0b", "a\\b"] {
        check_lie("is not the name of a file", |manifest| manifest.files[0].name = name.into());
    }
    check_lie("not listed", |manifest| manifest.tensors[0].pieces[0].file = "../secret".into());
    check_lie("format 3", |manifest| manifest.format = 3);
    check_lie("format 0", |manifest| manifest.format = 0);
    check_lie(" bytes, expected ", |manifest| manifest.files[0].bytes += 1);
    check_lie("hashes do not match", |manifest| manifest.files[0].bytes = u64::MAX);
    check_lie("hashes do not match", |manifest| manifest.files[0].chunks.push(String::new()));
    check_lie("is impossible", |manifest| manifest.tensors[0].shape = vec![u64::MAX, 2]);
    check_lie("is impossible", |manifest| manifest.tensors[0].shape = vec![u64::MAX]);
    check_lie("element [35] lies in no piece", |manifest| manifest.tensors[0].shape = vec![1 << 40]);
    check_lie("a.weight: element [0, 0] lies in no piece", |manifest| {
        manifest.tensors[0].pieces[0].begin = 1;
    });
    check_lie("elements 0..36 of a region of 35", |manifest| manifest.tensors[0].pieces[0].end = 36);
    check_lie("does not fit", |manifest| manifest.tensors[0].pieces[0].sides = vec![0..u64::MAX, 0..5]);
    check_lie("does not fit", |manifest| {
        manifest.tensors[0].pieces[0].sides = vec![Range { start: 5, end: 3 }, 0..5];
    });
    check_lie("does not fit", |manifest| manifest.tensors[0].pieces[0].sides = vec![0..7, 0..5, 0..1]);
    check_lie("twice", |manifest| manifest.files.push(manifest.files[0].clone()));
    check_lie("twice", |manifest| manifest.tensors.push(manifest.tensors[0].clone()));
}

/// Replaces the header of a rank's file and commits it, as an attacker could; reading `x` must fail
/// cleanly.
fn check_head(expected: &str, head: &[u8]) {
    let folder = tempfile::tempdir().expect("a folder");
    let tensor = whole("x", TensorKind::Parameter, &[1000]);
    let mut saved = write(folder.path(), std::slice::from_ref(&tensor), 1);
    let path = folder.path().join("rank-00000.safetensors");
    let mut bytes = fs::read(&path).expect("read");
    bytes[..head.len()].copy_from_slice(head);
    fs::write(&path, &bytes).expect("written");
    saved[0].file.chunks = vec![blake3::hash(&bytes).to_hex().to_string()];
    commit(folder.path(), saved);
    let reader = TensorReader::open(folder.path()).expect("opened");
    let error = read(&reader, &tensor, 0..10).expect_err(expected).to_string();
    assert!(error.contains(expected) && error.contains("tensor x"), "expected `{expected}` in: {error}");
}

#[test]
fn a_lying_head_is_refused_before_anything_is_allocated_for_it() {
    let with = |json: &str| [&(json.len() as u64).to_le_bytes()[..], json.as_bytes()].concat();
    check_head("does not fit", &u64::MAX.to_le_bytes());
    check_head("does not fit", &50_000_000u64.to_le_bytes());
    check_head("not JSON", &with("{"));
    check_head("no entry", &with("{}"));
    check_head("type F32", &with(r#"{"x":{"dtype":"F64","shape":[1000],"data_offsets":[0,4000]}}"#));
    check_head("does not fill", &with(r#"{"x":{"dtype":"F32","shape":[999],"data_offsets":[0,4000]}}"#));
    check_head(
        "does not fill",
        &with(r#"{"x":{"dtype":"F32","shape":[4611686018427387905,4],"data_offsets":[0,16]}}"#),
    );
    check_head("does not fill", &with(r#"{"x":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}"#));
    check_head(
        "outside of the file",
        &with(r#"{"x":{"dtype":"F32","shape":[1000],"data_offsets":[90000,94000]}}"#),
    );
    check_head(
        "outside of the file",
        &with(
            r#"{"x":{"dtype":"F32","shape":[1],"data_offsets":[18446744073709551611,18446744073709551615]}}"#,
        ),
    );
    check_head(" elements, found ", &with(r#"{"x":{"dtype":"F32","shape":[10],"data_offsets":[0,40]}}"#));
}

#[test]
fn what_is_not_there_is_missing_rather_than_zero() {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), &model(), 1);
    let reader = TensorReader::open(folder.path()).expect("opened");
    let ask = |name: &str, shape: &[u64]| {
        let wanted = Slice::whole(shape);
        let mut room = vec![0.0; wanted.elements() as usize];
        reader.read(name, TensorKind::Parameter, &wanted, &mut room).map_err(|error| error.to_string())
    };
    assert!(ask("b.bias", &[3]).is_ok());
    let error = "the checkpoint has no absent of shape [1]: no such tensor";
    assert_eq!(ask("absent", &[1]), Err(error.into()));
    let error = "the checkpoint has no b.bias of shape [4]: it has shape [3] there";
    assert_eq!(ask("b.bias", &[4]), Err(error.into()));
}

#[test]
fn saving_into_a_place_that_is_no_folder_says_so() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file");
    fs::write(&file, "x").expect("written");
    let error = save(&file.join("below"), Rank(0), &[]).expect_err("a file is no folder");
    assert!(matches!(error, CheckpointError::Io { action: "making", .. }), "{error}");
}

#[test]
fn too_little_room_is_told_in_bytes() {
    let error = CheckpointError::Full { folder: "/x".into(), needed: 7, available: 3 };
    let text = error.to_string();
    assert!(
        text.contains("3 bytes free") && text.contains("needs 7") && text.contains("checkpoint.keep"),
        "{text}"
    );
}
