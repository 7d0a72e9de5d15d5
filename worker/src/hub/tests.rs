use super::cache::HubCache;
use super::endpoint::HubEndpoint;
use super::listing::{HubFile, HubListing, is_file_name, shards};
use crate::data::FileDigest;
use dtrain_recipes::HubModel;
use std::ffi::OsString;
use std::fs;
use ureq::http::StatusCode;

const COMMIT: &str = "060db6499f32faf8b98477b0a26969ef7d8b9987";

fn model() -> HubModel {
    HubModel::parse("hf:Qwen/Qwen2.5-0.5B").expect("a name")
}

/// The endpoint for these environment variables; `Err` with the message.
fn endpoint(variables: &[(&str, &str)]) -> Result<HubEndpoint, String> {
    let value = |name: &str| {
        variables.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value))
    };
    HubEndpoint::of(&value).map_err(|error| error.to_string())
}

#[test]
fn the_server_and_the_token_come_from_the_variables_of_huggingface_hub() {
    let folder = tempfile::tempdir().expect("a folder");
    let home = folder.path().display().to_string();
    fs::create_dir_all(folder.path().join(".cache/huggingface")).expect("made");
    fs::write(folder.path().join(".cache/huggingface/token"), "kept\n").expect("written");
    fs::write(folder.path().join("other"), "other\n").expect("written");
    let other = folder.path().join("other").display().to_string();
    let kept = endpoint(&[("HOME", &home)]).expect("an endpoint");
    assert_eq!(kept.token(), Some("kept"));
    assert_eq!(kept.page(&model()), "https://huggingface.co/Qwen/Qwen2.5-0.5B");
    assert_eq!(endpoint(&[("HOME", &home), ("HF_TOKEN_PATH", &other)]).expect("one").token(), Some("other"));
    let named = endpoint(&[("HOME", &home), ("HF_TOKEN", "named"), ("HF_ENDPOINT", "http://mirror:81/hub/")]);
    let named = named.expect("an endpoint");
    assert_eq!(named.token(), Some("named"));
    assert_eq!(
        named.file(&model(), COMMIT, "config.json"),
        format!("http://mirror:81/hub/Qwen/Qwen2.5-0.5B/resolve/{COMMIT}/config.json")
    );
    let branch = HubModel::parse("hf:a/b@refs/pr/1").expect("a name");
    assert_eq!(
        named.description(&branch),
        "http://mirror:81/hub/api/models/a/b/revision/refs%2Fpr%2F1?blobs=true"
    );
    assert_eq!(endpoint(&[]).expect("an endpoint").token(), None);
    assert!(endpoint(&[("HF_HUB_OFFLINE", "1")]).expect("an endpoint").is_offline());
}

#[test]
fn a_wrong_server_or_token_is_refused_without_repeating_it() {
    for (name, value) in [
        ("HF_ENDPOINT", "hunter2.example"),
        ("HF_ENDPOINT", "ftp://hunter2"),
        ("HF_ENDPOINT", "https://me:hunter2@host"),
        ("HF_TOKEN", "hunter2\nX-Other: 1"),
    ] {
        let error = endpoint(&[(name, value)]).err().expect("refused");
        assert!(!error.contains("hunter2"), "{error}");
    }
}

#[test]
fn a_refusal_says_what_to_do() {
    let with_token = endpoint(&[("HF_TOKEN", "hunter2")]).expect("an endpoint");
    let without = endpoint(&[]).expect("an endpoint");
    for (endpoint, status, code, message, hint) in [
        (
            &without,
            401,
            Some("GatedRepo"),
            "no token was sent",
            "accepted the conditions at https://huggingface.co/Qwen/Q",
        ),
        (&with_token, 403, None, "the token has no access", "HF_TOKEN"),
        (&without, 401, Some("RepoNotFound"), "there is no model", "./Qwen/Qwen2.5-0.5B"),
        (&without, 404, None, "there is no model", "correct the name"),
        (&without, 404, Some("RevisionNotFound"), "no branch, tag or commit \"main\"", "/commits"),
        (&without, 418, None, "418", "HF_ENDPOINT"),
    ] {
        let status = StatusCode::from_u16(status).expect("a status");
        let error = endpoint.refusal(&model(), status, code);
        assert!(error.message.contains(message), "{error:?}");
        assert!(error.hint.contains(hint) && !format!("{error:?}").contains("hunter2"), "{error:?}");
    }
}

#[test]
fn a_listing_has_a_commit_and_digests() {
    let text = format!(
        r#"{{ "sha": "{COMMIT}", "more": 1, "siblings": [
            {{ "rfilename": "config.json", "size": 3, "blobId": "{COMMIT}" }},
            {{ "rfilename": "model.safetensors", "size": 9, "blobId": "{COMMIT}",
               "lfs": {{ "sha256": "{0}", "size": 9, "pointerSize": 135 }} }},
            {{ "rfilename": "tokenizer.json", "size": 9 }} ] }}"#,
        "AB".repeat(32)
    );
    let listing = HubListing::parse(&model(), "http://host", text.as_bytes()).expect("a listing");
    assert_eq!(listing.commit(), COMMIT);
    let config = listing.expect("config.json").expect("listed");
    assert_eq!((config.bytes, &config.digest), (3, &FileDigest::GitBlob(COMMIT.to_owned())));
    let weights = listing.expect("model.safetensors").expect("listed");
    assert_eq!(weights.digest, FileDigest::Sha256("ab".repeat(32)));
    assert!(listing.find("tokenizer.json").is_err(), "it cannot be verified");
    assert_eq!(listing.find("chat_template.jinja"), Ok(None));
    for wrong in ["<html>", "{}", r#"{ "sha": "main", "siblings": [] }"#] {
        let error = HubListing::parse(&model(), "http://host/api", wrong.as_bytes()).expect_err("refused");
        assert!(error.message.contains("http://host/api") && error.hint.contains("HF_ENDPOINT"), "{error:?}");
    }
    let other = model().at(&"a".repeat(40)).expect("pinned");
    assert!(
        HubListing::parse(&other, "http://host", text.as_bytes()).is_err(),
        "another commit than was asked for"
    );
}

#[test]
fn names_that_lead_out_of_the_folder_are_refused() {
    assert!(is_file_name("model-00001-of-00003.safetensors"));
    for name in [
        "../x.safetensors",
        "a/b.safetensors",
        ".x.safetensors",
        "a..safetensors",
        "config.json",
        "a\\b.safetensors",
        "",
    ] {
        assert!(!is_file_name(name), "{name}");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let index = folder.path().join("index.json");
    fs::write(&index, r#"{ "weight_map": { "a": "../../x.safetensors" } }"#).expect("written");
    let error = shards(&model(), &index).expect_err("refused");
    assert!(error.message.contains("../../x.safetensors"), "{error:?}");
}

#[test]
fn a_commit_is_complete_only_with_all_its_files_unchanged() {
    let folder = tempfile::tempdir().expect("a folder");
    let cache = HubCache::below(folder.path(), &model());
    cache.make().expect("made");
    cache.make_folder(COMMIT).expect("made");
    let path = cache.folder(COMMIT).join("config.json");
    let file = HubFile {
        name: "config.json".to_owned(),
        bytes: 6,
        digest: FileDigest::GitBlob("ce013625030ba8dba906f756967f9e9ca394464a".to_owned()),
    };
    assert!(!cache.is_there(COMMIT, &file, &|| ()).expect("looked at"));
    fs::write(&path, "hello\n").expect("written");
    assert!(cache.is_there(COMMIT, &file, &|| ()).expect("looked at"));
    assert!(!cache.is_complete(COMMIT) && cache.commits().is_empty());
    cache.record_complete(COMMIT).expect("recorded");
    assert!(cache.is_complete(COMMIT));
    assert_eq!(cache.commits(), [COMMIT]);
    // The same content at another time is verified again, another content is removed.
    fs::write(&path, "hello\n").expect("written");
    assert!(cache.is_complete(COMMIT));
    fs::write(&path, "jello\n").expect("written");
    assert!(!cache.is_complete(COMMIT));
    assert!(!cache.is_there(COMMIT, &file, &|| ()).expect("looked at") && !path.exists());
}

#[test]
fn branches_are_remembered() {
    let folder = tempfile::tempdir().expect("a folder");
    let cache = HubCache::below(folder.path(), &model());
    cache.make().expect("made");
    assert_eq!(cache.commit_of_ref("main"), None);
    cache.record_ref("main", COMMIT).expect("recorded");
    cache.record_ref("refs/pr/1", "other").expect("recorded");
    cache.record_ref("main", "newer").expect("recorded");
    assert_eq!(cache.commit_of_ref("main").as_deref(), Some("newer"));
    assert_eq!(cache.commit_of_ref("refs/pr/1").as_deref(), Some("other"));
}
